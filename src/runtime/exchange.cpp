// Slices are boxes, so the elements that go from one rank to another are the intersection of two
// boxes. Every rank derives the same plan: the receiver chooses the source of each box, and a
// sender asks for each peer what that peer chose.
#include "runtime/exchange.h"

#include <algorithm>

#include "base/fail.h"

namespace tessera {

namespace {

struct Box {
  std::vector<int64_t> lo, hi;
  bool operator==(const Box&) const = default;
};

struct Sides {
  std::vector<int64_t> sizes;
  std::vector<std::vector<int>> from, to;
};

std::vector<std::vector<int>> unpack_axes(const std::vector<int64_t>& list) {
  std::vector<std::vector<int>> result;
  for (size_t i = 0; i < list.size();) {
    const size_t n = static_cast<size_t>(list[i++]);
    result.emplace_back(list.begin() + static_cast<std::ptrdiff_t>(i),
                        list.begin() + static_cast<std::ptrdiff_t>(i + n));
    i += n;
  }
  return result;
}

Box box_of(const Program& program, const std::vector<int64_t>& sizes,
           const std::vector<std::vector<int>>& dims, std::span<const int> coordinates) {
  Box box;
  for (size_t d = 0; d < sizes.size(); ++d) {
    int64_t parts = 1, index = 0;
    for (int axis : dims[d]) {
      index = index * program.axis_sizes[axis] + coordinates[axis];
      parts *= program.axis_sizes[axis];
    }
    const int64_t local = sizes[d] / parts;
    box.lo.push_back(index * local);
    box.hi.push_back(index * local + local);
  }
  return box;
}

Box intersect(const Box& a, const Box& b) {
  Box box;
  for (size_t d = 0; d < a.lo.size(); ++d) {
    box.lo.push_back(std::max(a.lo[d], b.lo[d]));
    box.hi.push_back(std::max(box.lo.back(), std::min(a.hi[d], b.hi[d])));
  }
  return box;
}

bool is_empty(const Box& box) {
  for (size_t d = 0; d < box.lo.size(); ++d) {
    if (box.lo[d] == box.hi[d]) return true;
  }
  return false;
}

/// The runs of `part` in a row-major slice that holds `slice`.
std::vector<Run> runs_of(const Box& part, const Box& slice) {
  std::vector<Run> runs;
  const size_t rank = part.lo.size();
  std::vector<int64_t> index = part.lo;
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d)
      offset = offset * (slice.hi[d] - slice.lo[d]) + index[d] - slice.lo[d];
    const int64_t length = rank == 0 ? 1 : part.hi[rank - 1] - part.lo[rank - 1];
    if (!runs.empty() && runs.back().offset + runs.back().length == offset) {
      runs.back().length += length;
    } else {
      runs.push_back({offset, length});
    }
    size_t d = rank == 0 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == part.hi[d - 1]) index[d - 1] = part.lo[d - 1], --d;
    if (d == 0) return runs;
  }
}

class Planner {
 public:
  Planner(const Program& program, const Step& step, std::span<const int> coordinates, int ranks)
      : program_(program),
        step_(step),
        mine_(coordinates.begin(), coordinates.end()),
        ranks_(ranks),
        sides_{step.attrs.get<std::vector<int64_t>>("sizes"),
               unpack_axes(step.attrs.get<std::vector<int64_t>>("from")),
               unpack_axes(step.attrs.get<std::vector<int64_t>>("to"))} {}

  void fill(Collective& c) const {
    c.send.assign(ranks_, {});
    c.recv.assign(ranks_, {});
    const Box mine_from = box(sides_.from, mine_), mine_to = box(sides_.to, mine_);
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::vector<int> other = coordinates_of(peer);
      const Box get = intersect(box(sides_.from, other), mine_to);
      if (!is_empty(get) && source_of(mine_, other) == other) c.recv[peer] = runs_of(get, mine_to);
      const Box give = intersect(mine_from, box(sides_.to, other));
      if (!is_empty(give) && source_of(other, mine_) == mine_)
        c.send[peer] = runs_of(give, mine_from);
    }
  }

 private:
  Box box(const std::vector<std::vector<int>>& dims, const std::vector<int>& at) const {
    return box_of(program_, sides_.sizes, dims, at);
  }

  std::vector<int> coordinates_of(int member) const {
    std::vector<int> at = mine_;
    for (size_t k = step_.axes.size(); k-- > 0;) {
      at[step_.axes[k]] = member % program_.axis_sizes[step_.axes[k]];
      member /= program_.axis_sizes[step_.axes[k]];
    }
    return at;
  }

  /// Of the ranks that hold the same slice as `holder`, the one that `receiver` takes it from: on
  /// every axis that the source layout leaves unused, the receiver's own coordinate.
  std::vector<int> source_of(const std::vector<int>& receiver,
                             const std::vector<int>& holder) const {
    std::vector<int> source = receiver;
    for (const auto& axes : sides_.from) {
      for (int axis : axes) source[axis] = holder[axis];
    }
    return source;
  }

  const Program& program_;
  const Step& step_;
  std::vector<int> mine_;
  int ranks_;
  Sides sides_;
};

}  // namespace

void plan_exchange(const Program& program, const Step& step, std::span<const int> coordinates,
                   int ranks, Collective& collective) {
  Planner(program, step, coordinates, ranks).fill(collective);
}

}  // namespace tessera
