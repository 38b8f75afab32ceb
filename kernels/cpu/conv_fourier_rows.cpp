// Lines of images, to and from the Fourier domain: in place where their channels are whole vectors,
// else through a copy.
#include "kernels/cpu/conv_fourier_rows.h"

#include <algorithm>
#include <type_traits>

namespace tessera::cpu {
namespace {

/// Whether a vector can be read and written where it is.
bool in_place(const FourierSide& side, const FourierBlock& block, const SideVector& v) {
  return side.dense && v.pairs == 1 && v.channels == kFourierLanes && 2 * v.pair + 1 < block.images;
}
float* row_at(const FourierSide& side, const FourierBlock& block, int64_t image, int64_t row) {
  return side.data + side.images[static_cast<size_t>(block.first + image)] + row;
}
/// A row of a vector in place.
FourierLine row_in_place(const FourierSide& side, const FourierBlock& block, const SideVector& v,
                         int64_t row, const Offsets& offsets) {
  return {row_at(side, block, 2 * v.pair, row) + v.channel,
          row_at(side, block, 2 * v.pair + 1, row) + v.channel, offsets.data(), nullptr};
}

/// Calls visit(first element of an image's row, where its channels are in the line).
template <class Visit>
void each_image(const FourierSide& side, const FourierBlock& block, const SideVector& v,
                int64_t row, float* line, Visit visit) {
  for (int64_t pair = 0; pair < v.pairs; ++pair) {
    for (int64_t part = 0; part < 2; ++part) {
      const int64_t image = 2 * (v.pair + pair) + part;
      if (image < block.images)
        visit(row_at(side, block, image, row), line + part * kFourierLanes + pair * side.lanes);
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

void copy_in(const FourierSide& side, const FourierBlock& block, const SideVector& v, int64_t row,
             int64_t count, float* line) {
  const int64_t* channels = side.channels.data() + v.channel;
  each_image(side, block, v, row, line, [&](const float* from, float* to) {
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

void copy_out(const FourierSide& side, const FourierBlock& block, const SideVector& v, int64_t row,
              int64_t count, float* line) {
  const int64_t* channels = side.channels.data() + v.channel;
  each_image(side, block, v, row, line, [&](float* to, const float* from) {
    for (int64_t x = 0; x < count; ++x, from += kFourierVector, to += side.strides[1]) {
      for (int64_t c = 0; c < v.channels; ++c) to[channels[c]] = from[c];
    }
  });
}

}  // namespace

FourierRows::FourierRows(const FourierPlan& plan_of_step, const FourierOps& usable_ops)
    : plan(plan_of_step), ops(usable_ops), row_length(plan_of_step.dims[1].n) {
  const int64_t n = row_length.length.n, slots = plan.slots();
  for (int64_t i = 0; i < n; ++i) {
    pairs.push_back((i < slots ? 2 * i : 2 * (n - i) + 1) * kFourierVector);
    signs.push_back(i < slots ? 1.0f : -1.0f);
  }
}

void FourierRows::transform(const FourierSide& side, const FourierBlock& block, int64_t vectors,
                            FourierRange FourierPiece::*which) {
  const FourierRange &along = block.pieces[0]->*which, &across = block.pieces[1]->*which;
  for (int64_t i = 0; i < vectors; ++i) {
    const SideVector v = side.vector(i);
    const bool is_in_place = in_place(side, block, v);
    if (!is_in_place) std::fill(line, line + across.count * kFourierVector, 0.0f);
    for (int64_t y = 0; y < along.count; ++y) {
      const int64_t row = (along.first + y) * side.strides[0] + across.first * side.strides[1];
      if (!is_in_place) copy_in(side, block, v, row, across.count, line);
      ops.transform(row_length.length,
                    is_in_place ? row_in_place(side, block, v, row, *across.in_place)
                                : kept_line(*across.kept),
                    pairs_at(side.planes + i * plan.plane() + y * plan.plane_row()), scratch);
    }
  }
}

void FourierRows::restore(const FourierSide& side, const FourierBlock& block) {
  const FourierRange &along = block.pieces[0]->b, &across = block.pieces[1]->b;
  for (int64_t i = 0; i < side.vectors(block.real()); ++i) {
    const SideVector v = side.vector(i);
    const bool is_in_place = in_place(side, block, v);
    for (int64_t y = 0; y < along.count; ++y) {
      const int64_t row = (along.first + y) * side.strides[0] + across.first * side.strides[1];
      const FourierLine out = is_in_place ? row_in_place(side, block, v, row, *across.in_place)
                                          : kept_line(*across.kept);
      ops.transform(row_length.length,
                    pairs_at(side.planes + i * plan.plane() + y * plan.plane_row()).swapped(),
                    out.swapped(), scratch);
      if (!is_in_place) copy_out(side, block, v, row, across.count, line);
    }
  }
}

}  // namespace tessera::cpu
