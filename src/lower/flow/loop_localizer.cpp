// A loop is one step whose body is a function.
//   Carries: buffers that are filled before the first iteration and written at the end of each.
//   Slices: views whose shift is the loop's counter.
//   Stacks: the step that computes a value writes it to its place in the stack. A view of another
//   buffer is copied there.
//   Sums: buffers that start as zeros; each iteration adds to them. If an inner loop stacks what
//   the outer loop only sums (gradients of layers, over microbatches), it adds each slice directly.
//   Under strict numerics a sum is a tree over the iterations and has a buffer for each subtree
//   that is open at a time; the first one has the sum in the end.
#include "lower/flow/loop_localizer.h"

#include <algorithm>
#include <iterator>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include "base/fail.h"

namespace tessera {

namespace {

/// Sets the operands of a loop's step: the buffers of its body that outlive an iteration. Written
/// buffers are also inputs, since iterations may leave parts of them unchanged.
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

/// Notes which buffers of a body exist outside: the first `buffers`, and those that persist.
void find_outer(const Program& program, int buffers, Function& body) {
  std::set<int> outer;
  for (const Step& step : body.steps) {
    visit_views(step, [&](const View& v) {
      const bool persists = program.buffers[v.buffer].arena != ArenaKind::transient;
      if (v.buffer < buffers || persists) outer.insert(v.buffer);
    });
  }
  body.outer.assign(outer.begin(), outer.end());
}

/// The part of a view [chunks, ...] that belongs to a chunk.
View chunk_of(View view, int dim, int64_t chunk) {
  view.offset += chunk * view.strides[static_cast<size_t>(dim)];
  view.strides.erase(view.strides.begin() + dim);
  view.sizes.erase(view.sizes.begin() + dim);
  return view;
}

/// The chunk of layers in a loop over microbatches, or -1.
int64_t chunk_in(const FlowLoop& microbatches) {
  if (microbatches.body.empty() || !microbatches.body.back().loop) return -1;
  return microbatches.body.back().loop->chunk;
}

/// The joins of a tree whose leaves are iterations.
std::vector<int64_t> joins_of_iterations(int64_t iterations) {
  std::vector<uint64_t> leaves(static_cast<size_t>(iterations));
  std::iota(leaves.begin(), leaves.end(), 0);
  return joins_of(leaves);
}

/// An entry of a table [turn, stage], or [turn] if `stages` is 1.
AffineExpr entry(std::vector<int64_t> table, int turn, int axis, int64_t stages) {
  AffineExpr e;
  e.scalar = turn;
  e.scalar_factor = stages;
  if (stages > 1) e.axis_terms = {{axis, 1}};
  e.table = std::make_shared<const std::vector<int64_t>>(std::move(table));
  return e;
}

View with_dim_in_front(View view) {
  view.strides.insert(view.strides.begin(), view.elements());
  view.sizes.insert(view.sizes.begin(), 1);
  return view;
}

View without_dim_in_front(View view) {
  view.strides.erase(view.strides.begin());
  view.sizes.erase(view.sizes.begin());
  return view;
}

/// The number of uses of a value in a loop's iterations.
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

/// True if an inner loop stacks `value` from the results of an op, and `value` has one use in the
/// outer loop's iterations.
bool is_stacked_once(const FlowLoop& iterations, int value) {
  for (const FlowNode& node : iterations.body) {
    const auto at = std::find(node.out.begin(), node.out.end(), value) - node.out.begin();
    if (!node.loop || at == std::ssize(node.out)) continue;
    const FlowLoop& inner = *node.loop;
    const auto place = at - std::ssize(inner.carries);
    if (inner.condition >= 0 || place < 0 || place >= std::ssize(inner.stacked)) return false;
    const int slice = inner.stacked[static_cast<size_t>(place)];
    const bool is_made = std::any_of(inner.body.begin(), inner.body.end(), [&](const FlowNode& n) {
      return n.kind == FlowKind::op && std::count(n.out.begin(), n.out.end(), slice) > 0;
    });
    return is_made && uses_in(iterations, value) == 1;
  }
  return false;
}

}  // namespace

void LoopLocalizer::add_loop(const FlowNode& node) {
  if (node.loop->pipeline_axis >= 0) return add_pipeline(node);
  const int counter = build_.counter(*node.loop);
  // Stages that hand nothing on, as those that make initial values, run at once.
  const auto& carries = node.loop->carries;
  const bool is_share =
      node.loop->stage_axis >= 0 && !carries.empty() && !passed_.contains(carries[0].value);
  if (is_share) return add_stages(node, counter);
  begin_loop(node, counter);
  build_.add_step(loop_step(node, counter, body_of(node, counter)));
}

/// Finds the sums of the loop that an inner loop accumulates slice by slice.
void LoopLocalizer::find_direct_sums(const FlowNode& node) {
  const FlowLoop& loop = *node.loop;
  for (size_t i = 0; i < loop.sums.size(); ++i) {
    const int sum = node.out[loop.carries.size() + loop.stacked.size() + i];
    if (!is_stacked_once(loop, loop.sums[i])) continue;
    const View& whole = build_.view(sum);
    const bool is_dealt = std::ssize(whole.sizes) > build_.value(loop.sums[i]).shape.rank();
    sums_.emplace(loop.sums[i], is_dealt ? chunk_of(whole, 0, chunk_in(loop)) : whole);
  }
}

Function LoopLocalizer::body_of(const FlowNode& node, int counter) {
  const FlowLoop& loop = *node.loop;
  Function body{loop.name, {}, {}, {}, true, 0};
  body.kind = FunctionKind::body;
  const auto buffers = static_cast<int>(build_.program().buffers.size());
  Function* outside = build_.set_function(&body);
  const std::map<int, View> places = build_.places();
  const Tree outer = tree_;
  if (loop.sums_in_tree) tree_ = {counter, joins_of_iterations(loop.iterations)};
  for (size_t i = 0; i < loop.stacked.size(); ++i) {
    const int result = node.out[loop.carries.size() + i];
    if (!sums_.contains(result))
      build_.set_place(loop.stacked[i], place_of(loop, loop.stacked[i], result, counter));
  }
  if (loop.stage_axis >= 0) build_.stage_axes().push_back(loop.stage_axis);
  for (const auto& [from, to] : loop.copies)
    build_.add_copy(build_.view(from), build_.view(to), node.origin);
  for (const FlowNode& move : loop.begin_to_next)
    loop.senders.empty() ? add_move(move, true) : add_arrival(loop, move, counter);
  for (const FlowNode& move : loop.begin_to_all) add_move(move, false);
  add_nodes_(loop.body);
  if (loop.stage_axis >= 0) build_.stage_axes().pop_back();
  build_.set_places(places);
  end_iteration(node, counter);
  tree_ = outer;
  build_.set_function(outside);
  find_outer(build_.program(), buffers, body);
  body.overlaps = loop.condition < 0 && loop.stage_axis < 0 && loop.iterations > 1;
  return body;
}

/// The slice of a view that belongs to the current iteration.
View LoopLocalizer::slice_at(const FlowLoop& loop, View whole, int dim, int counter) {
  View slice = std::move(whole);
  TESSERA_CHECK(slice.shift.scalar < 0, "a view of '{}' depends on two counters",
                build_.program().buffers[slice.buffer].name);
  slice.shift.scalar = counter;
  slice.shift.scalar_factor = slice.strides[dim];
  if (loop.stage_axis < 0 && slice.sizes[dim] < loop.iterations)  // the latest iterations only
    slice.shift.modulus = slice.sizes[dim] * slice.strides[dim];
  if (loop.stage_axis >= 0) {
    slice.shift.axis_terms.emplace_back(loop.stage_axis,
                                        -loop.ahead(slice.sizes[dim]) * slice.strides[dim]);
    slice.shift.constant -= loop.first_layer * slice.strides[dim];
  }
  slice.sizes.erase(slice.sizes.begin() + dim);
  slice.strides.erase(slice.strides.begin() + dim);
  return slice;
}

/// Where an iteration puts a value that it stacks.
View LoopLocalizer::place_of(const FlowLoop& loop, int value, int result, int counter) {
  View place = slice_at(loop, build_.view(result), 0, counter);
  const bool is_dealt = std::ssize(place.sizes) > build_.value(value).shape.rank();
  return is_dealt ? chunk_of(std::move(place), 0, chunk_in(loop)) : place;
}

void LoopLocalizer::fill_with_zeros(const View& view, const Origin& origin) {
  Step step;
  step.kernel = KernelKind::pointwise;
  step.out = {view};
  Instr zero;
  zero.code = PointwiseOp::constant;
  zero.dtype = view.dtype;
  step.pointwise = {{zero}, {0}};
  step.origin = origin;
  build_.add_step(std::move(step));
}

void LoopLocalizer::add_to_sum(const View& sum, const View& value, const Origin& origin) {
  if (open_.contains(sum.buffer)) return push_subtree(sum, value, origin);
  Step step;
  step.kernel = KernelKind::pointwise;
  step.origin = origin;
  step.in = {sum, value};
  step.out = {sum};
  Instr add;
  add.code = PointwiseOp::add;
  add.a = 0;
  add.b = 1;
  add.dtype = sum.dtype;
  step.pointwise = {{load_instr(0, sum.dtype), load_instr(1, sum.dtype), add}, {2}};
  step.flops = sum.elements();
  build_.add_step(std::move(step));
}

/// The subtree of this iteration is joined with those that end here, and put where the first of
/// them was. Adding -0 changes nothing.
void LoopLocalizer::push_subtree(const View& sum, const View& value, const Origin& origin) {
  const std::vector<int>& open = open_.at(sum.buffer);
  std::vector<std::vector<int64_t>> joins(open.size()), becomes(open.size());
  int64_t before = 0;
  for (const int64_t count : tree_.joins) {
    for (int64_t i = 0; i < std::ssize(open); ++i) {
      joins[static_cast<size_t>(i)].push_back(i >= before - count && i < before);
      becomes[static_cast<size_t>(i)].push_back(i == before - count);
    }
    before += 1 - count;
  }
  Step step;
  step.kernel = KernelKind::pointwise;
  step.origin = origin;
  std::vector<Instr>& code = step.pointwise.code;
  const auto add = [&](Instr instr, DType dtype) {
    instr.dtype = dtype;
    code.push_back(instr);
    return static_cast<int>(code.size()) - 1;
  };
  const auto chosen = [&](int of, double otherwise, const std::vector<int64_t>& when) {
    Instr mask{.code = PointwiseOp::mask, .a = of};
    mask.slot = -1;
    mask.imm = otherwise;
    mask.expr = static_cast<int>(step.exprs.size());
    step.exprs.push_back(entry(when, tree_.counter, 0, 1));
    return add(mask, code[static_cast<size_t>(of)].dtype);
  };
  for (const int buffer : open) {
    step.in.push_back(sum);
    step.in.back().buffer = buffer;
    code.push_back(load_instr(static_cast<int>(code.size()), sum.dtype));
  }
  step.out = step.in;
  step.in.push_back(value);
  code.push_back(load_instr(static_cast<int>(code.size()), sum.dtype));
  int top = static_cast<int>(open.size());
  for (int i = top; i-- > 0;) {
    const int joined = chosen(i, -0.0, joins[static_cast<size_t>(i)]);
    top = add({.code = PointwiseOp::add, .a = joined, .b = top}, sum.dtype);
  }
  for (size_t i = 0; i < open.size(); ++i) {
    const std::vector<int64_t>& here = becomes[i];
    if (std::ranges::count(here, 0) == 0) {
      step.pointwise.outputs.push_back(top);
      continue;
    }
    const int yes = add({.code = PointwiseOp::constant, .imm = 1}, DType::bool_);
    const int is_here = chosen(yes, 0, here);
    Instr where{.code = PointwiseOp::where, .a = is_here, .b = top, .c = static_cast<int>(i)};
    step.pointwise.outputs.push_back(add(where, sum.dtype));
  }
  step.flops = sum.elements() * std::ssize(open);
  build_.add_step(std::move(step));
}

void LoopLocalizer::begin_loop(const FlowNode& node, int counter) {
  set_slices(*node.loop, counter);
  make_results(node);
}

void LoopLocalizer::set_slices(const FlowLoop& loop, int counter) {
  for (const FlowLoop::Slice& slice : loop.slices) {
    View whole = build_.view(slice.whole);
    if (whole.shift.scalar >= 0) whole = build_.copy_of(slice.whole);
    const bool is_dealt = std::ssize(whole.sizes) > build_.value(slice.value).shape.rank() + 1;
    if (is_dealt) whole = chunk_of(std::move(whole), slice.dim, loop.chunk);
    build_.view(slice.value) = slice_at(loop, std::move(whole), slice.dim, counter);
  }
}

/// Makes the buffers of the loop's results, and fills what the first iteration reads.
void LoopLocalizer::make_results(const FlowNode& node) {
  const FlowLoop& loop = *node.loop;
  for (size_t i = 0; i < node.out.size(); ++i) {
    if (const auto sum = sums_.find(node.out[i]); sum != sums_.end()) {
      build_.view(node.out[i]) = sum->second;
      continue;
    }
    const bool carries = i < loop.carries.size();
    if (carries && passed_.contains(loop.carries[i].value)) {
      if (loop.chunk < 0)
        build_.add_copy(build_.view(loop.arrivals[i]), build_.view(node.out[i]), node.origin);
      if (loop.carries[i].init >= 0) enter(loop, loop.carries[i], node.origin);
      continue;
    }
    if (loop.share && !made_.insert(node.out[i]).second) continue;
    const View view = build_.view(node.out[i]) =
        build_.new_view(build_.value(node.out[i]), ArenaKind::transient);
    if (carries) {
      build_.add_copy(build_.view(loop.carries[i].init), view, node.origin);
      build_.view(loop.carries[i].value) = view;
    } else if (i >= loop.carries.size() + loop.stacked.size() || loop.condition >= 0 ||
               has_padding(loop)) {
      const size_t sum = i - loop.carries.size() - loop.stacked.size();
      const bool continues = sum < loop.sum_inits.size() && loop.sum_inits[sum] >= 0;
      if (loop.sums_in_tree) {
        int64_t open = 0, most = 0;
        for (const int64_t count : joins_of_iterations(loop.iterations))
          most = std::max(most, open += 1 - count);
        open_[view.buffer] = {view.buffer};
        while (std::ssize(open_[view.buffer]) < most) {
          const View further = build_.new_view(build_.value(node.out[i]), ArenaKind::transient);
          open_[view.buffer].push_back(further.buffer);
          fill_with_zeros(further, node.origin);
        }
      }
      if (continues) {
        build_.add_copy(build_.view(loop.sum_inits[sum]), view, node.origin);
      } else {
        fill_with_zeros(view, node.origin);
      }
    }
  }
  find_direct_sums(node);
}

/// Writes the values of an iteration to their places. Carries are assigned last, when all values
/// have been computed.
void LoopLocalizer::end_iteration(const FlowNode& node, int counter) {
  const FlowLoop& loop = *node.loop;
  std::vector<std::pair<View, View>> stores;
  std::set<int> carried;
  const size_t first_add = build_.function().steps.size();
  for (const FlowLoop::Carry& c : loop.carries) carried.insert(build_.view(c.value).buffer);
  for (size_t i = 0; i < node.out.size(); ++i) {
    const View result = build_.view(node.out[i]);
    if (i < loop.carries.size()) {
      const int next = loop.carries[i].next;
      const View& value = build_.view(next);
      if (value == result) continue;
      stores.emplace_back(carried.count(value.buffer) ? build_.copy_of(next) : value, result);
    } else if (i < loop.carries.size() + loop.stacked.size()) {
      const View& value = build_.view(loop.stacked[i - loop.carries.size()]);
      const bool is_sum = sums_.contains(node.out[i]);
      const View place =
          is_sum ? slice_at(loop, result, 0, counter)
                 : place_of(loop, loop.stacked[i - loop.carries.size()], node.out[i], counter);
      if (is_sum) {
        add_to_sum(place, value, node.origin);
      } else if (!(value == place)) {
        build_.add_copy(value, place, node.origin);
      }
    } else {
      const int value = loop.sums[i - loop.carries.size() - loop.stacked.size()];
      const bool is_dealt = std::ssize(result.sizes) > build_.value(value).shape.rank();
      const View sum = is_dealt ? chunk_of(result, 0, chunk_in(loop)) : result;
      if (!sums_.contains(value)) add_to_sum(sum, build_.view(value), node.origin);
    }
  }
  add_early(first_add);
  build_.function().first_update = static_cast<int>(build_.function().steps.size());
  for (const auto& [from, to] : stores) build_.add_copy(from, to, node.origin);
}

namespace {

/// Buffers that the first steps of a function receive by collectives, and what is computed of these
/// element by element.
std::set<int> received_by(const std::vector<Step>& steps, size_t first) {
  std::set<int> received;
  for (size_t s = 0; s < first; ++s) {
    const Step& step = steps[s];
    const bool is_received = step.kind == StepKind::collective ||
                             (step.kernel == KernelKind::pointwise &&
                              std::any_of(step.in.begin(), step.in.end(), [&](const View& view) {
                                return received.contains(view.buffer);
                              }));
    for (const View& view : step.out) {
      if (is_received) received.insert(view.buffer);
    }
  }
  return received;
}

/// For each of the first steps: true if it is pointwise on received values, and no other of these
/// steps touches what it computes.
std::vector<char> only_added(const std::vector<Step>& steps, size_t first,
                             const std::set<int>& received) {
  std::vector<char> added(first, 0);
  std::set<int> touched, written;
  for (size_t s = first; s-- > 0;) {
    const Step& step = steps[s];
    const auto is_in = [](const std::set<int>& buffers) {
      return [&](const View& view) { return buffers.contains(view.buffer); };
    };
    added[s] = step.kind == StepKind::compute && step.kernel == KernelKind::pointwise &&
               std::any_of(step.in.begin(), step.in.end(), is_in(received)) &&
               std::none_of(step.in.begin(), step.in.end(), is_in(written)) &&
               std::none_of(step.out.begin(), step.out.end(), is_in(touched));
    if (added[s]) continue;
    for (const View& view : step.in) touched.insert(view.buffer);
    for (const View& view : step.out) {
      touched.insert(view.buffer);
      written.insert(view.buffer);
    }
  }
  return added;
}

}  // namespace

/// Moves the additions to sums, which are the steps from `first` on, to where their values are
/// made, so that these need not be kept. What a collective sums is added at the end, and cast
/// there: until then it may be combined with later ones, and awaited.
void LoopLocalizer::add_early(size_t first) {
  std::vector<Step>& steps = build_.function().steps;
  const std::set<int> received = received_by(steps, first);
  const std::vector<char> added = only_added(steps, first, received);
  std::map<int, size_t> maker;  // buffer -> the last step that writes it
  for (size_t s = 0; s < first; ++s) {
    for (const View& view : steps[s].out) maker[view.buffer] = s;
  }
  std::map<size_t, std::vector<Step>> after;
  std::vector<Step> ordered, last;
  for (size_t s = first; s < steps.size(); ++s) {
    const bool is_sum = steps[s].in.size() == 2 && steps[s].out[0] == steps[s].in[0] &&
                        !maker.contains(steps[s].out[0].buffer);
    const auto made = is_sum ? maker.find(steps[s].in[1].buffer) : maker.end();
    const bool moves = made != maker.end() && !received.contains(made->first);
    (moves ? after[made->second] : last).push_back(std::move(steps[s]));
  }
  std::vector<Step> late;
  for (size_t s = 0; s < first; ++s) {
    (added[s] ? late : ordered).push_back(std::move(steps[s]));
    if (const auto more = after.find(s); more != after.end())
      std::move(more->second.begin(), more->second.end(), std::back_inserter(ordered));
  }
  for (std::vector<Step>* const part : {&late, &last})
    std::move(part->begin(), part->end(), std::back_inserter(ordered));
  steps = std::move(ordered);
}

Step LoopLocalizer::loop_step(const FlowNode& node, int counter, Function body) {
  const FlowLoop& loop = *node.loop;
  Step step;
  step.kernel = KernelKind::loop;
  step.origin = node.origin;
  step.loop = {iterations_here(loop), counter, loop.reverse, {}};
  if (loop.condition >= 0) step.loop.condition = {build_.view(loop.condition)};
  if (loop.stage_axis >= 0) {
    step.loop.first.constant = loop.first_layer;
    step.loop.first.axis_terms = {{loop.stage_axis, loop.ahead(step.loop.iterations)}};
    step.loop.end = loop.iterations;
  }
  for (const Step& inner : body.steps) step.flops += step.loop.iterations * inner.flops;
  step.body.push_back(std::move(body));
  set_operands(step);
  return step;
}

// ------------------------------------------------------------------------------------------ stages

/// True if stages have more places than there are iterations.
bool LoopLocalizer::has_padding(const FlowLoop& loop) const {
  if (loop.stage_axis < 0) return false;
  const int64_t chunks = loop.chunk < 0 ? 1 : loop.chunks;
  return loop.per_stage * stages_of(loop.stage_axis) * chunks != loop.iterations;
}

/// The iterations of a rank: all, or those of its stage, padding included.
int64_t LoopLocalizer::iterations_here(const FlowLoop& loop) const {
  return loop.stage_axis < 0 ? loop.iterations : loop.per_stage;
}

/// The scalar that counts the ticks of stages.
int LoopLocalizer::tick_of(const FlowLoop& layers) {
  return build_.scalar("tick of " + layers.name);
}

/// Layers in stages that are not in a loop over microbatches: in tick t, stage t runs.
void LoopLocalizer::add_stages(const FlowNode& node, int counter) {
  const FlowLoop& loop = *node.loop;
  const int stages = stages_of(loop.stage_axis);
  begin_loop(node, counter);
  const auto buffers = static_cast<int>(build_.program().buffers.size());
  Step share = loop_step(node, counter, body_of(node, counter));
  std::vector<int64_t> table(static_cast<size_t>(stages * stages), -1);
  for (int64_t tick = 0; tick < stages; ++tick)
    table[static_cast<size_t>(tick * stages + (loop.descends() ? stages - 1 - tick : tick))] = 0;
  share.loop.share = {loop.reverse ? StageWork::backward : StageWork::forward, loop.stage_axis,
                      tick_of(loop), stages,
                      std::make_shared<const std::vector<int64_t>>(std::move(table))};
  Function tick{loop.name + ".tick", {}, {}, {}, true, 0};
  tick.kind = FunctionKind::body;
  Function* outside = build_.set_function(&tick);
  for (size_t i = 0; i < loop.carries.size(); ++i) {
    const FlowNode& move = loop.to_next[i];
    const View carry = build_.view(loop.carries[i].value);
    build_.view(move.in[0]) = with_dim_in_front(carry);
    add_nodes_({move});
    build_.add_copy(without_dim_in_front(build_.view(move.out[0])), carry, node.origin);
  }
  build_.add_step(std::move(share));
  add_ticks(node, tick, stages, buffers, outside);
  for (size_t i = 0; i < loop.carries.size(); ++i) {
    const FlowNode& move = loop.to_all[i];
    build_.view(move.in[0]) = with_dim_in_front(build_.view(node.out[i]));
    add_nodes_({move});
    build_.view(node.out[i]) = without_dim_in_front(build_.view(move.out[0]));
  }
}

/// A loop over ticks. What stages send, and what layers make, lies in buffers that outlive a tick.
void LoopLocalizer::add_pipeline(const FlowNode& node) {
  const FlowLoop& loop = *node.loop;
  made_.clear();
  for (const FlowNode& share : loop.body) {
    make_results(share);
    if (!share.loop->body.empty() && share.loop->body.back().loop)
      make_passed(share.loop->body.back());
  }
  const auto buffers = static_cast<int>(build_.program().buffers.size());
  Function tick{loop.name + ".tick", {}, {}, {}, true, 0};
  tick.kind = FunctionKind::body;
  Function* outside = build_.set_function(&tick);
  for (const FlowNode& share : loop.body) add_share(share, loop);
  add_ticks(node, tick, loop.iterations, buffers, outside);
}

/// Makes the buffers of the carries of layers: one for what arrives, one for what they make of it.
void LoopLocalizer::make_passed(const FlowNode& layers) {
  const FlowLoop& loop = *layers.loop;
  if (loop.stage_axis < 0) return;
  for (size_t i = 0; i < loop.carries.size(); ++i) {
    const int carry = loop.carries[i].value;
    const bool is_known = passed_.contains(carry);  // from another chunk of these layers
    for (const int v : {loop.arrivals[i], carry}) {
      if (is_known) break;
      build_.view(v) = build_.new_view(build_.value(v), ArenaKind::transient);
      fill_with_zeros(build_.view(v), layers.origin);
    }
    build_.view(layers.out[i]) = build_.view(carry);
    passed_.insert(carry);
  }
}

/// Adds the iteration that a stage runs in a tick, if any, of a loop over microbatches.
void LoopLocalizer::add_share(const FlowNode& node, const FlowLoop& pipeline) {
  const FlowLoop& loop = *node.loop;
  const int counter =
      loop.number < 0 ? build_.scalar("iteration of " + loop.name) : build_.counter(loop);
  set_slices(loop, counter);
  Step share = loop_step(node, counter, body_of(node, counter));
  share.body[0].overlaps = false;
  share.loop.share = loop.share;
  share.loop.share->tick = tick_of(pipeline);
  build_.add_step(std::move(share));
}

/// An exchange between the stages of what layers make. `is_next`: to the place where the next stage
/// expects it.
void LoopLocalizer::add_move(const FlowNode& move, bool is_next) {
  const int from = move.in[0], to = move.out[0], value = move.out[1];
  build_.view(from) = with_dim_in_front(build_.view(move.in[1]));
  const auto place = build_.places().find(value);
  if (is_next) {
    build_.set_place(to, with_dim_in_front(build_.view(value)));
  } else if (place != build_.places().end()) {
    build_.set_place(to, with_dim_in_front(View(place->second)));
  }
  add_nodes_({move});
  build_.view(value) = without_dim_in_front(build_.view(to));
  // In a tick few ranks send: this one so many copies.
  const View& sent = build_.view(value);
  last_exchange().max_bytes =
      (is_next ? 1 : stages_of(move.axes[0]) - 1) * sent.elements() * size_of(sent.dtype);
}

Step& LoopLocalizer::last_exchange() {
  std::vector<Step>& steps = build_.function().steps;
  return *std::find_if(steps.rbegin(), steps.rend(),
                       [](const Step& s) { return is_collective(s, CollectiveKind::exchange); });
}

/// An exchange of which each tick has another plan: the tables of the loop say who receives from
/// whom, and where it is put.
void LoopLocalizer::add_arrival(const FlowLoop& loop, const FlowNode& move, int counter) {
  const int axis = move.axes[0], from = move.in[0], to = move.out[0];
  const int64_t stages = stages_of(axis);
  View waiting = build_.view(move.out[1]);
  const int64_t stride = waiting.strides[0];
  if (waiting.sizes[0] > 1) {
    std::vector<int64_t> offsets = loop.places;
    for (int64_t& place : offsets) place *= stride;
    waiting.shift = entry(std::move(offsets), counter, axis, stages);
  }
  build_.view(from) = with_dim_in_front(build_.view(move.in[1]));
  build_.set_place(to, with_dim_in_front(without_dim_in_front(waiting)));
  add_nodes_({move});
  Step* const step = &last_exchange();
  step->exprs = {entry(loop.senders, counter, axis, stages)};
  // Of the ranks that send in a tick each sends one; in some ticks none does. What a stage has for
  // itself it does not send.
  const int64_t entries = std::ssize(loop.senders);
  int64_t sent = 0, sending = 0;
  for (int64_t tick = 0; tick < entries; tick += stages) {
    int64_t in_tick = 0;
    for (int64_t s = 0; s < stages; ++s) {
      const int64_t sender = loop.senders[static_cast<size_t>(tick + s)];
      in_tick += sender != s && sender < stages;
    }
    sent += in_tick;
    sending += in_tick > 0;
  }
  step->bytes = (stride * size_of(waiting.dtype) * sent + entries - 1) / entries;
  step->max_bytes = stride * size_of(waiting.dtype) * sending * stages / entries;
}

/// Adds the loop over ticks whose body is `tick` to the function `outside`.
void LoopLocalizer::add_ticks(const FlowNode& node, Function& tick, int64_t ticks, int first_buffer,
                              Function* outside) {
  const FlowLoop& loop = *node.loop;
  Step step;
  step.kernel = KernelKind::loop;
  step.origin = node.origin;
  step.loop = {ticks, tick_of(loop), false, {}};
  step.loop.stage_axis = loop.pipeline_axis >= 0 ? loop.pipeline_axis : loop.stage_axis;
  for (const Step& inner : tick.steps) step.flops += inner.flops;
  tick.first_update = static_cast<int>(tick.steps.size());
  build_.set_function(outside);
  find_outer(build_.program(), first_buffer, tick);
  step.body.push_back(std::move(tick));
  set_operands(step);
  build_.add_step(std::move(step));
}

/// On the first stage a microbatch enters the layers: a loop of one iteration that runs there.
void LoopLocalizer::enter(const FlowLoop& layers, const FlowLoop::Carry& carry,
                          const Origin& origin) {
  const auto buffers = static_cast<int>(build_.program().buffers.size());
  Function body{layers.name + ".entry", {}, {}, {}, true, 0};
  body.kind = FunctionKind::body;
  Function* outside = build_.set_function(&body);
  build_.add_copy(build_.view(carry.init), build_.view(carry.value), origin);
  build_.set_function(outside);
  body.first_update = 1;
  find_outer(build_.program(), buffers, body);
  Step step;
  step.kernel = KernelKind::loop;
  step.origin = origin;
  step.loop = {1, build_.scalar("entry"), false, {}};
  step.loop.first.axis_terms = {{layers.stage_axis, layers.descends() ? -1 : 1}};
  step.loop.first.constant = layers.descends() ? stages_of(layers.stage_axis) - 1 : 0;
  step.loop.end = 1;
  step.body.push_back(std::move(body));
  set_operands(step);
  build_.add_step(std::move(step));
}

}  // namespace tessera
