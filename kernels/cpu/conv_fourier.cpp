// Convolution through the Fourier domain. Vectors are along channels; with less than 16, along
// images too. Lines along the last dim are transformed first, two of an image at once: one as the
// real part and one as the imaginary part of complex numbers, that are taken apart afterwards. Of a
// real line frequency -k is the conjugate of k, so that half of them are kept. Then, for one of
// these frequencies after the other, columns along the other dim are transformed, multiplied and
// transformed back while they are in the cache. A gradient by the filter is the sum over images of
// such products, and is transformed back once.
//
// No number of an image meets one of another image but in that sum: what is computed for an image
// depends on it alone, to the last bit, whatever other images hold.
//
// What is taken apart is twice the lines' frequencies; the filter's scale makes up for it. In the
// sum of products each frequency also stands for its negative, but for those that are their own:
// they are doubled on one side only, so that all have the same factor.
//
// Transforms are circular. The places of a piece of x begin at its padding, so that one window
// place is one shift for all pieces; they are long enough that what is wanted sees zeros where it
// wraps around.
#include "kernels/cpu/conv_fourier.h"

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "kernels/cpu/conv_fourier_rows.h"
#include "kernels/cpu/nest.h"
#include "kernels/cpu/pointwise_ops.h"

namespace tessera::cpu {
namespace {

constexpr int64_t kLanes = kFourierLanes, kVector = kFourierVector;

class FourierConv final : public Kernel {
 public:
  FourierConv(const KernelArgs& args, const FourierPlan& plan, const FourierOps& ops,
              const std::vector<WindowDim>& dims)
      : args_(args),
        sides_(*args.step),
        result_(sides_.result),
        plan_(plan),
        ops_(ops),
        rows_(plan_, ops),
        along_(plan.dims[0].n) {
    const Step& step = *args.step;
    const View *a = result_ == kOfX ? sides_.y : sides_.x,
               *b = result_ == kOfX ? sides_.x : sides_.y;
    const size_t skip = 2 - dims.size();  // one spatial dim is the last of two
    const size_t first = a->sizes.size() - dims.size();
    for (size_t s = 0; s < dims.size(); ++s) {
      pieces_[skip + s] = pieces_of(dims[s], plan.dims[skip + s], result_);
      windows_[skip + s] = dims[s].windows;
      a_.strides[skip + s] = a->strides[first + s];
      b_.strides[skip + s] = b->strides[first + s];
      f_strides_[skip + s] = sides_.filter->strides[first + s];
      x_is_part_ = x_is_part_ || dims[s].x_size != sides_.x->sizes[first + s];
    }
    if (skip == 1) pieces_[0].resize(1);
    const Kind of_a = result_ == kOfX ? kOutputs : kInputs,
               of_b = result_ == kOfX ? kInputs : kOutputs;
    set_side(a_, *a, of_a, plan.a_lanes, true);
    set_side(b_, *b, of_b, plan.b_lanes, false);
    f_groups_ = offsets_of(step, kGroup, sides_.filter->strides);
    f_a_ = offsets_of(step, of_a, sides_.filter->strides);
    f_b_ = offsets_of(step, of_b, sides_.filter->strides);
    for (size_t i = 0; i < f_b_.size(); ++i)
      f_dense_ = f_dense_ && f_b_[i] == static_cast<int64_t>(i);
    list_offsets();
    place_workspace();
    if (result_ == kOfX && x_is_part_) {
      x_nest_ = simple_nest(sides_.x->sizes, {sides_.x->strides});
    }
  }

  void run() override {
    if (result_ == kOfX && x_is_part_) {
      float* x = data(sides_.x);
      for_each<1>(x_nest_, x_nest_.rank(), [&](const auto& at) { x[at[0]] = 0; });
    }
    for (size_t g = 0; g < a_.groups.size(); ++g) {
      a_.data = data(result_ == kOfX ? sides_.y : sides_.x) + a_.groups[g];
      b_.data = data(result_ == kOfX ? sides_.x : sides_.y) + b_.groups[g];
      filter_ = data(sides_.filter) + f_groups_[g];
      if (result_ == kOfFilter)
        std::fill(spectra_, spectra_ + plan_.spectrum(), 0.0f);
      else
        transform_filter();
      for (const FourierPiece& along : pieces_[0]) {
        for (const FourierPiece& across : pieces_[1]) {
          for (int64_t i = 0; i < plan_.images; i += plan_.block)
            run_block(along, across, i, std::min(plan_.block, plan_.images - i));
        }
      }
      if (result_ == kOfFilter) write_filter();
    }
  }

 private:
  float* data(const View* view) const { return static_cast<float*>(data_of(args_, view)); }

  void set_side(FourierSide& side, const View& view, Kind channels, int64_t lanes, bool is_a) {
    side.groups = offsets_of(*args_.step, kGroup, view.strides);
    side.images = offsets_of(*args_.step, kImages, view.strides);
    side.channels = offsets_of(*args_.step, channels, view.strides);
    side.lanes = lanes;
    side.column_step = plan_.column_step(is_a);
    for (size_t i = 0; i < side.channels.size(); ++i)
      side.dense = side.dense && side.channels[i] == static_cast<int64_t>(i);
  }

  void list_offsets() {
    const int64_t n = plan_.dims[1].n, slots = plan_.slots();
    half_ = offsets_in(n, 0, slots, kVector);
    taps_ = offsets_in(n, 0, windows_[1], kVector);
    const int64_t along = plan_.dims[0].n;
    filter_lines_ = offsets_in(along, 0, windows_[0], plan_.slots() * kVector);
    spectrum_ = offsets_in(along, 0, along, plan_.b_vectors() * plan_.a_channels * kVector);
    for (const bool is_a : {true, false}) {
      FourierSide& side = is_a ? a_ : b_;
      side.column = offsets_in(along, 0, along, side.column_step);
      FourierRange FourierPiece::*const which = is_a ? &FourierPiece::a : &FourierPiece::b;
      for (FourierPiece& p : pieces_[0]) set_offsets(p.*which, along, 0, plan_.plane_row());
      for (FourierPiece& p : pieces_[1]) set_offsets(p.*which, n, side.strides[1], kVector);
    }
  }

  /// Most tiles have the offsets of others.
  void set_offsets(FourierRange& r, int64_t n, int64_t view_stride, int64_t kept_stride) {
    const auto listed = [&](int64_t stride) {
      const std::array<int64_t, 4> key = {n, r.at, r.count, stride};
      const auto [at, is_new] = offsets_.try_emplace(key);
      if (is_new) at->second = offsets_in(n, r.at, r.count, stride);
      return &at->second;
    };
    r.in_place = listed(view_stride);
    r.kept = listed(kept_stride);
  }

  void place_workspace() {
    check(args_.workspace != nullptr, "conv needs {} bytes of workspace", plan_.total());
    float* at = static_cast<float*>(args_.workspace);
    const auto take = [&](int64_t floats) { return std::exchange(at, at + floats); };
    spectra_ = take(plan_.spectrum());
    filter_plane_ = take(plan_.filter_plane());
    // What becomes of a frequency's columns lies where they were.
    a_.planes = b_.planes = at;
    if (result_ == kOfFilter) b_.planes += a_.vectors(plan_.block) * plan_.plane();
    take(plan_.planes());
    a_.columns = take(plan_.dims[0].n * plan_.column_step(true));
    b_.columns = take(plan_.dims[0].n * plan_.column_step(false));
    rows_.scratch = scratch_ = take(2 * plan_.line());
    rows_.line = line_ = take(plan_.line());
  }

  static FourierLine line_of(float* vectors, const Offsets& offsets) {
    return {vectors, vectors + kLanes, offsets.data()};
  }
  /// Of the filter's spectrum: [frequency across][along][vector of b][channel of a].
  float* spectrum_at(int64_t slot, int64_t along, int64_t vector, int64_t channel) const {
    return spectra_ +
           (((slot * plan_.dims[0].n + along) * plan_.b_vectors() + vector) * plan_.a_channels +
            channel) *
               kVector;
  }
  /// Of transforms there and back, and of lines taken apart.
  float scale() const { return 0.5f / static_cast<float>(plan_.dims[0].n * plan_.dims[1].n); }

  /// Calls visit(vector of b, its first channel, how many, channel of a).
  template <class Visit>
  void each_filter_vector(Visit visit) {
    for (int64_t v = 0; v < plan_.b_vectors(); ++v) {
      const int64_t n = std::min(kLanes, plan_.b_channels - v * kLanes);
      for (int64_t channel = 0; channel < plan_.a_channels; ++channel)
        visit(v, v * kLanes, n, channel);
    }
  }

  /// y is the convolution with the filter turned around.
  void transform_filter() {
    const bool turned = result_ == kOfY;
    std::fill(line_, line_ + windows_[1] * kVector, 0.0f);
    each_filter_vector([&](int64_t v, int64_t first, int64_t n, int64_t channel) {
      if (n < kLanes && channel == 0) std::fill(line_, line_ + windows_[1] * kVector, 0.0f);
      const float* filter = filter_ + f_a_[static_cast<size_t>(channel)];
      const int64_t* offsets = f_b_.data() + first;
      for (int64_t y = 0; y < windows_[0]; ++y) {
        for (int64_t x = 0; x < windows_[1]; ++x) {
          const float* tap = filter + (turned ? windows_[0] - 1 - y : y) * f_strides_[0] +
                             (turned ? windows_[1] - 1 - x : x) * f_strides_[1];
          float* const to = line_ + x * kVector;
          if (f_dense_) {
            for (int64_t i = 0; i < n; ++i) to[i] = tap[first + i] * scale();
          } else {
            for (int64_t i = 0; i < n; ++i) to[i] = tap[offsets[i]] * scale();
          }
        }
        ops_.transform(rows_.row_length.length, line_of(line_, taps_),
                       line_of(filter_plane_ + y * plan_.slots() * kVector, half_), scratch_);
      }
      for (int64_t slot = 0; slot < plan_.slots(); ++slot) {
        ops_.transform(along_.length, line_of(filter_plane_ + slot * kVector, filter_lines_),
                       line_of(spectrum_at(slot, 0, v, channel), spectrum_), scratch_);
      }
    });
  }

  /// Of what is kept of a line, the real part of its transform is all that is asked for: there
  /// frequency -k counts as much as k, which has been seen to.
  void write_filter() {
    each_filter_vector([&](int64_t v, int64_t first, int64_t n, int64_t channel) {
      for (int64_t slot = 0; slot < plan_.slots(); ++slot) {
        ops_.transform(along_.length,
                       line_of(spectrum_at(slot, 0, v, channel), spectrum_).swapped(),
                       line_of(filter_plane_ + slot * kVector, filter_lines_).swapped(), scratch_);
      }
      float* filter = filter_ + f_a_[static_cast<size_t>(channel)];
      const int64_t* offsets = f_b_.data() + first;
      for (int64_t y = 0; y < windows_[0]; ++y) {
        ops_.transform(rows_.row_length.length,
                       line_of(filter_plane_ + y * plan_.slots() * kVector, half_).swapped(),
                       line_of(line_, taps_).swapped(), scratch_);
        for (int64_t x = 0; x < windows_[1]; ++x) {
          float* tap = filter + y * f_strides_[0] + x * f_strides_[1];
          for (int64_t i = 0; i < n; ++i) tap[offsets[i]] = line_[x * kVector + i] * scale();
        }
      }
    });
  }

  void run_block(const FourierPiece& along, const FourierPiece& across, int64_t first,
                 int64_t images) {
    const int64_t unit = std::max<int64_t>(1, kLanes / plan_.a_lanes);
    const FourierBlock block{{&along, &across}, first, images, (images + unit - 1) / unit * unit};
    rows_.transform(a_, block, a_.vectors(block.filled), &FourierPiece::a, 2);
    if (result_ == kOfFilter) rows_.transform(b_, block, b_.vectors(images), &FourierPiece::b, 1);
    for (int64_t slot = 0; slot < plan_.slots(); ++slot) multiply_columns(block, slot);
    if (result_ != kOfFilter) rows_.restore(b_, block);
  }

  void multiply_columns(const FourierBlock& block, int64_t slot) {
    const bool of_filter = result_ == kOfFilter;
    const int64_t a_im = block.filled * a_.lanes, b_im = block.images * b_.lanes;
    const auto columns_of = [&](const FourierSide& side, int64_t im,
                                FourierRange FourierPiece::*which, bool back) {
      for (int64_t i = 0; i * kLanes < im; ++i) {
        const FourierLine rows = line_of(side.planes + i * plan_.plane() + slot * kVector,
                                         *(block.pieces[0]->*which).kept);
        float* const at = side.columns + i * kLanes;
        const FourierLine column = {at, at + im, side.column.data()};
        if (back)
          ops_.transform(along_.length, column.swapped(), rows.swapped(), scratch_);
        else
          ops_.transform(along_.length, rows, column, scratch_);
      }
    };
    columns_of(a_, a_im, &FourierPiece::a, false);
    if (of_filter) columns_of(b_, b_im, &FourierPiece::b, false);
    of_filter ? add_to_spectrum(slot, block.images, a_im, b_im)
              : multiply(slot, block.images, a_im, b_im);
    if (!of_filter) columns_of(b_, b_im, &FourierPiece::b, true);
  }

  void multiply(int64_t slot, int64_t images, int64_t a_im, int64_t b_im) {
    for (int64_t k = 0; k < plan_.dims[0].n; ++k) {
      for (int64_t v = 0; v < plan_.b_vectors(); ++v) {
        ops_.product({.rows = images,
                      .sums = plan_.a_channels,
                      .a = a_.columns + k * a_.column_step,
                      .a_row = a_.lanes,
                      .a_sum = 1,
                      .a_im = a_im,
                      .b = spectrum_at(slot, k, v, 0),
                      .b_sum = kVector,
                      .b_im = kLanes,
                      .c = b_.columns + k * b_.column_step + v * kLanes,
                      .c_row = b_.lanes,
                      .c_im = b_im});
      }
    }
  }

  void add_to_spectrum(int64_t slot, int64_t images, int64_t a_im, int64_t b_im) {
    for (int64_t k = 0; k < plan_.dims[0].n; ++k) {
      for (int64_t v = 0; v < plan_.b_vectors(); ++v) {
        ops_.add_conjugate({.rows = plan_.a_channels,
                            .sums = images,
                            .a = a_.columns + k * a_.column_step,
                            .a_row = 1,
                            .a_sum = a_.lanes,
                            .a_im = a_im,
                            .b = b_.columns + k * b_.column_step + v * kLanes,
                            .b_sum = b_.lanes,
                            .b_im = b_im,
                            .c = spectrum_at(slot, k, v, 0),
                            .c_row = kVector,
                            .c_im = kLanes});
      }
    }
  }

  KernelArgs args_;
  Sides sides_;
  int64_t result_;
  FourierPlan plan_;
  const FourierOps& ops_;
  std::vector<FourierPiece> pieces_[2];
  int64_t windows_[2] = {1, 1}, f_strides_[2] = {0, 0};
  FourierRows rows_;
  FourierLengthData along_;
  Offsets half_;                            ///< of the frequencies across that are kept
  Offsets taps_, filter_lines_, spectrum_;  ///< of the filter: across, along, transformed
  std::map<std::array<int64_t, 4>, Offsets> offsets_;
  FourierSide a_, b_;
  std::vector<int64_t> f_groups_, f_a_, f_b_;
  Nest x_nest_;
  bool x_is_part_ = false, f_dense_ = true;
  float *filter_ = nullptr, *spectra_ = nullptr, *filter_plane_ = nullptr, *scratch_ = nullptr,
        *line_ = nullptr;
};

}  // namespace

std::span<const FourierOps* const> usable_fourier_ops() {
  static constexpr const FourierOps* kAll[] = {&kFourierBase, &kFourierAvx2, &kFourierAvx512};
  return std::span(kAll).first(usable_block_ops().size());  // of the same instruction sets
}

std::unique_ptr<Kernel> bind_fourier_conv(const KernelArgs& args, const FourierPlan& plan,
                                          const FourierOps& ops) {
  if (!plan.applies) return nullptr;
  const std::vector<WindowDim> dims = window_dims(args);
  for (const WindowDim& d : dims) {
    if (d.empty) return nullptr;
  }
  return std::make_unique<FourierConv>(args, plan, ops, dims);
}

}  // namespace tessera::cpu
