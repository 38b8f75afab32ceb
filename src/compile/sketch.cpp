// A tensor cut over a mesh, in characters. Rows are the slices of the first split dim, columns
// those of the others together; a cell names the ranks that hold the slice.
#include <algorithm>
#include <set>

#include "base/fail.h"
#include "base/units.h"
#include "tessera/placement.h"

namespace tessera {

namespace {

constexpr int64_t kMostCells = 8;  ///< along each side; the middle is left out

/// Some dims of the tensor that are cut together along one side of the picture.
struct PictureSide {
  std::vector<const PlacedDim*> dims;
  std::vector<int> axes;  ///< major to minor
  int64_t slices = 1;
};

int64_t parts_of(const PlacedDim& dim, const Mesh& mesh) {
  int64_t parts = 1;
  for (const std::string& axis : dim.axes)
    parts *= mesh.axes()[static_cast<size_t>(mesh.find(axis))].size;
  return parts;
}

void add_dim(PictureSide& side, const PlacedDim& dim, const Mesh& mesh) {
  side.dims.push_back(&dim);
  for (const std::string& axis : dim.axes) side.axes.push_back(mesh.find(axis));
  side.slices *= parts_of(dim, mesh);
}

std::string side_text(const PictureSide& side) {
  std::string text;
  for (const PlacedDim* d : side.dims) {
    text += fmt::format("{}{} over {}", text.empty() ? "" : ", ", d->name, fmt::join(d->axes, "+"));
  }
  return text;
}

/// "0, 2", "0-7", "0, 2, ... 30".
std::string ranks_text(const std::vector<int>& ranks) {
  const bool row =
      ranks.size() > 2 && ranks.back() - ranks.front() + 1 == static_cast<int>(ranks.size());
  if (row) return fmt::format("{}-{}", ranks.front(), ranks.back());
  if (ranks.size() <= 4) return fmt::format("{}", fmt::join(ranks, ", "));
  return fmt::format("{}, {}, ... {}", ranks[0], ranks[1], ranks.back());
}

/// Sets the coordinates of the side's axes for slice number `slice`.
void place(const PictureSide& side, int64_t slice, const Mesh& mesh,
           std::vector<int>& coordinates) {
  for (size_t i = side.axes.size(); i-- > 0;) {
    const int64_t size = mesh.axes()[static_cast<size_t>(side.axes[i])].size;
    coordinates[static_cast<size_t>(side.axes[i])] = static_cast<int>(slice % size);
    slice /= size;
  }
}

/// The ranks that hold a slice: all coordinates of the axes that no side uses.
std::vector<int> holders(const PictureSide& rows, const PictureSide& columns, int64_t row,
                         int64_t column, const Mesh& mesh) {
  std::vector<int> coordinates(static_cast<size_t>(mesh.rank()), 0), free, ranks;
  place(rows, row, mesh, coordinates);
  place(columns, column, mesh, coordinates);
  int64_t copies = 1;
  for (int axis = 0; axis < mesh.rank(); ++axis) {
    const auto uses = [&](const PictureSide& side) {
      return std::find(side.axes.begin(), side.axes.end(), axis) != side.axes.end();
    };
    if (uses(rows) || uses(columns)) continue;
    free.push_back(axis);
    copies *= mesh.axes()[static_cast<size_t>(axis)].size;
  }
  const PictureSide others{{}, free, copies};
  for (int64_t copy = 0; copy < copies; ++copy) {
    place(others, copy, mesh, coordinates);
    ranks.push_back(mesh.rank_of(coordinates));
  }
  return ranks;
}

/// The numbers of the slices that are shown; -1 for those left out.
std::vector<int64_t> shown(int64_t slices, int64_t most) {
  std::vector<int64_t> all;
  const bool fits = slices <= most;
  for (int64_t i = 0; i < (fits ? slices : most - 2); ++i) all.push_back(i);
  if (!fits) all.insert(all.end(), {-1, slices - 1});
  return all;
}

std::string copies_text(const PlacedTensor& t, const Mesh& mesh) {
  std::set<std::string> used(t.partial.begin(), t.partial.end());
  for (const PlacedDim& d : t.dims) used.insert(d.axes.begin(), d.axes.end());
  std::string axes;
  int64_t copies = 1;
  for (const MeshAxis& axis : mesh.axes()) {
    if (axis.size == 1 || used.contains(axis.name)) continue;
    axes += (axes.empty() ? "" : "+") + axis.name;
    copies *= axis.size;
  }
  return copies == 1 ? "" : fmt::format("{} copies, along {}\n", copies, axes);
}

std::string notes(const PlacedTensor& t, const Mesh& mesh) {
  std::string text = copies_text(t, mesh);
  if (!t.partial.empty())
    text += fmt::format("partial {} over {}: the value is the {} of what these ranks hold\n",
                        t.combiner, fmt::join(t.partial, "+"), t.combiner);
  for (const PlacedDim& d : t.dims) {
    if (d.padded > d.size)
      text += fmt::format("{} {} is padded to {}: the last {} are no part of the tensor\n", d.name,
                          d.size, d.padded, d.padded - d.size);
  }
  return text;
}

}  // namespace

std::string sketch(const PlacedTensor& t, const Mesh& mesh, int columns_wide) {
  std::vector<std::string> sizes, slice;
  PictureSide rows, columns;
  for (const PlacedDim& d : t.dims) {
    sizes.push_back(fmt::format("{} {}", d.name, d.size));
    slice.push_back(std::to_string(d.padded / parts_of(d, mesh)));
    if (!d.axes.empty()) add_dim(rows.dims.empty() ? rows : columns, d, mesh);
  }
  std::string text =
      fmt::format("{}: {} [{}], {}\n", t.name, t.dtype, fmt::join(sizes, ", "),
                  t.made == t.kind || t.kind == "activation" ? t.made : t.kind + ", " + t.made);
  text += fmt::format("each rank holds [{}], {}\n", fmt::join(slice, ", "),
                      bytes_text(static_cast<double>(t.bytes)));
  if (!rows.dims.empty()) text += "down: " + side_text(rows) + "\n";
  if (!columns.dims.empty()) text += "across: " + side_text(columns) + "\n";
  size_t width = 3;
  std::vector<std::vector<std::string>> cells;
  const std::vector<int64_t> down = shown(rows.slices, kMostCells);
  std::vector<int64_t> across = shown(columns.slices, kMostCells);
  const auto fill = [&] {
    cells.clear();
    width = 3;
    for (const int64_t r : down) {
      std::vector<std::string>& line = cells.emplace_back();
      for (const int64_t c : across) {
        const bool gap = r < 0 || c < 0;
        line.push_back(gap ? "..." : ranks_text(holders(rows, columns, r, c, mesh)));
        width = std::max(width, line.back().size());
      }
    }
  };
  fill();
  while (across.size() > 3 && (width + 3) * across.size() + 1 > static_cast<size_t>(columns_wide)) {
    across = shown(columns.slices, static_cast<int64_t>(across.size()) - 1);
    fill();
  }
  std::string rule = "+";
  for (size_t c = 0; c < across.size(); ++c) rule += std::string(width + 2, '-') + "+";
  text += "ranks\n" + rule + "\n";
  for (const auto& line : cells) {
    text += "|";
    for (const std::string& cell : line) text += fmt::format(" {:^{}} |", cell, width);
    text += "\n" + rule + "\n";
  }
  return text + notes(t, mesh);
}

}  // namespace tessera
