#include "program/slicing.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <set>

#include "base/fail.h"

namespace tessera {

bool Box::empty() const {
  for (size_t d = 0; d < lo.size(); ++d) {
    if (lo[d] >= hi[d]) return true;
  }
  return false;
}

int64_t Box::elements() const {
  int64_t n = 1;
  for (size_t d = 0; d < lo.size(); ++d) n *= std::max<int64_t>(0, hi[d] - lo[d]);
  return n;
}

Box intersect(const Box& a, const Box& b) {
  Box box;
  for (size_t d = 0; d < a.lo.size(); ++d) {
    box.lo.push_back(std::max(a.lo[d], b.lo[d]));
    box.hi.push_back(std::max(box.lo.back(), std::min(a.hi[d], b.hi[d])));
  }
  return box;
}

namespace {

/// Elements [lo, hi) of one dim, the first of which lies at `at` of the slice.
struct DimRange {
  int64_t lo, hi, at;
};

const Interval* interval_of(const Slicing& slicing, size_t dim) {
  for (const Interval& interval : slicing.intervals) {
    if (interval.dim == static_cast<int>(dim)) return &interval;
  }
  return nullptr;
}

int64_t floor_div(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

std::vector<DimRange> ranges_of(const Interval& interval, std::span<const int> coordinates,
                                const int64_t* scalars) {
  const int64_t begin = interval.begin.eval(coordinates, scalars), end = begin + interval.size,
                n = interval.extent;
  std::vector<DimRange> ranges;
  const int64_t first = interval.wraps ? floor_div(begin, n) : 0,
                last = interval.wraps ? floor_div(end - 1, n) : 0;
  for (int64_t turn = first; turn <= last; ++turn) {
    const int64_t lo = std::max(begin, turn * n), hi = std::min(end, (turn + 1) * n);
    if (lo < hi) ranges.push_back({lo - turn * n, hi - turn * n, lo - begin});
  }
  return ranges;
}

DimRange slice_range(const Slicing& slicing, size_t dim, const std::vector<int>& axis_sizes,
                     std::span<const int> coordinates) {
  int64_t count = 1, index = 0;
  for (int axis : slicing.axes[dim]) {
    index = index * axis_sizes[axis] + coordinates[axis];
    count *= axis_sizes[axis];
  }
  const int64_t local = slicing.sizes[dim] / count;
  return {index * local, index * local + local, 0};
}

}  // namespace

std::vector<int64_t> slice_sizes(const Slicing& slicing, const std::vector<int>& axis_sizes) {
  std::vector<int64_t> sizes = slicing.sizes;
  for (size_t d = 0; d < sizes.size(); ++d) {
    for (int axis : slicing.axes[d]) sizes[d] /= axis_sizes[axis];
    if (const Interval* interval = interval_of(slicing, d)) sizes[d] = interval->size;
  }
  return sizes;
}

std::vector<Piece> pieces_of(const Slicing& slicing, const std::vector<int>& axis_sizes,
                             std::span<const int> coordinates, const int64_t* scalars) {
  std::vector<Piece> pieces(1);
  for (size_t d = 0; d < slicing.sizes.size(); ++d) {
    const Interval* interval = interval_of(slicing, d);
    const std::vector<DimRange> ranges =
        interval ? ranges_of(*interval, coordinates, scalars)
                 : std::vector<DimRange>{slice_range(slicing, d, axis_sizes, coordinates)};
    std::vector<Piece> longer;
    for (const Piece& piece : pieces) {
      for (const DimRange& range : ranges) {
        Piece next = piece;
        next.box.lo.push_back(range.lo);
        next.box.hi.push_back(range.hi);
        next.at.push_back(range.at);
        longer.push_back(std::move(next));
      }
    }
    pieces = std::move(longer);
  }
  return pieces;
}

void describe_exchange(const Slicing& from, const Slicing& to, Step& step) {
  ReslicingSpec spec{from.sizes, from.axes, to.axes};
  for (const Interval& i : to.intervals) {
    spec.intervals.push_back({i.dim, i.size, i.extent, i.wraps});
    step.exprs.push_back(i.begin);
  }
  step.spec = std::move(spec);
}

std::pair<Slicing, Slicing> slicings_of(const Step& step) {
  const auto& spec = step.as<ReslicingSpec>();
  Slicing from{spec.sizes, spec.from, {}}, to{spec.sizes, spec.to, {}};
  for (size_t i = 0; i < spec.intervals.size(); ++i) {
    const ReslicingSpec::Interval& interval = spec.intervals[i];
    to.intervals.push_back({static_cast<int>(interval.dim), step.exprs.at(i), interval.size,
                            interval.extent, interval.wraps});
  }
  return {std::move(from), std::move(to)};
}

std::vector<int> axes_of(const Slicing& from, const Slicing& to) {
  std::set<int> axes;
  for (const Slicing* slicing : {&from, &to}) {
    for (const auto& of_dim : slicing->axes) axes.insert(of_dim.begin(), of_dim.end());
    for (const Interval& interval : slicing->intervals) {
      for (const auto& [axis, factor] : interval.begin.axis_terms) axes.insert(axis);
    }
  }
  return {axes.begin(), axes.end()};
}

int64_t mean_over_ranks(const std::vector<int>& axes, const std::vector<int>& axis_sizes,
                        int64_t most, const std::function<int64_t(std::span<const int>)>& count) {
  int64_t ranks = 1;
  for (int axis : axes) ranks = std::min<int64_t>(ranks * axis_sizes[axis], most + 1);
  const bool exact = ranks <= most;
  std::vector<int> at(axis_sizes.size(), 0);
  double sum = 0, weights = 0;
  const std::function<void(size_t, double)> visit = [&](size_t k, double weight) {
    if (k == axes.size()) {
      sum += weight * static_cast<double>(count(at));
      weights += weight;
      return;
    }
    const int n = axis_sizes[axes[k]];
    for (int c = 0; c < n; c = exact || n <= 3 ? c + 1 : c == 0 ? n / 2 : c == n / 2 ? n - 1 : n) {
      at[axes[k]] = c;
      visit(k + 1, exact || n <= 3 || c == 0 || c == n - 1 ? weight : weight * (n - 2));
    }
    at[axes[k]] = 0;
  };
  visit(0, 1);
  return static_cast<int64_t>(std::ceil(sum / weights - 1e-9));
}

int64_t mean_received(const Slicing& from, const Slicing& to, const std::vector<int>& axis_sizes,
                      int64_t element_bytes) {
  if (to.intervals.empty()) {  // one piece each
    return mean_over_ranks(axes_of(from, to), axis_sizes, 4096, [&](std::span<const int> at) {
      int64_t needed = 1, common = 1;
      for (size_t d = 0; d < to.sizes.size(); ++d) {
        const DimRange has = slice_range(from, d, axis_sizes, at),
                       needs = slice_range(to, d, axis_sizes, at);
        needed *= needs.hi - needs.lo;
        common *= std::max<int64_t>(0, std::min(has.hi, needs.hi) - std::max(has.lo, needs.lo));
      }
      return (needed - common) * element_bytes;
    });
  }
  return mean_over_ranks(axes_of(from, to), axis_sizes, 4096, [&](std::span<const int> at) {
    const Box own = pieces_of(from, axis_sizes, at).at(0).box;
    int64_t received = 0;
    for (const Piece& piece : pieces_of(to, axis_sizes, at))
      received += piece.box.elements() - intersect(piece.box, own).elements();
    return received * element_bytes;
  });
}

}  // namespace tessera
