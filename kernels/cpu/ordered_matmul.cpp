// Matmuls in the canonical order of sums.
#include "kernels/cpu/ordered_product.h"

namespace tessera::cpu {

namespace {

std::vector<int64_t> sizes_of(const Step& step) {
  std::vector<int64_t> sizes = step.in[0].sizes;
  for (size_t d = 0; d < sizes.size(); ++d) sizes[d] = std::max(sizes[d], step.in[1].sizes[d]);
  return sizes;
}

ProductSizes product_of(const Step& step) {
  return {step.order, step.as<MatmulSpec>().kinds, sizes_of(step)};
}

template <class T>
class OrderedMatmul final : public Kernel {
 public:
  explicit OrderedMatmul(const KernelArgs& args)
      : a_(static_cast<const T*>(args.in[0].data)),
        b_(static_cast<const T*>(args.in[1].data)),
        walk_(args.step->as<MatmulSpec>().kinds, sizes_of(*args.step),
              {args.in[0].strides, args.in[1].strides, args.out[0].strides}),
        places_(terms_of(ordered_places(args, {args.in[0].strides, args.in[1].strides}))),
        product_(args, product_of(*args.step).terms, std::ssize(walk_.rows.in),
                 std::ssize(walk_.columns.in), args.workspace) {}

  void run() override {
    for_each<3>(walk_.batch, walk_.batch.rank(), [&](const auto& at) {
      product_.run(places_, walk_.rows, walk_.columns, a_ + at[kA], b_ + at[kB], at[kC]);
    });
  }

 private:
  const T *a_, *b_;
  ProductWalk walk_;
  std::vector<PlaceTerms> places_;
  OrderedProduct<T> product_;
};

}  // namespace

int64_t ordered_matmul_workspace(const Step& step) {
  return product_of(step).workspace(step.in[0].dtype);
}

std::unique_ptr<Kernel> bind_ordered_matmul(const KernelArgs& args) {
  return make_ordered(args.in[0].dtype, [&](auto zero) -> std::unique_ptr<Kernel> {
    return std::make_unique<OrderedMatmul<decltype(zero)>>(args);
  });
}

}  // namespace tessera::cpu
