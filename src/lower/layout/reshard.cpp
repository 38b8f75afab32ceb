// Dijkstra's algorithm over layouts. A state is the axes of each dim and the partial axes. A move
// costs the bytes that a rank sends plus a constant for latency. Moves only go towards the target:
// an axis is appended to a dim only if the target has it next, and removed only if the target does
// not have it there. So there are few states. `exchange` goes straight to the target and sends each
// element once; it wins where axes change places. Over several axes its bytes count twice: all of
// them may cross the slowest links of the mesh, of which others cross few (a reduce-scatter passes
// most of its bytes inside of a host).
#include "lower/layout/reshard.h"

#include <algorithm>
#include <map>
#include <set>

#include "base/fail.h"
#include "collectives/cost.h"
#include "lower/layout/interval.h"
#include "lower/layout/memo_key.h"

namespace tessera {

namespace {

constexpr int64_t kExchangeBytes =
    2048;  // extra cost of an exchange, which has no ring algorithm: it must save volume

constexpr int64_t kFarExchange = 2;  // cost of a byte of an exchange over several axes

int64_t cost_of(const Move& move) {
  const bool is_far = move.kind == FlowKind::exchange && move.axes.size() > 1;
  return is_far ? kFarExchange * move.bytes : move.bytes;
}

int64_t latency_of(FlowKind kind) {
  if (kind == FlowKind::slice) return 0;
  return kMoveBytes + (kind == FlowKind::exchange ? kExchangeBytes : 0);
}

std::string key_of(const TensorLayout& layout) {
  return MemoKey().add(layout.dims).add(layout.partial).text();
}

bool is_prefix(const std::vector<int>& a, const std::vector<int>& b) {
  return a.size() <= b.size() && std::equal(a.begin(), a.end(), b.begin());
}

/// The axis that the target has next on dim d, or -1.
int next_axis(const TensorLayout& at, const TensorLayout& to, size_t d) {
  return is_prefix(at.dims[d], to.dims[d]) && at.dims[d].size() < to.dims[d].size()
             ? to.dims[d][at.dims[d].size()]
             : -1;
}

void drop(std::vector<int>& axes, int axis) {
  axes.erase(std::find(axes.begin(), axes.end(), axis));
}

}  // namespace

void Resharder::add_partial_moves(const Shape& shape, DType dtype, const TensorLayout& at,
                                  const TensorLayout& to, std::vector<Move>& moves) const {
  const int64_t bytes = rule_layouts_.local_elements(shape, at) * size_of(dtype);
  std::vector<int> all;
  for (int axis : at.partial) {
    if (std::find(to.partial.begin(), to.partial.end(), axis) != to.partial.end()) continue;
    all.push_back(axis);
    for (size_t d = 0; d < at.dims.size(); ++d) {
      if (next_axis(at, to, d) == axis) add_reduce_scatters(bytes, at, to, d, moves);
    }
  }
  for (size_t subset = 0; subset <= all.size() && !all.empty();
       ++subset) {  // all at once, or each alone
    if (subset < all.size() && all.size() == 1) continue;
    Move move{FlowKind::all_reduce, {}, -1, -1, at, 0};
    move.axes = subset == all.size() ? all : std::vector<int>{all[subset]};
    int ranks = 1;
    for (int axis : move.axes) {
      drop(move.after.partial, axis);
      ranks *= rule_layouts_.mesh().axes()[axis].size;
    }
    move.bytes = bytes_sent(CollectiveKind::all_reduce, bytes, ranks);
    moves.push_back(std::move(move));
  }
}

/// Adds the reduce_scatter over the next axis of dim d, then over that and further axes, as long as
/// they are in mesh order: slices are numbered like the ranks of the group.
void Resharder::add_reduce_scatters(int64_t bytes, const TensorLayout& at, const TensorLayout& to,
                                    size_t d, std::vector<Move>& moves) const {
  Move move{FlowKind::reduce_scatter, {}, -1, static_cast<int>(d), at, 0};
  int ranks = 1;
  for (int axis; (axis = next_axis(move.after, to, d)) >= 0;) {
    const bool is_partial =
        std::find(at.partial.begin(), at.partial.end(), axis) != at.partial.end();
    if (!is_partial || (!move.axes.empty() && axis < move.axes.back())) return;
    move.axes.push_back(axis);
    move.after.dims[d].push_back(axis);
    drop(move.after.partial, axis);
    ranks *= rule_layouts_.mesh().axes()[axis].size;
    move.bytes = bytes_sent(CollectiveKind::reduce_scatter, bytes, ranks);
    moves.push_back(move);
  }
}

/// Adds the all_gather over the last axis of dim d, then over that and earlier axes, in mesh order.
void Resharder::add_all_gathers(int64_t bytes, const TensorLayout& at, const TensorLayout& to,
                                size_t d, std::vector<Move>& moves) const {
  Move move{FlowKind::all_gather, {}, static_cast<int>(d), -1, at, 0};
  int ranks = 1;
  std::vector<int>& left = move.after.dims[d];
  while (!left.empty() && !is_prefix(left, to.dims[d])) {
    if (!move.axes.empty() && left.back() > move.axes.front()) return;
    move.axes.insert(move.axes.begin(), left.back());
    ranks *= rule_layouts_.mesh().axes()[left.back()].size;
    left.pop_back();
    move.bytes = bytes_sent(CollectiveKind::all_gather, bytes * ranks, ranks);
    moves.push_back(move);
  }
}

/// Adds the all_to_all of the last axis of another dim, which dim d has next, then of that and
/// earlier axes, in mesh order.
void Resharder::add_all_to_alls(int64_t bytes, const TensorLayout& at, const TensorLayout& to,
                                size_t d, std::vector<Move>& moves) const {
  for (size_t e = 0; e < at.dims.size(); ++e) {
    if (e == d) continue;
    Move move{FlowKind::all_to_all, {}, static_cast<int>(e), static_cast<int>(d), at, 0};
    std::vector<int>& left = move.after.dims[e];
    int ranks = 1;
    while (!left.empty() && !is_prefix(left, to.dims[e])) {
      if (!move.axes.empty() && left.back() > move.axes.front()) break;
      move.axes.insert(move.axes.begin(), left.back());
      ranks *= rule_layouts_.mesh().axes()[left.back()].size;
      left.pop_back();
      std::vector<int>& gains = move.after.dims[d];
      gains = at.dims[d];
      gains.insert(gains.end(), move.axes.begin(), move.axes.end());
      if (!is_prefix(gains, to.dims[d])) continue;
      move.bytes = bytes_sent(CollectiveKind::all_to_all, bytes, ranks);
      moves.push_back(move);
    }
  }
}

void Resharder::add_split_moves(const Shape& shape, DType dtype, const TensorLayout& at,
                                const TensorLayout& to, std::vector<Move>& moves) const {
  const int64_t bytes = rule_layouts_.local_elements(shape, at) * size_of(dtype);
  for (size_t d = 0; d < at.dims.size(); ++d) {
    if (const int axis = next_axis(at, to, d); axis >= 0) {
      if (!at.uses(axis)) {
        Move move{FlowKind::slice, {axis}, -1, static_cast<int>(d), at, 0};
        move.after.dims[d].push_back(axis);
        moves.push_back(std::move(move));
      }
      add_all_to_alls(bytes, at, to, d, moves);
    }
    add_all_gathers(bytes, at, to, d, moves);
  }
  if (at.partial == to.partial) {
    Move move{FlowKind::exchange, {}, -1, -1, to, 0};
    std::set<int> used;
    for (const TensorLayout* layout : {&at, &to}) {
      for (const auto& axes : layout->dims) used.insert(axes.begin(), axes.end());
    }
    move.axes.assign(used.begin(), used.end());
    move.bytes = received(shape, dtype, at, to);
    move.after.dirty = at.dirty;
    moves.push_back(std::move(move));
  }
}

std::vector<Move> Resharder::moves(const Shape& shape, DType dtype, const TensorLayout& at,
                                   const TensorLayout& to) const {
  std::vector<Move> result;
  add_partial_moves(shape, dtype, at, to, result);
  add_split_moves(shape, dtype, at, to, result);
  return result;
}

int64_t Resharder::received(const Shape& shape, DType dtype, const TensorLayout& at,
                            const TensorLayout& to) const {
  return mean_received(slicing_of(rule_layouts_, shape, at), slicing_of(rule_layouts_, shape, to),
                       sizes_of_axes(rule_layouts_.mesh()), size_of(dtype));
}

const Path& Resharder::path(const Shape& shape, DType dtype, const TensorLayout& from,
                            const TensorLayout& to) {
  if (from.dims == to.dims && from.partial == to.partial) return nothing_;
  const MemoKey key = MemoKey().add(shape).add(dtype).add(from).add(to.dims).add(to.partial);
  auto it = known_.find(key.text());
  if (it == known_.end()) it = known_.emplace(key.text(), search(shape, dtype, from, to)).first;
  return it->second;
}

Path Resharder::search(const Shape& shape, DType dtype, const TensorLayout& from,
                       const TensorLayout& to) const {
  const std::string goal = key_of(to);
  std::map<std::string, Path> best{{key_of(from), {}}};
  std::map<std::string, TensorLayout> layouts{{key_of(from), from}};
  std::set<std::pair<int64_t, std::string>> open{{0, key_of(from)}};
  std::set<std::string> done;
  while (!open.empty()) {
    const auto [cost, key] = *open.begin();
    open.erase(open.begin());
    if (key == goal) return best[key];
    if (!done.insert(key).second) continue;
    for (Move& move : moves(shape, dtype, layouts[key], to)) {
      const std::string next = key_of(move.after);
      const int64_t latency = latency_of(move.kind);
      const int64_t bytes = best[key].bytes + cost_of(move) + latency;
      if (auto it = best.find(next); it != best.end() && it->second.bytes <= bytes) continue;
      layouts[next] = move.after;
      Path path = best[key];
      path.moves.push_back(std::move(move));
      path.bytes = bytes;
      path.latency += latency;
      best[next] = std::move(path);
      open.insert({bytes, next});
    }
  }
  fail(ErrorKind::internal, "no way from layout {} of {} to {}",
       from.to_string(shape.names(), rule_layouts_.mesh()), shape.to_string(),
       to.to_string(shape.names(), rule_layouts_.mesh()));
}

}  // namespace tessera
