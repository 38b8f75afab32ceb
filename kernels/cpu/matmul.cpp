// Contractions C = sum A B over named dims: matmuls by BLAS as gemm_plan.h cuts them,
// or direct loops if a product would be too small or the type is an integer. 16-bit operands are
// converted when they are packed, accumulated in float32 and rounded once. A product may be added
// to what its result holds (takes_epilogue.h), which then is not read or written in a pass of its
// own.
//
// The loops: one dim along which C is dense is the vector dim, in strips whose sums stay in the
// cache during all contracted dims. If there is none, every element of C is a dot product in lanes.
#include <algorithm>
#include <cstring>
#include <optional>

#include "kernels/common/gemm_plan.h"
#include "kernels/cpu/blas.h"
#include "kernels/cpu/ordered_places.h"
#include "kernels/cpu/split_k.h"
#include "kernels/cpu/strided_copy.h"
#include "kernels/cpu/tables.h"
#include "kernels/cpu/takes_epilogue.h"
#include "kernels/cpu/thin_gemm.h"
#include "program/windows.h"

namespace tessera::cpu {

using namespace kernels;

namespace {

constexpr int64_t kStrip = 512;
constexpr int64_t kUneven = 4;  ///< rows by columns, or columns by rows: the larger matrix is cut

GemmPlan plan_of(const Step& step, bool by_bfloat = false) {
  const std::vector<int64_t> sizes[3] = {step.in.at(0).sizes, step.in.at(1).sizes,
                                         step.out.at(0).sizes};
  const std::vector<int64_t> strides[3] = {step.in[0].strides, step.in[1].strides,
                                           step.out[0].strides};
  return plan_gemm(step.as<MatmulSpec>().kinds, sizes, strides, step.out[0].dtype, by_bfloat);
}

/// The plan of a step that takes the split-K form.
std::optional<GemmPlan> split_k_plan(const Step& step) {
  GemmPlan plan = plan_of(step, step.out[0].dtype == DType::bfloat16);
  if (!is_split_k(plan)) return {};
  return plan;
}

bool empty(const View& v) { return std::count(v.sizes.begin(), v.sizes.end(), 0) > 0; }

/// C = 0: the contraction has no terms.
class MatmulOfNothing final : public Kernel {
 public:
  explicit MatmulOfNothing(const TensorArg& out)
      : out_(out), nest_(make_nest(out.sizes, {out.strides})) {}
  void run() override {
    const int64_t bytes = size_of(out_.dtype);
    for_each<1>(nest_, nest_.rank(), [&](const auto& at) {
      std::memset(static_cast<char*>(out_.data) + at[0] * bytes, 0, static_cast<size_t>(bytes));
    });
  }

 private:
  TensorArg out_;
  Nest nest_;
};

class MatmulByGemm final : public Kernel {
 public:
  MatmulByGemm(const KernelArgs& args, GemmPlan plan, std::optional<BfloatGemm> products = {})
      : args_(args),
        plan_(std::move(plan)),
        dtype_(args.out[0].dtype),
        adds_(!args.step->pointwise.code.empty()),
        products_(std::move(products)) {
    for (int x = 0; x < 3; ++x) {
      if (plan_.packed[x] && x != kC) {
        copies_[x] = StridedCopy(plan_.pack_sizes[x], plan_.pack_to[x], plan_.pack_from[x]);
      } else if (plan_.packed[x]) {
        copies_[x] = StridedCopy(plan_.pack_sizes[x], plan_.pack_from[x], plan_.pack_to[x]);
      }
    }
    if (adds_ && plan_.packed[kC])
      read_c_ = StridedCopy(plan_.pack_sizes[kC], plan_.pack_to[kC], plan_.pack_from[kC]);
    TESSERA_CHECK(plan_.workspace == 0 || args.workspace != nullptr,
                  "matmul needs {} bytes of workspace", plan_.workspace);
  }

  void run() override {
    if (dtype_ == DType::float64) return run_as<double, double>();
    if (plan_.by_bfloat) return run_bfloat();
    if (is_narrow(dtype_))
      return with_narrow(dtype_, [&](auto x) { run_as<decltype(x), float>(); });
    run_as<float, float>();
  }

 private:
  template <class T, class W>
  void run_as() {
    const T* a = static_cast<const T*>(args_.in[0].data);
    const T* b = static_cast<const T*>(args_.in[1].data);
    T* c = static_cast<T*>(args_.out[0].data);
    for_each<3>(plan_.batch, plan_.batch.rank(), [&](const auto& at) {
      const W* wa = packed<T, W>(kA, a + at[0]);
      const W* wb = packed<T, W>(kB, b + at[1]);
      if (plan_.packed[kC]) {
        W* wc = work<W>(kC);
        if (adds_) read_c_.copy(wc, static_cast<const T*>(c + at[2]));
        multiply(wa, wb, wc);
        copies_[kC].copy(c + at[2], static_cast<const W*>(wc));
      } else if constexpr (std::is_same_v<T, W>) {
        multiply(wa, wb, c + at[2]);
      }
    });
  }

  void run_bfloat() {
    using T = BFloat16;
    for_each<3>(plan_.batch, plan_.batch.rank(), [&](const auto& at) {
      const T* a = packed<T, T>(kA, static_cast<const T*>(args_.in[0].data) + at[0]);
      const T* b = packed<T, T>(kB, static_cast<const T*>(args_.in[1].data) + at[1]);
      T* c = static_cast<T*>(args_.out[0].data) + at[2];
      float* sum = plan_.packed[kC] ? work<float>(kC) : nullptr;
      for_each<3>(plan_.outer, plan_.outer.rank(), [&](const auto& o) {
        bool first = true;
        for_each<3>(plan_.sums, plan_.sums.rank(), [&](const auto& s) {
          void* to = sum != nullptr ? static_cast<void*>(sum + o[2]) : c + o[2];
          products_->run(a + o[0] + s[0], b + o[1] + s[1], to, first);
          first = false;
        });
      });
      if (sum != nullptr) copies_[kC].copy(c, static_cast<const float*>(sum));
    });
  }

  template <class W>
  W* work(Operand x) const {
    return reinterpret_cast<W*>(static_cast<char*>(args_.workspace) + plan_.offset[x]);
  }

  template <class T, class W>
  const W* packed(Operand x, const T* from) const {
    if (plan_.packed[x]) {
      copies_[x].copy(work<W>(x), from);
      return work<W>(x);
    }
    if constexpr (std::is_same_v<T, W>) return from;
    fail(ErrorKind::internal, "a narrow operand is not packed");
  }

  template <class W>
  void multiply(const W* a, const W* b, W* c) const {
    for_each<3>(plan_.outer, plan_.outer.rank(), [&](const auto& at) {
      bool first = !adds_;
      for_each<3>(plan_.sums, plan_.sums.rank(), [&](const auto& sum) {
        gemm(plan_.gemm, a + at[0] + sum[0], b + at[1] + sum[1], c + at[2], first);
        first = false;
      });
    });
  }

  KernelArgs args_;
  GemmPlan plan_;
  DType dtype_;
  bool adds_;
  StridedCopy copies_[3], read_c_;
  std::optional<BfloatGemm> products_;
};

class MatmulByLoops final : public Kernel {
 public:
  explicit MatmulByLoops(const KernelArgs& args)
      : args_(args), adds_(!args.step->pointwise.code.empty()) {
    const auto& kinds = args.step->as<MatmulSpec>().kinds;
    kept_.strides.resize(3);
    summed_.strides.resize(3);
    for (size_t d = 0; d < kinds.size(); ++d) {
      const int64_t size =
          std::max({args.in[0].sizes[d], args.in[1].sizes[d], args.out[0].sizes[d]});
      const std::vector<int64_t> s = {kinds[d] == kColumn ? 0 : args.in[0].strides[d],
                                      kinds[d] == kRow ? 0 : args.in[1].strides[d],
                                      kinds[d] == kSum ? 0 : args.out[0].strides[d]};
      if (size != 1) (kinds[d] == kSum ? summed_ : kept_).add_dim(size, s);
    }
    kept_.order_by(kC);
    kept_.merge();
    summed_.order_by(kA);
    summed_.merge();
    const int rank = kept_.rank();
    auto dense = [&](int x) { return kept_.strides[x][rank - 1] <= 1; };
    const bool dot =
        summed_.rank() > 0 && summed_.strides[kA].back() == 1 && summed_.strides[kB].back() == 1;
    strips_ = rank > 0 && kept_.sizes.back() > 1 && !(dot && !(dense(kA) && dense(kB)));
  }

  void run() override {
    with_element(args_.out[0].dtype, [&](auto zero) {
      using T = decltype(zero);
      strips_ ? run_strips<T>() : run_dots<T>();
    });
  }

 private:
  template <class T>
  void run_dots() {
    const T* a = static_cast<const T*>(args_.in[0].data);
    const T* b = static_cast<const T*>(args_.in[1].data);
    T* c = static_cast<T*>(args_.out[0].data);
    const int rank = summed_.rank();
    const int64_t n = rank > 0 ? summed_.sizes.back() : 1;
    const int64_t sa = rank > 0 ? summed_.strides[kA].back() : 1,
                  sb = rank > 0 ? summed_.strides[kB].back() : 1;
    for_each<3>(kept_, kept_.rank(), [&](const auto& at) {
      Compute<T> sum = 0;
      for_each<3>(summed_, std::max(0, rank - 1), [&](const auto& k) {
        sum = wrapping_add(sum, dot(a + at[0] + k[0], sa, b + at[1] + k[1], sb, n));
      });
      store(c + at[2], sum);
    });
  }

  template <class T>
  void store(T* c, Compute<T> sum) const {
    *c = store_as<T>(adds_ ? wrapping_add(Compute<T>(load_as(*c)), sum) : sum);
  }

  template <class T>
  static Compute<T> dot(const T* a, int64_t sa, const T* b, int64_t sb, int64_t n) {
    using W = Compute<T>;
    constexpr int64_t kLanes = 16;
    W lanes[kLanes] = {};
    int64_t i = 0;
    if (sa == 1 && sb == 1) {
      for (; i + kLanes <= n; i += kLanes) {
        for (int64_t l = 0; l < kLanes; ++l) {
          lanes[l] =
              wrapping_add(lanes[l], wrapping_mul(W(load_as(a[i + l])), W(load_as(b[i + l]))));
        }
      }
    }
    for (int64_t l = 0; i < n; ++i, l = (l + 1) % kLanes) {
      lanes[l] = wrapping_add(lanes[l], wrapping_mul(W(load_as(a[i * sa])), W(load_as(b[i * sb]))));
    }
    for (int64_t half = kLanes / 2; half > 0; half /= 2) {
      for (int64_t l = 0; l < half; ++l) lanes[l] = wrapping_add(lanes[l], lanes[l + half]);
    }
    return lanes[0];
  }

  template <class T>
  void run_strips() {
    const int64_t n = kept_.sizes.back();
    const int64_t sa = kept_.strides[kA].back(), sb = kept_.strides[kB].back(),
                  sc = kept_.strides[kC].back();
    for_each<3>(kept_, kept_.rank() - 1, [&](const auto& at) {
      for (int64_t i = 0; i < n; i += kStrip) {
        const T* a = static_cast<const T*>(args_.in[0].data) + at[0] + i * sa;
        const T* b = static_cast<const T*>(args_.in[1].data) + at[1] + i * sb;
        T* c = static_cast<T*>(args_.out[0].data) + at[2] + i * sc;
        Compute<T> acc[kStrip];
        const int64_t m = std::min(kStrip, n - i);
        std::fill(acc, acc + m, Compute<T>(0));
        for_each<3>(summed_, summed_.rank(),
                    [&](const auto& k) { concat_k_matmuls(acc, a + k[0], sa, b + k[1], sb, m); });
        for (int64_t j = 0; j < m; ++j) store(c + j * sc, acc[j]);
      }
    });
  }

  template <class T>
  static void concat_k_matmuls(Compute<T>* __restrict acc, const T* __restrict a, int64_t sa,
                               const T* __restrict b, int64_t sb, int64_t n) {
    using W = Compute<T>;
    if (sa == 0 && sb == 1) {
      const W x = load_as(*a);
      for (int64_t i = 0; i < n; ++i)
        acc[i] = wrapping_add(acc[i], wrapping_mul(x, W(load_as(b[i]))));
    } else if (sa == 1 && sb == 0) {
      const W x = load_as(*b);
      for (int64_t i = 0; i < n; ++i)
        acc[i] = wrapping_add(acc[i], wrapping_mul(W(load_as(a[i])), x));
    } else if (sa == 1 && sb == 1) {
      for (int64_t i = 0; i < n; ++i) {
        acc[i] = wrapping_add(acc[i], wrapping_mul(W(load_as(a[i])), W(load_as(b[i]))));
      }
    } else {
      for (int64_t i = 0; i < n; ++i) {
        acc[i] = wrapping_add(acc[i], wrapping_mul(W(load_as(a[i * sa])), W(load_as(b[i * sb]))));
      }
    }
  }

  KernelArgs args_;
  bool adds_;
  Nest kept_, summed_;  ///< operands A, B, C
  bool strips_ = false;
};

class Nothing final : public Kernel {
 public:
  void run() override {}
};

}  // namespace

bool takes_epilogue(const Step& step) {
  const DType dtype = step.out.at(0).dtype;
  return (dtype == DType::float32 || dtype == DType::float64) && step.as<MatmulSpec>().sums < 0 &&
         step.in[0].dtype == dtype && step.in[1].dtype == dtype && adds_in_place(step);
}

int64_t matmul_workspace(const Step& step) {
  if (empty(step.in.at(0)) || empty(step.in.at(1)) || empty(step.out.at(0))) return 0;
  if (step.order.is_strict()) return ordered_matmul_workspace(step);
  if (const auto plan = split_k_plan(step)) return split_k_workspace(*plan);
  return plan_of(step).workspace;
}

Sharing share_matmul(const Step& step, int threads) {
  const auto& kinds = step.as<MatmulSpec>().kinds;
  const View& out = step.out.at(0);
  if (empty(step.in.at(0)) || empty(step.in.at(1)) || empty(out)) return {};
  double products = static_cast<double>(out.elements());
  int64_t rows = 1, columns = 1;
  for (size_t d = 0; d < kinds.size(); ++d) {
    if (kinds[d] == kSum)
      products *= static_cast<double>(std::max(step.in[0].sizes[d], step.in[1].sizes[d]));
    if (kinds[d] == kRow) rows *= out.sizes[d];
    if (kinds[d] == kColumn) columns *= out.sizes[d];
  }
  // Every thread reads, and the library packs, all of the matrix that is not cut.
  const bool by_rows = (columns <= kFewRows && rows > columns) || rows >= kUneven * columns,
             by_columns = !by_rows && (rows <= kFewRows || columns >= kUneven * rows);
  std::vector<char> batch, free;
  for (const int64_t kind : kinds) {
    batch.push_back(kind == kBatch);
    free.push_back((kind == kRow && !by_columns) || (kind == kColumn && !by_rows));
  }
  if (step.order.is_strict()) {
    for (size_t d = 0; d < free.size(); ++d) free[d] |= batch[d];
    return {outermost_dim(out, free, threads), products * 0.03};
  }
  double bytes = 0;
  for (const View* v : {&step.in[0], &step.in[1], &out})
    bytes += static_cast<double>(v->elements() * size_of(v->dtype));
  const double ns = std::max(products * 0.03, bytes * 0.05);
  if (split_k_plan(step)) return {-1, ns};
  // Products of other batch elements change no bit of one; those of other rows or columns may.
  constexpr int64_t kManyProducts = 4;
  const int dim = outermost_dim(out, batch, threads),
            side = outermost_dim(out, free, kTypicalThreads);
  const int64_t products_of_dim = dim < 0 ? 1 : out.sizes[static_cast<size_t>(dim)];
  int64_t parts = 1;
  if (side >= 0) {
    const size_t d = static_cast<size_t>(side);
    parts = parts_of_matmul(kinds[d] == kRow ? rows : columns, ns);
  }
  if (products_of_dim >= kManyProducts || (parts == 1 && products_of_dim > 1)) return {dim, ns};
  return {side, ns, 0, parts};
}

std::unique_ptr<Kernel> bind_matmul(const KernelArgs& args) {
  const Step& step = *args.step;
  if (step.order.is_strict()) {
    if (empty(step.out[0])) return std::make_unique<Nothing>();
    if (empty(step.in[0]) || empty(step.in[1]))
      return std::make_unique<MatmulOfNothing>(args.out[0]);
    return bind_ordered_matmul(args);
  }
  TESSERA_CHECK(
      step.in.at(0).dtype == step.out.at(0).dtype && step.in.at(1).dtype == step.out[0].dtype,
      "contract needs operands and a result of one dtype");
  const bool adds = !step.pointwise.code.empty();
  TESSERA_CHECK(!adds || takes_epilogue(step), "matmul has an epilogue that the CPU cannot run");
  if (empty(step.out[0])) return std::make_unique<Nothing>();
  if (adds && (empty(step.in[0]) || empty(step.in[1]))) return std::make_unique<Nothing>();
  if (empty(step.in[0]) || empty(step.in[1])) return std::make_unique<MatmulOfNothing>(args.out[0]);
  if (const auto plan = split_k_plan(step)) return bind_split_k(args, *plan);
  GemmPlan plan = plan_of(step);
  if (step.out[0].dtype == DType::bfloat16) {
    GemmPlan narrow = plan_of(step, true);
    const bool fits = !narrow.loops && narrow.workspace <= plan.workspace;
    if (fits && (!plan.loops || is_thin(narrow.gemm))) {
      auto products =
          BfloatGemm::prepare(narrow.gemm, narrow.packed[kC] ? DType::float32 : DType::bfloat16);
      if (products)
        return std::make_unique<MatmulByGemm>(args, std::move(narrow), std::move(products));
    }
  }
  if (plan.loops) return std::make_unique<MatmulByLoops>(args);
  return std::make_unique<MatmulByGemm>(args, std::move(plan));
}

}  // namespace tessera::cpu
