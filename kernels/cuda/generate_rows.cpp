// Fused steps with row instructions: softmax, norms, losses and their gradients in one pass over
// memory.
//
// T threads share a row and hold its elements in registers, `width` neighbours at a time: thread t
// has the elements (k T + t) width + j. The instructions are divided into phases: phase p + 1
// begins when the row reductions of phase p are done. A value that a later phase reads stays in
// registers, so every element is loaded once and stored once. Outputs are stored in a phase after
// all loads, so an output may alias an input. A block has whole rows. Rows beyond the last one
// compute what the last one does and store nothing.
//
// The last outputs may be sums over rows (attribute "column_sums": the gradients of a norm's scale
// and shift), for each part of the rows: the dim along which their strides are 0. A block walks a
// part, adds what each thread has in registers, and at the end the sums of its threads in shared
// memory.
//
// Long rows (the logits of a vocabulary) do not fit into registers. They are streamed: each phase
// loads its operands again and repeats the instructions that it needs. A multiprocessor runs two
// rows or fewer at one time, so that they stay in the L2 cache, and memory sees one read. All
// results are stored in the last phase.
#include <algorithm>

#include "kernels/cuda/pointwise_codegen.h"

namespace tessera::cuda {

namespace {

enum class Spread : uint8_t { uniform, per_row, full };

struct Plan {
  std::vector<Spread> spread;
  std::vector<int> phase;      ///< by instruction
  std::vector<char> kept;      ///< by instruction: varies by element and is read in a later phase
  std::vector<int> stored_in;  ///< by output: phase
  int phases = 1;
  bool streams = false;  ///< nothing is kept: phases load again
  int64_t elements = 1;  ///< per thread, a multiple of the width
  int threads = 1;       ///< per row
  int rows = 1;          ///< per block, at one time
  size_t sums = 0;       ///< outputs that are sums over rows: the last ones
  int64_t part = 1;      ///< rows per block, where there are sums
};

constexpr int64_t kLongestKept = 4096;  ///< elements of a row that registers hold
constexpr int kStreamThreads = 1024;    ///< per long row

bool is_row(const Instr& instr) { return reduces_row(instr.code); }

std::vector<int> operands_of(const Instr& instr) {
  std::vector<int> all;
  for (int r : {instr.a, instr.b, instr.c}) {
    if (r >= 0) all.push_back(r);
  }
  return all;
}

std::vector<Spread> find_spreads(const Walk& walk) {
  std::vector<Spread> spread;
  for (size_t i = 0; i < walk.program.code.size(); ++i) {
    const Instr& instr = walk.program.code[i];
    Spread mine = Spread::uniform;
    if (is_row(instr)) {
      mine = Spread::per_row;
    } else {
      if (walk.operand[i] >= 0)
        mine = walk.inner_stride(walk.operand[i]) == 0 && instr.code != PointwiseOp::random
                   ? Spread::per_row
                   : Spread::full;
      for (int r : operands_of(instr)) mine = std::max(mine, spread[static_cast<size_t>(r)]);
    }
    spread.push_back(mine);
  }
  return spread;
}

/// Finds the phases. A load, index or random number comes as late as its first reader; everything
/// else as early as its operands allow. A row instruction belongs to the phase that reads its
/// elements.
void find_phases(const Walk& walk, Plan& plan) {
  const auto& code = walk.program.code;
  plan.phase.assign(code.size(), 0);
  auto is_source = [&](size_t i) {
    return walk.operand[i] >= 0 && operands_of(code[i]).empty() && plan.spread[i] == Spread::full;
  };
  for (size_t i = 0; i < code.size(); ++i) {
    for (int r : operands_of(code[i])) {
      const auto at = static_cast<size_t>(r);
      plan.phase[i] = std::max(plan.phase[i], plan.phase[at] + (is_row(code[at]) ? 1 : 0));
    }
  }
  std::vector<int> first(code.size(), 1 << 20);
  for (size_t i = 0; i < code.size(); ++i) {
    for (int r : operands_of(code[i]))
      first[static_cast<size_t>(r)] = std::min(first[static_cast<size_t>(r)], plan.phase[i]);
  }
  int last_load = 0;
  for (size_t i = 0; i < code.size(); ++i) {
    if (is_source(i) && first[i] < (1 << 20)) plan.phase[i] = first[i];
    if (code[i].code == PointwiseOp::load) last_load = std::max(last_load, plan.phase[i]);
  }
  const size_t stored = walk.program.outputs.size() - plan.sums;  // sums are not stored yet
  for (size_t k = 0; k < walk.program.outputs.size(); ++k) {
    const auto at = static_cast<size_t>(walk.program.outputs[k]);
    plan.stored_in.push_back(
        std::max(k < stored ? last_load : 0, plan.phase[at] + (is_row(code[at]) ? 1 : 0)));
  }
  plan.phases = 1 + *std::max_element(plan.stored_in.begin(), plan.stored_in.end());
  plan.kept.assign(code.size(), 0);
  if (plan.streams) {
    std::fill(plan.stored_in.begin(), plan.stored_in.end(), plan.phases - 1);
    return;
  }
  auto read = [&](int r, int phase) {
    const auto at = static_cast<size_t>(r);
    if (plan.spread[at] == Spread::full && plan.phase[at] < phase) plan.kept[at] = 1;
  };
  for (size_t i = 0; i < code.size(); ++i) {
    for (int r : operands_of(code[i])) read(r, plan.phase[i]);
  }
  for (size_t k = 0; k < plan.stored_in.size(); ++k)
    read(walk.program.outputs[k], plan.stored_in[k]);
}

/// Threads per row: few, so that reductions are short, but enough for the kept values to fit into
/// registers.
void find_threads(const Walk& walk, Plan& plan) {
  if (plan.streams) {
    const int64_t all = (walk.row_size() + walk.width - 1) / walk.width;
    plan.threads = kStreamThreads;
    plan.elements = (all + plan.threads - 1) / plan.threads * walk.width;
    return;
  }
  int64_t words = 0;
  for (size_t i = 0; i < plan.kept.size(); ++i) {
    if (plan.kept[i]) words += std::max<int64_t>(1, size_of(walk.program.code[i].dtype) / 4);
  }
  words += static_cast<int64_t>(plan.sums);
  const int64_t width = walk.width;
  const int64_t budget = std::clamp<int64_t>(48 / std::max<int64_t>(1, words), width, 16);
  const int64_t vectors = (walk.row_size() + width - 1) / width;
  const int64_t each = std::max<int64_t>(1, budget / width);
  while (plan.threads < 1024 && plan.threads * each < vectors) plan.threads *= 2;
  plan.elements = (vectors + plan.threads - 1) / plan.threads * width;
  plan.rows = std::max(1, 256 / plan.threads);
}

class RowsText {
 public:
  RowsText(const KernelArgs& args, const Walk& walk) : args_(args), walk_(walk), arguments_(args) {
    plan_.spread = find_spreads(walk);
    plan_.streams = walk.row_size() > kLongestKept;
    if (const auto* spec = args.step->find<ColumnSums>())
      plan_.sums = static_cast<size_t>(spec->column_sums);
    find_phases(walk, plan_);
    find_threads(walk, plan_);
    outer_ = walk.nest;
    outer_.remove_dim(outer_.rank() - 1);
    type_ = index_type(walk.nest);
    if (plan_.sums > 0) find_part();
  }

  Source generate() {
    const int64_t rows = outer_.elements();
    const int block = plan_.threads * plan_.rows;
    if (plan_.sums == 0) {
      row_of_block(rows);
      walk_rows(rows);
    } else {
      begin_part();
      walk_rows(rows);
      end_part(block);
    }
    Source source;
    source.threads = block;
    source.blocks = plan_.sums > 0 ? rows / plan_.part : (rows + plan_.rows - 1) / plan_.rows;
    source.text = unit(arguments_, block, body_);
    source.words = arguments_.words();
    return source;
  }

 private:
  /// True if output k is a sum over rows.
  bool is_sum(size_t k) const { return k + plan_.sums >= args_.out.size(); }

  /// The rows of a part are the innermost dim of the rows.
  void find_part() {
    const size_t last = static_cast<size_t>(outer_.rank()) - 1;
    for (size_t k = 0; k < args_.out.size(); ++k) {
      const auto& strides = outer_.strides[k];
      const bool fits = std::count(strides.begin(), strides.end(), 0) == 1 && strides[last] == 0 &&
                        walk_.inner_stride(static_cast<int>(k)) == 1 &&
                        args_.out[k].dtype == DType::float32;
      TESSERA_CHECK(!is_sum(k) || (fits && !plan_.streams), "rows cannot be summed in parts so");
    }
    plan_.part = outer_.sizes[last];
    while (plan_.rows > plan_.part) plan_.rows /= 2;
  }

  void begin_part() {
    for (size_t k = 0; k < args_.out.size(); ++k)
      if (is_sum(k)) body_ += fmt::format("  float t{}[{}] = {{}};\n", k, plan_.elements);
    body_ += fmt::format(
        "  const int lane = static_cast<int>(threadIdx.x) % {0}, group = "
        "static_cast<int>(threadIdx.x) / {0};\n"
        "#pragma unroll 1\n  for (int begin = 0; begin < {2}; begin += {3}) {{\n"
        "  const bool live = begin + group < {2};\n"
        "  const {1} wanted = static_cast<{1}>(blockIdx.x) * {2} + (live ? begin + group : {2} - "
        "1);\n",
        plan_.threads, type_, plan_.part, plan_.rows);
  }

  /// The sums of the groups of threads, in their order.
  void end_part(int block) {
    body_ += "  }\n";
    const int64_t size = walk_.row_size();
    body_ += fmt::format("  __shared__ float sums[{}];\n", plan_.rows * size);
    for (size_t k = 0; k < args_.out.size(); ++k) {
      if (!is_sum(k)) continue;
      kernels::Nest parts = outer_;
      parts.remove_dim(parts.rank() - 1);
      body_ += fmt::format(
          "  __syncthreads();\n#pragma unroll\n  for (int k = 0; k < {0}; ++k) {{\n"
          "    const int e = (k * {1} + lane) * {2};\n    if (e < {3}) {{\n#pragma unroll\n"
          "      for (int j = 0; j < {2}; ++j) sums[group * {3} + e + j] = t{4}[k * {2} + j];\n"
          "    }}\n  }}\n  __syncthreads();\n  {{\n",
          plan_.elements / walk_.width, plan_.threads, walk_.width, size, k);
      body_ += fmt::format("  const {} row = blockIdx.x;\n", type_) +
               dims_text(parts, "row", type_, 1) +
               fmt::format(
                   "  float* to = {0} + ({1});\n"
                   "  for (int e = static_cast<int>(threadIdx.x); e < {2}; e += {3}) {{\n"
                   "    float sum = sums[e];\n#pragma unroll\n"
                   "    for (int g = 1; g < {4}; ++g) sum += sums[g * {2} + e];\n"
                   "    to[e] = sum;\n  }}\n  }}\n",
                   arguments_.out(static_cast<int>(k)),
                   offset_text(parts, static_cast<int>(k), 1, false), size, block, plan_.rows);
    }
  }

  void row_of_block(int64_t rows) {
    body_ += fmt::format(
        "  const int lane = static_cast<int>(threadIdx.x) % {0};\n"
        "  const {1} wanted = static_cast<{1}>(blockIdx.x) * {2} + "
        "static_cast<{1}>(threadIdx.x) / {0};\n"
        "  const bool live = wanted < {3};\n",
        plan_.threads, type_, plan_.rows, rows);
  }

  void walk_rows(int64_t rows) {
    head(rows);
    for (int p = 0; p < plan_.phases; ++p) phase(p);
    for (size_t k = 0; k < args_.out.size(); ++k) store_row(k);
  }

  void head(int64_t rows) {
    if (outer_.rank() > 0) {
      body_ += fmt::format("  const {} row = live ? wanted : {} - 1;\n", type_, rows);
      body_ += dims_text(outer_, "row", type_, 1);
    }
    for (size_t i = 0; i < walk_.program.code.size(); ++i) {
      const Instr& instr = walk_.program.code[i];
      const int op = walk_.operand[i];
      if (op >= 0 && !(instr.code == PointwiseOp::mask && instr.slot < 0))
        place(op, instr.code != PointwiseOp::load);
      if (instr.code == PointwiseOp::random) body_ += random_text(walk_, i, arguments_, args_);
      if (plan_.kept[i]) {
        body_ += fmt::format("  {} x{}[{}];\n", register_type(instr.dtype), i, plan_.elements);
      }
      if (is_row(instr) && plan_.threads > 32) {
        body_ += fmt::format("  __shared__ {} shared{}[{}];\n", register_type(instr.dtype), i,
                             plan_.threads * plan_.rows / 32);
      }
    }
    for (size_t k = 0; k < args_.out.size(); ++k)
      if (!is_sum(k)) place(static_cast<int>(k), false);
  }

  void place(int op, bool wide) {
    body_ += fmt::format("  const {} p{} = {};\n", wide ? "long long" : type_, op,
                         offset_text(outer_, op, 1, wide));
  }

  bool in_phase(size_t i, int p) const { return plan_.phase[i] == p; }

  /// Emits a phase: values with one number per row, the loop over elements, then the reductions.
  void phase(int p) {
    const auto& code = walk_.program.code;
    std::string loop;
    loaded_.assign(code.size(), 0);
    for (size_t i = 0; i < code.size(); ++i) {
      if (in_phase(i, p) && !is_row(code[i]) && plan_.spread[i] != Spread::full) scalar(i);
    }
    std::vector<char> there(code.size(), 0);
    bool work = false;
    for (size_t i = 0; i < code.size(); ++i) {
      if (!in_phase(i, p)) continue;
      if (is_row(code[i])) {
        const char* name = combiner_name(code[i].code);
        body_ += fmt::format("  {0} s{1} = {2}::identity<{0}>();\n", register_type(code[i].dtype),
                             i, name);
        fetch(code[i].a, p, there, loop);
        loop += fmt::format("      s{0} = {1}::apply(s{0}, r{2});\n", i, name, code[i].a);
        work = true;
      } else if (plan_.spread[i] == Spread::full) {
        if (plan_.streams) continue;  // its readers repeat it
        for (int r : operands_of(code[i])) fetch(r, p, there, loop);
        element(i, loop);
        there[i] = 1;
        work = true;
      }
    }
    std::string vectors;
    for (size_t k = 0; k < args_.out.size(); ++k) {
      if (plan_.stored_in[k] != p) continue;
      const int reg = walk_.program.outputs[k];
      if (is_sum(k)) {
        fetch(reg, p, there, loop);
        loop += fmt::format("      if (live) t{0}[k * {1} + j] += r{2};\n", k, walk_.width, reg);
        work = true;
        continue;
      }
      if (walk_.inner_stride(static_cast<int>(k)) == 0) {
        if (plan_.spread[static_cast<size_t>(reg)] != Spread::full) continue;
        fetch(reg, p, there, loop);
        loop += fmt::format("      if (e + j == 0 && live) narrow(r{}, {}[p{}]);\n", reg,
                            arguments_.out(static_cast<int>(k)), k);
      } else {
        fetch(reg, p, there, loop);
        store_element(k, reg, loop, vectors);
      }
      work = true;
    }
    if (work) emit_loop(p, loop, vectors);
    for (size_t i = 0; i < code.size(); ++i) {
      if (in_phase(i, p) && is_row(code[i])) reduce(i);
    }
  }

  void scalar(size_t i) {
    const Instr& instr = walk_.program.code[i];
    const int op = walk_.operand[i];
    const std::string value =
        instr.code == PointwiseOp::load
            ? fmt::format("widen({}[p{}])", arguments_.in(instr.slot), op)
            : value_text(walk_, i, arguments_, fmt::format("p{}", op), args_.step->origin.name);
    body_ += fmt::format("  const {} r{} = {};\n", register_type(instr.dtype), i, value);
  }

  /// Reads a kept value of an earlier phase as r<reg>, or computes it again.
  void fetch(int reg, int p, std::vector<char>& there, std::string& loop) {
    const auto at = static_cast<size_t>(reg);
    if (plan_.spread[at] != Spread::full || there[at]) return;
    there[at] = 1;
    if (plan_.streams) {
      for (int r : operands_of(walk_.program.code[at])) fetch(r, p, there, loop);
      element(at, loop);
      return;
    }
    if (plan_.phase[at] == p) return;
    loop += fmt::format("      const {} r{} = x{}[k * {} + j];\n",
                        register_type(walk_.program.code[at].dtype), reg, reg, walk_.width);
  }

  std::string lane(int op) const {
    const int64_t stride = walk_.inner_stride(op);
    return stride == 0 ? fmt::format("p{}", op)
                       : fmt::format("p{} + (e + j){}", op,
                                     stride == 1 ? "" : fmt::format(" * {}", stride));
  }

  void element(size_t i, std::string& loop) {
    const Instr& instr = walk_.program.code[i];
    const int op = walk_.operand[i];
    std::string value;
    if (instr.code == PointwiseOp::load) {
      loaded_[i] = 1;
      const bool vector = walk_.width > 1 && walk_.inner_stride(op) == 1;
      value = vector ? fmt::format("widen(v{}.x[j])", i)
                     : fmt::format("widen({}[{}])", arguments_.in(instr.slot), lane(op));
    } else {
      value = value_text(walk_, i, arguments_, op < 0 ? "" : lane(op), args_.step->origin.name);
    }
    loop += fmt::format("      const {} r{} = {};\n", register_type(instr.dtype), i, value);
    if (plan_.kept[i]) loop += fmt::format("      x{0}[k * {1} + j] = r{0};\n", i, walk_.width);
  }

  void store_element(size_t k, int reg, std::string& loop, std::string& vectors) {
    const std::string out = arguments_.out(static_cast<int>(k));
    if (walk_.width > 1 && walk_.inner_stride(static_cast<int>(k)) == 1) {
      loop += fmt::format("      narrow(r{}, w{}.x[j]);\n", reg, k);
      vectors += fmt::format("    if (live) store({} + p{} + e, w{});\n", out, k, k);
    } else {
      loop += fmt::format("      if (live) narrow(r{}, {}[{}]);\n", reg, out,
                          lane(static_cast<int>(k)));
    }
  }

  void emit_loop(int p, const std::string& loop, const std::string& vectors) {
    const int64_t width = walk_.width, steps = plan_.elements / width;
    body_ += fmt::format(
        "#pragma unroll{}\n  for (int k = 0; k < {}; ++k) {{\n    [[maybe_unused]] const int e = "
        "(k * {} + lane) * {};\n",
        plan_.streams ? " 2" : "", steps, plan_.threads, width);
    if (steps * plan_.threads * width != walk_.row_size())
      body_ += fmt::format("    if (e >= {}) continue;\n", walk_.row_size());
    for (size_t i = 0; i < walk_.program.code.size(); ++i) {
      const Instr& instr = walk_.program.code[i];
      const int op = walk_.operand[i];
      if (loaded_[i] && width > 1 && walk_.inner_stride(op) == 1) {
        body_ += fmt::format("    const auto v{} = load<{}>({} + p{} + e);\n", i, width,
                             arguments_.in(instr.slot), op);
      }
    }
    for (size_t k = 0; k < args_.out.size(); ++k) {
      if (plan_.stored_in[k] == p && !is_sum(k) && width > 1 &&
          walk_.inner_stride(static_cast<int>(k)) == 1)
        body_ += fmt::format("    Vec<{}, {}> w{};\n", memory_type(args_.out[k].dtype), width, k);
    }
    body_ += fmt::format("#pragma unroll\n    for (int j = 0; j < {}; ++j) {{\n", width);
    body_ += loop + "    }\n" + vectors + "  }\n";
  }

  void reduce(size_t i) {
    const Instr& instr = walk_.program.code[i];
    const char* type = register_type(instr.dtype);
    const std::string sum =
        fmt::format("reduce_threads<{}, {}>(s{}, {})", combiner_name(instr.code), plan_.threads, i,
                    plan_.threads > 32 ? fmt::format("shared{}", i)
                                       : fmt::format("static_cast<{}*>(nullptr)", type));
    body_ += fmt::format("  const {} r{} = {};\n", type, i, rounded_text(instr.dtype, sum));
  }

  void store_row(size_t k) {
    if (is_sum(k)) return;
    const auto reg = static_cast<size_t>(walk_.program.outputs[k]);
    if (walk_.inner_stride(static_cast<int>(k)) != 0 || plan_.spread[reg] == Spread::full) return;
    body_ += fmt::format("  if (live && lane == 0) narrow(r{}, {}[p{}]);\n", reg,
                         arguments_.out(static_cast<int>(k)), k);
  }

  const KernelArgs& args_;
  const Walk& walk_;
  Plan plan_;
  kernels::Nest outer_;  ///< the rows
  Arguments arguments_;
  const char* type_ = "int";
  std::vector<char> loaded_;  ///< by instruction: a load that the current phase makes
  std::string body_;
};

}  // namespace

Source generate_rows(const KernelArgs& args, const Walk& walk) {
  for (const Instr& instr : walk.program.code) {
    if (is_row(instr) && !is_floating(instr.dtype)) {
      fail(ErrorKind::unsupported, "[{}] {} is not defined for {}", args.step->origin.name,
           to_string(instr.code), to_string(instr.dtype));
    }
  }
  return RowsText(args, walk).generate();
}

}  // namespace tessera::cuda
