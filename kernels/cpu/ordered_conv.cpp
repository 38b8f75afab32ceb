// Convolutions and folds in the canonical order of sums. The operand whose index follows from the
// other two of a relation is copied among zeros (ordered_spread.h). A convolution is then a matmul
// and a fold is a sum, both by strides alone. Every layout adds the same zeros at the same places.
#include "kernels/common/conv_views.h"
#include "kernels/cpu/ordered_product.h"
#include "kernels/cpu/ordered_spread.h"

namespace tessera::cpu {

namespace {

/// A convolution as a matmul of the first operand's copy and the second operand. Dims are those of
/// the views, of which the spatial ones are summed over, and then the spatial ones of the result.
struct ConvMatmul {
  std::vector<SpreadDim> dims;
  Spread spread;
  std::vector<matmul_kinds::DimKind> kinds;
  std::vector<int64_t> sizes, strides[3];

  /// args: null if no index is needed, as for the workspace.
  ConvMatmul(const Step& step, const KernelArgs* args)
      : dims(spread_dims(step, args)),
        spread(step.in[0].sizes, step.in[0].strides, step.as<ConvSpec>().kinds.size(), dims) {
    static constexpr matmul_kinds::DimKind kKinds[3][4] = {
        // group, images, inputs, outputs
        {kBatch, kRow, kSum, kColumn},   // of y
        {kBatch, kRow, kColumn, kSum},   // of x
        {kBatch, kSum, kRow, kColumn}};  // of the filter
    const ConvSpec& spec = step.as<ConvSpec>();
    const View &b = step.in[1], &c = step.out[0];
    const auto add = [&](matmul_kinds::DimKind kind, int64_t size, int64_t in_a, int64_t in_b,
                         int64_t in_c) {
      kinds.push_back(kind);
      sizes.push_back(size);
      strides[kA].push_back(in_a);
      strides[kB].push_back(in_b);
      strides[kC].push_back(in_c);
    };
    const size_t plain = spec.kinds.size();
    for (size_t d = 0; d < plain; ++d)
      add(kKinds[spec.result][spec.kinds[d]], factor_size(step, d), spread.strides()[d],
          b.strides[d], c.strides[d]);
    for (size_t d = plain; d < b.sizes.size(); ++d)
      add(kSum, b.sizes[d], spread.strides()[d] * dims[d - plain].term, b.strides[d], 0);
    for (size_t d = plain; d < c.sizes.size(); ++d)
      add(kRow, c.sizes[d], spread.strides()[d] * dims[d - plain].row, 0, c.strides[d]);
  }

  static std::vector<SpreadDim> spread_dims(const Step& step, const KernelArgs* args) {
    const ConvSpec& spec = step.as<ConvSpec>();
    const Sides sides(step);
    std::vector<SpreadDim> dims;
    for (size_t s = 0; s < spec.strides.size(); ++s) {
      const size_t d = spec.kinds.size() + s;
      const auto begin = [&](size_t of) {
        return args == nullptr ? 0 : eval(*args, static_cast<int>(3 * s + of));
      };
      const SpreadRelation r{spec.strides[s], spec.dilations[s],     spec.los[s],
                             begin(0),        sides.x->sizes[d],     spec.in_sizes[s],
                             begin(1),        sides.y->sizes[d],     spec.out_sizes[s],
                             begin(2),        sides.filter->sizes[d]};
      dims.push_back(spec.result == kOfX ? r.of_out() : r.of_in(spec.result == kOfY));
    }
    return dims;
  }
};

template <class T>
class OrderedConv final : public Kernel {
 public:
  OrderedConv(const KernelArgs& args, const ConvMatmul& matmul, const ProductSizes& sizes)
      : a_(static_cast<const T*>(args.in[0].data)),
        b_(static_cast<const T*>(args.in[1].data)),
        spread_(matmul.spread),
        walk_(matmul.kinds, matmul.sizes, matmul.strides),
        places_(terms_of(ordered_places(args, {matmul.strides[kA], matmul.strides[kB]}))),
        product_(args, sizes.terms, std::ssize(walk_.rows.in), std::ssize(walk_.columns.in),
                 args.workspace),
        copy_(reinterpret_cast<T*>(static_cast<char*>(args.workspace) +
                                   sizes.workspace(args.in[0].dtype))) {}

  void run() override {
    spread_.copy(copy_, a_);
    for_each<3>(walk_.batch, walk_.batch.rank(), [&](const auto& at) {
      product_.run(places_, walk_.rows, walk_.columns, copy_ + spread_.first() + at[kA],
                   b_ + at[kB], at[kC]);
    });
  }

 private:
  const T *a_, *b_;
  Spread spread_;
  ProductWalk walk_;
  std::vector<PlaceTerms> places_;
  OrderedProduct<T> product_;
  T* copy_;
};

/// The copy of a fold's operand [before, out, window, after].
struct FoldCopy {
  SpreadDim dim;
  Spread spread;

  FoldCopy(const WindowSpec& w, int64_t in_begin, int64_t out_begin, int64_t window_begin)
      : dim(SpreadRelation{w.stride, w.dilation, w.lo, in_begin, w.memory, w.size, out_begin,
                           w.out_memory, w.out_size, window_begin, w.window_memory}
                .of_out()),
        spread({w.pre, w.out_memory, w.window_memory, w.post},
               {w.out_memory * w.window_memory * w.post, w.window_memory * w.post, w.post, 1}, 1,
               {dim}) {}
};

class OrderedFold final : public Kernel {
 public:
  explicit OrderedFold(const KernelArgs& args)
      : args_(args),
        copy_(args.step->as<WindowSpec>(), eval(args, 0), eval(args, 1), eval(args, 2)) {
    const WindowSpec& w = args.step->as<WindowSpec>();
    KernelArgs sum = args;
    std::vector<int64_t> strides = copy_.spread.strides();
    strides[2] += copy_.dim.term * strides[1];
    sum.in[0] = {
        static_cast<char*>(args.workspace) + copy_.spread.first() * size_of(args.in[0].dtype),
        args.in[0].dtype,
        {w.pre, w.memory, w.window_memory, w.post},
        strides};
    sum.out[0].sizes = {w.pre, w.memory, 1, w.post};
    sum.out[0].strides = {w.memory * w.post, w.post, 0, 1};
    sum_ = bind_ordered_reduce(sum);
  }

  void run() override {
    with_bits(args_.in[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      copy_.spread.copy(static_cast<T*>(args_.workspace), static_cast<const T*>(args_.in[0].data));
    });
    sum_->run();
  }

 private:
  KernelArgs args_;
  FoldCopy copy_;
  std::unique_ptr<Kernel> sum_;
};

}  // namespace

int64_t ordered_conv_workspace(const Step& step) {
  const ConvMatmul matmul(step, nullptr);
  const DType dtype = step.in[0].dtype;
  return ProductSizes(step.order, matmul.kinds, matmul.sizes).workspace(dtype) +
         matmul.spread.elements() * size_of(dtype);
}

std::unique_ptr<Kernel> bind_ordered_conv(const KernelArgs& args) {
  const ConvMatmul matmul(*args.step, &args);
  const ProductSizes sizes(args.step->order, matmul.kinds, matmul.sizes);
  return make_ordered(args.in[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<OrderedConv<decltype(zero)>>(args, matmul, sizes);
  });
}

int64_t ordered_fold_workspace(const Step& step) {
  return FoldCopy(step.as<WindowSpec>(), 0, 0, 0).spread.elements() * size_of(step.in[0].dtype);
}

std::unique_ptr<Kernel> bind_ordered_fold(const KernelArgs& args) {
  return std::make_unique<OrderedFold>(args);
}

}  // namespace tessera::cpu
