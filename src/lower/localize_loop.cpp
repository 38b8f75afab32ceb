// A loop is one step, whose body is a function of its own. Carries lie in buffers that the first
// trip finds filled and every trip writes at its end; a slice is a view whose shift is the loop's
// counter; what is stacked is made in its place where it is made by a step, and copied there where
// it is a view of something else; sums are added to a buffer of zeros. What a loop stacks in a trip
// of another one, which only adds it up, is added there slice by slice: gradients of layers, over
// the parts of a batch.
#include <algorithm>
#include <set>
#include <utility>

#include "base/fail.h"
#include "lower/localizer.h"

namespace tessera {

namespace {

/// The operands of a loop's step: what lives longer than a trip. What is written is read, too, as
/// trips may leave parts of it as they are.
void set_operands(Step& step) {
  const Function& body = step.body[0];
  const std::set<int> outer(body.outer.begin(), body.outer.end());
  std::set<int> read, written;
  step.in = step.loop.condition;
  for (const View& v : step.in) read.insert(v.buffer);
  step.out.clear();
  for (const Step& inner : body.steps) {
    for (const auto* views : {&inner.out, &inner.in}) {
      for (const View& v : *views) {
        if (!outer.count(v.buffer)) continue;
        if (read.insert(v.buffer).second) step.in.push_back(v);
        if (views == &inner.out && written.insert(v.buffer).second) step.out.push_back(v);
      }
    }
  }
}

/// How often a loop's trips read a value of theirs.
int64_t uses_in(const FlowLoop& loop, int value) {
  const auto count = [&](const std::vector<int>& all) {
    return std::count(all.begin(), all.end(), value);
  };
  int64_t uses = count(loop.stacked) + count(loop.sums) + (loop.condition == value ? 1 : 0);
  for (const FlowLoop::Carry& c : loop.carries) uses += c.next == value ? 1 : 0;
  for (const FlowNode& node : loop.body) {
    uses += count(node.in);
    if (node.loop) uses += uses_in(*node.loop, value);
  }
  return uses;
}

/// In the trips a loop stacks `value`, of what an op makes, and one thing reads it.
bool is_stacked_once(const FlowLoop& trips, int value) {
  for (const FlowNode& node : trips.body) {
    const auto at = std::find(node.out.begin(), node.out.end(), value) - node.out.begin();
    if (!node.loop || at == std::ssize(node.out)) continue;
    const FlowLoop& inner = *node.loop;
    const auto place = at - std::ssize(inner.carries);
    if (inner.condition >= 0 || place < 0 || place >= std::ssize(inner.stacked)) return false;
    const int slice = inner.stacked[static_cast<size_t>(place)];
    const bool is_made = std::any_of(inner.body.begin(), inner.body.end(), [&](const FlowNode& n) {
      return n.kind == FlowKind::op && std::count(n.out.begin(), n.out.end(), slice) > 0;
    });
    return is_made && uses_in(trips, value) == 1;
  }
  return false;
}

}  // namespace

void Localizer::add_loop(const FlowNode& node) {
  const FlowLoop& loop = *node.loop;
  int& counter = counters_[static_cast<size_t>(loop.number)];
  if (counter < 0) {  // all functions share it
    counter = static_cast<int>(program_.scalars.size());
    program_.scalars.push_back(fmt::format("trip of {}", loop.name));
  }
  begin_loop(node, counter);
  for (size_t i = 0; i < loop.sums.size(); ++i) {
    if (is_stacked_once(loop, loop.sums[i]))
      sums_.emplace(loop.sums[i], views_[node.out[loop.carries.size() + loop.stacked.size() + i]]);
  }
  Function body{loop.name, {}, {}, {}, true, 0};
  const auto buffers = static_cast<int>(program_.buffers.size());
  Function* outside = std::exchange(function_, &body);
  const std::map<int, View> places = places_;
  for (size_t i = 0; i < loop.stacked.size(); ++i) {
    const int result = node.out[loop.carries.size() + i];
    if (!sums_.contains(result))
      places_.emplace(loop.stacked[i], place_in(views_[result], 0, counter));
  }
  add_nodes(loop.body);
  places_ = places;
  end_trip(node, counter);
  function_ = outside;
  std::set<int> outer;
  for (const Step& step : body.steps) {
    visit_views(step, [&](const View& v) {
      const bool persists = program_.buffers[v.buffer].arena != ArenaKind::transient;
      if (v.buffer < buffers || persists) outer.insert(v.buffer);
    });
  }
  body.outer.assign(outer.begin(), outer.end());
  body.overlaps = loop.condition < 0 && loop.trips > 1;
  step_of_loop(node, counter, std::move(body));
}

View Localizer::place_in(View whole, int dim, int counter) {
  View place = std::move(whole);
  check(place.shift.scalar < 0, "a view of '{}' depends on two counters",
        program_.buffers[place.buffer].name);
  place.shift.scalar = counter;
  place.shift.scalar_factor = place.strides[dim];
  place.sizes.erase(place.sizes.begin() + dim);
  place.strides.erase(place.strides.begin() + dim);
  return place;
}

void Localizer::fill_with_zeros(const View& view, const Origin& origin) {
  Step step;
  step.kernel = "pointwise";
  step.out = {view};
  Instr zero;
  zero.code = Code::constant;
  zero.dtype = view.dtype;
  step.pointwise = {{zero}, {0}};
  step.origin = origin;
  function().steps.push_back(std::move(step));
}

void Localizer::add_to_sum(const View& sum, const View& value, const Origin& origin) {
  Step step;
  step.kernel = "pointwise";
  step.origin = origin;
  step.in = {sum, value};
  step.out = {sum};
  Instr load, other, add;
  load.code = other.code = Code::load;
  load.slot = 0;
  other.slot = 1;
  add.code = Code::add;
  add.a = 0;
  add.b = 1;
  load.dtype = other.dtype = add.dtype = sum.dtype;
  step.pointwise = {{load, other, add}, {2}};
  step.flops = sum.elements();
  function().steps.push_back(std::move(step));
}

/// What a loop's trips begin with, and where its results will be.
void Localizer::begin_loop(const FlowNode& node, int counter) {
  const FlowLoop& loop = *node.loop;
  for (const FlowLoop::Slice& slice : loop.slices) {
    const View& whole = views_[slice.whole];
    views_[slice.value] =
        place_in(whole.shift.scalar < 0 ? whole : copy_of(slice.whole), slice.dim, counter);
  }
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (const auto sum = sums_.find(node.out[i]); sum != sums_.end()) {
      views_[node.out[i]] = sum->second;
      continue;
    }
    const View view = views_[node.out[i]] =
        new_view(flow_.values[node.out[i]], ArenaKind::transient);
    if (i < loop.carries.size()) {
      copy_step(views_[loop.carries[i].init], view, node.origin);
      views_[loop.carries[i].value] = view;
    } else if (i >= loop.carries.size() + loop.stacked.size() || loop.condition >= 0) {
      fill_with_zeros(view, node.origin);
    }
  }
}

/// Puts what a trip made where it belongs: all is computed before a carry is assigned.
void Localizer::end_trip(const FlowNode& node, int counter) {
  const FlowLoop& loop = *node.loop;
  std::vector<std::pair<View, View>> stores;
  std::set<int> carried;
  for (const FlowLoop::Carry& c : loop.carries) carried.insert(views_[c.value].buffer);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const View result = views_[node.out[i]];
    if (i < loop.carries.size()) {
      const int next = loop.carries[i].next;
      if (views_[next] == result) continue;
      stores.emplace_back(carried.count(views_[next].buffer) ? copy_of(next) : views_[next],
                          result);
    } else if (i < loop.carries.size() + loop.stacked.size()) {
      const int value = loop.stacked[i - loop.carries.size()];
      const View place = place_in(result, 0, counter);
      if (sums_.contains(node.out[i])) {
        add_to_sum(place, views_[value], node.origin);
      } else if (!(views_[value] == place)) {
        copy_step(views_[value], place, node.origin);
      }
    } else {
      const int value = loop.sums[i - loop.carries.size() - loop.stacked.size()];
      if (!sums_.contains(value)) add_to_sum(result, views_[value], node.origin);
    }
  }
  function().first_update = static_cast<int>(function().steps.size());
  for (const auto& [from, to] : stores) copy_step(from, to, node.origin);
}

void Localizer::step_of_loop(const FlowNode& node, int counter, Function body) {
  const FlowLoop& loop = *node.loop;
  Step step;
  step.kernel = "loop";
  step.origin = node.origin;
  step.loop = {loop.trips, counter, loop.reverse, {}};
  if (loop.condition >= 0) step.loop.condition = {views_[loop.condition]};
  for (const Step& inner : body.steps) step.flops += loop.trips * inner.flops;
  step.body.push_back(std::move(body));
  set_operands(step);
  function().steps.push_back(std::move(step));
}

}  // namespace tessera
