// Scatter-add: the transpose of gather. The result is zeroed, then the updates are added in
// row-major order of the iteration dims, whatever the indices are: a fixed order of sums. 16-bit
// types are summed in a float32 workspace and rounded once.
#include <algorithm>
#include <cstring>

#include "kernels/common/indexed.h"
#include "kernels/common/types.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

int64_t elements_of(const std::vector<int64_t>& sizes) {
  int64_t n = 1;
  for (int64_t s : sizes) n *= s;
  return n;
}

class ScatterAdd final : public Kernel {
 public:
  explicit ScatterAdd(const KernelArgs& args)
      : args_(args),
        indices_(args.in.at(0)),
        updates_(args.in.at(1)),
        out_(args.out.at(0)),
        stride_(args.step->as<IndexedSpec>().stride) {
    TESSERA_CHECK(indices_.dtype == DType::int32 || indices_.dtype == DType::int64,
                  "indices of type {}", to_string(indices_.dtype));
    TESSERA_CHECK(updates_.dtype == out_.dtype, "scatter_add of {} into {}",
                  to_string(updates_.dtype), to_string(out_.dtype));
    TESSERA_CHECK(
        !is_narrow(out_.dtype) || args.workspace != nullptr || elements_of(out_.sizes) == 0,
        "scatter_add of {} needs a workspace", to_string(out_.dtype));
    dim_.rule = args.step->as<IndexedSpec>().out_of_range;
    dim_.size = args.step->as<IndexedSpec>().size;
    nest_ = make_nest(updates_.sizes,
                      {args.step->as<IndexedSpec>().strides, updates_.strides, indices_.strides});
    nest_.drop_ones();
    nest_.merge();  // in the given order: it is the order of the sums
  }

  void run() override {
    dim_.first = eval(args_, 0);
    dim_.n = eval(args_, 1);
    const bool bad = with_element(out_.dtype, [&](auto zero) {
      using T = decltype(zero);
      return indices_.dtype == DType::int64 ? scatter<T, int64_t>() : scatter<T, int32_t>();
    });
    if (bad) report_bad_index(args_, indices_, updates_.sizes, dim_.n);
  }

 private:
  template <class T, class Index>
  bool scatter() const {
    using W = Compute<T>;
    const int64_t elements = elements_of(out_.sizes);
    W* sums = static_cast<W*>(std::is_same_v<T, W> ? out_.data : args_.workspace);
    std::fill(sums, sums + elements, W(0));
    const bool bad = add<T, Index>(sums);
    if constexpr (!std::is_same_v<T, W>) {
      T* out = static_cast<T*>(out_.data);
      for (int64_t i = 0; i < elements; ++i) out[i] = store_as<T>(sums[i]);
    }
    return bad;
  }

  template <class T, class Index>
  bool add(Compute<T>* sums) const {
    using W = Compute<T>;
    const T* updates = static_cast<const T*>(updates_.data);
    const Index* indices = static_cast<const Index*>(indices_.data);
    const int rank = nest_.rank();
    bool bad = false;
    const bool by_rows = rank > 0 && nest_.strides[2].back() == 0;
    const int64_t n = by_rows ? nest_.sizes.back() : 1;
    const int64_t so = by_rows ? nest_.strides[0].back() : 1,
                  su = by_rows ? nest_.strides[1].back() : 1;
    for_each<3>(nest_, by_rows ? rank - 1 : rank, [&](const auto& at) {
      const int64_t row = dim_.local(indices[at[2]], bad);
      if (row < 0) return;
      W* __restrict to = sums + at[0] + row * stride_;
      const T* __restrict from = updates + at[1];
      if (so == 1 && su == 1) {
        for (int64_t i = 0; i < n; ++i) to[i] = wrapping_add(to[i], W(load_as(from[i])));
      } else {
        for (int64_t i = 0; i < n; ++i)
          to[i * so] = wrapping_add(to[i * so], W(load_as(from[i * su])));
      }
    });
    return bad;
  }

  KernelArgs args_;
  TensorArg indices_, updates_, out_;
  int64_t stride_;
  IndexedDim dim_;
  Nest nest_;  ///< operands out, updates, indices
};

}  // namespace

int64_t scatter_add_workspace(const Step& step) {
  const View& out = step.out.at(0);
  return is_narrow(out.dtype) ? elements_of(out.sizes) * 4 : 0;
}

std::unique_ptr<Kernel> bind_scatter_add(const KernelArgs& args) {
  if (args.step->order.is_strict()) return bind_ordered_scatter_add(args);
  return std::make_unique<ScatterAdd>(args);
}

}  // namespace tessera::cpu
