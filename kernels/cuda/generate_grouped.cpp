// Grouped matmuls in passes. The first sorts the positions of rows by group, stable, into the
// workspace: a counting sort by a block for each batch element. Each of its warps reads the indices
// of its share of the positions side by side, 32 at a time, and keeps a count for each group in
// shared memory. Lanes of one group find each other by a vote on each bit of the group, and the
// first of them moves the count. Once to count; then the counts become places, by a sum over warps
// and groups; and once to write the positions. There are at most as many counts as rows, so the
// pass is linear in rows and groups. Then a block of 16 x 16 threads computes a tile of the result:
// grouped_dot 16 rows of one group by 16 columns, found by counting the tiles of the groups;
// grouped_outer 16 x 16 elements of a matrix, over all rows of its group. Tiles of the operands
// pass through shared memory; columns are read side by side. Where several rows of grouped_dot are
// added to one, products are stored by position, and a last pass adds them in the order of
// positions. Under strict numerics the positions of grouped_outer are sorted in the canonical order
// of their sums, and tiles are those of a matmul in that order.
#include <algorithm>
#include <bit>

#include "kernels/common/grouped.h"
#include "kernels/cuda/ordered_text.h"

namespace tessera::cuda {

using kernels::GroupedPlan, kernels::Nest;

namespace {

constexpr int64_t kSide = 16;
constexpr int64_t kMostWarps = 16, kMostCounts = 8192;  ///< of the sort

int64_t tiles(int64_t n) { return (n + kSide - 1) / kSide; }
int64_t bytes_of_sums(const GroupedPlan& p, DType dtype) {
  const int64_t element = dtype == DType::float64 ? 8 : 4;
  return p.is_dot && p.adds ? p.batch.elements() * p.rows * p.n * element : 0;
}
int64_t bytes_of_order(const GroupedPlan& p) {
  return (p.batch.elements() * (p.groups + p.rows) * 4 + 15) / 16 * 16;
}

/// The texts that the passes share.
class Pass {
 public:
  /// terms: of a place of the result if the step has a canonical order.
  Pass(const KernelArgs& args, const GroupedPlan& plan, const OrderedTerms* terms = nullptr,
       size_t place = 0)
      : args_(args),
        plan_(plan),
        terms_(terms),
        place_(place),
        arguments_(args),
        x(arguments_.in(0)),
        m(plan.is_dot ? arguments_.in(1) : arguments_.out(0)),
        z(plan.is_dot ? arguments_.out(0) : arguments_.in(1)),
        indices(arguments_.in(2)),
        first(arguments_.expr(0)),
        extent(arguments_.expr(1)),
        work(arguments_.workspace(bytes_of_order(plan) + bytes_of_sums(plan, args.out.at(0).dtype),
                                  "int")),
        type(register_type(args.out.at(0).dtype)) {}

  /// Functions of positions, and of elements of inner and outer: offsets in an operand.
  std::string offsets() {
    return (terms_ == nullptr ? "" : terms_->declaration(arguments_, place_)) +
           in_nest("batch_x", plan_.batch, kernels::kX) +
           in_nest("batch_m", plan_.batch, kernels::kM) +
           in_nest("batch_z", plan_.batch, kernels::kZ) +
           in_nest("batch_i", plan_.batch, kernels::kIndices) + of_position("row_x", kernels::kX) +
           of_position("row_z", kernels::kZ) + of_position("row_i", kernels::kIndices) +
           in_nest("inner_x", plan_.inner, kernels::kX) +
           in_nest("inner_m", plan_.inner, kernels::kM) +
           in_nest("outer_m", plan_.outer, kernels::kM) +
           in_nest("outer_z", plan_.outer, kernels::kZ);
  }
  /// Declares the type of a term's place, and term(i): of inner, or of position order[begin + i].
  std::string term() {
    const bool by_position = sums_positions();
    return fmt::format(
        "  const auto term = [&]({0} i) -> Term<0> {{\n    {0} k[{1}];\n    Term<0> t;\n"
        "    t.leaf = terms.find({2}, k);\n    t.a = {3};\n    t.b = {4};\n    return t;\n  }};\n",
        terms_->type(), terms_->dims(),
        by_position ? fmt::format("static_cast<{}>(order[begin + i])", terms_->type()) : "i",
        terms_->offset(arguments_, place_, args_.in[0].strides),
        terms_->offset(arguments_, place_, args_.in[1].strides));
  }
  /// The positions that are sorted.
  std::string rows() const {
    return sums_positions() ? "terms.count()" : std::to_string(plan_.rows);
  }
  std::string place_offset() { return terms_->place_offset(arguments_, place_); }
  /// The group of a position of batch element b, or -1.
  std::string group() const {
    return fmt::format(
        "  auto group = [&](long long b, long long i) -> long long {{\n"
        "    const long long index = {0}[batch_i(b) + row_i(i)], g = index - {1};\n"
        "    return index >= 0 && index < {2} && g >= 0 && g < {3} ? g : -1;\n  }};\n",
        indices, first, extent, plan_.groups);
  }
  /// "ends" and "order" of batch element b.
  std::string order() const {
    return fmt::format(
        "  int* const ends = {0} + b * {1};\n  int* const order = {0} + {2} + b * {3};\n", work,
        plan_.groups, plan_.batch.elements() * plan_.groups, plan_.rows);
  }
  std::string sums() const {
    return fmt::format("  {0}* const sums = reinterpret_cast<{0}*>({1} + {2});\n", type, work,
                       bytes_of_order(plan_) / 4);
  }
  std::string shared() const {
    return fmt::format(
        "  __shared__ {0} left[{1}][{2}], right[{1}][{2}];\n"
        "  const int tx = static_cast<int>(threadIdx.x) % {1}, ty = static_cast<int>(threadIdx.x) "
        "/ {1};\n  {0} sum = 0;\n",
        type, kSide, kSide + 1);
  }

  Source source(const std::string& body, int64_t blocks, int64_t threads = kSide * kSide) const {
    Source source;
    source.threads = static_cast<int>(threads);
    source.text = unit(arguments_, source.threads, body, "",
                       terms_ == nullptr ? "kernels/cuda/device.h" : kOrderedHeader);
    source.words = arguments_.words();
    source.blocks = blocks;
    return source;
  }

 private:
  static std::string in_nest(const char* name, const Nest& nest, int operand) {
    return fmt::format("  auto {} = [](long long e) -> long long {{\n{}    return {};\n  }};\n",
                       name, dims_text(nest, "e", "long long", 1),
                       offset_text(nest, operand, 1, true));
  }

  bool sums_positions() const { return terms_ != nullptr && !plan_.is_dot; }
  /// Of position e, as rows() numbers them.
  std::string of_position(const char* name, kernels::GroupedOperand operand) {
    if (!sums_positions()) return in_nest(name, plan_.positions, operand);
    const TensorArg& arg = args_.in[operand == kernels::kX ? 0 : operand == kernels::kZ ? 1 : 2];
    return fmt::format(
        "  auto {} = [&](long long e) -> long long {{\n    {} k[{}];\n    "
        "terms.find(static_cast<{}>(e), k);\n    return {};\n  }};\n",
        name, terms_->type(), terms_->dims(), terms_->type(),
        terms_->offset(arguments_, place_, arg.strides));
  }

  const KernelArgs& args_;
  const GroupedPlan& plan_;
  const OrderedTerms* terms_;
  size_t place_;
  Arguments arguments_;

 public:
  std::string x, m, z, indices, first, extent, work;
  const char* type;
};

/// The warps that sort: a power of two. Their counts fit in shared memory, and are no more than
/// rows, unless there is one warp, which counts in the workspace.
int64_t sorting_warps(const GroupedPlan& plan) {
  int64_t warps = 1;
  while (warps < kMostWarps && 2 * warps * plan.groups <= std::min(kMostCounts, plan.rows))
    warps *= 2;
  return warps;
}

Source sort_rows(const GroupedPlan& plan, Pass pass) {
  const int64_t warps = sorting_warps(plan), threads = 32 * warps;
  const bool shares = warps * plan.groups <= kMostCounts;
  const int64_t share = ((plan.rows + warps - 1) / warps + 31) / 32 * 32;
  const auto filled = [&](const char* text) {
    return fmt::format(fmt::runtime(text), fmt::arg("groups", plan.groups),
                       fmt::arg("warps", warps), fmt::arg("threads", threads),
                       fmt::arg("counts", warps * plan.groups),
                       fmt::arg("bits", std::bit_width(static_cast<uint64_t>(plan.groups - 1))),
                       fmt::arg("share", share), fmt::arg("rows", pass.rows()));
  };
  const std::string body =
      "  const long long b = blockIdx.x;\n" + pass.offsets() + pass.group() + pass.order() +
      filled(shares ? "  __shared__ int counts[{counts}];\n" : "  int* const counts = ends;\n") +
      filled(
          "  __shared__ int sums[{threads}];\n"
          "  const int t = static_cast<int>(threadIdx.x), warp = t / 32, lane = t % 32;\n"
          "  int* const mine = counts + warp * {groups};\n"
          "  auto group_of = [&](long long i, long long end) -> int {{\n"
          "    return i < end ? static_cast<int>(group(b, i)) : -1;\n  }};\n"
          "  auto lanes_of = [&](int g) -> unsigned {{\n"
          "    unsigned lanes = __ballot_sync(0xffffffffu, g >= 0);\n"
          "    for (int bit = 0; bit < {bits}; ++bit) {{\n"
          "      const bool is_set = (g >> bit & 1) != 0;\n"
          "      const unsigned set = __ballot_sync(0xffffffffu, is_set);\n"
          "      lanes &= is_set ? set : ~set;\n    }}\n    return lanes;\n  }};\n"
          "  const unsigned before = (1u << lane) - 1;\n"
          "  const long long begin = warp * {share}ll,\n"
          "                  end = begin + {share} < {rows} ? begin + {share} : {rows};\n"
          "  for (int e = t; e < {counts}; e += {threads}) counts[e] = 0;\n"
          "  __syncthreads();\n"
          "  for (long long i = begin + lane; i - lane < end; i += 32) {{\n"
          "    const int g = group_of(i, end);\n    const unsigned lanes = lanes_of(g);\n"
          "    if (g >= 0 && (lanes & before) == 0) mine[g] += __popc(lanes);\n"
          "    __syncwarp();\n  }}\n  __syncthreads();\n"
          "  for (int first = 0, start = 0; first < {groups}; first += {threads}) {{\n"
          "    const int g = first + t;\n    int own = 0;\n"
          "    if (g < {groups}) {{\n"
          "      for (int w = 0; w < {warps}; ++w) own += counts[w * {groups} + g];\n    }}\n"
          "    int place = start + scan_threads<{threads}>(own, sums) - own;\n"
          "    if (g < {groups}) {{\n      for (int w = 0; w < {warps}; ++w) {{\n"
          "        const int count = counts[w * {groups} + g];\n"
          "        counts[w * {groups} + g] = place;\n        place += count;\n      }}\n    }}\n"
          "    start += sums[{threads} - 1];\n    __syncthreads();\n  }}\n"
          "  for (long long i = begin + lane; i - lane < end; i += 32) {{\n"
          "    const int g = group_of(i, end);\n    const unsigned lanes = lanes_of(g);\n"
          "    if (g >= 0) order[mine[g] + __popc(lanes & before)] = static_cast<int>(i);\n"
          "    __syncwarp();\n"
          "    if (g >= 0 && (lanes & before) == 0) mine[g] += __popc(lanes);\n"
          "    __syncwarp();\n  }}\n") +
      // A count of the last warp is now where its group ends.
      (shares ? filled("  __syncthreads();\n"
                       "  for (int g = t; g < {groups}; g += {threads})\n"
                       "    ends[g] = counts[{counts} - {groups} + g];\n")
              : "");
  return pass.source(body, plan.batch.elements(), threads);
}

Source multiply_rows(const KernelArgs& args, const GroupedPlan& plan) {
  Pass pass(args, plan);
  const int64_t row_tiles = tiles(plan.rows) + plan.groups, columns = tiles(plan.n);
  std::string body = fmt::format(
      "  const long long b = blockIdx.x / {2}, column = blockIdx.x % {1} * {0} + threadIdx.x % "
      "{0};\n  long long tile = blockIdx.x / {1} % {3};\n",
      kSide, columns, columns * row_tiles, row_tiles);
  body += pass.offsets() + pass.order() + (plan.adds ? pass.sums() : "") + pass.shared();
  body += fmt::format(
      "  int g = 0, begin = 0;\n  for (; g < {0}; begin = ends[g++]) {{\n"
      "    const int has = (ends[g] - begin + {1} - 1) / {1};\n    if (tile < has) break;\n"
      "    tile -= has;\n  }}\n  if (g == {0}) return;\n"
      "  const long long at = begin + tile * {1} + ty;\n  const bool live = at < ends[g];\n"
      "  const long long position = live ? order[at] : 0;\n"
      "  const auto* row = {2} + batch_x(b) + row_x(position);\n"
      "  const auto* matrix = {3} + batch_m(b) + g * {4}ll + (column < {5} ? outer_m(column) : "
      "0);\n"
      "  for (long long k = 0; k < {6}; k += {1}) {{\n"
      "    left[ty][tx] = live && k + tx < {6} ? widen(row[inner_x(k + tx)]) : {7}(0);\n"
      "    right[ty][tx] = column < {5} && k + ty < {6} ? widen(matrix[inner_m(k + ty)]) : "
      "{7}(0);\n"
      "    __syncthreads();\n"
      "    for (int i = 0; i < {1}; ++i) sum += left[ty][i] * right[i][tx];\n"
      "    __syncthreads();\n  }}\n  if (!live || column >= {5}) return;\n",
      plan.groups, kSide, pass.x, pass.m, plan.group_stride, plan.n, plan.k, pass.type);
  body += plan.adds
              ? fmt::format("  sums[(b * {} + position) * {} + column] = sum;\n", plan.rows, plan.n)
              : fmt::format("  narrow(sum, {}[batch_z(b) + row_z(position) + outer_z(column)]);\n",
                            pass.z);
  return pass.source(body, plan.batch.elements() * row_tiles * columns);
}

/// One thread for each element of Z.
Source add_rows(const KernelArgs& args, const GroupedPlan& plan) {
  Pass pass(args, plan);
  Nest kept, added;  // operands: batch element, position, Z
  kept.strides.resize(3);
  added.strides.resize(3);
  for (const Nest* nest : {&plan.batch, &plan.positions}) {
    int64_t stride = 1;
    for (int d = nest->rank(); d-- > 0; stride *= nest->sizes[d]) {
      const int64_t to = nest->strides[kernels::kZ][d];
      const bool is_batch = nest == &plan.batch;
      (to == 0 ? added : kept)
          .add_dim(nest->sizes[d], {is_batch ? stride : 0, is_batch ? 0 : stride, to});
    }
  }
  const int64_t results = kept.elements() * plan.n;
  std::string body = fmt::format(
      "  const long long e = static_cast<long long>(blockIdx.x) * {} + threadIdx.x;\n"
      "  if (e >= {}) return;\n  const long long r = e / {}, column = e % {};\n",
      kSide * kSide, results, plan.n, plan.n);
  body += pass.offsets() + pass.group() + pass.sums() + "  long long b0, p0, to;\n  {\n" +
          dims_text(kept, "r", "long long", 1);
  body += fmt::format(
      "    b0 = {}, p0 = {}, to = {};\n  }}\n  {} sum = 0;\n"
      "  for (long long i = 0; i < {}; ++i) {{\n{}"
      "    const long long b = b0 + {}, position = p0 + {};\n"
      "    if (group(b, position) >= 0) sum += sums[(b * {} + position) * {} + column];\n  }}\n"
      "  narrow(sum, {}[to + outer_z(column)]);\n",
      offset_text(kept, 0, 1, true), offset_text(kept, 1, 1, true), offset_text(kept, 2, 1, true),
      pass.type, added.elements(), dims_text(added, "i", "long long", 1),
      offset_text(added, 0, 1, true), offset_text(added, 1, 1, true), plan.rows, plan.n, pass.z);
  return pass.source(body, (results + kSide * kSide - 1) / (kSide * kSide));
}

Source sum_products(const KernelArgs& args, const GroupedPlan& plan) {
  Pass pass(args, plan);
  const int64_t down = tiles(plan.k), across = tiles(plan.n);
  std::string body = fmt::format(
      "  const long long column = blockIdx.x % {1} * {0} + threadIdx.x % {0}, inner = blockIdx.x / "
      "{1} % {2} * {0}, g = blockIdx.x / {3} % {4}, b = blockIdx.x / {5};\n",
      kSide, across, down, across * down, plan.groups, across * down * plan.groups);
  body += pass.offsets() + pass.order() + pass.shared();
  body += fmt::format(
      "  const int end = ends[g];\n"
      "  for (int first = g > 0 ? ends[g - 1] : 0; first < end; first += {0}) {{\n"
      "    const bool live = first + ty < end;\n"
      "    const long long position = live ? order[first + ty] : 0;\n"
      "    left[ty][tx] = live && inner + tx < {1} ? widen({2}[batch_x(b) + row_x(position) + "
      "inner_x(inner + tx)]) : {3}(0);\n"
      "    right[ty][tx] = live && column < {4} ? widen({5}[batch_z(b) + row_z(position) + "
      "outer_z(column)]) : {3}(0);\n"
      "    __syncthreads();\n"
      "    for (int i = 0; i < {0}; ++i) sum += left[i][ty] * right[i][tx];\n"
      "    __syncthreads();\n  }}\n"
      "  if (inner + ty < {1} && column < {4})\n"
      "    narrow(sum, {6}[batch_m(b) + g * {7}ll + inner_m(inner + ty) + outer_m(column)]);\n",
      kSide, plan.k, pass.x, pass.type, plan.n, pass.z, pass.m, plan.group_stride);
  return pass.source(body, plan.batch.elements() * plan.groups * down * across);
}

/// Both kinds in the canonical order: a tile of a group's rows, or of its matrix.
Source ordered_tiles(const KernelArgs& args, const GroupedPlan& plan, const OrderedTerms& terms,
                     size_t place) {
  Pass pass(args, plan, &terms, place);
  const bool is_dot = plan.is_dot;
  const OrderedTile tile(is_dot ? plan.rows / plan.groups : plan.k, plan.n, terms.depth(),
                         args.in[0].dtype);
  const auto tiles_of = [](int64_t n, int64_t size) { return (n + size - 1) / size; };
  const int64_t down = is_dot ? tiles_of(plan.rows, tile.high()) + plan.groups
                              : tiles_of(plan.k, tile.high()) * plan.groups,
                across = tiles_of(plan.n, tile.wide());
  std::string body = pass.offsets();
  body += fmt::format(
      "  const long long b = blockIdx.x / {}, right = blockIdx.x % {} * {};\n"
      "  long long down = blockIdx.x / {} % {};\n{}  int g = 0, begin = 0;\n",
      down * across, across, tile.wide(), across, down, pass.order());
  if (is_dot) {
    body += fmt::format(
        "  for (; g < {0}; begin = ends[g++]) {{\n"
        "    const int has = (ends[g] - begin + {1} - 1) / {1};\n    if (down < has) break;\n"
        "    down -= has;\n  }}\n  if (g == {0}) return;\n"
        "  const auto row = [&](long long e) -> Line<0> {{\n"
        "    const long long position = order[begin + e];\n"
        "    return {{batch_x(b) + row_x(position), batch_z(b) + row_z(position), {{}}}};\n  }};\n"
        "  const auto column = [&](long long e) -> Line<0> {{ return {{batch_m(b) + g * {2}ll + "
        "outer_m(e), outer_z(e), {{}}}}; }};\n",
        plan.groups, tile.high(), plan.group_stride);
  } else {
    body += fmt::format(
        "  g = static_cast<int>(down % {0});\n  down /= {0};\n"
        "  begin = g > 0 ? ends[g - 1] : 0;\n"
        "  const auto row = [&](long long e) -> Line<0> {{ return {{batch_x(b) + inner_x(e), "
        "batch_m(b) + g * {1}ll + inner_m(e), {{}}}}; }};\n"
        "  const auto column = [&](long long e) -> Line<0> {{ return {{batch_z(b) + outer_z(e), "
        "outer_m(e), {{}}}}; }};\n",
        plan.groups, plan.group_stride);
  }
  const std::string in[] = {pass.x, is_dot ? pass.m : pass.z}, to = is_dot ? pass.z : pass.m;
  for (int k = 0; k < 2; ++k)
    body += fmt::format(
        "  const auto of_{0} = [&](const Line<0>& l, const Term<0>& t) -> {1} {{ return "
        "widen({2}[l.in "
        "+ t.{0}]); }};\n",
        k == 0 ? "a" : "b", pass.type, in[k]);
  const std::string sum = args.step->order.is_split() ? "sum" : "complete<Sum>(sum)";
  body += pass.term();
  body += fmt::format(
      "  ordered_product<{0}, {1}, {2}, {3}, {4}, {12}>(down * {5}, {6}, right, {7}ll, {8}, row, "
      "column, term, of_a, of_b,\n      [&](const Line<0>& r, const Line<0>& c, {0} sum) {{ "
      "narrow({9}, "
      "{10}[r.out + c.out{11}]); }});\n",
      pass.type, tile.rows, tile.columns, terms.depth(), is_dot, tile.high(),
      is_dot ? "ends[g] - begin" : fmt::format("{}ll", plan.k), plan.n,
      is_dot ? "terms.count()" : fmt::format("static_cast<{}>(ends[g] - begin)", terms.type()), sum,
      to, pass.place_offset(), is_dot && terms.densest(args.in[1].strides) == 1);
  return pass.source(body, plan.batch.elements() * down * across);
}

/// grouped_dot and grouped_outer in the canonical order. The rows of grouped_dot are sorted once.
std::vector<Source> in_order(const KernelArgs& args, const GroupedPlan& plan) {
  TESSERA_CHECK(!plan.adds, "rows of one token are added by a sum of their own");
  const OrderedTerms terms(args);
  std::vector<Source> passes;
  for (size_t place = 0; place < terms.places(); ++place) {
    if (place == 0 || !plan.is_dot)
      passes.push_back(
          sort_rows(plan, plan.is_dot ? Pass(args, plan) : Pass(args, plan, &terms, place)));
    passes.push_back(ordered_tiles(args, plan, terms, place));
  }
  return passes;
}

}  // namespace

int64_t grouped_gpu_workspace(const Step& step) {
  const GroupedPlan plan = kernels::plan_grouped(step);
  return bytes_of_order(plan) + bytes_of_sums(plan, step.out.at(0).dtype);
}

std::vector<Source> generate_grouped_dot(const KernelArgs& args) {
  const GroupedPlan plan = kernels::plan_grouped(*args.step);
  if (args.step->order.is_strict()) return in_order(args, plan);
  std::vector<Source> passes = {sort_rows(plan, Pass(args, plan)), multiply_rows(args, plan)};
  if (plan.adds) passes.push_back(add_rows(args, plan));
  return passes;
}

std::vector<Source> generate_grouped_outer(const KernelArgs& args) {
  const GroupedPlan plan = kernels::plan_grouped(*args.step);
  if (args.step->order.is_strict()) return in_order(args, plan);
  return {sort_rows(plan, Pass(args, plan)), sum_products(args, plan)};
}

}  // namespace tessera::cuda
