// Prefix sums along one dim, in order. float32 and 16-bit sums are kept in float64 and rounded when
// stored, because a prefix cannot use pairwise summation. If another dim is dense, a strip of it is
// summed side by side. With a second operand the sum so far is multiplied by it before an element
// is added.
#include <algorithm>

#include "kernels/common/along_dim.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

constexpr int64_t kScanStrip = 256;

class CumSum final : public Kernel {
 public:
  explicit CumSum(const KernelArgs& args)
      : in_(args.in.at(0)),
        out_(args.out.at(0)),
        decay_(args.in.size() > 1 ? args.in[1] : args.in[0]),
        has_decay_(args.in.size() > 1),
        exclusive_(args.step->as<ScanSpec>().exclusive),
        reverse_(args.step->as<ScanSpec>().reverse),
        along_(along_dim({&in_, &out_, &decay_}, args.step->as<ScanSpec>().dim)) {
    TESSERA_CHECK(in_.dtype == out_.dtype && in_.sizes == out_.sizes,
                  "cumsum needs views of one dtype and size");
    TESSERA_CHECK(decay_.dtype == in_.dtype && decay_.sizes == in_.sizes,
                  "the decay of a scan needs x's dtype and size");
  }

  void run() override {
    with_element(in_.dtype, [&](auto zero) { run_as<decltype(zero)>(); });
  }

 private:
  template <class T>
  void run_as() const {
    using W = std::conditional_t<std::is_integral_v<T>, T, double>;
    const int rank = along_.others.rank();
    const int64_t n = rank > 0 ? along_.others.sizes.back() : 1;
    const int64_t ni = rank > 0 ? along_.others.strides[0].back() : 0;
    const int64_t no = rank > 0 ? along_.others.strides[1].back() : 0;
    const int64_t first = reverse_ ? along_.size - 1 : 0, step = reverse_ ? -1 : 1;
    const int64_t nd = rank > 0 ? along_.others.strides[2].back() : 0;
    for_each<3>(along_.others, std::max(0, rank - 1), [&](const auto& at) {
      for (int64_t j = 0; j < n; j += kScanStrip) {
        const int64_t m = std::min(kScanStrip, n - j);
        const T* in = static_cast<const T*>(in_.data) + at[0] + j * ni;
        T* out = static_cast<T*>(out_.data) + at[1] + j * no;
        const T* decays = static_cast<const T*>(decay_.data) + at[2] + j * nd;
        W sums[kScanStrip];
        std::fill(sums, sums + m, W(0));
        for (int64_t i = 0, p = first; i < along_.size; ++i, p += step) {
          const T* x = in + p * along_.stride[0];
          T* y = out + p * along_.stride[1];
          const T* a = decays + p * along_.stride[2];
          if (has_decay_) {
            for (int64_t l = 0; l < m; ++l)
              sums[l] = wrapping_mul(sums[l], static_cast<W>(load_as(a[l * nd])));
          }
          for (int64_t l = 0; l < m; ++l) {
            const W before = sums[l];
            sums[l] = wrapping_add(before, static_cast<W>(load_as(x[l * ni])));
            y[l * no] = store_as<T>(static_cast<Compute<T>>(exclusive_ ? before : sums[l]));
          }
        }
      }
    });
  }

  TensorArg in_, out_, decay_;
  bool has_decay_, exclusive_, reverse_;
  AlongDim along_;
};

}  // namespace

std::unique_ptr<Kernel> bind_cumsum(const KernelArgs& args) {
  return std::make_unique<CumSum>(args);
}

}  // namespace tessera::cpu
