// The iterations of such a loop are independent of each other but for sums, so they may run part by
// part. A part keeps the numbers of the values that it computes: a later part reads the same value
// as a slice of its stack.
//
// In a tick a stage runs a pass over its layers for a microbatch (program/pipeline_table.h). The
// other parts take no ticks of their own: all stages run them together, at the start of the tick
// behind the layers that they read.
//
// No stage waits for all others there. In a tick some stages run forward and others backward, which
// takes longer, so what is ready on one stage may be late for another one that could go on. Nobody
// waits for what follows the last layers. So these are two parts. In the first one what the layers
// made is on its way to all stages; the second one takes it so many ticks later that the slowest
// stage has sent it, also if forward takes no time. With P stages, these are P / 2 ticks.
//
// If the schedule splits backward, the gradients of parameters are parts of their own, and one more
// part, which all stages run together, has what depends on them.
#include "lower/flow/pipeline_microbatches.h"

#include <algorithm>
#include <deque>
#include <iterator>
#include <map>
#include <utility>

#include "base/fail.h"
#include "ir/loop.h"
#include "lower/flow/split_backward.h"
#include "lower/flow/stage_transfers.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

/// True for a node that is computed again wherever it is read: a constant, an index.
bool is_source(const FlowNode& node) { return node.in.empty() && !node.loop; }

void check_chunks(const PipelineSchedule& schedule, const FlowLoop& layers,
                  const std::string& source) {
  const std::string& other = pipeline_schedules()[0].name;
  TESSERA_REQUIRE(
      layers.chunks >= schedule.least_chunks,
      "layout rule '{}': pipeline_schedule={} wants {} chunks of layers a stage; write the rule "
      "with '*{}', or take pipeline_schedule={} ({})",
      layers.stage_rule, schedule.name, schedule.least_chunks, schedule.least_chunks, other,
      source);
  TESSERA_REQUIRE(
      layers.chunks <= schedule.most_chunks,
      "layout rule '{}': {} chunks of layers a stage need pipeline_schedule={}, which interleaves "
      "them; {} has at most {}: write the rule with no more ({})",
      layers.stage_rule, layers.chunks, other, schedule.name, schedule.most_chunks, source);
}

class MicrobatchPipeline {
 public:
  MicrobatchPipeline(const Graph& graph, const ScheduleRow& schedule, Flow& flow,
                     const FlowNode& node)
      : flow_(flow), node_(node), loop_(*node.loop), loops_(loops_of(graph)), schedule_(schedule) {}

  std::vector<FlowNode> run() {
    divide();
    set_ticks();
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
    StageWork work = StageWork::none;              ///< none: all stages run it together
    size_t pass = 0;                               ///< of the table; if together: the one behind it
    std::vector<std::vector<int64_t>> ticks = {};  ///< by stage and microbatch
    bool sends = false;    ///< only sends to all stages what the last layers made
    bool is_late = false;  ///< takes what the part before sends
    bool is_behind_weights = false;

    FlowNode& layers() { return loop.body.back(); }
  };

  /// One part for each loop over layers, one for what stands before, between and behind them.
  void divide() {
    add_part(StageWork::none);
    std::vector<Part> weights;
    Part behind_weights;
    behind_weights.is_behind_weights = true;
    for (size_t i = 0; i < loop_.body.size(); ++i) {
      const FlowNode& node = loop_.body[i];
      if (is_source(node)) {
        for (int v : node.out) sources_[v] = &node;
      } else if (!has_stages(node)) {
        const bool is_behind = reads_weights(node);
        if (is_behind) of_weights_.insert(node.out.begin(), node.out.end());
        is_behind ? behind_weights.loop.body.push_back(node) : add_node(node);
      } else if (!node.loop->reverse) {
        add_layers(node, StageWork::forward);
      } else if (!schedule_.what.splits_backward) {
        add_layers(node, StageWork::backward);
      } else {
        const FlowLoop& layers = *node.loop;
        const Dim& over = loops_[static_cast<size_t>(layers.number)].over;
        SplitBackward split = split_backward(flow_, node, over, read_by_layers_behind(loop_, i));
        of_weights_.insert(split.weights.out.begin(), split.weights.out.end());
        weights.push_back(add_layers(split.inputs, StageWork::backward));
        weights.back().loop.body.push_back(std::move(split.weights));
      }
    }
    if (!schedule_.in_turn && shape_.passes.size() > 1) add_sender();
    last_ = parts_.size() - 1;
    for (Part& part : weights) append(std::move(part));
    if (!weights.empty()) append(std::move(behind_weights));
    for (const FlowLoop::Dealt& dealt : loop_.dealt) {
      size_t& last = part_of_[dealt.value];
      for (int v : dealt.of_chunk) last = std::max(last, part_of_.at(v));
    }
    for (Part& part : parts_) {
      part.loop.number = loop_.number;
      part.loop.name = loop_.name;
      part.loop.iterations = loop_.iterations;
      part.loop.reverse = loop_.reverse;
      part.loop.sums_in_tree = loop_.sums_in_tree;
    }
  }

  void add_part(StageWork work) {
    Part& part = parts_.emplace_back();
    part.work = work;
    part.pass = shape_.passes.size();
  }

  /// Adds the part of layers, and one for what stands behind them. Returns the part, still empty,
  /// of their pass `weights`, if the schedule has them.
  Part add_layers(const FlowNode& node, StageWork work) {
    add_part(work);
    add_node(node);
    shape_.passes.push_back({work, !node.loop->descends()});
    Part weights;
    if (work == StageWork::backward && schedule_.what.splits_backward) {
      weights.work = StageWork::weights;
      weights.pass = shape_.passes.size();
      shape_.passes.push_back({StageWork::weights, shape_.passes.back().ascends});
    }
    divide_layers(parts_.back().layers());
    add_part(StageWork::none);
    return weights;
  }

  void append(Part part) {
    for (const FlowNode& node : part.loop.body) {
      for (int v : node.out) part_of_[v] = parts_.size();
    }
    parts_.push_back(std::move(part));
  }

  /// True for a node behind layers that reads what a pass `weights` makes, or what depends on it.
  bool reads_weights(const FlowNode& node) const {
    if (of_weights_.empty()) return false;
    std::set<int> read;
    add_read(node, read);
    for (const FlowLoop::Dealt& dealt : loop_.dealt) {
      if (read.contains(dealt.value)) read.insert(dealt.of_chunk.begin(), dealt.of_chunk.end());
    }
    return std::any_of(read.begin(), read.end(), [&](int v) { return of_weights_.contains(v); });
  }

  void add_node(const FlowNode& node) {
    for (int v : node.out) part_of_[v] = parts_.size() - 1;
    parts_.back().loop.body.push_back(node);
  }

  /// Lets a part of its own send what the last part takes.
  void add_sender() {
    const size_t last = parts_.size() - 1;
    for (auto& [value, part] : part_of_) {
      const bool is_sent = std::any_of(to_all_.begin(), to_all_.end(),
                                       [&](const FlowNode& move) { return move.out[1] == value; });
      if (part == last && !is_sent) ++part;
    }
    Part sender;
    sender.pass = parts_.back().pass;
    sender.sends = true;
    parts_.insert(parts_.end() - 1, std::move(sender));
    parts_.back().is_late = true;
  }

  /// Only the last stage has what layers make. The next part moves it to all stages, and counts as
  /// the part that makes it. What a chunk makes goes to the next chunk only.
  void divide_layers(FlowNode& node) {
    node.loop = std::make_shared<FlowLoop>(*node.loop);
    FlowLoop& layers = *node.loop;
    check_chunks(schedule_.what, layers, node.origin.source);
    axis_ = layers.stage_axis;
    shape_.stages = flow_.values[static_cast<size_t>(layers.to_all[0].out[0])].shape[0].size;
    shape_.has_chunks = shape_.has_chunks || layers.chunk >= 0;
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

  /// Two microbatches show the distance between their ticks.
  void set_ticks() {
    shape_.microbatches = std::max<int64_t>(2, loop_.iterations);
    PipelineTable table = schedule_.table(shape_);
    for (size_t p = 0; p < shape_.passes.size() && !shape_.has_chunks; ++p) {
      if (const auto distances = distances_of(table, p)) distances_.push_back(*distances);
    }
    if (distances_.size() < shape_.passes.size()) distances_.clear();
    if (shape_.microbatches > loop_.iterations) {
      shape_.microbatches = loop_.iterations;
      table = schedule_.table(shape_);
    }
    table_ = std::make_unique<PipelineTable>(std::move(table));
    for (Part& part : parts_) {
      if (part.work != StageWork::none) {
        set_ticks_of_pass(part);
      } else if (part.is_behind_weights) {
        set_ticks_behind_weights(part);
      } else if (!schedule_.in_turn) {
        set_ticks_together(part);
      } else {
        continue;
      }
      set_share(part);
    }
    if (distances_.empty()) add_arrivals();
  }

  /// Each loop over ticks begins with tick 0.
  void set_ticks_of_pass(Part& part) {
    const int64_t before =
        schedule_.in_turn ? table_->ticks_of(part.pass, table_->first_stage(part.pass))[0] : 0;
    for (int64_t s = 0; s < shape_.stages; ++s) {
      part.ticks.push_back(table_->ticks_of(part.pass, s));
      for (int64_t& tick : part.ticks.back()) tick -= before;
    }
    if (!distances_.empty()) distances_[part.pass].first -= before;
  }

  /// What all stages run together: at the start of the tick behind the pass that it reads.
  void set_ticks_together(Part& part) {
    std::vector<int64_t> ticks = table_->ticks_of(0, table_->first_stage(0));
    size_t before = part.pass;
    if (before > 0) {
      while (shape_.passes[--before].work == StageWork::weights) continue;
      ticks = table_->ticks_of(before, table_->last_stage(before));
      for (int64_t& tick : ticks) tick += 1 + (part.is_late ? shape_.stages / 2 : 0);
    }
    part.ticks.assign(static_cast<size_t>(shape_.stages), ticks);
  }

  /// When all stages have run all passes `weights` of a microbatch.
  void set_ticks_behind_weights(Part& part) {
    std::vector<int64_t> ticks(static_cast<size_t>(loop_.iterations), 0);
    for (size_t p = 0; p < shape_.passes.size(); ++p) {
      for (int64_t s = 0; s < shape_.stages && shape_.passes[p].work == StageWork::weights; ++s) {
        for (size_t m = 0; m < ticks.size(); ++m)
          ticks[m] = std::max(ticks[m], table_->ticks_of(p, s)[m] + 1);
      }
    }
    part.ticks.assign(static_cast<size_t>(shape_.stages), ticks);
  }

  void set_share(Part& part) {
    const bool by_stage = part.work != StageWork::none;
    const int64_t columns = by_stage ? shape_.stages : 1;
    std::vector<int64_t> table;
    for (int64_t s = 0; s < columns; ++s) {
      for (int64_t m = 0; m < loop_.iterations; ++m) {
        const int64_t tick = part.ticks[static_cast<size_t>(s)][static_cast<size_t>(m)];
        if ((tick + 1) * columns > std::ssize(table))
          table.resize(static_cast<size_t>((tick + 1) * columns), -1);
        table[static_cast<size_t>(tick * columns + s)] = m;
      }
    }
    part.loop.share = share_of(std::move(table), by_stage ? axis_ : -1);
    part.loop.share->work = part.work;
    part.loop.share->send_id = part.sends ? kToAll : 0;
    part.loop.share->recv_id = part.is_late ? kToAll : 0;
  }

  /// For the chunks of the same layers together.
  void add_arrivals() {
    transfers_ = std::make_unique<StageTransfers>(flow_, *table_, axis_, kToAll + 1);
    std::vector<StagedLayers> chunks;
    const auto add = [&] {
      if (!chunks.empty()) transfers_->add_arrivals(std::exchange(chunks, {}));
    };
    for (Part& part : parts_) {
      if (part.loop.body.empty() || part.work == StageWork::weights) continue;
      if (part.work == StageWork::none) {
        add();
        continue;
      }
      const FlowLoop& layers = *part.layers().loop;
      if (!chunks.empty()) {
        const FlowLoop& before = *chunks.back().node->loop;
        if (layers.number != before.number || layers.reverse != before.reverse) add();
      }
      chunks.push_back({part.pass, &part.layers()});
    }
    add();
  }

  size_t part_of_result(int value) const {
    const auto found = part_of_.find(value);
    return found == part_of_.end() ? last_ : found->second;
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
      if (schedule_.in_turn || part.sends) part.read.insert(move.in[1]);
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
        part.loop.slices.push_back({kept(v, made->second), value_for(part, v), 0});
      }
    }
    for (const FlowLoop::Slice& s : loop_.slices) {
      if (part.read.contains(s.value)) part.loop.slices.push_back(s);
    }
    part.loop.body.insert(part.loop.body.begin(), sources.begin(), sources.end());
  }

  /// The value as which a part reads the slice of an earlier part's value. What layers make is read
  /// while they go on with its buffer, so the sender has a name of its own for it.
  int value_for(Part& part, int value) {
    int other = value;
    for (FlowNode& move : part.loop.begin_to_all) {
      if (!part.sends || move.in[1] != value) continue;
      other = flow_.add_value(FlowValue(flow_.values[static_cast<size_t>(value)]));
      move.in[1] = other;
    }
    return other;
  }

  /// The stack of a value of part `p`.
  int kept(int value, size_t p) {
    if (const auto known = kept_.find(value); known != kept_.end()) return known->second;
    const auto dealt = std::find_if(loop_.dealt.begin(), loop_.dealt.end(),
                                    [&](const FlowLoop::Dealt& d) { return d.value == value; });
    const std::vector<int> made =
        dealt == loop_.dealt.end() ? std::vector<int>{value} : dealt->of_chunk;
    int64_t microbatches = 1;
    for (int v : made)
      microbatches =
          std::max(microbatches, microbatches_kept(value, v == value ? p : part_of_.at(v)));
    const int stack = flow_.add_value(stacked(value, microbatches));
    for (int v : made) parts_[v == value ? p : part_of_.at(v)].stacks.emplace_back(v, stack);
    return kept_[value] = stack;
  }

  /// True for what layers make: only the stage where they end has to keep it.
  bool is_of_last_stage(int value) const {
    return std::any_of(to_all_.begin(), to_all_.end(),
                       [&](const FlowNode& move) { return move.in[1] == value; });
  }

  /// For how many microbatches a value of part `p` is kept: on every stage, until its last reader
  /// has run.
  int64_t microbatches_kept(int value, size_t p) const {
    if (schedule_.in_turn) return loop_.iterations;
    const auto last = static_cast<size_t>(
        parts_[p].work == StageWork::none ? shape_.stages - 1 : table_->last_stage(parts_[p].pass));
    int64_t most = 1;
    for (size_t reader = p + 1; reader < parts_.size(); ++reader) {
      if (!parts_[reader].read.contains(value)) continue;
      for (size_t s = 0; s < parts_[p].ticks.size(); ++s) {
        if (is_of_last_stage(value) && s != last) continue;
        // What is sent stays until it has been taken.
        const auto &made = parts_[p].ticks[s],
                   &read = parts_[reader + (parts_[reader].sends ? 1 : 0)].ticks[s];
        int64_t next = 0;  // the first microbatch that is made when this one has been read
        for (int64_t m = 0; m < loop_.iterations; ++m) {
          while (next < loop_.iterations &&
                 made[static_cast<size_t>(next)] <= read[static_cast<size_t>(m)])
            ++next;
          most = std::max(most, next - m);
        }
      }
    }
    return most;
  }

  FlowValue stacked(int value, int64_t microbatches) const {
    return with_dim_in_front(
        flow_.values[static_cast<size_t>(value)],
        Dim(loops_[static_cast<size_t>(loop_.number)].over.name, microbatches));
  }

  // ---------------------------------------------------------------------------------------- nodes

  std::vector<FlowNode> nodes() {
    std::vector<FlowNode> all, transfers, shares;
    if (transfers_) {
      transfers = transfers_->sending;
      transfers.insert(transfers.end(), transfers_->awaiting.begin(), transfers_->awaiting.end());
    }
    for (Part& part : parts_) {
      if (part.loop.body.empty() && part.stacks.empty() && part.sums.empty()) continue;
      const bool hands_on = part.work != StageWork::none && part.work != StageWork::weights;
      if (hands_on && !distances_.empty()) {
        const StageTransfers neighbours(flow_, *table_, axis_, 0);
        for (FlowNode& node : neighbours.to_next(part.layers(), distances_[part.pass]))
          transfers.push_back(std::move(node));
      }
      shares.push_back(node_of(part));
      if (!schedule_.in_turn) continue;
      if (part.work == StageWork::none) {
        all.push_back(std::move(shares.back()));
      } else {
        all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
      }
      transfers.clear();
      shares.clear();
    }
    if (schedule_.in_turn) return all;
    // What all stages compute comes before layers, which overwrite what they have made before.
    const auto behind = std::stable_partition(
        shares.begin(), shares.end(), [](const FlowNode& n) { return n.loop->share->axis < 0; });
    if (transfers_) shares.insert(behind, transfers_->taking.begin(), transfers_->taking.end());
    all.push_back(pipeline_of(std::move(transfers), std::move(shares)));
    return all;
  }

  int64_t ticks_of(const PipelineShare& share) const {
    return std::ssize(*share.table) / (share.axis < 0 ? 1 : shape_.stages);
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
      node.in.insert(node.in.end(), share.in.begin(), share.in.end());
      node.out.insert(node.out.end(), share.out.begin(), share.out.end());
      loop.iterations = std::max(loop.iterations, ticks_of(*share.loop->share));
    }
    loop.body = std::move(transfers);
    std::move(shares.begin(), shares.end(), std::back_inserter(loop.body));
    for (const FlowNode& share : loop.body) set_number_of_ticks(loop.iterations, *share.loop);
    return node;
  }

  void set_number_of_ticks(int64_t ticks, FlowLoop& of) const {
    PipelineShare& share = *of.share;
    std::vector<int64_t> table = *share.table;
    table.resize(static_cast<size_t>(ticks * (share.axis < 0 ? 1 : shape_.stages)), -1);
    share.table = std::make_shared<const std::vector<int64_t>>(std::move(table));
    share.ticks = ticks;
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
  const std::deque<Loop>& loops_;
  const ScheduleRow& schedule_;
  PipelineShape shape_;
  int axis_ = -1;  ///< of the stages
  std::unique_ptr<PipelineTable> table_;
  std::vector<TickDistances> distances_;       ///< by pass; none if any pass has none
  std::unique_ptr<StageTransfers> transfers_;  ///< without distances
  std::vector<Part> parts_;
  std::map<int, size_t> part_of_;           ///< by value: the part that computes it
  size_t last_ = 0;                         ///< the part behind all layers
  std::set<int> of_weights_;                ///< what depends on passes `weights`
  std::map<int, const FlowNode*> sources_;  ///< by value
  std::vector<FlowNode> to_all_;            ///< of what layers make
  std::map<int, int> kept_;                 ///< by value: its stack
  static constexpr int kToAll = 1;          ///< PipelineShare::send_id of Part::sends
};

}  // namespace

bool has_stages(const FlowNode& node) {
  return node.loop && node.loop->stage_axis >= 0 && !node.loop->carries.empty();
}

bool is_pipeline(const FlowNode& node) {
  if (!node.loop || !node.loop->carries.empty() || node.loop->condition >= 0) return false;
  return std::any_of(node.loop->body.begin(), node.loop->body.end(), has_stages);
}

void add_read(const FlowNode& node, std::set<int>& read) {
  read.insert(node.in.begin(), node.in.end());
  if (!node.loop) return;
  const FlowLoop& loop = *node.loop;
  for (const FlowLoop::Carry& c : loop.carries) read.insert({c.init, c.next});
  for (const FlowLoop::Slice& s : loop.slices) read.insert(s.whole);
  read.insert(loop.stacked.begin(), loop.stacked.end());
  read.insert(loop.sums.begin(), loop.sums.end());
  read.insert(loop.sum_inits.begin(), loop.sum_inits.end());
  if (loop.condition >= 0) read.insert(loop.condition);
  for (const FlowNode& inner : loop.body) add_read(inner, read);
}

void pipeline_microbatches(const Graph& graph, const std::string& schedule, Flow& flow) {
  const ScheduleRow& row = schedule_row(schedule);
  for (FlowFunction& f : flow.functions) {
    std::vector<FlowNode> nodes;
    for (FlowNode& node : f.nodes) {
      if (!is_pipeline(node)) {
        nodes.push_back(std::move(node));
        continue;
      }
      for (FlowNode& part : MicrobatchPipeline(graph, row, flow, node).run())
        nodes.push_back(std::move(part));
    }
    f.nodes = std::move(nodes);
  }
}

}  // namespace tessera
