// The k largest elements along a dim, in descending order, or the k smallest in ascending order,
// with their global indices. The positions are partially sorted by value, NaN being the largest,
// then by index ascending: a total order, so the result does not depend on the algorithm.
#include <algorithm>

#include "kernels/cpu/along_dim.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/types.h"

namespace tessera::cpu {
namespace {

class TopK final : public Kernel {
 public:
  explicit TopK(const KernelArgs& args)
      : args_(args),
        dim_(args.step->attrs.get<int64_t>("dim")),
        along_(along_dim({&args_.in.at(0), &args_.out.at(0), &args_.out.at(1)}, dim_)),
        k_(args.out[0].sizes.at(static_cast<size_t>(dim_))),
        smallest_(args.step->attrs.get<int64_t>("smallest", 0) != 0) {
    const DType index = args.out[1].dtype;
    check(index == DType::int32 || index == DType::int64, "indices of type {}", to_string(index));
    check(args.in[0].dtype == args.out[0].dtype, "top_k of {} into {}", to_string(args.in[0].dtype),
          to_string(args.out[0].dtype));
    check(k_ <= along_.size, "the {} largest of {} elements", k_, along_.size);
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
      for (int64_t i = 0; i < along_.size; ++i) order_[static_cast<size_t>(i)] = i;
      std::partial_sort(order_.begin(), order_.begin() + k_, order_.end(),
                        [&](int64_t i, int64_t j) {
                          const Compute<T> a = load_as(x[i * stride]), b = load_as(x[j * stride]);
                          const bool a_nan = a != a, b_nan = b != b;
                          if (a_nan || b_nan) return a_nan != b_nan ? a_nan != smallest_ : i < j;
                          return a != b ? (a > b) != smallest_ : i < j;
                        });
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
