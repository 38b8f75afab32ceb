// An update is a step that computes a value, and a copy of the value into the stored tensor. The
// step may write the stored tensor itself if the copy is the only reader of the value and all
// readers of the old value have run. Readers before first_update have run. Readers that are
// themselves moved after first_update have not, except the writer, which reads each element before
// it writes it.
#include "lower/passes/store_in_place.h"

#include <algorithm>
#include <map>
#include <utility>

#include "lower/passes/fuse_merge.h"

namespace tessera {

namespace {

/// The input that a register may alias, or -1: that of a load, also through copies and masks.
int load_behind(const PointwiseProgram& program, int reg) {
  while (program.code[reg].code == PointwiseOp::copy || program.code[reg].code == PointwiseOp::mask)
    reg = program.code[reg].a;
  return program.code[reg].code == PointwiseOp::load ? program.code[reg].slot : -1;
}

class InPlaceStores {
 public:
  InPlaceStores(const Program& program, Function& function)
      : program_(program), function_(function) {}

  void run() {
    find_movable();
    auto& steps = function_.steps;
    const int first = function_.first_update, count = static_cast<int>(steps.size());
    std::vector<char> dropped(count, 0), moved(count, 0);
    for (int t = first; t < count; ++t) {
      const int w = writer_behind(steps[t]);
      if (w < 0 || !store(steps[w], steps[t])) continue;
      dropped[t] = moved[w] = 1;
    }
    std::vector<Step> result;
    auto take = [&](int begin, int end, bool want_moved) {
      for (int s = begin; s < end; ++s) {
        if (!dropped[s] && static_cast<bool>(moved[s]) == want_moved)
          result.push_back(std::move(steps[s]));
      }
    };
    take(0, first, false);
    function_.first_update = static_cast<int>(result.size());
    take(0, first, true);
    take(first, count, false);
    steps = std::move(result);
  }

 private:
  /// Finds the pointwise steps whose results only the copies read.
  void find_movable() {
    std::vector<char> kept(program_.buffers.size(), 0);
    for (const Port& port : program_.ports) kept[port.view.buffer] = 1;
    for (const int b : function_.outer) kept[b] = 1;
    for (size_t s = 0; s < function_.steps.size(); ++s) {
      for (const View& v : function_.steps[s].in) {
        if (static_cast<int>(s) >= function_.first_update) {
          ++copies_of_[v.buffer];
        } else {
          kept[v.buffer] = 1;
        }
      }
    }
    for (int s = 0; s < function_.first_update; ++s) {
      const Step& step = function_.steps[s];
      if (!is_pointwise(step)) continue;
      if (std::any_of(step.out.begin(), step.out.end(),
                      [&](const View& v) { return kept[v.buffer] != 0; }))
        continue;
      for (const View& v : step.in) movable_readers_[v.buffer].push_back(s);
      for (const View& v : step.out) writer_[v.buffer] = s;
    }
  }

  int writer_behind(const Step& copy) const {
    if (!info_of(copy.kernel).is_copy || copies_of_.at(copy.in[0].buffer) != 1) return -1;
    auto it = writer_.find(copy.in[0].buffer);
    return it == writer_.end() ? -1 : it->second;
  }

  /// Makes `step` write where `copy` would copy its result. Returns false if that is not safe.
  bool store(Step& step, const Step& copy) const {
    View from = copy.in[0];
    const View& to = copy.out[0];
    const int value = from.buffer;
    from.buffer = to.buffer;
    if (!same_window(from, to)) return false;
    if (auto it = movable_readers_.find(to.buffer); it != movable_readers_.end()) {
      for (int s : it->second) {
        if (&function_.steps[s] != &step) return false;
      }
    }
    for (const View& out : step.out) {
      if (out.buffer == to.buffer) return false;
      if (out.buffer != value) continue;
      View target = out;
      target.buffer = to.buffer;
      for (const View& in : step.in) {
        if (in.buffer == to.buffer && !same_window(in, target)) return false;
      }
    }
    for (int reg : step.pointwise.outputs) {
      const int slot = load_behind(step.pointwise, reg);
      if (slot >= 0 && step.in[slot].buffer == to.buffer) return false;
    }
    for (View& out : step.out) {
      if (out.buffer == value) out.buffer = to.buffer;
    }
    return true;
  }

  const Program& program_;
  Function& function_;
  std::map<int, std::vector<int>> movable_readers_;  ///< by buffer
  std::map<int, int> writer_, copies_of_;
};

}  // namespace

void store_in_place(const Program& program, Function& function) {
  InPlaceStores(program, function).run();
}

void initialize_in_place(const Program& program, Function& init) {
  std::map<int, size_t> first_use;  // by buffer: the step
  for (size_t s = 0; s < init.steps.size(); ++s)
    visit_views(std::as_const(init.steps[s]),
                [&](const View& v) { first_use.emplace(v.buffer, s); });
  std::map<int, int> place;  // by buffer of a value: that of the stored tensor
  const auto moves_all = [&](const Step& step, size_t s) {
    if (step.kind != StepKind::compute || !info_of(step.kernel).is_copy) return false;
    const View &from = step.in[0], &to = step.out[0];
    return program.buffers[from.buffer].arena == ArenaKind::transient &&
           program.buffers[to.buffer].arena == ArenaKind::persistent && from.dtype == to.dtype &&
           is_whole(program, from) && is_whole(program, to) && first_use.at(to.buffer) == s &&
           !place.contains(from.buffer);
  };
  std::vector<Step> kept;
  int dropped_before = 0;
  for (size_t s = 0; s < init.steps.size(); ++s) {
    Step& step = init.steps[s];
    if (moves_all(step, s)) {
      place[step.in[0].buffer] = step.out[0].buffer;
      dropped_before += static_cast<int>(s) < init.first_update ? 1 : 0;
    } else {
      kept.push_back(std::move(step));
    }
  }
  init.steps = std::move(kept);
  init.first_update -= dropped_before;
  const auto rename = [&](int& buffer) {
    if (const auto at = place.find(buffer); at != place.end()) buffer = at->second;
  };
  for (Step& step : init.steps) {
    for (auto* views : {&step.in, &step.out}) {
      for (View& view : *views) rename(view.buffer);
    }
    rename_in_bodies(step, rename);
  }
}

}  // namespace tessera
