// Slices are boxes, so the elements that go from one rank to another are the intersection of two
// boxes. Every rank derives the same plan: the receiver chooses the source of each box, and a
// sender asks for each peer what that peer chose.
#include "runtime/exchange.h"

#include <tuple>

#include "base/fail.h"
#include "program/renumbering.h"

namespace tessera {

namespace {

/// The runs of `part` in a row-major slice of sizes `sizes` that holds it from `at` on, added to
/// `runs`.
void add_runs(const Box& part, const std::vector<int64_t>& at, const std::vector<int64_t>& sizes,
              std::vector<Run>& runs) {
  const size_t rank = part.lo.size();
  std::vector<int64_t> index = part.lo;
  while (true) {
    int64_t offset = 0;
    for (size_t d = 0; d < rank; ++d) offset = offset * sizes[d] + at[d] + index[d] - part.lo[d];
    const int64_t length = rank == 0 ? 1 : part.hi[rank - 1] - part.lo[rank - 1];
    if (!runs.empty() && runs.back().offset + runs.back().length == offset) {
      runs.back().length += length;
    } else {
      runs.push_back({offset, length});
    }
    size_t d = rank == 0 ? 0 : rank - 1;
    while (d > 0 && ++index[d - 1] == part.hi[d - 1]) index[d - 1] = part.lo[d - 1], --d;
    if (d == 0) return;
  }
}

/// Where `part` lies in a slice that holds `piece`.
std::vector<int64_t> place(const Box& part, const Piece& piece) {
  std::vector<int64_t> at = piece.at;
  for (size_t d = 0; d < at.size(); ++d) at[d] += part.lo[d] - piece.box.lo[d];
  return at;
}

class Planner {
 public:
  Planner(const Program& program, const Step& step, std::span<const int> coordinates,
          const int64_t* scalars, int ranks)
      : program_(program),
        step_(step),
        mine_(coordinates.begin(), coordinates.end()),
        scalars_(scalars),
        ranks_(ranks) {
    renumbers_ = is_renumbering(step);
    if (renumbers_) {
      std::tie(numbered_, numbers_) = numberings_of(step);
      from_ = numbered_.slicing;
    } else {
      std::tie(from_, to_) = slicings_of(step);
    }
  }

  void fill(Collective& c) const {
    c.send.assign(ranks_, {});
    c.recv.assign(ranks_, {});
    renumbers_ ? renumber(c) : move_boxes(c);
  }

 private:
  void move_boxes(Collective& c) const {
    const std::vector<int64_t> from_sizes = slice_sizes(from_, program_.axis_sizes),
                               to_sizes = slice_sizes(to_, program_.axis_sizes);
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::vector<int> other = coordinates_of(peer);
      each_part(other, mine_, [&](const Box& part, const Piece&, const Piece& to) {
        add_runs(part, place(part, to), to_sizes, c.recv[peer]);
      });
      each_part(mine_, other, [&](const Box& part, const Piece& from, const Piece&) {
        add_runs(part, place(part, from), from_sizes, c.send[peer]);
      });
    }
  }

  void renumber(Collective& c) const {
    const std::vector<Row> have = rows(numbered_, mine_), need = rows(numbers_, mine_);
    for (int peer = 0; peer < ranks_; ++peer) {
      const std::vector<int> other = coordinates_of(peer);
      if (source_of(mine_, other) == other) {
        each_common(rows(numbered_, other), need, [&](int64_t, int64_t to, int64_t length) {
          c.recv[peer].push_back({to, length});
        });
      }
      if (source_of(other, mine_) == mine_) {
        each_common(have, rows(numbers_, other), [&](int64_t from, int64_t, int64_t length) {
          c.send[peer].push_back({from, length});
        });
      }
    }
  }

  std::vector<Row> rows(const Numbering& numbering, const std::vector<int>& at) const {
    return rows_of(numbering, program_.axis_sizes, at);
  }

  /// Calls visit(part, piece of the holder, piece of the receiver) for all that the receiver takes
  /// from this holder, in an order that both agree on.
  template <class Visit>
  void each_part(const std::vector<int>& holder, const std::vector<int>& receiver,
                 Visit visit) const {
    if (source_of(receiver, holder) != holder) return;
    for (const Piece& from : pieces_of(from_, program_.axis_sizes, holder)) {
      for (const Piece& to : pieces_of(to_, program_.axis_sizes, receiver, scalars_)) {
        const Box part = intersect(from.box, to.box);
        if (!part.empty()) visit(part, from, to);
      }
    }
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
    for (const auto& axes : from_.axes) {
      for (int axis : axes) source[axis] = holder[axis];
    }
    return source;
  }

  const Program& program_;
  const Step& step_;
  std::vector<int> mine_;
  const int64_t* scalars_;
  int ranks_;
  Slicing from_, to_;
  bool renumbers_ = false;
  Numbering numbered_, numbers_;
};

}  // namespace

void plan_exchange(const Program& program, const Step& step, std::span<const int> coordinates,
                   const int64_t* scalars, int ranks, Collective& collective) {
  Planner(program, step, coordinates, scalars, ranks).fill(collective);
}

}  // namespace tessera
