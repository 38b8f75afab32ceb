// Fills a view with one value: one pass of dense rows.
#include <algorithm>

#include "kernels/common/nest.h"
#include "kernels/common/pointwise.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

class Fill final : public Kernel {
 public:
  explicit Fill(const KernelArgs& args)
      : out_(args.out.at(0)),
        value_(args.step->as<FillSpec>().value),
        nest_(simple_nest(out_.sizes, {out_.strides})) {}

  void run() override {
    with_element(out_.dtype, [&](auto zero) {
      using T = decltype(zero);
      T x = store_as<T>(formula::cast<Compute<T>>(value_));
      if constexpr (std::is_same_v<T, uint8_t>) {
        if (out_.dtype == DType::bool_) x = value_ != 0;
      }
      T* out = static_cast<T*>(out_.data);
      const int rank = nest_.rank();
      const int64_t n = rank > 0 ? nest_.sizes[rank - 1] : 1;
      const int64_t stride = rank > 0 ? nest_.strides[0][rank - 1] : 1;
      for_each<1>(nest_, std::max(0, rank - 1), [&](const auto& at) {
        T* row = out + at[0];
        if (stride == 1) {
          std::fill(row, row + n, x);
        } else {
          for (int64_t i = 0; i < n; ++i) row[i * stride] = x;
        }
      });
    });
  }

 private:
  TensorArg out_;
  double value_;
  Nest nest_;
};

}  // namespace

std::unique_ptr<Kernel> bind_fill(const KernelArgs& args) { return std::make_unique<Fill>(args); }

}  // namespace tessera::cpu
