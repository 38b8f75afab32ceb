// Gather: every iteration reads its index and then one element of the weights. Dims along which the
// index is constant and both tensors are dense (an embedding's width) form the inner loop: one
// memcpy per index. Elements are moved as bits. Rows of other ranks are -0 here, which changes no
// number that is added to it, not even -0; the sum over ranks is complete.
#include <algorithm>
#include <cstring>

#include "kernels/common/indexed.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

class Gather final : public Kernel {
 public:
  explicit Gather(const KernelArgs& args)
      : args_(args),
        weights_(args.in.at(0)),
        indices_(args.in.at(1)),
        out_(args.out.at(0)),
        stride_(args.step->as<IndexedSpec>().stride) {
    TESSERA_CHECK(indices_.dtype == DType::int32 || indices_.dtype == DType::int64,
                  "indices of type {}", to_string(indices_.dtype));
    TESSERA_CHECK(weights_.dtype == out_.dtype, "gather of {} into {}", to_string(weights_.dtype),
                  to_string(out_.dtype));
    dim_.rule = args.step->as<IndexedSpec>().out_of_range;
    dim_.size = args.step->as<IndexedSpec>().size;
    const auto& strides = args.step->as<IndexedSpec>().strides;
    if (args.split_dim >= 0) {
      weights_.data = static_cast<char*>(weights_.data) +
                      args.split_first * strides.at(args.split_dim) * size_of(weights_.dtype);
    }
    nest_ = simple_nest(out_.sizes, {out_.strides, strides, indices_.strides});
    const int rank = nest_.rank();
    by_rows_ = rank > 0 && nest_.strides[2][rank - 1] == 0;
  }

  void run() override {
    dim_.first = eval(args_, 0);
    dim_.n = eval(args_, 1);
    const bool bad = with_bits(out_.dtype, [&](auto zero) {
      using T = decltype(zero);
      return indices_.dtype == DType::int64 ? gather<T, int64_t>() : gather<T, int32_t>();
    });
    if (bad) report_bad_index(args_, indices_, out_.sizes, dim_.n);
  }

 private:
  /// Returns true if an index was out of range under `error`.
  template <class T, class Index>
  bool gather() const {
    const T* weights = static_cast<const T*>(weights_.data);
    const Index* indices = static_cast<const Index*>(indices_.data);
    T* out = static_cast<T*>(out_.data);
    const int rank = nest_.rank();
    const T elsewhere = minus_zero<T>();
    const auto absent = [&](int64_t row) {
      return row == IndexedDim::kElsewhere ? elsewhere : T(0);
    };
    bool bad = false;
    if (!by_rows_) {
      for_each<3>(nest_, rank, [&](const auto& at) {
        const int64_t row = dim_.local(indices[at[2]], bad);
        out[at[0]] = row < 0 ? absent(row) : weights[at[1] + row * stride_];
      });
      return bad;
    }
    const int64_t n = nest_.sizes.back(), so = nest_.strides[0].back(),
                  sw = nest_.strides[1].back();
    for_each<3>(nest_, rank - 1, [&](const auto& at) {
      const int64_t row = dim_.local(indices[at[2]], bad);
      T* to = out + at[0];
      const T* from = weights + at[1] + row * stride_;
      if (so == 1 && row < 0) {
        std::fill_n(to, n, absent(row));
      } else if (so == 1 && sw == 1) {
        std::memcpy(to, from, static_cast<size_t>(n) * sizeof(T));
      } else {
        for (int64_t i = 0; i < n; ++i) to[i * so] = row < 0 ? absent(row) : from[i * sw];
      }
    });
    return bad;
  }

  /// The bits of -0 in the result's dtype; 0 where there is none.
  template <class T>
  T minus_zero() const {
    return is_floating(out_.dtype) ? static_cast<T>(T(1) << (8 * sizeof(T) - 1)) : T(0);
  }

  KernelArgs args_;
  TensorArg weights_, indices_, out_;
  int64_t stride_;
  IndexedDim dim_;
  Nest nest_;  ///< operands out, weights, indices
  bool by_rows_ = false;
};

}  // namespace

Sharing share_gather(const Step& step, int threads) {
  const View& out = step.out.at(0);
  return {outermost_dim(out, std::vector<char>(out.sizes.size(), 1), threads),
          static_cast<double>(out.elements() * size_of(out.dtype)) * 0.1};
}

std::unique_ptr<Kernel> bind_gather(const KernelArgs& args) {
  return std::make_unique<Gather>(args);
}

}  // namespace tessera::cpu
