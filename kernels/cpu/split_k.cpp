#include "kernels/cpu/split_k.h"

#include <algorithm>
#include <numeric>
#include <type_traits>

#include "base/fail.h"
#include "kernels/common/types.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/thin_gemm.h"
#include "kernels/cpu/thread_pool.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

constexpr int64_t kParts = 4, kLeastTerms = 16 * kParts;
constexpr int64_t kGrain = 16;  ///< columns: a cache line of sums
/// A product that is not thin, whose parts are products by a library: the fewest terms, also for
/// each row and column, and the fewest rows.
constexpr int64_t kLongTerms = int64_t{1} << 15, kTermsOfRow = 64, kLeastLibraryRows = 64;

Gemm with_few_rows(const Gemm& g) { return g.m <= g.n ? g : transposed(g); }

template <class T>
class SplitK final : public Kernel {
 public:
  SplitK(const KernelArgs& args, const Gemm& g)
      : gemm_(with_few_rows(g)),
        a_(static_cast<const T*>(args.in[g.m <= g.n ? 0 : 1].data)),
        b_(static_cast<const T*>(args.in[g.m <= g.n ? 1 : 0].data)),
        c_(static_cast<T*>(args.out[0].data)),
        sums_(static_cast<float*>(args.workspace)),
        pool_(args.pool),
        is_thin_(is_thin(g)),
        adds_(!args.step->pointwise.code.empty()) {
    TESSERA_CHECK(sums_ != nullptr, "a split-K product needs a workspace");
  }

  void run() override {
    if (pool_ == nullptr) {
      add(0, 1);
    } else {
      pool_->run([this](int thread) { add(thread, pool_->size()); });
    }
    const Gemm& g = gemm_;
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        const float* at = sums_ + i * g.n + j;
        const int64_t part = g.m * g.n;
        const float sum = (at[0] + at[part]) + (at[2 * part] + at[3 * part]);
        T& c = c_[i * g.c_row + j * g.c_column];
        c = store_as<T>(adds_ ? load_as(c) + sum : sum);
      }
    }
  }

 private:
  /// Threads that do not divide the parts of a thin product cut these along the columns too. The
  /// parts of a library's product stay whole: of fewer columns it might add in another order.
  void add(int thread, int threads) {
    const int64_t blocks = is_thin_ ? threads / std::gcd<int64_t>(threads, kParts) : 1,
                  tasks = kParts * blocks, end = tasks * (thread + 1) / threads;
    for (int64_t task = tasks * thread / threads; task < end;) {
      const int64_t part = task / blocks, next = std::min(end, (part + 1) * blocks);
      add_part(part, column(task % blocks, blocks), column(next - part * blocks, blocks));
      task = next;
    }
  }

  /// The first column of a block.
  int64_t column(int64_t block, int64_t blocks) const {
    return block == blocks ? gemm_.n : gemm_.n / kGrain * block / blocks * kGrain;
  }

  void add_part(int64_t part, int64_t begin, int64_t end) {
    if (begin == end) return;
    const int64_t from = gemm_.k * part / kParts;
    Gemm g = gemm_;
    g.k = gemm_.k * (part + 1) / kParts - from;
    g.n = end - begin;
    g.c_row = gemm_.n, g.c_column = 1;
    const T* a = a_ + from * g.a_column;
    const T* b = b_ + from * g.b_row + begin * g.b_column;
    float* sums = sums_ + part * gemm_.m * gemm_.n + begin;
    if (is_thin_) return thin_gemm(g, a, b, sums, true);
    if constexpr (std::is_same_v<T, float>) gemm(g, a, b, sums, true);
  }

  Gemm gemm_;
  const T* a_;
  const T* b_;
  T* c_;
  float* sums_;  ///< [part, m, n]
  ThreadPool* pool_;
  bool is_thin_;
  bool adds_;  ///< to what C holds
};

}  // namespace

bool is_split_k(const GemmPlan& plan) {
  if (plan.loops || plan.packed[kA] || plan.packed[kB] || plan.packed[kC]) return false;
  if (plan.batch.rank() > 0 || plan.outer.rank() > 0 || plan.sums.rank() > 0) return false;
  if (plan.compute != DType::float32) return false;
  const Gemm g = with_few_rows(plan.gemm);
  if (!is_thin(plan.gemm)) {
    return !plan.by_bfloat && g.m >= kLeastLibraryRows && g.k >= kLongTerms &&
           g.k >= kTermsOfRow * g.n;
  }
  return g.b_row != 1 && g.k >= kLeastTerms;
}

int64_t split_k_workspace(const GemmPlan& plan) {
  return kParts * plan.gemm.m * plan.gemm.n * static_cast<int64_t>(sizeof(float));
}

std::unique_ptr<Kernel> bind_split_k(const KernelArgs& args, const GemmPlan& plan) {
  if (plan.by_bfloat) return std::make_unique<SplitK<BFloat16>>(args, plan.gemm);
  return std::make_unique<SplitK<float>>(args, plan.gemm);
}

}  // namespace tessera::cpu
