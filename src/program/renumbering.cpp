#include "program/renumbering.h"

#include <algorithm>

namespace tessera {

namespace {

/// The rows of a box, in a slice of these sizes whose first element is that at `begin`.
std::vector<Row> rows_of(const Numbering& numbering, const std::vector<int64_t>& sizes, Box box,
                         const std::vector<int64_t>& begin) {
  for (size_t d = 0; d < sizes.size(); ++d) box.hi[d] = std::min(box.hi[d], numbering.extents[d]);
  if (box.empty()) return {};
  // Dims after `last` are whole and without padding, so their elements are contiguous.
  size_t last = sizes.size();
  int64_t length = 1;
  const auto is_whole = [&](size_t d) {
    return sizes[d] == numbering.extents[d] && box.hi[d] - box.lo[d] == sizes[d];
  };
  while (last > 0 && (last == sizes.size() || is_whole(last)))
    length *= box.hi[last - 1] - box.lo[last - 1], --last;
  std::vector<Row> rows;
  std::vector<int64_t> index = box.lo;
  while (true) {
    int64_t logical = 0, offset = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      logical = logical * numbering.extents[d] + index[d];
      offset = offset * sizes[d] + index[d] - begin[d];
    }
    if (!rows.empty() && rows.back().index + rows.back().length == logical &&
        rows.back().offset + rows.back().length == offset) {
      rows.back().length += length;
    } else {
      rows.push_back({logical, offset, length});
    }
    size_t d = last;
    while (d > 0 && ++index[d - 1] == box.hi[d - 1]) index[d - 1] = box.lo[d - 1], --d;
    if (d == 0) return rows;
  }
}

}  // namespace

std::vector<Row> rows_of(const Numbering& numbering, const std::vector<int>& axis_sizes,
                         std::span<const int> coordinates) {
  const Box whole = pieces_of(numbering.slicing, axis_sizes, coordinates).at(0).box;
  const std::vector<int64_t> sizes = slice_sizes(numbering.slicing, axis_sizes);
  if (numbering.turns < 0) return rows_of(numbering, sizes, whole, whole.lo);
  const auto dim = static_cast<size_t>(numbering.turns);
  std::vector<Row> rows;
  for (int64_t i = whole.lo[dim - 1]; i < whole.hi[dim - 1]; ++i) {
    Box box = whole;
    box.lo[dim - 1] = i, box.hi[dim - 1] = i + 1;
    if (i % 2 != 0) {
      const int64_t size = numbering.slicing.sizes[dim];
      box.lo[dim] = size - whole.hi[dim], box.hi[dim] = size - whole.lo[dim];
    }
    std::vector<int64_t> begin = box.lo;
    begin[dim - 1] = whole.lo[dim - 1];
    const std::vector<Row> more = rows_of(numbering, sizes, std::move(box), begin);
    rows.insert(rows.end(), more.begin(), more.end());
  }
  std::sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.index < b.index; });
  return rows;
}

void describe_renumbering(const Numbering& from, const Numbering& to, Step& step) {
  step.spec =
      RenumberingSpec{from.slicing.sizes, from.extents,    from.slicing.axes, to.slicing.sizes,
                      to.extents,         to.slicing.axes, from.turns,        to.turns};
}

bool is_renumbering(const Step& step) { return step.find<RenumberingSpec>() != nullptr; }

std::pair<Numbering, Numbering> numberings_of(const Step& step) {
  const auto& spec = step.as<RenumberingSpec>();
  return {{{spec.sizes, spec.from, {}}, spec.extents, spec.turns},
          {{spec.to_sizes, spec.to, {}}, spec.to_extents, spec.to_turns}};
}

namespace {

/// A numbering of the dims [first, last).
Numbering dims_of(const Numbering& n, size_t first, size_t last) {
  const auto part = [&](const auto& list) {
    return std::decay_t<decltype(list)>(list.begin() + static_cast<std::ptrdiff_t>(first),
                                        list.begin() + static_cast<std::ptrdiff_t>(last));
  };
  return {{part(n.slicing.sizes), part(n.slicing.axes), {}},
          part(n.extents),
          n.turns < 0 ? -1 : n.turns - static_cast<int>(first)};
}

/// The dims in front of those that have no range of their own, and behind them.
size_t most_lead(const Numbering& n) {
  return n.turns < 0 ? n.extents.size() : static_cast<size_t>(n.turns) - 1;
}
size_t most_trail(const Numbering& n) {
  return n.turns < 0 ? n.extents.size() : n.extents.size() - 1 - static_cast<size_t>(n.turns);
}

}  // namespace

// The elements of dims that both sides begin or end with are counted dim by dim; only what lies
// between is enumerated.
int64_t mean_renumbered(const Numbering& from, const Numbering& to,
                        const std::vector<int>& axis_sizes, int64_t element_bytes) {
  const size_t a = from.extents.size(), b = to.extents.size(),
               most = std::min(most_lead(from), most_lead(to));
  size_t lead = 0, trail = 0;
  while (lead < most && from.extents[lead] == to.extents[lead]) ++lead;
  const size_t rest = std::min({std::min(a, b) - lead, most_trail(from), most_trail(to)});
  while (trail < rest && from.extents[a - 1 - trail] == to.extents[b - 1 - trail]) ++trail;
  const Numbering has_between = dims_of(from, lead, a - trail),
                  needs_between = dims_of(to, lead, b - trail);
  const std::vector<int> axes = axes_of(from.slicing, to.slicing);
  return mean_over_ranks(axes, axis_sizes, 64, [&](std::span<const int> at) {
    int64_t needed = 1, common = 1;
    const Box has = pieces_of(from.slicing, axis_sizes, at).at(0).box,
              needs = pieces_of(to.slicing, axis_sizes, at).at(0).box;
    const auto count = [&](size_t in_from, size_t in_to) {
      const int64_t end = std::min(needs.hi[in_to], to.extents[in_to]);
      needed *= std::max<int64_t>(0, end - needs.lo[in_to]);
      common *= std::max<int64_t>(
          0, std::min(end, has.hi[in_from]) - std::max(has.lo[in_from], needs.lo[in_to]));
    };
    for (size_t d = 0; d < lead; ++d) count(d, d);
    for (size_t d = 1; d <= trail; ++d) count(a - d, b - d);
    if (needed == 0) return int64_t{0};
    const std::vector<Row> rows = rows_of(needs_between, axis_sizes, at);
    int64_t needed_between = 0, common_between = 0;
    for (const Row& row : rows) needed_between += row.length;
    if (common > 0)
      each_common(rows_of(has_between, axis_sizes, at), rows,
                  [&](int64_t, int64_t, int64_t length) { common_between += length; });
    return (needed * needed_between - common * common_between) * element_bytes;
  });
}

}  // namespace tessera
