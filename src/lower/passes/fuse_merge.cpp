// Steps are merged by appending their instructions to one program, in order. A load of a value that
// the program computes becomes that register. A load, expression or instruction that the program
// already has is reused. Rounding is part of every instruction, so a register holds the same bits
// as memory would.
#include "lower/passes/fuse_merge.h"

#include <algorithm>
#include <bit>

#include "lower/passes/fuse_rows.h"
#include "lower/passes/liveness.h"

namespace tessera {

namespace {

/// Bitwise equal: -0.0 differs from 0.0.
bool same_instr(const Instr& x, const Instr& y) {
  return std::bit_cast<uint64_t>(x.imm) == std::bit_cast<uint64_t>(y.imm) && x.code == y.code &&
         x.dtype == y.dtype && x.a == y.a && x.b == y.b && x.c == y.c && x.slot == y.slot &&
         x.expr == y.expr;
}

/// Builds a pointwise step from others.
class Appender {
 public:
  /// Copies everything of `like` but its inputs, outputs and program.
  explicit Appender(const Step& like) {
    step_.kind = like.kind;
    step_.kernel = like.kernel;
    step_.spec = like.spec;
    step_.combiner = like.combiner;
    step_.number = like.number;
    step_.flops = like.flops;
    step_.unused = like.unused;
    step_.origin = like.origin;
  }

  void append(const Step& step, const std::map<int, Source>* sources = nullptr) {
    const auto& code = step.pointwise.code;
    const std::vector<bool> needed = needed_of(step);
    std::vector<int> at(code.size(), -1);
    for (size_t i = 0; i < code.size(); ++i) {
      if (!needed[i]) continue;
      Instr instr = code[i];
      for (int* r : {&instr.a, &instr.b, &instr.c}) {
        if (*r >= 0) *r = at[*r];
      }
      at[i] = instr.code == PointwiseOp::load ? add_load(instr, step.in[instr.slot], sources)
                                              : add(instr, step.exprs, step.out[0].sizes.size());
    }
    for (size_t k = 0; k < step.out.size(); ++k) {
      step_.out.push_back(step.out[k]);
      step_.pointwise.outputs.push_back(at[step.pointwise.outputs[k]]);
    }
  }

  Step take() { return std::move(step_); }

 private:
  static std::vector<bool> needed_of(const Step& step) {
    const auto& code = step.pointwise.code;
    std::vector<bool> needed(code.size(), false);
    for (int r : step.pointwise.outputs) needed[r] = true;
    for (size_t i = code.size(); i-- > 0;) {
      for (int r : {code[i].a, code[i].b, code[i].c}) {
        if (needed[i] && r >= 0) needed[r] = true;
      }
    }
    return needed;
  }

  int add_load(Instr load, const View& view, const std::map<int, Source>* sources) {
    for (size_t k = 0; k < step_.out.size(); ++k) {
      if (step_.out[k].buffer == view.buffer) return step_.pointwise.outputs[k];
    }
    if (sources) {
      auto it = sources->find(view.buffer);
      if (it != sources->end()) {
        if (const int r = add_source(it->second, load, view); r >= 0) return r;
      }
    }
    auto it = std::find_if(step_.in.begin(), step_.in.end(),
                           [&](const View& v) { return same_window(v, view); });
    if (it == step_.in.end()) it = step_.in.insert(it, view);
    load.slot = static_cast<int>(it - step_.in.begin());
    return find_or_add(load);
  }

  /// Adds the source's instruction for what `view` shows of it. Returns -1 if that is not possible.
  int add_source(const Source& source, const Instr& load, const View& view) {
    Instr instr = source.instr;
    if (load.dtype != instr.dtype || view.dtype != source.out.dtype) return -1;
    if (instr.code == PointwiseOp::index) {
      if (view.offset != 0 || !(view.shift == AffineExpr{})) return -1;
      const int64_t stride = source.out.strides[instr.slot];
      const int64_t count = source.out.sizes[instr.slot];
      instr.slot = -1;
      for (size_t d = 0; d < view.sizes.size(); ++d) {
        if (view.sizes[d] == 1 || view.strides[d] == 0) continue;
        if (instr.slot >= 0 || view.strides[d] != stride || view.sizes[d] > count) return -1;
        instr.slot = static_cast<int>(d);
      }
      if (instr.slot < 0) instr.code = PointwiseOp::value;
    }
    if (instr.expr >= 0) instr.expr = expr(source.expr);
    return find_or_add(instr);
  }

  int add(Instr instr, const std::vector<AffineExpr>& exprs, size_t rank) {
    if (converts(instr.code) && step_.pointwise.code[instr.a].dtype == instr.dtype) return instr.a;
    if (instr.code == PointwiseOp::random) {
      instr.expr = run_of_exprs(exprs, instr.expr, 2 + 2 * rank);
    } else if (instr.expr >= 0) {
      instr.expr = expr(exprs[instr.expr]);
    }
    return find_or_add(instr);
  }

  int expr(const AffineExpr& e) {
    auto it = std::find(step_.exprs.begin(), step_.exprs.end(), e);
    if (it == step_.exprs.end()) it = step_.exprs.insert(it, e);
    return static_cast<int>(it - step_.exprs.begin());
  }

  int run_of_exprs(const std::vector<AffineExpr>& exprs, int first, size_t count) {
    auto begin = exprs.begin() + first, end = begin + static_cast<std::ptrdiff_t>(count);
    auto it = std::search(step_.exprs.begin(), step_.exprs.end(), begin, end);
    const int at = static_cast<int>(it - step_.exprs.begin());
    if (it == step_.exprs.end()) step_.exprs.insert(step_.exprs.end(), begin, end);
    return at;
  }

  int find_or_add(const Instr& instr) {
    auto& code = step_.pointwise.code;
    auto it = std::find_if(code.begin(), code.end(),
                           [&](const Instr& other) { return same_instr(other, instr); });
    if (it == code.end()) it = code.insert(it, instr);
    return static_cast<int>(it - code.begin());
  }

  Step step_;
};

/// Makes readers of x * 1 read x. Returns false if there is no such multiplication.
bool read_past_ones(PointwiseProgram& program) {
  auto& code = program.code;
  auto is_one = [&](int r) { return code[r].code == PointwiseOp::constant && code[r].imm == 1; };
  std::vector<int> value(code.size());
  bool found = false;
  for (size_t i = 0; i < code.size(); ++i) {
    for (int* r : {&code[i].a, &code[i].b, &code[i].c}) {
      if (*r >= 0) *r = value[*r];
    }
    value[i] = static_cast<int>(i);
    if (code[i].code != PointwiseOp::mul) continue;
    const int other = is_one(code[i].a) ? code[i].b : is_one(code[i].b) ? code[i].a : -1;
    if (other < 0 || code[other].dtype != code[i].dtype) continue;
    value[i] = other;
    found = true;
  }
  for (int& r : program.outputs) r = value[r];
  return found;
}

/// True if `second` reads results of `first` only in a form that registers can supply, and the two
/// share no other buffer that one of them writes.
bool registers_suffice(const Step& first, const Step& second) {
  for (const View& out : second.out) {
    if (touches(first.in, out.buffer) || touches(first.out, out.buffer)) return false;
  }
  for (const Instr& load : second.pointwise.code) {
    if (load.code != PointwiseOp::load) continue;
    const View& in = second.in[load.slot];
    int matches = 0, written = 0;
    for (size_t k = 0; k < first.out.size(); ++k) {
      if (first.out[k].buffer != in.buffer) continue;
      ++written;
      const Instr& instr = first.pointwise.code[first.pointwise.outputs[k]];
      matches += same_window(first.out[k], in) && instr.dtype == load.dtype;
    }
    if (written > 1 || matches != written) return false;
  }
  return true;
}

/// The number of inputs of the merged step; what `second` reads of `first` does not count.
size_t count_inputs(const Step& first, const Step& second) {
  size_t count = first.in.size();
  for (const View& in : second.in) {
    const bool known = touches(first.out, in.buffer) ||
                       std::any_of(first.in.begin(), first.in.end(),
                                   [&](const View& v) { return same_window(v, in); });
    count += !known;
  }
  return count;
}

}  // namespace

std::vector<char> fixed_buffers(const Program& program, const Function& function) {
  std::vector<char> fixed;
  for (const Buffer& b : program.buffers) fixed.push_back(b.arena != ArenaKind::transient);
  for (const Port& port : program.ports) fixed[static_cast<size_t>(port.view.buffer)] = 1;
  for (const int b : function.outer) fixed[static_cast<size_t>(b)] = 1;
  return fixed;
}

Instr load_of(DType dtype, int slot) {
  Instr load;
  load.code = PointwiseOp::load;
  load.dtype = dtype;
  load.slot = slot;
  return load;
}

PointwiseProgram program_of_reduction(const Step& reduction) {
  if (!reduction.pointwise.code.empty()) return reduction.pointwise;
  return {{load_of(reduction.in[0].dtype, 0)}, {0}};
}

bool is_pointwise(const Step& step) { return info_of(step.kernel).fusion == Fusion::pointwise; }

std::optional<Source> source_of(const Step& step) {
  if (step.pointwise.code.size() != 1 || step.out.size() != 1) return {};
  const Instr& instr = step.pointwise.code[0];
  if (instr.code != PointwiseOp::constant && instr.code != PointwiseOp::index &&
      instr.code != PointwiseOp::value)
    return {};
  if (!step.out[0].is_contiguous() || step.out[0].dtype != instr.dtype) return {};
  return Source{instr, instr.expr >= 0 ? step.exprs[instr.expr] : AffineExpr{}, step.out[0]};
}

Step with_sources(const Step& step, const std::map<int, Source>& sources) {
  Appender result(step);
  result.append(step, &sources);
  Step known = result.take();
  if (!read_past_ones(known.pointwise)) return known;
  Appender shorter(known);
  shorter.append(known);
  return shorter.take();
}

bool may_merge(const Step& first, const Step& second, const FuseLimits& limits) {
  return first.out[0].sizes == second.out[0].sizes && rows_agree(first, second, limits) &&
         count_inputs(first, second) <= limits.inputs && registers_suffice(first, second);
}

std::optional<Step> merged(const Step& first, const Step& second, const FuseLimits& limits) {
  Appender result(second);
  result.append(first);
  result.append(second);
  Step step = result.take();
  if (step.pointwise.code.size() > limits.instructions) return {};
  step.flops += first.flops;
  std::vector<int> unused;
  std::set_intersection(first.unused.begin(), first.unused.end(), second.unused.begin(),
                        second.unused.end(), std::back_inserter(unused));
  step.unused = std::move(unused);
  if (step.origin.reason.empty()) step.origin.reason = first.origin.reason;
  return step;
}

std::vector<std::pair<int, int>> equal_outputs(const Step& step) {
  std::vector<std::pair<int, int>> result;
  for (size_t k = 0; k < step.out.size(); ++k) {
    View view = step.out[k];
    for (size_t j = 0; j < k; ++j) {
      view.buffer = step.out[j].buffer;
      if (step.pointwise.outputs[j] != step.pointwise.outputs[k] || !same_window(view, step.out[j]))
        continue;
      result.emplace_back(static_cast<int>(k), static_cast<int>(j));
      break;
    }
  }
  return result;
}

void keep_outputs(Step& step, const std::function<bool(int buffer)>& keep) {
  if (std::all_of(step.out.begin(), step.out.end(), [&](const View& v) { return keep(v.buffer); }))
    return;
  Step kept = step;
  kept.out.clear();
  kept.pointwise.outputs.clear();
  for (size_t k = 0; k < step.out.size(); ++k) {
    if (!keep(step.out[k].buffer)) continue;
    kept.out.push_back(step.out[k]);
    kept.pointwise.outputs.push_back(step.pointwise.outputs[k]);
  }
  step = kept;
  if (kept.out.empty()) return;
  Appender result(kept);
  result.append(kept);
  step = result.take();
}

}  // namespace tessera
