// A norm computes h = (x - mean) r with one mean and one r per row. Its gradient reads h again:
//   h, y = pointwise(x, ...) {...}      ->  mean, r, y = pointwise(x, ...) {...}
//   dx = pointwise(h, r, dy)                dx = pointwise(x, mean, r, dy) {h = (x - mean) r ...}
//   s = reduce sum(h, dy) {...}             s = reduce sum(x, mean, r, dy) {h = (x - mean) r ...}
// x is in memory anyway and may have 16 bits where h has 32. A value with one number per row is a
// leaf of the expression, which the first step stores; so is a tensor that it stores anyway. Loads
// and constants are repeated.
#include "lower/passes/recompute_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/epilogue_chain.h"
#include "lower/passes/fuse_merge.h"

namespace tessera {

namespace {

constexpr int kMostInstructions = 6;  ///< that a reader repeats, beside loads and constants

/// The instructions that compute one output of a step, as a step of its own.
class Expression {
 public:
  explicit Expression(const Step& from) : from_(from), row_(row_dim(from.pointwise)) {
    const auto& code = from.pointwise.code;
    for (const Instr& instr : code) {
      bool varies = false;
      if (instr.code == PointwiseOp::load) {
        varies = row_ < 0 || stride_along_row(from.in[static_cast<size_t>(instr.slot)]) != 0;
      } else if (!reduces_row(instr.code)) {
        varies = is_positional(instr.code);
        for (const int r : {instr.a, instr.b, instr.c})
          varies = varies || (r >= 0 && varies_[static_cast<size_t>(r)] != 0);
      }
      varies_.push_back(varies);
      at_.push_back(-1);
    }
    step.kernel = KernelKind::pointwise;
  }

  /// Makes `step` and `leaves` from output `k`. False if it is not worth repeating.
  bool make(size_t k) {
    const int reg = from_.pointwise.outputs[k];
    wanted_ = k;
    if (!varies_[static_cast<size_t>(reg)] || !add(reg)) return false;
    step.out = {from_.out[k]};
    step.pointwise.outputs = {at_[static_cast<size_t>(reg)]};
    return true;
  }

  Step step;
  /// The registers of `from` with one number per row, and the inputs of `step` that are to hold
  /// them.
  std::vector<std::pair<int, size_t>> leaves;

 private:
  int64_t stride_along_row(const View& v) const { return v.strides[static_cast<size_t>(row_)]; }

  /// Where `from` stores a register with all its elements, other than in the output that is to go.
  const View* stored(int reg) const {
    for (size_t k = 0; k < from_.out.size(); ++k) {
      if (k != wanted_ && from_.pointwise.outputs[k] == reg && varies_[static_cast<size_t>(reg)] &&
          touched_bytes(from_.out[k]) == from_.out[k].elements() * size_of(from_.out[k].dtype))
        return &from_.out[k];
    }
    return nullptr;
  }

  bool add(int reg) {
    const auto r = static_cast<size_t>(reg);
    if (at_[r] >= 0) return true;
    Instr instr = from_.pointwise.code[r];
    if (instr.code == PointwiseOp::load) {
      step.in.push_back(from_.in[static_cast<size_t>(instr.slot)]);
    } else if (const View* view = stored(reg)) {
      step.in.push_back(*view);
      instr = load_of(instr.dtype);
    } else if (instr.code != PointwiseOp::constant && !varies_[r]) {
      leaves.emplace_back(reg, step.in.size());
      step.in.emplace_back();
      instr = load_of(instr.dtype);
    } else if (instr.code != PointwiseOp::constant) {
      const bool cheap = info_of(instr.code).cost == CostClass::cheap;
      if (!cheap || changes_with_layout(instr.code) || ++repeated_ > kMostInstructions)
        return false;
      for (int* operand : {&instr.a, &instr.b, &instr.c}) {
        if (*operand < 0) continue;
        if (!add(*operand)) return false;
        *operand = at_[static_cast<size_t>(*operand)];
      }
    }
    if (instr.code == PointwiseOp::load) instr.slot = static_cast<int>(step.in.size()) - 1;
    at_[r] = static_cast<int>(step.pointwise.code.size());
    step.pointwise.code.push_back(instr);
    return true;
  }

  const Step& from_;
  int row_;
  std::vector<char> varies_;  ///< by register: along the row
  std::vector<int> at_;       ///< by register: its number in `step`
  size_t wanted_ = 0;         ///< the output
  int repeated_ = 0;
};

class Recomputer {
 public:
  Recomputer(Program& program, Function& function)
      : program_(program), function_(function), fixed_(fixed_buffers(program, function)) {
    for (int s = 0; s < count(); ++s) {
      for (const View& v : at(s).in) readers_[v.buffer].push_back(s);
      for (const View& v : at(s).out) writers_[v.buffer].push_back(s);
    }
  }

  void run() {
    for (int s = 0; s < function_.first_update; ++s) {
      if (!is_pointwise(at(s)) || draws(at(s))) continue;
      for (size_t k = 0; k < at(s).out.size();) {
        if (!replace(s, k)) ++k;
      }
    }
  }

 private:
  int count() const { return static_cast<int>(function_.steps.size()); }
  Step& at(int place) { return function_.steps[static_cast<size_t>(place)]; }

  /// True if the step draws random numbers, whose kernel has no registers left for another result.
  static bool draws(const Step& step) {
    const auto& code = step.pointwise.code;
    return std::any_of(code.begin(), code.end(),
                       [](const Instr& instr) { return instr.code == PointwiseOp::random; });
  }

  /// Lets the readers of output `k` of the step at `place` recompute it, if that pays.
  bool replace(int place, size_t k) {
    const View value = at(place).out[k];
    const std::vector<int> readers = distinct(readers_[value.buffer]);
    if (fixed_[static_cast<size_t>(value.buffer)] || writers_[value.buffer].size() != 1 ||
        readers.empty())
      return false;
    Expression e(at(place));
    if (!e.make(k)) return false;
    Step maker = at(place);
    const size_t known = program_.buffers.size();
    for (const auto& [reg, slot] : e.leaves) e.step.in[slot] = stored(maker, reg);
    const bool pays = may_repeat(place, readers, e.step, value) &&
                      apply(place, std::move(maker), readers, e.step, value);
    if (!pays) {
      program_.buffers.resize(known);
      fixed_.resize(known);
    }
    return pays;
  }

  static std::vector<int> distinct(std::vector<int> list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
    return list;
  }

  /// The output of `maker` that has one number per row, register `reg`; added if it has none.
  View stored(Step& maker, int reg) {
    const auto row = static_cast<size_t>(row_dim(maker.pointwise));
    for (size_t k = 0; k < maker.out.size(); ++k) {
      if (maker.pointwise.outputs[k] == reg && maker.out[k].strides[row] == 0) return maker.out[k];
    }
    View view = maker.out[0];
    view.dtype = maker.pointwise.code[static_cast<size_t>(reg)].dtype;
    view.offset = 0;
    view.shift = {};
    int64_t stride = 1;
    for (size_t d = view.sizes.size(); d-- > 0;) {
      view.strides[d] = d == row ? 0 : stride;
      if (d != row) stride *= view.sizes[d];
    }
    view.buffer = static_cast<int>(program_.buffers.size());
    program_.buffers.push_back({fmt::format("{}.row{}", maker.origin.name, reg),
                                ArenaKind::transient, stride * size_of(view.dtype), 0});
    fixed_.push_back(0);
    maker.out.push_back(view);
    maker.pointwise.outputs.push_back(reg);
    return view;
  }

  /// True if all readers can run the instructions, on operands that are still there.
  bool may_repeat(int place, const std::vector<int>& readers, const Step& expression,
                  const View& value) {
    int64_t bytes = 0;
    for (const View& v : expression.in) bytes += touched_bytes(v);
    if (touched_bytes(value) < bytes) return false;
    const int last = readers.back();
    if (readers.front() <= place || last >= function_.first_update) return false;
    for (const View& v : expression.in) {
      for (const int w : writers_[v.buffer]) {
        if (w >= place && w <= last && !is_own(place, w, v)) return false;
      }
    }
    return std::all_of(readers.begin(), readers.end(), [&](int r) {
      const Step& reader = at(r);
      const bool runs =
          is_pointwise(reader) ||
          (info_of(reader.kernel).fusion == Fusion::prologue && !reader.pointwise.code.empty());
      return runs && order_in(reader, value).has_value();
    });
  }
  /// For each dim of a step's operands the dim of `value`, all of whose elements the step reads, in
  /// one order of dims. Nothing if it reads them otherwise.
  static std::optional<std::vector<size_t>> order_in(const Step& step, const View& value) {
    std::optional<std::vector<size_t>> order;
    for (const View& v : step.in) {
      if (v.buffer != value.buffer) continue;
      std::vector<size_t> dims;
      std::vector<char> taken(value.sizes.size(), 0);
      for (size_t d = 0; d < v.sizes.size(); ++d) {
        for (size_t e = 0; e < value.sizes.size() && dims.size() == d; ++e) {
          if (taken[e] || value.sizes[e] != v.sizes[d] || value.strides[e] != v.strides[d])
            continue;
          taken[e] = 1;
          dims.push_back(e);
        }
        if (dims.size() == d) return {};
      }
      const bool whole = dims.size() == value.sizes.size() && v.dtype == value.dtype &&
                         v.offset == value.offset && v.shift == value.shift;
      if (!whole || (order && *order != dims)) return {};
      order = dims;
    }
    return order;
  }
  static Step reordered(Step step, const std::vector<size_t>& order) {
    const auto reorder = [&](View& v) {
      const View from = v;
      for (size_t d = 0; d < order.size(); ++d) {
        v.sizes[d] = from.sizes[order[d]];
        v.strides[d] = from.strides[order[d]];
      }
    };
    std::for_each(step.in.begin(), step.in.end(), reorder);
    std::for_each(step.out.begin(), step.out.end(), reorder);
    return step;
  }

  /// A number per row that the step itself writes.
  bool is_own(int place, int writer, const View& v) {
    return writer == place && std::any_of(at(place).out.begin(), at(place).out.end(),
                                          [&](const View& out) { return same_window(out, v); });
  }

  bool apply(int place, Step maker, const std::vector<int>& readers, const Step& expression,
             const View& value) {
    int64_t before = touched_bytes(at(place));
    keep_outputs(maker, [&](int buffer) { return buffer != value.buffer; });
    if (maker.out.empty()) return false;
    int64_t after = touched_bytes(maker);
    std::vector<Step> changed;
    for (const int r : readers) {
      before += touched_bytes(at(r));
      std::optional<Step> step = merged(reordered(expression, *order_in(at(r), value)), at(r), {});
      if (!step) return false;
      keep_outputs(*step, [&](int buffer) { return buffer != value.buffer; });
      if (step->in.size() > FuseLimits().inputs) return false;
      after += touched_bytes(*step);
      changed.push_back(std::move(*step));
    }
    if (after >= before) return false;
    update(place, std::move(maker));
    for (size_t k = 0; k < readers.size(); ++k) update(readers[k], std::move(changed[k]));
    return true;
  }

  void update(int place, Step step) {
    for (const View& v : at(place).in) std::erase(readers_[v.buffer], place);
    for (const View& v : at(place).out) std::erase(writers_[v.buffer], place);
    at(place) = std::move(step);
    for (const View& v : at(place).in) readers_[v.buffer].push_back(place);
    for (const View& v : at(place).out) writers_[v.buffer].push_back(place);
  }

  Program& program_;
  Function& function_;
  std::vector<char> fixed_;
  std::map<int, std::vector<int>> readers_, writers_;  ///< by buffer: places
};

}  // namespace

void recompute_rows(Program& program) {
  for (Function* f : all_functions(program.functions)) Recomputer(program, *f).run();
  drop_unused_buffers(program);
}

}  // namespace tessera
