// Lines of images, to and from the Fourier domain: in place where their channels are whole vectors,
// else through a copy. Two lines of an image that follow each other are the real and the imaginary
// part of one transform; the last of an odd number has zeros beside it.
#include "kernels/cpu/conv_fourier_rows.h"

#include <algorithm>
#include <type_traits>

namespace tessera::cpu {
namespace {

/// Lines of an image from an offset on: two, or the last one.
struct Rows {
  int64_t first, parts;
};

/// Whether lines of a vector can be read and written where they are.
bool in_place(const FourierSide& side, const SideVector& v, int64_t parts) {
  return side.dense && v.images == 1 && v.channels == kFourierLanes && parts == 2;
}
float* row_at(const FourierSide& side, const FourierBlock& block, int64_t image, int64_t row) {
  return side.data + side.images[static_cast<size_t>(block.first + image)] + row;
}
/// Two lines of a vector in place.
FourierLine rows_in_place(const FourierSide& side, const FourierBlock& block, const SideVector& v,
                          int64_t row, const Offsets& offsets) {
  float* const first = row_at(side, block, v.image, row) + v.channel;
  return {first, first + side.strides[0], offsets.data()};
}

/// Calls visit(first element of an image's line, where its channels are in the transform's).
template <class Visit>
void each_row(const FourierSide& side, const FourierBlock& block, const SideVector& v, Rows rows,
              float* line, Visit visit) {
  const int64_t end = std::min(v.image + v.images, block.images);
  for (int64_t image = v.image; image < end; ++image) {
    for (int64_t part = 0; part < rows.parts; ++part) {
      visit(row_at(side, block, image, rows.first + part * side.strides[0]),
            line + part * kFourierLanes + (image - v.image) * side.lanes);
    }
  }
}

/// Calls body(number of channels, as a constant where it is a frequent one of dense channels).
template <class Body>
void with_channels(const FourierSide& side, const SideVector& v, Body body) {
  if (!side.dense) return body(v.channels);
  if (v.channels == 1) return body(std::integral_constant<int64_t, 1>{});
  if (v.channels == 4) return body(std::integral_constant<int64_t, 4>{});
  if (v.channels == 8) return body(std::integral_constant<int64_t, 8>{});
  body(v.channels);
}

void copy_in(const FourierSide& side, const FourierBlock& block, const SideVector& v, Rows rows,
             int64_t count, float* line) {
  const int64_t* channels = side.channels.data() + v.channel;
  each_row(side, block, v, rows, line, [&](const float* from, float* to) {
    with_channels(side, v, [&](auto n) {
      for (int64_t x = 0; x < count; ++x, from += side.strides[1], to += kFourierVector) {
        if constexpr (std::is_same_v<decltype(n), int64_t>) {
          for (int64_t c = 0; c < n; ++c) to[c] = from[channels[c]];
        } else {
          for (int64_t c = 0; c < n; ++c) to[c] = from[v.channel + c];
        }
      }
    });
  });
}

void copy_out(const FourierSide& side, const FourierBlock& block, const SideVector& v, Rows rows,
              int64_t count, float* line) {
  const int64_t* channels = side.channels.data() + v.channel;
  each_row(side, block, v, rows, line, [&](float* to, const float* from) {
    for (int64_t x = 0; x < count; ++x, from += kFourierVector, to += side.strides[1]) {
      for (int64_t c = 0; c < v.channels; ++c) to[channels[c]] = from[c];
    }
  });
}

}  // namespace

FourierRows::FourierRows(const FourierPlan& plan_of_step, const FourierOps& usable_ops)
    : plan(plan_of_step), ops(usable_ops), row_length(plan_of_step.dims[1].n) {
  const int64_t n = row_length.length.n, slots = plan.slots();
  for (int64_t i = 0; i < n; ++i)
    lines.push_back(i < slots ? i * kFourierVector : plan.plane_row() + (n - i) * kFourierVector);
}

void FourierRows::transform(const FourierSide& side, const FourierBlock& block, int64_t vectors,
                            FourierRange FourierPiece::*which, float own) {
  const FourierRange &along = block.pieces[0]->*which, &across = block.pieces[1]->*which;
  for (int64_t i = 0; i < vectors; ++i) {
    const SideVector v = side.vector(i);
    for (int64_t y = 0; y < along.count; y += 2) {
      const int64_t row = (along.first + y) * side.strides[0] + across.first * side.strides[1];
      const int64_t parts = std::min<int64_t>(2, along.count - y);
      const bool is_in_place = in_place(side, v, parts);
      if (!is_in_place) {
        if (y == 0 || parts == 1) std::fill(line, line + across.count * kFourierVector, 0.0f);
        copy_in(side, block, v, {row, parts}, across.count, line);
      }
      float* const to = side.planes + i * plan.plane() + y * plan.plane_row();
      ops.transform(row_length.length,
                    is_in_place ? rows_in_place(side, block, v, row, *across.in_place)
                                : kept_line(*across.kept),
                    lines_at(to), scratch);
      ops.separate(to, to + plan.plane_row(), row_length.length.n, own);
    }
  }
}

void FourierRows::restore(const FourierSide& side, const FourierBlock& block) {
  const FourierRange &along = block.pieces[0]->b, &across = block.pieces[1]->b;
  for (int64_t i = 0; i < side.vectors(block.images); ++i) {
    const SideVector v = side.vector(i);
    for (int64_t y = 0; y < along.count; y += 2) {
      const int64_t row = (along.first + y) * side.strides[0] + across.first * side.strides[1];
      const int64_t parts = std::min<int64_t>(2, along.count - y);
      const bool is_in_place = in_place(side, v, parts);
      float* const from = side.planes + i * plan.plane() + y * plan.plane_row();
      float* const second = from + plan.plane_row();
      if (parts == 1) std::fill(second, second + plan.plane_row(), 0.0f);
      ops.join(from, second, row_length.length.n);
      const FourierLine out = is_in_place ? rows_in_place(side, block, v, row, *across.in_place)
                                          : kept_line(*across.kept);
      ops.transform(row_length.length, lines_at(from).swapped(), out.swapped(), scratch);
      if (!is_in_place) copy_out(side, block, v, {row, parts}, across.count, line);
    }
  }
}

}  // namespace tessera::cpu
