// With P stages, V chunks a stage and L layers a chunk, n = V * P * L. A tensor [n, ...] that is
// split over the stages has, in row-major order, the elements of a tensor [V, P * L, ...] whose
// second dim is split: the first holds consecutive layers, the second the layers of chunks. So an
// exchange between two shapes, as for a reshape, goes from one to the other. If every second chunk
// turns back (ScheduleRow::turns), so does the second dim (Numbering::turns).
#include "lower/flow/assign_virtual_stages.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "base/fail.h"
#include "lower/flow/pipeline_microbatches.h"
#include "program/schedules/schedules.h"

namespace tessera {

namespace {

bool has_chunks(const FlowNode& node) {
  return node.loop && node.loop->stage_axis >= 0 && node.loop->chunks > 1 && node.loop->chunk < 0 &&
         !node.loop->carries.empty();
}

/// Deals the layers of one loop over microbatches.
class Dealer {
 public:
  /// turns: ScheduleRow::turns.
  Dealer(const RuleLayouts& rule_layouts, bool turns, Flow& flow, FlowNode& microbatches)
      : rule_layouts_(rule_layouts),
        turns_(turns),
        flow_(flow),
        node_(microbatches),
        loop_(*node_.loop) {}

  /// Returns the loop, and the exchanges before and behind it.
  std::vector<FlowNode> run() {
    find_readers();
    std::vector<FlowNode> old = std::exchange(loop_.body, {});
    for (FlowNode& node : old) {
      if (has_chunks(node)) {
        deal(node);
      } else {
        loop_.body.push_back(std::move(node));
      }
    }
    std::vector<FlowNode> all = std::move(before_);
    all.push_back(std::move(node_));
    std::move(behind_.begin(), behind_.end(), std::back_inserter(all));
    return all;
  }

 private:
  /// What becomes of a value in an iteration over microbatches.
  struct Uses {
    int64_t layers = 0;  ///< loops over layers that slice it along the dim that they stack
    int64_t sums = 0;    ///< sums over microbatches
    int64_t others = 0;
  };

  void find_readers() {
    for (const FlowNode& node : loop_.body) {
      for (int v : node.out) is_inside_.insert(v);
      if (!node.loop) {
        for (int v : node.in) ++uses_[v].others;
        continue;
      }
      const FlowLoop& inner = *node.loop;
      for (const FlowLoop::Slice& s : inner.slices)
        ++(has_chunks(node) && s.dim == 0 ? uses_[s.whole].layers : uses_[s.whole].others);
      for (const FlowLoop::Carry& c : inner.carries) ++uses_[c.init].others;
      find_read_inside(inner);
    }
    for (const FlowLoop::Slice& s : loop_.slices) is_inside_.insert(s.value);
    for (int v : loop_.stacked) ++uses_[v].others;
    for (int v : loop_.sums) ++uses_[v].sums;
  }

  void find_read_inside(const FlowLoop& inner) {
    for (const FlowNode& node : inner.body) {
      for (int v : node.in) ++uses_[v].others;
      if (node.loop) find_read_inside(*node.loop);
    }
  }

  void deal(const FlowNode& node) {
    const FlowLoop& layers = *node.loop;
    const int64_t stages = rule_layouts_.mesh().axes()[static_cast<size_t>(layers.stage_axis)].size;
    std::vector<FlowNode> parts(static_cast<size_t>(layers.chunks), node);
    for (size_t c = 0; c < parts.size(); ++c) {
      parts[c].loop = std::make_shared<FlowLoop>(layers);
      FlowLoop& chunk = *parts[c].loop;
      chunk.chunk = static_cast<int64_t>(c);
      chunk.per_stage = layers.iterations / (stages * layers.chunks);
      chunk.turned = turns_ && c % 2 != 0;
      chunk.first_layer =
          (chunk.chunk * stages + (chunk.turned ? stages - 1 : 0)) * chunk.per_stage;
      for (FlowNode& move : chunk.to_all) {
        if (!chunk.turned) break;
        FlowValue from_last = flow_.values[at(move.out[0])];
        from_last.intervals[0].begin.constant = chunk.descends() ? 0 : stages - 1;
        move.out[0] = flow_.add_value(std::move(from_last));
      }
    }
    for (size_t i = 0; i < layers.slices.size(); ++i) deal_slice(node, i, parts);
    const size_t carries = layers.carries.size(), stacks = carries + layers.stacked.size();
    std::vector<FlowNode> behind;
    for (size_t i = carries; i < stacks; ++i) deal_stack(node, i, parts, behind);
    if (layers.reverse) std::reverse(parts.begin(), parts.end());
    for (size_t k = 0; k < parts.size(); ++k) {
      FlowLoop& chunk = *parts[k].loop;
      const bool is_last = k + 1 == parts.size();
      for (size_t i = 0; i < carries; ++i) {
        if (k > 0) chunk.carries[i].init = -1;  // from the last stage of the chunk before
        if (!is_last) parts[k].out[i] = copy_of(node.out[i]);
      }
      for (size_t i = stacks; i < node.out.size(); ++i) {
        chunk.sum_inits.push_back(k > 0 ? parts[k - 1].out[i] : -1);
        if (!is_last) parts[k].out[i] = copy_of(node.out[i]);
      }
      parts[k].in.clear();
      for (const FlowLoop::Carry& c : chunk.carries) {
        if (c.init >= 0) parts[k].in.push_back(c.init);
      }
      for (const FlowLoop::Slice& s : chunk.slices) parts[k].in.push_back(s.whole);
    }
    std::move(parts.begin(), parts.end(), std::back_inserter(loop_.body));
    std::move(behind.begin(), behind.end(), std::back_inserter(loop_.body));
  }

  int copy_of(int value) { return flow_.add_value(FlowValue(flow_.values[at(value)])); }
  static size_t at(int value) { return static_cast<size_t>(value); }

  /// Lets each chunk slice its own layers.
  void deal_slice(const FlowNode& node, size_t i, std::vector<FlowNode>& parts) {
    const FlowLoop& layers = *node.loop;
    const FlowLoop::Slice& slice = layers.slices[i];
    if (const auto made = of_chunks_.find(slice.whole);
        made != of_chunks_.end() && slice.dim == 0) {
      for (size_t c = 0; c < parts.size(); ++c) parts[c].loop->slices[i].whole = made->second[c];
      return;
    }
    auto [known, is_new] = dealt_.emplace(std::pair(slice.whole, slice.dim), -1);
    if (is_new) {
      std::vector<FlowNode>& nodes = is_inside_.contains(slice.whole) ? loop_.body : before_;
      const int dealt = flow_.add_value(dealt_as(slice.whole, slice.dim, layers));
      known->second = exchange(slice.whole, dealt, node, "to the chunks of layers", nodes);
    }
    for (FlowNode& part : parts) part.loop->slices[i].whole = known->second;
  }

  /// Gives each chunk a stack of its own, and puts them together for whom it concerns.
  void deal_stack(const FlowNode& node, size_t i, std::vector<FlowNode>& parts,
                  std::vector<FlowNode>& behind) {
    const FlowLoop& layers = *node.loop;
    const int whole = node.out[i];
    std::vector<int>& of_chunk = of_chunks_[whole];
    for (FlowNode& part : parts) {
      FlowValue own = flow_.values[at(whole)];
      own.shape = without_front(dealt_as(whole, 0, layers).shape);
      part.out[i] = flow_.add_value(std::move(own));
      of_chunk.push_back(part.out[i]);
    }
    const Uses& uses = uses_[whole];
    if (uses.others > 0 || (uses.sums > 0 && uses.layers > 0) || uses.sums > 1) {
      const int dealt = flow_.add_value(dealt_as(whole, 0, layers));
      loop_.dealt.push_back({dealt, of_chunk});
      exchange(dealt, whole, node, "from the chunks of layers", behind);
    } else if (uses.sums == 1) {
      sum_by_chunk(whole, node, of_chunk);
    }
  }

  /// Sums what chunks stack over microbatches, and puts the sum together behind the loop.
  void sum_by_chunk(int value, const FlowNode& node, const std::vector<int>& of_chunk) {
    const auto place = std::find(loop_.sums.begin(), loop_.sums.end(), value);
    const auto out = node_.out.begin() +
                     static_cast<std::ptrdiff_t>(loop_.carries.size() + loop_.stacked.size()) +
                     (place - loop_.sums.begin());
    const int whole = *out;
    const int dealt = flow_.add_value(dealt_as(whole, 0, *node.loop));
    node_.out.insert(node_.out.erase(out), of_chunk.size(), dealt);
    loop_.sums.insert(loop_.sums.erase(place), of_chunk.begin(), of_chunk.end());
    exchange(dealt, whole, node, "from the chunks of layers", behind_);
  }

  static Shape without_front(const Shape& shape) {
    return Shape(std::vector<Dim>(shape.begin() + 1, shape.end()));
  }

  /// A value with its dim `dim`, the layers, as chunks and the layers of a chunk on all stages.
  FlowValue dealt_as(int value, int dim, const FlowLoop& layers) const {
    const FlowValue& whole = flow_.values[at(value)];
    FlowValue dealt{{}, whole.dtype, whole.layout, whole.name, -1};
    if (turns_) dealt.turns = dim + 1;
    std::vector<Dim> dims = whole.shape.dims();
    Dim& over = dims[static_cast<size_t>(dim)];
    over = Dim("_" + over.name, layers.iterations / layers.chunks);
    dims.insert(dims.begin() + dim, Dim("_chunks", layers.chunks));
    dealt.shape = Shape(std::move(dims));
    dealt.layout.dims.insert(dealt.layout.dims.begin() + dim, std::vector<int>{});
    const uint64_t below = (uint64_t{1} << dim) - 1;
    dealt.layout.dirty = (whole.layout.dirty & below) | ((whole.layout.dirty & ~below) << 1);
    return dealt;
  }

  /// Adds the exchange of `from`, which may write to `to`, and returns its result. Padding is not
  /// exchanged and becomes zero.
  int exchange(int from, int to, const FlowNode& node, const char* reason,
               std::vector<FlowNode>& nodes) {
    const FlowLoop& layers = *node.loop;
    FlowNode move;
    move.kind = FlowKind::exchange;
    move.axes = {layers.stage_axis};
    move.in = {from};
    move.origin = {flow_.values[at(to)].name, node.origin.source,
                   fmt::format("{}: {}", layers.stage_rule, reason)};
    std::vector<int> padded;
    for (int d = 0; d < flow_.values[at(to)].shape.rank(); ++d) {
      if (rule_layouts_.has_padding(flow_.values[at(to)].shape[d])) padded.push_back(d);
    }
    if (padded.empty()) {
      move.out = {to};
      nodes.push_back(std::move(move));
      return to;
    }
    FlowNode mask;
    mask.kind = FlowKind::mask;
    mask.origin = move.origin;
    mask.dims = padded;
    mask.in = move.out = {copy_of(to)};
    mask.out = {to};
    nodes.push_back(std::move(move));
    nodes.push_back(std::move(mask));
    return to;
  }

  const RuleLayouts& rule_layouts_;
  const bool turns_;
  Flow& flow_;
  FlowNode& node_;
  FlowLoop& loop_;
  std::set<int> is_inside_;  ///< values of an iteration
  std::map<int, Uses> uses_;
  std::map<int, std::vector<int>> of_chunks_;  ///< by stack of layers: the stacks of its chunks
  std::map<std::pair<int, int>, int> dealt_;   ///< by value and dim: as chunks slice it
  std::vector<FlowNode> before_, behind_;
};

}  // namespace

void assign_virtual_stages(const RuleLayouts& rule_layouts, const std::string& schedule,
                           Flow& flow) {
  for (FlowFunction& f : flow.functions) {
    std::vector<FlowNode> nodes;
    for (FlowNode& node : f.nodes) {
      const bool deals = is_pipeline(node) &&
                         std::any_of(node.loop->body.begin(), node.loop->body.end(), has_chunks);
      if (!deals) {
        nodes.push_back(std::move(node));
        continue;
      }
      node.loop = std::make_shared<FlowLoop>(*node.loop);
      const bool turns = schedule_row(schedule).turns;
      for (FlowNode& part : Dealer(rule_layouts, turns, flow, node).run())
        nodes.push_back(std::move(part));
    }
    f.nodes = std::move(nodes);
  }
}

}  // namespace tessera
