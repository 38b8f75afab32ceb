// The iterations of such a loop are independent of each other but for sums, so they may run part by
// part. A part keeps the numbers of the values that it computes: a later part reads the same value
// as a slice of its stack.
#include "lower/flow/pipeline_microbatches.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ir/loop.h"

namespace tessera {

namespace {

bool has_stages(const FlowNode& node) { return node.loop && node.loop->stage_axis >= 0; }
/// True for a node that is computed again wherever it is read: a constant, an index.
bool is_source(const FlowNode& node) { return node.in.empty() && !node.loop; }

/// Adds the values that a node or its iterations read.
void add_read(const FlowNode& node, std::set<int>& read) {
  read.insert(node.in.begin(), node.in.end());
  if (!node.loop) return;
  const FlowLoop& loop = *node.loop;
  for (const FlowLoop::Carry& c : loop.carries) read.insert({c.init, c.next});
  for (const FlowLoop::Slice& s : loop.slices) read.insert(s.whole);
  read.insert(loop.stacked.begin(), loop.stacked.end());
  read.insert(loop.sums.begin(), loop.sums.end());
  if (loop.condition >= 0) read.insert(loop.condition);
  for (const FlowNode& inner : loop.body) add_read(inner, read);
}

class MicrobatchPipeline {
 public:
  MicrobatchPipeline(const Graph& graph, Flow& flow, const FlowNode& node)
      : flow_(flow),
        node_(node),
        loop_(*node.loop),
        over_(loops_of(graph)[static_cast<size_t>(loop_.number)].over) {}

  std::vector<FlowNode> run() {
    divide();
    place_results();
    for (size_t p = 0; p < parts_.size(); ++p) find_read(p);
    std::vector<FlowNode> nodes;
    for (size_t p = 0; p < parts_.size(); ++p) {
      if (!parts_[p].loop.body.empty() || !parts_[p].stacks.empty() || !parts_[p].sums.empty())
        nodes.push_back(node_of(parts_[p]));
    }
    return nodes;
  }

 private:
  using Results = std::vector<std::pair<int, int>>;  ///< (value of an iteration, result)
  struct Part {
    FlowLoop loop;
    Results stacks, sums;
  };

  /// One part for each loop over layers, one for what stands before, between and behind them.
  void divide() {
    parts_.resize(1);
    for (const FlowNode& node : loop_.body) {
      if (has_stages(node)) parts_.emplace_back();
      if (is_source(node)) {
        for (int v : node.out) sources_[v] = &node;
      } else {
        for (int v : node.out) part_of_[v] = parts_.size() - 1;
        parts_.back().loop.body.push_back(node);
      }
      if (!has_stages(node)) continue;
      parts_.back().loop.pipeline_axis = node.loop->stage_axis;
      for (size_t i = 0; i < node.loop->carries.size(); ++i)
        moves_[node.out[i]] = &node.loop->to_all[i];
      parts_.emplace_back();
    }
    for (Part& part : parts_) {
      part.loop.number = loop_.number;
      part.loop.name = loop_.name;
      part.loop.iterations = loop_.iterations;
      part.loop.reverse = loop_.reverse;
    }
  }

  /// Only the last stage has what the layers made: the next part, which reads it from there, leaves
  /// it as a result.
  size_t part_of_result(int value) const {
    const auto found = part_of_.find(value);
    if (found == part_of_.end()) return parts_.size() - 1;
    return found->second + (moves_.count(value) > 0 ? 1 : 0);
  }

  void place_results() {
    size_t i = 0;
    for (int v : loop_.stacked) parts_[part_of_result(v)].stacks.emplace_back(v, node_.out[i++]);
    for (int v : loop_.sums) parts_[part_of_result(v)].sums.emplace_back(v, node_.out[i++]);
  }

  void find_read(size_t p) {
    Part& part = parts_[p];
    std::set<int> read;
    for (const FlowNode& node : part.loop.body) add_read(node, read);
    for (const auto* results : {&part.stacks, &part.sums}) {
      for (const auto& [v, result] : *results) read.insert(v);
    }
    std::vector<FlowNode> sources;
    for (int v : read) {
      const auto source = sources_.find(v);
      const auto made = part_of_.find(v);
      if (source != sources_.end()) {
        sources.push_back(*source->second);
      } else if (made != part_of_.end() && made->second < p) {
        part.loop.slices.push_back({kept(v, parts_[made->second]), v, 0});
      }
    }
    for (const FlowLoop::Slice& s : loop_.slices) {
      if (read.count(s.value) > 0) part.loop.slices.push_back(s);
    }
    part.loop.body.insert(part.loop.body.begin(), sources.begin(), sources.end());
  }

  /// The stack of a value of an earlier part.
  int kept(int value, Part& part) {
    if (const auto known = kept_.find(value); known != kept_.end()) return known->second;
    const int stack = flow_.add_value(stacked(value));
    part.stacks.emplace_back(value, stack);
    kept_[value] = stack;
    if (const auto move = moves_.find(value); move != moves_.end())
      part.loop.to_all.push_back(move_of_stack(*move->second, stack));
    return stack;
  }

  FlowValue stacked(int value) const {
    FlowValue of = flow_.values[static_cast<size_t>(value)];
    of.shape = Shape{over_}.united(of.shape);
    of.layout.dims.insert(of.layout.dims.begin(), std::vector<int>{});
    of.layout.dirty <<= 1;
    for (Interval& interval : of.intervals) ++interval.dim;
    of.node = -1;
    return of;
  }

  /// `move`, which brings a value from the last stage to all, for the stack of all microbatches.
  FlowNode move_of_stack(FlowNode move, int stack) {
    FlowValue from = flow_.values[static_cast<size_t>(stack)];
    FlowValue to = flow_.values[static_cast<size_t>(move.out[0])];
    const Dim stages = to.shape[0];
    from.shape = Shape{stages}.united(from.shape);
    from.layout.dims.insert(from.layout.dims.begin(), move.axes);
    to.shape = from.shape;
    to.layout = from.layout;
    to.layout.dims[0].clear();
    move.in = {flow_.add_value(std::move(from))};
    move.out = {flow_.add_value(std::move(to)), stack};
    return move;
  }

  FlowNode node_of(const Part& part) const {
    FlowNode node;
    node.kind = FlowKind::loop;
    node.origin = node_.origin;
    node.loop = std::make_shared<FlowLoop>(part.loop);
    for (const FlowLoop::Slice& s : part.loop.slices) node.in.push_back(s.whole);
    for (const auto& [v, result] : part.stacks) {
      node.loop->stacked.push_back(v);
      node.out.push_back(result);
    }
    for (const auto& [v, result] : part.sums) {
      node.loop->sums.push_back(v);
      node.out.push_back(result);
    }
    return node;
  }

  Flow& flow_;
  const FlowNode& node_;
  const FlowLoop& loop_;
  const Dim over_;
  std::vector<Part> parts_;
  std::map<int, size_t> part_of_;           ///< by value: the part that computes it
  std::map<int, const FlowNode*> sources_;  ///< by value
  std::map<int, const FlowNode*> moves_;    ///< by value: FlowLoop::to_all of what layers make
  std::map<int, int> kept_;                 ///< by value: its stack
};

bool is_pipeline(const FlowNode& node) {
  if (!node.loop || !node.loop->carries.empty() || node.loop->condition >= 0) return false;
  return std::any_of(node.loop->body.begin(), node.loop->body.end(), has_stages);
}

}  // namespace

void pipeline_microbatches(const Graph& graph, Flow& flow) {
  for (FlowFunction& f : flow.functions) {
    std::vector<FlowNode> nodes;
    for (FlowNode& node : f.nodes) {
      if (!is_pipeline(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      for (FlowNode& part : MicrobatchPipeline(graph, flow, node).run())
        nodes.push_back(std::move(part));
    }
    f.nodes = std::move(nodes);
  }
}

}  // namespace tessera
