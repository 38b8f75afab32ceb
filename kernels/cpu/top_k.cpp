// The k largest elements along a dim in descending order, or the k smallest in ascending order,
// with their global indices. Positions are ordered by value (NaN is the largest), then by ascending
// index: a total order, so the result does not depend on the algorithm. A small k keeps a sorted
// list while the row is read; most elements are only compared with its last. A large k uses a
// partial sort.
#include <algorithm>

#include "kernels/common/along_dim.h"
#include "kernels/common/types.h"
#include "kernels/cpu/tables.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

class TopK final : public Kernel {
 public:
  explicit TopK(const KernelArgs& args)
      : args_(args),
        dim_(args.step->as<ArgReduceSpec>().dim),
        along_(along_dim({&args_.in.at(0), &args_.out.at(0), &args_.out.at(1)}, dim_)),
        k_(args.out[0].sizes.at(static_cast<size_t>(dim_))),
        smallest_(args.step->as<ArgReduceSpec>().smallest) {
    const DType index = args.out[1].dtype;
    TESSERA_CHECK(index == DType::int32 || index == DType::int64, "indices of type {}",
                  to_string(index));
    TESSERA_CHECK(args.in[0].dtype == args.out[0].dtype, "top_k of {} into {}",
                  to_string(args.in[0].dtype), to_string(args.out[0].dtype));
    TESSERA_CHECK(k_ <= along_.size, "the {} largest of {} elements", k_, along_.size);
    order_.resize(static_cast<size_t>(along_.size));
  }

  void run() override {
    first_ = eval(args_, 0);
    with_element(args_.in[0].dtype, [&](auto zero) { run_as<decltype(zero)>(); });
  }

 private:
  template <class T>
  void run_as() {
    const int64_t stride = along_.stride[0];
    for_each<3>(along_.others, along_.others.rank(), [&](const auto& at) {
      const T* x = static_cast<const T*>(args_.in[0].data) + at[0];
      const auto before = [&](int64_t i, int64_t j) {
        const Compute<T> a = load_as(x[i * stride]), b = load_as(x[j * stride]);
        const bool a_nan = a != a, b_nan = b != b;
        if (a_nan || b_nan) return a_nan != b_nan ? a_nan != smallest_ : i < j;
        return a != b ? (a > b) != smallest_ : i < j;
      };
      if (k_ <= kFew && k_ * 2 <= along_.size) {
        smallest_ ? keep_first<T, true>(x, stride, before)
                  : keep_first<T, false>(x, stride, before);
      } else {
        for (int64_t i = 0; i < along_.size; ++i) order_[static_cast<size_t>(i)] = i;
        std::partial_sort(order_.begin(), order_.begin() + k_, order_.end(), before);
      }
      for (int64_t r = 0; r < k_; ++r) {
        const int64_t i = order_[static_cast<size_t>(r)], to = at[2] + r * along_.stride[2];
        static_cast<T*>(args_.out[0].data)[at[1] + r * along_.stride[1]] = x[i * stride];
        if (args_.out[1].dtype == DType::int64) {
          static_cast<int64_t*>(args_.out[1].data)[to] = first_ + i;
        } else {
          static_cast<int32_t*>(args_.out[1].data)[to] = static_cast<int32_t>(first_ + i);
        }
      }
    });
  }

  static constexpr int64_t kFew = 16;

  /// Keeps the first k_ positions of order_. Positions come in ascending order, so one that does
  /// not precede the last kept can be skipped.
  template <class T, bool smallest, class Before>
  void keep_first(const T* x, int64_t stride, const Before& before) {
    int64_t kept = 0;
    Compute<T> last{};
    for (int64_t i = 0; i < along_.size; ++i) {
      const Compute<T> value = load_as(x[i * stride]);
      if (kept == k_) {
        if (smallest ? value >= last : value <= last) continue;
        if (!before(i, order_[static_cast<size_t>(k_ - 1)])) continue;
        --kept;
      }
      int64_t at = kept++;
      for (; at > 0 && before(i, order_[static_cast<size_t>(at - 1)]); --at)
        order_[static_cast<size_t>(at)] = order_[static_cast<size_t>(at - 1)];
      order_[static_cast<size_t>(at)] = i;
      last = load_as(x[order_[static_cast<size_t>(kept - 1)] * stride]);
    }
  }

  KernelArgs args_;
  int64_t dim_;
  AlongDim along_;
  int64_t k_;
  bool smallest_;
  int64_t first_ = 0;
  std::vector<int64_t> order_;
};

}  // namespace

std::unique_ptr<Kernel> bind_top_k(const KernelArgs& args) { return std::make_unique<TopK>(args); }

}  // namespace tessera::cpu
