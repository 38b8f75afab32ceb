#include "lower/partition/hoist_sums.h"

#include <algorithm>
#include <utility>

#include "base/fail.h"
#include "ir/loop.h"
#include "lower/flow/pipeline_microbatches.h"
#include "lower/layout/choose.h"

namespace tessera {

namespace {

/// True for a node that moves elements of its first operand, or takes some of them.
bool moves(const FlowNode& node) {
  switch (node.kind) {
    case FlowKind::all_gather:
    case FlowKind::all_to_all:
    case FlowKind::slice:
    case FlowKind::exchange:
    case FlowKind::mask:
      return node.in.size() == 1;
    case FlowKind::op:
      return node.op->keeps_elements && !node.op->converts;
    default:
      return false;
  }
}

bool is_cast(const FlowNode& node) {
  return node.kind == FlowKind::op && node.op->converts && node.in.size() == 1;
}

const FlowNode* find_maker(const std::vector<FlowNode>& body, int value) {
  const auto makes = [&](const FlowNode& n) { return std::ranges::count(n.out, value) > 0; };
  const auto found = std::ranges::find_if(body, makes);
  return found == body.end() ? nullptr : &*found;
}

/// Removes the nodes of a loop's body whose results nothing reads.
void remove_unread(FlowLoop& loop) {
  std::set<int> read(loop.sums.begin(), loop.sums.end());
  read.insert(loop.stacked.begin(), loop.stacked.end());
  for (const FlowLoop::Carry& carry : loop.carries) read.insert(carry.next);
  if (loop.condition >= 0) read.insert(loop.condition);
  std::vector<FlowNode> kept;
  for (size_t n = loop.body.size(); n-- > 0;) {
    FlowNode& node = loop.body[n];
    if (std::ranges::none_of(node.out, [&](int v) { return read.contains(v); })) continue;
    add_read(node, read);
    kept.push_back(std::move(node));
  }
  std::ranges::reverse(kept);
  loop.body = std::move(kept);
}

/// For the few values of a loop over layers.
auto makers_in(const std::vector<FlowNode>& body) {
  return [&body](int value) { return find_maker(body, value); };
}

size_t stack_at(const FlowNode& layers, int value) {
  const auto place = std::ranges::find(layers.out, value) - layers.out.begin();
  return static_cast<size_t>(place - std::ssize(layers.loop->carries));
}

}  // namespace

void HoistSums::run() {
  before_ = loop_.sums;
  for (size_t n = 0; n < loop_.body.size(); ++n) {
    for (const int v : loop_.body[n].out) maker_[v] = n;
  }
  for (const int sum : before_) depends_ = !is_total(sum) || depends_;
  std::set<int> read;  // by what is behind the loop
  for (const int sum : before_) read.insert(sum);
  for (size_t n = loop_.body.size(); n-- > 0;) {
    const FlowNode& node = loop_.body[n];
    const bool is_read = std::ranges::any_of(node.out, [&](int v) { return read.contains(v); });
    if (!is_read || !(is_computed_of_totals(node) || is_invariant(node.out[0]))) continue;
    behind_.push_back(node);
    read.insert(node.in.begin(), node.in.end());
  }
  std::ranges::reverse(behind_);
  for (const FlowNode& node : behind_) {
    for (const int v : node.out) read.erase(v);
  }
  loop_.sums.clear();
  for (const int v : read) {
    if (is_invariant(v)) continue;
    const Total total = is_total(v) ? unrounded(v) : Total{v};
    totals_[v] = total;
    loop_.sums.push_back(total.value);
  }
  std::vector<FlowNode> body;
  for (size_t n = 0; n < loop_.body.size(); ++n) {
    body.push_back(std::move(loop_.body[n]));
    if (const auto wide = wide_.find(n); wide != wide_.end())
      body.push_back(std::move(wide->second));
  }
  loop_.body = std::move(body);
  remove_unread(loop_);
  check_rest(loop_.body);
}

std::vector<int> HoistSums::add(const std::vector<int>& totals, const Frame& frame,
                                const Node& node) {
  std::map<int, int> values;
  for (const auto& [value, total] : totals_) {
    const auto at = std::ranges::find(loop_.sums, total.value) - loop_.sums.begin();
    int result = totals[static_cast<size_t>(at)];
    for (const DType dtype : total.casts) result = emit_.cast(result, dtype, frame, node);
    values[value] = result;
  }
  for (const FlowNode& n : behind_) add_copy(n, values);
  std::vector<int> results;
  for (const int sum : before_) results.push_back(values.at(sum));
  return results;
}

const FlowNode* HoistSums::maker_of(int value) const {
  const auto found = maker_.find(value);
  return found == maker_.end() ? nullptr : &loop_.body[found->second];
}

/// True for a value that is alike in all iterations, and not a sum of the loop itself.
bool HoistSums::is_invariant(int value) {
  const auto [known, is_new] = is_invariant_.emplace(value, false);
  if (!is_new) return known->second;
  if (std::ranges::count(before_, value) > 0) return false;
  const auto is_value = [&](const auto& of_iteration) { return of_iteration.value == value; };
  const FlowNode* maker = maker_of(value);
  const bool result =
      maker == nullptr
          ? std::ranges::none_of(loop_.slices, is_value) &&
                std::ranges::none_of(loop_.carries, is_value)
          : !maker->loop && maker->out.size() == 1 && !reads_index_of(maker->attrs, loop_.number) &&
                std::ranges::all_of(maker->in, [&](int v) { return is_invariant(v); });
  return is_invariant_[value] = result;
}

/// True for a sum over the batch whose total is that of one run over the whole batch, and for what
/// is computed of such sums.
bool HoistSums::is_total(int value) {
  const auto [known, is_new] = is_total_.emplace(value, false);
  if (!is_new) return known->second;
  const FlowNode* maker = maker_of(value);
  const bool result =
      maker != nullptr && (summed_by(here_, value) >= 0 || is_stack_of_sums(*maker, value) ||
                           is_computed_of_totals(*maker));
  return is_total_[value] = result;
}

bool HoistSums::is_computed_of_totals(const FlowNode& node) {
  if (node.out.size() != 1 || node.in.empty() || summed_by(here_, node.out[0]) >= 0) return false;
  if (moves(node) || is_cast(node) || node.kind == FlowKind::tree_sum) return is_total(node.in[0]);
  if (node.kind != FlowKind::op) return false;
  uint32_t totals = 0;
  for (size_t i = 0; i < node.in.size(); ++i) {
    if (is_invariant(node.in[i])) continue;
    if (!is_total(node.in[i])) return false;
    totals |= 1u << i;
  }
  return totals != 0 && linear_in(*node.op, totals) == totals;
}

/// The result of the op that sums `value` over the batch, or -1. Subtrees may be on their way
/// between the op and what joins them.
int HoistSums::summed_by(const FindMaker& find, int value) const {
  const FlowNode* node = find(value);
  const bool joins = node != nullptr && node->kind == FlowKind::tree_sum;
  if (joins) node = find(node->in[0]);
  while (joins && node != nullptr && moves(*node)) node = find(node->in[0]);
  if (node == nullptr || node->kind != FlowKind::op || node->out.size() != 1) return -1;
  if (!node->order.is_strict() || node->order.is_split() != joins) return -1;
  const Factor& outermost = node->space.factors[static_cast<size_t>(node->order.along[0].dim)];
  const bool adds = outermost.combiner == Combiner::sum;
  return adds && rule_layouts_.is_subtree({outermost.name, outermost.size}) ? node->out[0] : -1;
}

/// True for what a loop over layers stacks of such sums.
bool HoistSums::is_stack_of_sums(const FlowNode& layers, int value) const {
  if (!layers.loop || layers.loop->condition >= 0) return false;
  const FlowLoop& loop = *layers.loop;
  const size_t place = stack_at(layers, value);
  if (place >= loop.stacked.size()) return false;
  int slice = loop.stacked[place];
  bool casts = is_narrow(emit_.value(slice).dtype);
  for (const FlowNode* node = find_maker(loop.body, slice);
       node != nullptr && (moves(*node) || is_cast(*node)); node = find_maker(loop.body, slice)) {
    casts = casts || is_cast(*node);
    slice = node->in[0];
  }
  if (summed_by(makers_in(loop.body), slice) < 0) return false;
  if (!casts) return true;
  int64_t readers = std::ranges::count(before_, value);
  for (const FlowNode& node : loop_.body) {
    std::set<int> read;
    add_read(node, read);
    readers += read.contains(value) ? 1 : 0;
  }
  return readers == 1;
}

/// What is added up for a sum: the sum before it was rounded to 16 bits.
HoistSums::Total HoistSums::unrounded(int value) {
  FlowNode& maker = loop_.body[maker_.at(value)];
  if (maker.loop) return unrounded_stack(maker, value);
  const int summed = summed_by(here_, value);
  const DType dtype = emit_.value(value).dtype;
  if (!is_narrow(dtype)) {
    summed_.insert(summed);
    return {value};
  }
  FlowNode wide = maker;
  FlowValue exact = emit_.value(value);
  exact.dtype = DType::float32;
  wide.out = {emit_.add_value(std::move(exact))};
  if (wide.attrs.has("dtype")) wide.attrs.set("dtype", static_cast<int64_t>(DType::float32));
  summed_.insert(summed == value ? wide.out[0] : summed);
  const int result = wide.out[0];
  wide_.emplace(maker_.at(value), std::move(wide));
  return {result, {dtype}};
}

HoistSums::Total HoistSums::unrounded_stack(FlowNode& layers, int value) {
  FlowLoop& loop = *layers.loop;
  const size_t place = stack_at(layers, value);
  std::vector<FlowNode> chain;  // from the stacked value back to the sum
  Total total{value};
  int slice = loop.stacked[place];
  for (const FlowNode* node = find_maker(loop.body, slice); moves(*node) || is_cast(*node);
       node = find_maker(loop.body, slice)) {
    if (is_cast(*node)) total.casts.insert(total.casts.begin(), emit_.value(slice).dtype);
    chain.push_back(*node);
    slice = node->in[0];
  }
  const int summed = summed_by(makers_in(loop.body), slice);
  const DType dtype = emit_.value(slice).dtype;
  if (total.casts.empty() && !is_narrow(dtype)) {
    summed_.insert(summed);
    return total;
  }
  FlowNode wide = *find_maker(loop.body, slice);
  const auto add_wide = [&](FlowNode node) {
    FlowValue exact = emit_.value(node.out[0]);
    if (is_narrow(exact.dtype)) exact.dtype = DType::float32;
    node.out = {emit_.add_value(std::move(exact))};
    loop.body.push_back(std::move(node));
    return loop.body.back().out[0];
  };
  if (is_narrow(dtype)) {
    total.casts.insert(total.casts.begin(), dtype);
    if (wide.attrs.has("dtype")) wide.attrs.set("dtype", static_cast<int64_t>(DType::float32));
    const int exact = add_wide(wide);
    summed_.insert(summed == slice ? exact : summed);
    slice = exact;
  } else {
    summed_.insert(summed);
  }
  for (size_t i = chain.size(); i-- > 0;) {
    if (is_cast(chain[i])) continue;
    chain[i].in[0] = slice;
    slice = add_wide(chain[i]);
  }
  loop.stacked[place] = slice;
  remove_unread(loop);
  FlowValue stack = emit_.value(value);
  stack.dtype = emit_.value(slice).dtype;
  const int result = emit_.add_value(std::move(stack));
  *std::ranges::find(layers.out, value) = result;
  total.value = result;
  return total;
}

/// Adds a node behind the loop, of what is there of its operands.
void HoistSums::add_copy(const FlowNode& node, std::map<int, int>& values) {
  FlowNode copy = node;
  for (int& v : copy.in) {
    if (const auto known = values.find(v); known != values.end()) v = known->second;
  }
  copy.out = {emit_.add_value(emit_.value(node.out[0]))};
  values[node.out[0]] = copy.out[0];
  emit_.add_node(std::move(copy));
}

/// Notes whether something else is made of a sum over the batch.
void HoistSums::check_rest(const std::vector<FlowNode>& body) {
  for (const FlowNode& node : body) {
    if (node.loop) check_rest(node.loop->body);
    for (const SumOrder::Along& a : node.order.along) {
      const Factor& factor = node.space.factors[static_cast<size_t>(a.dim)];
      const bool is_batch = rule_layouts_.divides_batch({factor.name, factor.size});
      if (is_batch && !summed_.contains(node.out[0])) depends_ = true;
    }
  }
}

}  // namespace tessera
