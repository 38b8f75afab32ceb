// Pointwise steps are merged greedily in program order. A unit is one step, or the pointwise steps
// merged so far. A new pointwise step looks back for a unit with its iteration space that computes
// something it reads, or (less far) that reads what it reads. The two are merged if no unit has to
// run between them: units between them that depend on the first move after the merged unit, the
// others before it. Steps of one instruction without inputs are repeated in their consumers.
// fuse_rows.cpp says how reductions along rows take part.
//
// The limit on looking back bounds how much longer values live, and makes the pass linear in the
// number of steps.
#include "lower/passes/fuse_pointwise.h"

#include <algorithm>
#include <set>

#include "lower/passes/drop_unused_buffers.h"
#include "lower/passes/fuse_merge.h"
#include "lower/passes/fuse_rows.h"
#include "lower/passes/store_in_place.h"

namespace tessera {

namespace {

constexpr int kReachOfValues = 64;    ///< units to look back for a producer
constexpr int kReachOfOperands = 8;   ///< units to look back for a reader of the same operand
constexpr int64_t kFewElements = 64;  ///< for steps this small only their number counts

struct Unit {
  Step step;
  std::vector<int> needs;  ///< original steps that must run before it
  int joined = -1;         ///< the unit into which it was merged
};

class Fuser {
 public:
  Fuser(const Program& program, Function& function, const FuseLimits& limits)
      : function_(function),
        limits_(limits),
        is_port_(program.buffers.size(), 0),
        uses_(program.buffers.size()),
        renamed_(program.buffers.size(), -1),
        writes_(program.buffers.size(), 0) {
    for (const Port& port : program.ports) is_port_[port.view.buffer] = 1;
    units_.reserve(function.steps.size());
    for (const Buffer& b : program.buffers) {
      transient_.push_back(b.arena == ArenaKind::transient);
      bytes_.push_back(b.bytes);
    }
    for (const Step& step : function.steps) {
      for (const View& v : step.out) ++writes_[v.buffer];
    }
    for (size_t b = 0; b < program.buffers.size(); ++b)
      is_constant_.push_back(program.buffers[b].arena == ArenaKind::persistent && writes_[b] == 0);
    for (const int b : function.outer) {
      is_port_[b] = 1;
      transient_[b] = false;
      is_constant_[b] = 0;
    }
  }

  void run() {
    auto& steps = function_.steps;
    for (int s = 0; s < function_.first_update; ++s) add(std::move(steps[s]));
    std::vector<Step> tail(std::make_move_iterator(steps.begin() + function_.first_update),
                           std::make_move_iterator(steps.end()));
    drop_unread(tail);
    steps.clear();
    for (int u : order_) {
      if (is_pointwise(units_[u].step) && units_[u].step.out.empty()) continue;
      steps.push_back(std::move(units_[u].step));
    }
    function_.first_update = static_cast<int>(steps.size());
    std::move(tail.begin(), tail.end(), std::back_inserter(steps));
  }

 private:
  struct Uses {
    int writer = -1;
    std::vector<int> readers;  ///< since the writer
  };

  /// The steps before step `number` that it must follow: they touch the same buffers.
  std::vector<int> needs_of(const Step& step, int number) {
    std::vector<int> needs;
    auto read = [&](int buffer) {
      Uses& uses = uses_[buffer];
      if (uses.writer >= 0) needs.push_back(uses.writer);
      uses.readers.push_back(number);
    };
    auto write = [&](int buffer) {
      Uses& uses = uses_[buffer];
      if (uses.writer >= 0) needs.push_back(uses.writer);
      needs.insert(needs.end(), uses.readers.begin(), uses.readers.end());
      uses = {number, {}};
    };
    std::vector<int> in, out;
    for (const View& v : step.in) in.push_back(v.buffer);
    for (const View& v : step.out) out.push_back(v.buffer);
    if (step.kind == StepKind::collective) started_[step.number] = {in, out};
    if (step.kind == StepKind::wait) std::tie(in, out) = started_.at(step.number);
    for (int b : in) read(b);
    for (int b : out) write(b);
    std::erase(needs, number);
    make_distinct(needs);
    return needs;
  }

  static void make_distinct(std::vector<int>& list) {
    std::sort(list.begin(), list.end());
    list.erase(std::unique(list.begin(), list.end()), list.end());
  }

  static bool is_identity(const Step& step) {
    return step.in.size() == 1 && step.out.size() == 1 && step.pointwise.code.size() == 1 &&
           step.pointwise.code[0].dtype == step.in[0].dtype;
  }

  /// True for a copy of a whole buffer that is never written afterwards: reading the original is
  /// the same.
  bool is_needless_copy(const Step& step) const {
    const bool moves = step.kind == StepKind::compute && info_of(step.kernel).is_copy;
    if (!moves && !(is_pointwise(step) && is_identity(step))) return false;
    const View &in = step.in[0], &out = step.out[0];
    auto is_whole = [&](const View& v) {
      return v.is_contiguous() && v.offset == 0 && v.shift == AffineExpr{} &&
             v.elements() * size_of(v.dtype) == bytes_[v.buffer] &&
             (transient_[v.buffer] ? writes_[v.buffer] == 1 : is_constant_[v.buffer] != 0);
    };
    return !is_port_[out.buffer] && in.dtype == out.dtype && in.sizes == out.sizes &&
           is_whole(in) && transient_[out.buffer] && is_whole(out);
  }

  void add(Step step) {
    const int number = static_cast<int>(unit_of_.size());
    rename_operands(step);
    if (std::optional<Step> rows = row_step(step, limits_)) step = std::move(*rows);
    const bool pointwise = is_pointwise(step);
    if (pointwise) {
      step = with_sources(step, sources_);
      const auto source = source_of(step);
      if (source && writes_[step.out[0].buffer] == 1) sources_.emplace(step.out[0].buffer, *source);
    }
    if (is_needless_copy(step)) {
      renamed_[step.out[0].buffer] = step.in[0].buffer;
      return;
    }
    const int unit = static_cast<int>(units_.size());
    std::vector<int> needs = needs_of(step, number);
    units_.push_back({std::move(step), std::move(needs), -1});
    unit_of_.push_back(unit);
    order_.push_back(unit);
    size_t at = order_.size() - 1;
    while (pointwise && merge_back(at)) {
    }
  }

  /// Merges the unit at `at` with an earlier one. `at` becomes the position of the result.
  bool merge_back(size_t& at) {
    const Step& step = units_[order_[at]].step;
    for (size_t back = 1; back <= kReachOfValues && back <= at; ++back) {
      const Step& other = units_[order_[at - back]].step;
      if (!is_pointwise(other)) continue;
      if (other.out[0].sizes != step.out[0].sizes) {
        const std::optional<Step> wide = along_row(step, other);
        if (wide && reads_result(*wide, other) && may_merge(other, *wide, limits_) &&
            merge_at(at - back, at, *wide))
          return true;
        continue;
      }
      const bool few = step.out[0].elements() <= kFewElements;
      const bool related = reads_result(step, other) ||
                           ((few || back <= kReachOfOperands) && share_operand(step, other, few));
      if (related && may_merge(other, step, limits_) && merge_at(at - back, at, step)) return true;
    }
    return false;
  }

  static bool reads_result(const Step& step, const Step& other) {
    return std::any_of(step.in.begin(), step.in.end(), [&](const View& in) {
      return std::any_of(other.out.begin(), other.out.end(), [&](const View& out) {
        return in.buffer == out.buffer && same_window(in, out);
      });
    });
  }

  /// True if both read an operand that is worth loading once.
  static bool share_operand(const Step& step, const Step& other, bool few) {
    return std::any_of(step.in.begin(), step.in.end(), [&](const View& in) {
      for (size_t d = 0; d < in.sizes.size(); ++d) {
        if (!few && in.sizes[d] != 1 && in.strides[d] == 0) return false;
      }
      return std::any_of(other.in.begin(), other.in.end(), [&](const View& v) {
        return in.buffer == v.buffer && same_window(in, v);
      });
    });
  }

  /// Merges two units if possible. `what`: the step of the second, in the form that joins the
  /// first.
  bool merge_at(size_t first, size_t& second, const Step& what) {
    const int a = order_[first], b = order_[second];
    std::vector<int> before, after;  // the units between that go before and after `a`
    const auto follows = [&](int unit) {
      return std::find(after.begin(), after.end(), unit) != after.end();
    };
    auto must_follow = [&](int unit) {
      return std::any_of(units_[unit].needs.begin(), units_[unit].needs.end(),
                         [&](int step) { return unit_of(step) == a || follows(unit_of(step)); });
    };
    for (size_t k = first + 1; k < second; ++k) {
      const int unit = order_[k];
      (must_follow(unit) ? after : before).push_back(unit);
    }
    for (int step : units_[b].needs) {
      if (follows(unit_of(step))) return false;
    }
    std::optional<Step> step = merged(units_[a].step, what, limits_);
    if (!step) return false;
    join(a, b, std::move(*step));
    auto to = std::copy(before.begin(), before.end(), order_.begin() + first);
    *to++ = a;
    to = std::copy(after.begin(), after.end(), to);
    order_.erase(to);
    second = first + before.size();
    return true;
  }

  /// The unit to which an original step belongs now.
  int unit_of(int step) {
    int& unit = unit_of_[step];
    while (units_[unit].joined >= 0) unit = units_[unit].joined;
    return unit;
  }

  void join(int a, int b, Step step) {
    Unit& unit = units_[a];
    unit.step = std::move(step);
    for (const auto& [k, earlier] : equal_outputs(unit.step)) {
      const int same = unit.step.out[k].buffer, first = unit.step.out[earlier].buffer;
      if (!is_port_[same] && writes_[same] == 1 && writes_[first] == 1 && renamed_[same] < 0)
        renamed_[same] = first;
    }
    units_[b].joined = a;
    unit.needs.insert(unit.needs.end(), units_[b].needs.begin(), units_[b].needs.end());
    make_distinct(unit.needs);
    std::erase_if(unit.needs, [&](int step) { return unit_of(step) == a; });
  }

  /// Makes readers of a duplicate result read the first one.
  void rename(int& buffer) const {
    while (buffer >= 0 && renamed_[buffer] >= 0) buffer = renamed_[buffer];
  }

  void rename_operands(Step& step) const {
    for (View& v : step.in) rename(v.buffer);
    rename_in_bodies(step, [&](int& buffer) { rename(buffer); });
  }

  /// Drops results that no unit, no later step and no port reads.
  void drop_unread(std::vector<Step>& tail) {
    std::vector<char> read = is_port_;
    auto add_reads = [&](Step& step) {
      rename_operands(step);
      for (const View& v : step.in) read[v.buffer] = 1;
    };
    for (Step& step : tail) add_reads(step);
    for (size_t k = order_.size(); k-- > 0;) {
      Step& step = units_[order_[k]].step;
      rename_operands(step);
      if (is_pointwise(step))
        keep_outputs(step, [&](int b) { return !transient_[b] || read[b] != 0; });
      if (!is_pointwise(step) || !step.out.empty()) add_reads(step);
    }
  }

  Function& function_;
  const FuseLimits limits_;
  // By buffer:
  std::vector<char> is_port_, is_constant_;
  std::vector<bool> transient_;
  std::vector<int64_t> bytes_;
  std::vector<Unit> units_;
  std::vector<int> order_;    ///< unit numbers, without merged ones
  std::vector<int> unit_of_;  ///< original step -> unit, perhaps since merged
  std::vector<Uses> uses_;    ///< per buffer
  std::map<int, std::pair<std::vector<int>, std::vector<int>>> started_;
  std::map<int, Source> sources_;
  std::vector<int> renamed_,
      writes_;  ///< by buffer: its replacement, or -1; number of writes
};

}  // namespace

void fuse_pointwise(Program& program, int64_t longest_row) {
  FuseLimits limits;
  limits.longest_row = longest_row;
  for (Function* f : all_functions(program.functions)) {
    Fuser(program, *f, limits).run();
    store_in_place(program, *f);
  }
  for (Function& f : program.functions) {
    if (f.kind == FunctionKind::init) initialize_in_place(program, f);
  }
  drop_unused_buffers(program);
}

}  // namespace tessera
