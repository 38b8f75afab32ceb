// Values of an iteration keep their numbers in both loops: in the second one they are slices of the
// stacks of the first one. Constants and indices are computed again.
#include "lower/flow/split_backward.h"

#include <algorithm>
#include <map>

#include "lower/flow/pipeline_microbatches.h"
#include "lower/flow/stage_transfers.h"

namespace tessera {

namespace {

class Splitter {
 public:
  Splitter(Flow& flow, const FlowNode& node, const Dim& layers, const std::set<int>& needed)
      : flow_(flow), node_(node), loop_(*node.loop), layers_(layers), needed_(needed) {}

  SplitBackward run() {
    for (size_t i = 0; i < loop_.body.size(); ++i) {
      for (const int v : loop_.body[i].out) maker_[v] = i;
    }
    for (const FlowLoop::Carry& carry : loop_.carries) {
      add_makers(carry.next, first_);
      carried_.insert(carry.value);
    }
    for (size_t i = 0; i < loop_.stacked.size(); ++i) find_needed(stack_at(i), loop_.stacked[i]);
    for (size_t i = 0; i < loop_.sums.size(); ++i) find_needed(sum_at(i), loop_.sums[i]);
    SplitBackward split{begin(""), begin(".weights")};
    split.inputs.loop->carries = loop_.carries;
    split.weights.loop->to_next.clear();
    split.weights.loop->to_all.clear();
    deal_results(split);
    add_bodies(split);
    return split;
  }

 private:
  int stack_at(size_t i) const { return node_.out[loop_.carries.size() + i]; }
  int sum_at(size_t i) const { return node_.out[loop_.carries.size() + loop_.stacked.size() + i]; }
  static bool is_source(const FlowNode& node) { return node.in.empty() && !node.loop; }

  /// Adds the nodes that a value depends on, but for those that the first loop has anyway.
  void add_makers(int value, std::set<size_t>& nodes) const {
    const auto made = maker_.find(value);
    if (made == maker_.end()) return;
    const FlowNode& maker = loop_.body[made->second];
    const bool is_known = &nodes != &first_ && first_.contains(made->second) && !is_source(maker);
    if (is_known || !nodes.insert(made->second).second) return;
    std::set<int> read;
    add_read(maker, read);
    for (const int v : read) add_makers(v, nodes);
  }

  void find_needed(int result, int value) {
    if (needed_.contains(result)) add_makers(value, first_);
  }

  /// True for values of iterations of the first loop.
  bool is_first(int value) const {
    const auto made = maker_.find(value);
    if (made == maker_.end()) return carried_.contains(value);
    return first_.contains(made->second) && !is_source(loop_.body[made->second]);
  }

  FlowNode begin(const char* suffix) const {
    FlowNode part = node_;
    part.loop = std::make_shared<FlowLoop>(loop_);
    FlowLoop& loop = *part.loop;
    loop.name += suffix;
    part.in.clear();
    part.out.clear();
    loop.carries.clear();
    loop.slices.clear();
    loop.stacked.clear();
    loop.sums.clear();
    loop.sum_inits.clear();
    loop.body.clear();
    return part;
  }

  /// Gives each result to the loop that computes it.
  void deal_results(SplitBackward& split) const {
    const auto part_of = [&](int result, int value) -> FlowNode& {
      return needed_.contains(result) || is_first(value) ? split.inputs : split.weights;
    };
    split.inputs.out.assign(node_.out.begin(), node_.out.begin() + std::ssize(loop_.carries));
    for (size_t i = 0; i < loop_.stacked.size(); ++i) {
      FlowNode& part = part_of(stack_at(i), loop_.stacked[i]);
      part.loop->stacked.push_back(loop_.stacked[i]);
      part.out.push_back(stack_at(i));
    }
    for (size_t i = 0; i < loop_.sums.size(); ++i) {
      FlowNode& part = part_of(sum_at(i), loop_.sums[i]);
      part.loop->sums.push_back(loop_.sums[i]);
      if (!loop_.sum_inits.empty()) part.loop->sum_inits.push_back(loop_.sum_inits[i]);
      part.out.push_back(sum_at(i));
    }
  }

  void add_bodies(SplitBackward& split) {
    std::set<size_t> second;
    for (const auto* values : {&split.weights.loop->stacked, &split.weights.loop->sums}) {
      for (const int v : *values) add_makers(v, second);
    }
    add_body(first_, split.inputs);
    const std::set<int> read = add_body(second, split.weights);
    for (const int v : read) {
      if (is_first(v)) keep(v, split);
    }
    for (FlowNode* part : {&split.inputs, &split.weights}) {
      for (const FlowLoop::Carry& c : part->loop->carries) {
        if (c.init >= 0) part->in.push_back(c.init);
      }
      for (const FlowLoop::Slice& s : part->loop->slices) part->in.push_back(s.whole);
    }
  }

  /// Adds the nodes, and the slices that they read. Returns what they read.
  std::set<int> add_body(const std::set<size_t>& nodes, FlowNode& part) const {
    std::set<int> read;
    for (const size_t i : nodes) {
      part.loop->body.push_back(loop_.body[i]);
      add_read(loop_.body[i], read);
    }
    for (const FlowLoop::Carry& c : part.loop->carries) read.insert(c.next);
    for (const auto* values : {&part.loop->stacked, &part.loop->sums})
      read.insert(values->begin(), values->end());
    for (const FlowLoop::Slice& s : loop_.slices) {
      if (read.contains(s.value)) part.loop->slices.push_back(s);
    }
    return read;
  }

  /// Lets the first loop stack a value, and the second one read it.
  void keep(int value, SplitBackward& split) {
    FlowLoop& first = *split.inputs.loop;
    const bool is_chunk = loop_.chunks > 1;
    const Dim dim = is_chunk ? Dim("_" + layers_.name, loop_.iterations / loop_.chunks) : layers_;
    const int stack = flow_.add_value(
        with_dim_in_front(flow_.values[static_cast<size_t>(value)], dim, {loop_.stage_axis}));
    split.inputs.out.insert(
        split.inputs.out.begin() + std::ssize(first.carries) + std::ssize(first.stacked), stack);
    first.stacked.push_back(value);
    split.weights.loop->slices.push_back({stack, value, 0});
  }

  Flow& flow_;
  const FlowNode& node_;
  const FlowLoop& loop_;
  const Dim layers_;
  const std::set<int>& needed_;
  std::map<int, size_t> maker_;  ///< by value of an iteration: its node
  std::set<int> carried_;        ///< with which iterations begin
  std::set<size_t> first_;       ///< nodes of the first loop
};

}  // namespace

SplitBackward split_backward(Flow& flow, const FlowNode& loop, const Dim& layers,
                             const std::set<int>& needed) {
  return Splitter(flow, loop, layers, needed).run();
}

std::set<int> read_by_layers_behind(const FlowLoop& microbatches, size_t i) {
  std::set<int> read;
  for (size_t n = microbatches.body.size(); n-- > i + 1;) {
    const FlowNode& node = microbatches.body[n];
    const auto is_read = [&](int v) { return read.contains(v); };
    if (!has_stages(node) && std::none_of(node.out.begin(), node.out.end(), is_read)) continue;
    std::set<int> continued;
    if (has_stages(node)) {
      const FlowLoop& layers = *node.loop;
      const auto sums = node.out.end() - std::ssize(layers.sums);
      for (size_t s = 0; s < layers.sum_inits.size(); ++s) {
        if (!is_read(sums[static_cast<std::ptrdiff_t>(s)])) continued.insert(layers.sum_inits[s]);
      }
    }
    std::set<int> all;
    add_read(node, all);
    for (const int v : all) {
      if (!continued.contains(v)) read.insert(v);
    }
    for (const FlowLoop::Dealt& dealt : microbatches.dealt) {
      if (read.contains(dealt.value)) read.insert(dealt.of_chunk.begin(), dealt.of_chunk.end());
    }
  }
  return read;
}

}  // namespace tessera
