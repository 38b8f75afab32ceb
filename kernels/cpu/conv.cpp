// Convolution and its two transposes as matmuls over patches (im2col). A patch is what one
// output position reads of x: a row of K = window positions * input channels numbers, zero outside
// of x. Rows are packed a block at a time, so that a block stays in the cache and the whole matrix
// never exists:
//   y:      y[row, co]   = P[row, K] . f[K, co]
//   filter: f[K, co]    += P[row, K]^T . y[row, co]
//   x:      P[row, K]    = y[row, co] . f[K, co]^T, added to x where the patch came from
// once per group. If the first spatial dim has stride 1, patches leave its window out. A line of
// patches then serves every window position in that dim, as the operand of a product that is
// shifted by lines; so less is packed, by a factor of the window. x, filter and y are the step's
// views in the order of its `result`. All have the step's factors as dims (size 1 for those they
// lack), then the spatial dims. 16-bit types are accumulated in float32 and rounded once. Used if
// the library has no direct kernel for the views (conv_direct.h).
#include <algorithm>

#include "kernels/common/conv_sizes.h"
#include "kernels/common/nest.h"
#include "kernels/common/types.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/conv_direct.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

/// One spatial dim on this rank.
struct Spatial {
  int64_t outs = 0, windows = 0;  ///< valid ones
  int64_t first_out = 0;          ///< the first valid one
  int64_t y_stride = 0, f_stride = 0;
  int64_t dilation = 1;
  std::vector<int64_t> place;  ///< [out][window]: offset in x, or -1 for padding

  /// `as_lines`: every line of x that any window reads is an out with one window position.
  Spatial(const KernelArgs& args, const Sides& sides, size_t s, size_t dim, bool as_lines) {
    const auto& c = args.step->as<ConvSpec>();
    const int base = static_cast<int>(3 * s);
    const int64_t in_begin = eval(args, base), out_begin = eval(args, base + 1),
                  window_begin = eval(args, base + 2);
    const int64_t memory = sides.x->sizes[dim], stride = sides.x->strides[dim];
    first_out = std::max<int64_t>(0, -out_begin);
    const int64_t last = std::min(sides.y->sizes[dim], c.out_sizes[s] - out_begin);
    outs = std::max<int64_t>(0, last - first_out);
    windows =
        std::max<int64_t>(0, std::min(sides.filter->sizes[dim], c.window_sizes[s] - window_begin));
    y_stride = sides.y->strides[dim];
    f_stride = sides.filter->strides[dim];
    dilation = c.dilations[s];
    if (as_lines && windows > 0) outs += dilation * (windows - 1), windows = 1;
    for (int64_t o = first_out; o < first_out + outs; ++o) {
      for (int64_t k = 0; k < windows; ++k) {
        const int64_t i =
            c.strides[s] * (o + out_begin) + c.dilations[s] * (k + window_begin) - c.los[s];
        const int64_t at = i - in_begin;
        const bool inside = i >= 0 && i < c.in_sizes[s] && at >= 0 && at < memory;
        place.push_back(inside ? at * stride : -1);
      }
    }
  }
};

class Conv final : public Kernel {
 public:
  explicit Conv(const KernelArgs& args)
      : args_(args), sides_(*args.step), sizes_(*args.step), dtype_(sides_.x->dtype) {
    const Step& step = *args.step;
    const size_t first = step.as<ConvSpec>().kinds.size();
    for (size_t s = 0; first + s < sides_.x->sizes.size(); ++s) {
      spatial_.emplace_back(args, sides_, s, first + s, false);
      packed_.emplace_back(args, sides_, s, first + s, s == 0 && sizes_.lines > 0);
    }
    const auto &x = sides_.x->strides, &f = sides_.filter->strides, &y = sides_.y->strides;
    group_x_ = offsets_of(step, kGroup, x);
    group_f_ = offsets_of(step, kGroup, f);
    group_y_ = offsets_of(step, kGroup, y);
    image_x_ = offsets_of(step, kImages, x);
    image_y_ = offsets_of(step, kImages, y);
    input_x_ = offsets_of(step, kInputs, x);
    input_f_ = offsets_of(step, kInputs, f);
    output_f_ = offsets_of(step, kOutputs, f);
    output_y_ = offsets_of(step, kOutputs, y);
    dense_inputs_ = is_dense(input_x_);
    dense_outputs_ = is_dense(output_y_);
    for (const Spatial& s : spatial_) positions_ *= s.outs;
    for (const Spatial& s : packed_) windows_ *= s.windows;
    x_nest_ = simple_nest(sides_.x->sizes, {sides_.x->strides});
    list_windows();
    patch_ = windows_ * sizes_.inputs;
    list_blocks();
    places_.resize(spatial_.size());
    TESSERA_CHECK(args.workspace != nullptr, "conv needs {} bytes of workspace", sizes_.total());
  }

  void run() override {
    if (dtype_ == DType::float64) return run_as<double, double>();
    if (is_narrow(dtype_))
      return with_narrow(dtype_, [&](auto x) { run_as<decltype(x), float>(); });
    run_as<float, float>();
  }

 private:
  static bool is_dense(const std::vector<int64_t>& offsets) {
    for (size_t i = 0; i < offsets.size(); ++i) {
      if (offsets[i] != static_cast<int64_t>(i)) return false;
    }
    return true;
  }

  /// Lists every window position by its index along each spatial dim: those of the patches, and the
  /// filter offsets of all.
  void list_windows() {
    const auto each = [](const std::vector<Spatial>& dims, auto visit) {
      int64_t count = 1;
      for (const Spatial& s : dims) count *= s.windows;
      std::vector<int64_t> index(dims.size());
      for (int64_t w = 0; w < count; ++w) {
        int64_t left = w;
        for (size_t s = dims.size(); s-- > 0; left /= dims[s].windows)
          index[s] = left % dims[s].windows;
        visit(index);
      }
    };
    each(packed_, [&](const std::vector<int64_t>& index) {
      window_index_.insert(window_index_.end(), index.begin(), index.end());
    });
    each(spatial_, [&](const std::vector<int64_t>& index) {
      int64_t offset = 0;
      for (size_t s = 0; s < index.size(); ++s) offset += index[s] * spatial_[s].f_stride;
      window_f_.push_back(offset);
    });
  }

  /// The rows that are packed and multiplied at a time.
  struct Block {
    int64_t first_patch, patches, first_row, rows;
  };
  void list_blocks() {
    const auto images = static_cast<int64_t>(image_x_.size());
    if (sizes_.lines == 0) {
      for (int64_t r = 0; r < images * positions_; r += sizes_.block) {
        const int64_t n = std::min(sizes_.block, images * positions_ - r);
        blocks_.push_back({r, n, r, n});
      }
      return;
    }
    const int64_t outs = spatial_[0].outs, lines = packed_[0].outs;
    if (positions_ == 0 || spatial_[0].windows == 0) shifts_ = 0;
    if (positions_ == 0) return;
    const int64_t others = positions_ / outs;
    shifts_ = spatial_[0].windows;
    step_ = spatial_[0].dilation * others * patch_;
    for (int64_t image = 0; image < images; ++image) {
      for (int64_t o = 0; o < outs; o += sizes_.lines) {
        const int64_t n = std::min(sizes_.lines, outs - o);
        blocks_.push_back({(image * lines + o) * others, (n + lines - outs) * others,
                           (image * outs + o) * others, n * others});
      }
    }
  }

  template <class T>
  T* data(const View* view) const {
    return static_cast<T*>(data_of(args_, view));
  }

  template <class T, class W>
  void run_as() {
    W* patches = static_cast<W*>(args_.workspace);
    W* filter = patches + sizes_.patches();
    W* rows = filter + sizes_.filter();
    W* wide_x = rows + sizes_.rows();
    if (sides_.result == kOfX) clear_x<T>(wide_x);
    for (size_t g = 0; g < group_x_.size(); ++g) {
      T* f = data<T>(sides_.filter) + group_f_[g];
      const T* x = data<T>(sides_.x) + group_x_[g];
      T* y = data<T>(sides_.y) + group_y_[g];
      if (sides_.result == kOfFilter) {
        std::fill(filter, filter + sizes_.filter(), W(0));
      } else {
        each_filter([&](int64_t i, int64_t at) { filter[i] = load_as(f[at]); });
      }
      for (const Block& block : blocks_) {
        if (sides_.result != kOfX)
          each_patch(block, [&](int64_t i, int64_t at) { pack(patches + i, x, at); });
        if (sides_.result != kOfY)
          each_row(block, [&](int64_t i, int64_t at) { rows[i] = load_as(y[at]); });
        if (sides_.result == kOfX) std::fill(patches, patches + block.patches * patch_, W(0));
        if (sides_.result == kOfY) std::fill(rows, rows + block.rows * sizes_.outputs, W(0));
        for (int64_t k = 0; k < shifts_; ++k)
          multiply(block.rows, patches + k * step_, filter + k * patch_ * sizes_.outputs, rows);
        if (sides_.result == kOfY)
          each_row(block, [&](int64_t i, int64_t at) { y[at] = store_as<T>(rows[i]); });
        if (sides_.result == kOfX)
          each_patch(block, [&](int64_t i, int64_t at) { add(patches + i, g, at, wide_x); });
      }
      if (sides_.result == kOfFilter)
        each_filter([&](int64_t i, int64_t at) { f[at] = store_as<T>(filter[i]); });
    }
    if (sides_.result == kOfX && sizes_.narrow) narrow_x<T>(wide_x);
  }

  /// Adds the product of the two other sides to the side that is the result.
  template <class W>
  void multiply(int64_t n, W* patches, W* filter, W* rows) const {
    const int64_t outputs = sizes_.outputs;
    if (sides_.result == kOfY) {
      product(n, outputs, patch_, patches, {patch_, 1}, filter, {outputs, 1}, rows);
    } else if (sides_.result == kOfFilter) {
      product(patch_, outputs, n, patches, {1, patch_}, rows, {outputs, 1}, filter);
    } else {
      product(n, patch_, outputs, rows, {outputs, 1}, filter, {1, outputs}, patches);
    }
  }

  /// Row and column strides of a matrix.
  struct Strides {
    int64_t row, column;
  };
  template <class W>
  static void product(int64_t m, int64_t n, int64_t k, const W* a, Strides as, const W* b,
                      Strides bs, W* c) {
    const Gemm g{m, n, k, as.row, as.column, bs.row, bs.column, n, 1};
    if (m > 0 && n > 0 && k > 0) gemm(g, a, b, c, false);
  }

  /// Calls visit(index in the dense filter [window, input, output], offset).
  template <class Visit>
  void each_filter(Visit visit) const {
    int64_t i = 0;
    for (int64_t window : window_f_) {
      for (int64_t input : input_f_) {
        for (int64_t output : output_f_) visit(i++, window + input + output);
      }
    }
  }

  /// Calls visit(index in the dense rows [row, output], offset in y).
  template <class Visit>
  void each_row(const Block& block, Visit visit) const {
    for (int64_t r = 0; r < block.rows; ++r) {
      int64_t left = block.first_row + r, at = 0;
      for (size_t s = spatial_.size(); s-- > 0; left /= spatial_[s].outs)
        at += (left % spatial_[s].outs + spatial_[s].first_out) * spatial_[s].y_stride;
      at += image_y_[static_cast<size_t>(left)];
      const int64_t i = r * sizes_.outputs;
      if (dense_outputs_) {
        for (int64_t o = 0; o < sizes_.outputs; ++o) visit(i + o, at + o);
      } else {
        for (int64_t o = 0; o < sizes_.outputs; ++o)
          visit(i + o, at + output_y_[static_cast<size_t>(o)]);
      }
    }
  }

  /// Calls visit(index of the first input in the dense patches [row, window, input], offset in x or
  /// -1 for padding).
  template <class Visit>
  void each_patch(const Block& block, Visit visit) const {
    const size_t dims = packed_.size();
    const int64_t** place = places_.data();
    for (int64_t r = 0; r < block.patches; ++r) {
      int64_t left = block.first_patch + r;
      for (size_t s = dims; s-- > 0; left /= packed_[s].outs)
        place[s] = packed_[s].place.data() + left % packed_[s].outs * packed_[s].windows;
      const int64_t image = image_x_[static_cast<size_t>(left)];
      const int64_t* index = window_index_.data();
      for (int64_t w = 0; w < windows_; ++w, index += dims) {
        int64_t at = image;
        for (size_t s = 0; s < dims && at >= 0; ++s) {
          const int64_t offset = place[s][index[s]];
          at = offset < 0 ? -1 : at + offset;
        }
        visit((r * windows_ + w) * sizes_.inputs, at);
      }
    }
  }

  template <class T, class W>
  void pack(W* patch, const T* x, int64_t at) const {
    const int64_t n = sizes_.inputs;
    if (at < 0) {
      std::fill(patch, patch + n, W(0));
    } else if (dense_inputs_) {
      for (int64_t c = 0; c < n; ++c) patch[c] = load_as(x[at + c]);
    } else {
      for (int64_t c = 0; c < n; ++c) patch[c] = load_as(x[at + input_x_[static_cast<size_t>(c)]]);
    }
  }

  /// 16-bit results are accumulated separately, in the order of x's memory.
  template <class W>
  void add(const W* patch, size_t group, int64_t at, W* wide_x) const {
    if (at < 0) return;
    W* x = (sizes_.narrow ? wide_x : data<W>(sides_.x)) + group_x_[group] + at;
    for (int64_t c = 0; c < sizes_.inputs; ++c) x[input_x_[static_cast<size_t>(c)]] += patch[c];
  }

  template <class T, class W>
  void clear_x(W* wide_x) {
    if (sizes_.narrow) {
      std::fill(wide_x, wide_x + sizes_.wide_x, W(0));
    } else {
      for_each<1>(x_nest_, x_nest_.rank(), [&](const auto& at) { data<T>(sides_.x)[at[0]] = T{}; });
    }
  }

  template <class T, class W>
  void narrow_x(const W* wide_x) {
    for_each<1>(x_nest_, x_nest_.rank(), [&](const auto& at) {
      data<T>(sides_.x)[at[0]] = store_as<T>(static_cast<Compute<T>>(wide_x[at[0]]));
    });
  }

  KernelArgs args_;
  Sides sides_;
  Sizes sizes_;
  DType dtype_;
  Nest x_nest_;
  std::vector<Spatial> spatial_, packed_;  ///< of the rows, and of the patches
  std::vector<Block> blocks_;
  int64_t shifts_ = 1, step_ = 0;  ///< products per block, and their distance in the patches
  std::vector<int64_t> group_x_, group_f_, group_y_, image_x_, image_y_, input_x_, input_f_,
      output_f_, output_y_, window_index_, window_f_;
  mutable std::vector<const int64_t*> places_;  ///< by spatial dim, for the present row
  int64_t positions_ = 1, windows_ = 1, patch_ = 0;
  bool dense_inputs_ = false, dense_outputs_ = false;
};

}  // namespace

int64_t conv_workspace(const Step& step) {
  if (step.order.is_strict()) return ordered_conv_workspace(step);
  return std::max(Sizes(step).total(), DirectPlan(step).total());
}

/// Cut along images or groups, else along the channels of the result, whose number alone then says
/// how: a library may add in another order for fewer channels.
Sharing share_conv(const Step& step, int threads) {
  const auto& kinds = step.as<ConvSpec>().kinds;
  const View& out = step.out.at(0);
  double products =
      static_cast<double>(Sides(step).y->elements()) * static_cast<double>(Sizes(step).patch);
  std::vector<char> apart(out.sizes.size(), 0), any = apart;
  for (size_t d = 0; d < kinds.size(); ++d) {
    apart[d] = kinds[d] == kGroup || kinds[d] == kImages;
    any[d] = 1;
  }
  const double ns = products * 0.03;
  if (const int dim = outermost_dim(out, apart, threads); dim >= 0) return {dim, ns};
  if (step.order.is_strict()) return {outermost_dim(out, any, threads), ns};
  const int dim = outermost_dim(out, any, kTypicalThreads);
  if (dim < 0) return {-1, ns};
  constexpr int64_t kLeastChannels = 16;
  const int64_t channels = out.sizes[static_cast<size_t>(dim)];
  return {dim, ns, 0, std::clamp<int64_t>(channels / kLeastChannels, 1, kTypicalThreads)};
}

std::unique_ptr<Kernel> bind_conv(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_conv(args);
  const Step& step = *args.step;
  TESSERA_CHECK(
      step.in.at(0).dtype == step.out.at(0).dtype && step.in.at(1).dtype == step.out[0].dtype,
      "conv needs operands and a result of one dtype");
  if (auto direct = bind_direct_conv(args, DirectPlan(step))) return direct;
  return std::make_unique<Conv>(args);
}

}  // namespace tessera::cpu
