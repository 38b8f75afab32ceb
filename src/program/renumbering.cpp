#include "program/renumbering.h"

#include <algorithm>

namespace tessera {

std::vector<Row> rows_of(const Numbering& numbering, const std::vector<int>& axis_sizes,
                         std::span<const int> coordinates) {
  const Piece piece = pieces_of(numbering.slicing, axis_sizes, coordinates).at(0);
  const std::vector<int64_t> sizes = slice_sizes(numbering.slicing, axis_sizes);
  Box box = piece.box;
  for (size_t d = 0; d < sizes.size(); ++d) box.hi[d] = std::min(box.hi[d], numbering.extents[d]);
  if (box.empty()) return {};
  // Dims after `last` are whole and without padding, so their elements are contiguous.
  size_t last = sizes.size();
  int64_t length = 1;
  while (last > 0 && (last == sizes.size() || (sizes[last] == numbering.extents[last])))
    length *= box.hi[last - 1] - box.lo[last - 1], --last;
  std::vector<Row> rows;
  std::vector<int64_t> index = box.lo;
  while (true) {
    int64_t logical = 0, offset = 0;
    for (size_t d = 0; d < sizes.size(); ++d) {
      logical = logical * numbering.extents[d] + index[d];
      offset = offset * sizes[d] + index[d] - piece.box.lo[d];
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

void describe_renumbering(const Numbering& from, const Numbering& to, Step& step) {
  step.attrs = {{"sizes", from.slicing.sizes},
                {"extents", from.extents},
                {"from", packed_axes(from.slicing.axes)},
                {"to_sizes", to.slicing.sizes},
                {"to_extents", to.extents},
                {"to", packed_axes(to.slicing.axes)}};
}

bool is_renumbering(const Step& step) { return step.attrs.has("to_extents"); }

std::pair<Numbering, Numbering> numberings_of(const Step& step) {
  auto side = [&](const char* sizes, const char* extents, const char* axes) -> Numbering {
    auto get = [&](const char* name) { return step.attrs.get<std::vector<int64_t>>(name); };
    return {{get(sizes), unpacked_axes(get(axes)), {}}, get(extents)};
  };
  return {side("sizes", "extents", "from"), side("to_sizes", "to_extents", "to")};
}

int64_t mean_renumbered(const Numbering& from, const Numbering& to,
                        const std::vector<int>& axis_sizes, int64_t element_bytes) {
  const std::vector<int> axes = axes_of(from.slicing, to.slicing);
  return mean_over_ranks(axes, axis_sizes, 64, [&](std::span<const int> at) {
    const std::vector<Row> needs = rows_of(to, axis_sizes, at);
    int64_t received = 0;
    for (const Row& row : needs) received += row.length;
    each_common(rows_of(from, axis_sizes, at), needs,
                [&](int64_t, int64_t, int64_t length) { received -= length; });
    return received * element_bytes;
  });
}

}  // namespace tessera
