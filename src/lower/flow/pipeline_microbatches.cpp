// The iterations of such a loop are independent of each other but for sums, so they may run part by
// part. A part keeps the numbers of the values that it computes: a later part reads the same value
// as a slice of its stack.
//
// With one forward and one backward, a turn is a forward or a backward of a microbatch on a stage.
// With P stages, stage s has microbatch m forward in turn 2m + s and backward in turn
// 2m + 2P - 1 - s, so no more than P - s microbatches are under way. Neighbours swap: where one
// goes on with forward, the other one goes on with backward. The other parts take no turns of their
// own: all stages run them together, at the start of the turn that first needs them.
#include "lower/flow/pipeline_microbatches.h"

#include <algorithm>
#include <iterator>
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
  MicrobatchPipeline(const Graph& graph, PipelineSchedule schedule, Flow& flow,
                     const FlowNode& node)
      : flow_(flow),
        node_(node),
        loop_(*node.loop),
        over_(loops_of(graph)[static_cast<size_t>(loop_.number)].over),
        is_1f1b_(schedule == PipelineSchedule::one_forward_one_backward) {}

  std::vector<FlowNode> run() {
    divide();
    set_turns();
    place_results();
    for (Part& part : parts_) find_read(part);
    for (Part& part : parts_) move_to_all(part);
    for (size_t p = 0; p < parts_.size(); ++p) connect(p);
    return nodes();
  }

 private:
  using Results = std::vector<std::pair<int, int>>;  ///< (value of an iteration, result)
  struct Part {
    FlowLoop loop;
    Results stacks, sums;
    std::set<int> read = {};
    int64_t first_turn = 0, last_turn = 0;  ///< of microbatch 0, on any stage

    const FlowLoop* layers() const {
      return !loop.body.empty() && has_stages(loop.body.back()) ? loop.body.back().loop.get()
                                                                : nullptr;
    }
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
      divide_layers(parts_.back().loop.body.back());
      parts_.emplace_back();
    }
    for (Part& part : parts_) {
      part.loop.number = loop_.number;
      part.loop.name = loop_.name;
      part.loop.iterations = loop_.iterations;
      part.loop.reverse = loop_.reverse;
    }
  }

  /// Only the last stage has what layers make. The next part moves it to all stages, and counts as
  /// the part that makes it.
  void divide_layers(FlowNode& node) {
    node.loop = std::make_shared<FlowLoop>(*node.loop);
    FlowLoop& layers = *node.loop;
    axis_ = layers.stage_axis;
    stages_ = flow_.values[static_cast<size_t>(layers.to_all[0].out[0])].shape[0].size;
    for (size_t i = 0; i < layers.carries.size(); ++i) {
      const FlowValue carry = flow_.values[static_cast<size_t>(node.out[i])];
      layers.arrivals.push_back(flow_.add_value(carry));
      const int last = flow_.add_value(carry);
      part_of_[last] = parts_.size() - 1;
      part_of_[node.out[i]] = parts_.size();
      FlowNode move = layers.to_all[i];
      move.in.push_back(last);
      move.out.push_back(std::exchange(node.out[i], last));
      to_all_.push_back(std::move(move));
    }
  }

  void set_turns() {
    const bool has_backward = std::any_of(parts_.begin(), parts_.end(), [](const Part& part) {
      return part.layers() != nullptr && part.layers()->reverse;
    });
    const int64_t stride = is_1f1b_ && has_backward ? 2 : 1;
    int64_t now = 0;
    for (Part& part : parts_) {
      FlowLoop::Turns& turns = part.loop.turns;
      turns = {stride, now, 0};
      if (const FlowLoop* layers = part.layers()) {
        const int64_t across = stages_ - 1;
        turns.first = layers->reverse ? now + across : now;
        turns.by_stage = layers->reverse ? -1 : 1;
        // Forward is in the turns of a stage's own parity, backward in the others.
        if (stride == 2 && (turns.first % 2 != 0) != layers->reverse) ++turns.first, ++now;
        part.first_turn = now;
        part.last_turn = now + across;
        now = is_1f1b_ ? now + stages_ : 0;
      } else {
        part.first_turn = part.last_turn = now;
      }
    }
  }

  size_t part_of_result(int value) const {
    const auto found = part_of_.find(value);
    return found == part_of_.end() ? parts_.size() - 1 : found->second;
  }

  void place_results() {
    size_t i = 0;
    for (int v : loop_.stacked) parts_[part_of_result(v)].stacks.emplace_back(v, node_.out[i++]);
    for (int v : loop_.sums) parts_[part_of_result(v)].sums.emplace_back(v, node_.out[i++]);
  }

  static void find_read(Part& part) {
    for (const FlowNode& node : part.loop.body) add_read(node, part.read);
    for (const auto* results : {&part.stacks, &part.sums}) {
      for (const auto& [v, result] : *results) part.read.insert(v);
    }
  }

  /// Lets a part begin with the moves of what it makes so, if any part reads it.
  void move_to_all(Part& part) {
    for (const FlowNode& move : to_all_) {
      const int value = move.out[1];
      if (&parts_[part_of_.at(value)] != &part) continue;
      if (std::none_of(parts_.begin(), parts_.end(),
                       [&](const Part& p) { return p.read.contains(value); }))
        continue;
      part.loop.begin_to_all.push_back(move);
      if (!is_1f1b_) part.read.insert(move.in[1]);
    }
  }

  /// Lets a part read what earlier parts made.
  void connect(size_t p) {
    Part& part = parts_[p];
    std::vector<FlowNode> sources;
    for (int v : part.read) {
      const auto source = sources_.find(v);
      const auto made = part_of_.find(v);
      if (source != sources_.end()) {
        sources.push_back(*source->second);
      } else if (made != part_of_.end() && made->second < p) {
        part.loop.slices.push_back({kept(v, made->second), v, 0});
      }
    }
    for (const FlowLoop::Slice& s : loop_.slices) {
      if (part.read.contains(s.value)) part.loop.slices.push_back(s);
    }
    part.loop.body.insert(part.loop.body.begin(), sources.begin(), sources.end());
  }

  /// The stack of a value of part `p`.
  int kept(int value, size_t p) {
    if (const auto known = kept_.find(value); known != kept_.end()) return known->second;
    const int stack = flow_.add_value(stacked(value, microbatches_kept(value, p)));
    parts_[p].stacks.emplace_back(value, stack);
    return kept_[value] = stack;
  }

  /// For how many microbatches a value of part `p` is kept: until its last reader has run.
  int64_t microbatches_kept(int value, size_t p) const {
    if (!is_1f1b_) return loop_.iterations;
    int64_t last = 0;
    for (size_t reader = p + 1; reader < parts_.size(); ++reader) {
      if (parts_[reader].read.contains(value)) last = parts_[reader].last_turn;
    }
    const int64_t turns = last - parts_[p].first_turn;
    return std::min(loop_.iterations, turns / parts_[p].loop.turns.stride + 1);
  }

  FlowValue stacked(int value, int64_t microbatches) const {
    FlowValue of = flow_.values[static_cast<size_t>(value)];
    of.shape = Shape{Dim(over_.name, microbatches)}.united(of.shape);
    of.layout.dims.insert(of.layout.dims.begin(), std::vector<int>{});
    of.layout.dirty <<= 1;
    for (Interval& interval : of.intervals) ++interval.dim;
    of.node = -1;
    return of;
  }

  // ---------------------------------------------------------------------------------------- nodes

  std::vector<FlowNode> nodes() {
    std::vector<FlowNode> all, transfers, shares;
    for (const Part& part : parts_) {
      if (part.loop.body.empty() && part.stacks.empty() && part.sums.empty()) continue;
      if (part.layers() != nullptr) add_transfers(part, transfers);
      shares.push_back(node_of(part));
      if (is_1f1b_) continue;
      if (part.layers() == nullptr) {
        all.push_back(std::move(shares.back()));
      } else {
        all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
      }
      transfers.clear();
      shares.clear();
    }
    // What all stages compute comes before layers, which overwrite what they have made before.
    std::stable_partition(shares.begin(), shares.end(),
                          [](const FlowNode& n) { return n.loop->turns.by_stage == 0; });
    if (is_1f1b_) all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
    return all;
  }

  /// Adds the loops that bring the carries of layers to the next stage: for each remainder of the
  /// turns by their stride one, since other stages wait for something then.
  void add_transfers(const Part& part, std::vector<FlowNode>& nodes) {
    const FlowLoop::Turns& turns = part.loop.turns;
    const FlowNode& node = part.loop.body.back();
    for (int64_t rest = 0; rest < turns.stride; ++rest) {
      int64_t first = -1, last = -1;  // turns in which a stage begins with microbatch 0
      for (int64_t turn = part.first_turn + 1; turn <= part.last_turn; ++turn) {
        if (turn % turns.stride != rest) continue;
        if (first < 0) first = turn;
        last = turn;
      }
      if (first < 0) continue;
      FlowNode transfer;
      transfer.kind = FlowKind::loop;
      transfer.origin = node.origin;
      transfer.loop = std::make_shared<FlowLoop>();
      FlowLoop& loop = *transfer.loop;
      loop.name = node.loop->name + ".next";
      loop.iterations = (last - first) / turns.stride + loop_.iterations;
      loop.turns = {turns.stride, first, 0};
      for (size_t i = 0; i < node.loop->carries.size(); ++i) {
        FlowNode move = node.loop->to_next[i];
        FlowValue to = flow_.values[static_cast<size_t>(move.out[0])];
        to.intervals[0].begin = stage_before(turns, rest);
        to.intervals[0].wraps = false;
        move.in.push_back(node.out[i]);
        move.out = {flow_.add_value(std::move(to)), node.loop->arrivals[i]};
        loop.begin_to_next.push_back(std::move(move));
      }
      nodes.push_back(std::move(transfer));
    }
  }

  /// Of a stage that begins a microbatch in a turn of this remainder: the stage before. Of another
  /// one, and of the first: no stage.
  IntExpr stage_before(const FlowLoop::Turns& turns, int64_t rest) const {
    const int64_t beyond = stages_ + 1;
    IntExpr stage;  // the stage before, plus `beyond` times what is left of the turn
    stage.constant = beyond * (turns.first - rest) - turns.by_stage;
    stage.axis_terms = {{axis_, beyond * turns.by_stage + 1}};
    stage.modulus = beyond * turns.stride;
    return stage;
  }

  FlowNode pipeline_of(std::vector<FlowNode> transfers, std::vector<FlowNode> shares) const {
    FlowNode node;
    node.kind = FlowKind::loop;
    node.origin = node_.origin;
    node.loop = std::make_shared<FlowLoop>();
    FlowLoop& loop = *node.loop;
    loop.name = shares.back().loop->body.back().loop->name;
    loop.pipeline_axis = axis_;
    for (const FlowNode& share : shares) {
      const FlowLoop::Turns& turns = share.loop->turns;
      const int64_t last = turns.first + std::max<int64_t>(0, turns.by_stage) * (stages_ - 1);
      loop.iterations = std::max(loop.iterations, last + turns.stride * (loop_.iterations - 1) + 1);
      node.in.insert(node.in.end(), share.in.begin(), share.in.end());
      node.out.insert(node.out.end(), share.out.begin(), share.out.end());
    }
    loop.body = std::move(transfers);
    std::move(shares.begin(), shares.end(), std::back_inserter(loop.body));
    return node;
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
  const bool is_1f1b_;  ///< one forward, one backward
  int axis_ = -1;
  int64_t stages_ = 1;
  std::vector<Part> parts_;
  std::map<int, size_t> part_of_;           ///< by value: the part that computes it
  std::map<int, const FlowNode*> sources_;  ///< by value
  std::vector<FlowNode> to_all_;            ///< of what layers make
  std::map<int, int> kept_;                 ///< by value: its stack
};

bool is_pipeline(const FlowNode& node) {
  if (!node.loop || !node.loop->carries.empty() || node.loop->condition >= 0) return false;
  return std::any_of(node.loop->body.begin(), node.loop->body.end(), has_stages);
}

}  // namespace

void pipeline_microbatches(const Graph& graph, PipelineSchedule schedule, Flow& flow) {
  for (FlowFunction& f : flow.functions) {
    std::vector<FlowNode> nodes;
    for (FlowNode& node : f.nodes) {
      if (!is_pipeline(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      for (FlowNode& part : MicrobatchPipeline(graph, schedule, flow, node).run())
        nodes.push_back(std::move(part));
    }
    f.nodes = std::move(nodes);
  }
}

}  // namespace tessera
