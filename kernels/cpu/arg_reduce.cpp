// The extreme element along a dim and its global index. One scan per output; of equal elements the
// first wins. NaN is more extreme than any number, and the first NaN wins.
#include "kernels/common/along_dim.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

/// True if x is strictly more extreme than y.
template <bool kMax, class W>
bool beyond(W x, W y) {
  if (y != y) return false;
  return x != x || (kMax ? x > y : x < y);
}

class ArgReduce final : public Kernel {
 public:
  explicit ArgReduce(const KernelArgs& args)
      : args_(args),
        in_(args.in.at(0)),
        along_(along_dim({&args_.in[0], &args_.out.at(0), &args_.out.at(1)},
                         args.step->as<ArgReduceSpec>().dim)),
        max_(args.step->combiner == Combiner::max) {
    TESSERA_CHECK(max_ || args.step->combiner == Combiner::min, "arg_reduce by {}",
                  to_string(args.step->combiner));
    const DType index = args.out[1].dtype;
    TESSERA_CHECK(index == DType::int32 || index == DType::int64, "indices of type {}",
                  to_string(index));
    TESSERA_CHECK(along_.size > 0 || along_.others.elements() == 0,
                  "arg_reduce along a dim of size 0");
  }

  void run() override {
    if (along_.others.elements() == 0) return;
    first_ = eval(args_, 0);
    with_element(in_.dtype, [&](auto zero) {
      using T = decltype(zero);
      max_ ? run_as<true, T>() : run_as<false, T>();
    });
  }

 private:
  template <bool kMax, class T>
  void run_as() const {
    const int64_t stride = along_.stride[0];
    for_each<3>(along_.others, along_.others.rank(), [&](const auto& at) {
      const T* x = static_cast<const T*>(in_.data) + at[0];
      int64_t best = 0;
      Compute<T> value = load_as(x[0]);
      for (int64_t i = 1; i < along_.size; ++i) {
        const Compute<T> y = load_as(x[i * stride]);
        if (!beyond<kMax>(y, value)) continue;
        value = y;
        best = i;
      }
      static_cast<T*>(args_.out[0].data)[at[1]] = x[best * stride];
      if (args_.out[1].dtype == DType::int64) {
        static_cast<int64_t*>(args_.out[1].data)[at[2]] = first_ + best;
      } else {
        static_cast<int32_t*>(args_.out[1].data)[at[2]] = static_cast<int32_t>(first_ + best);
      }
    });
  }

  KernelArgs args_;
  TensorArg in_;
  AlongDim along_;
  bool max_;
  int64_t first_ = 0;
};

}  // namespace

std::unique_ptr<Kernel> bind_arg_reduce(const KernelArgs& args) {
  return std::make_unique<ArgReduce>(args);
}

}  // namespace tessera::cpu
