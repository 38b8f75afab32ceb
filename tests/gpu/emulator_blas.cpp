#include "gpu/emulator_blas.h"

#include "base/fail.h"
#include "base/float8.h"
#include "kernels/common/pointwise_math.h"

namespace tessera::test {

namespace {

struct Prepared {
  CudaGemm gemm;
  size_t algorithm = 0;
};

struct Operands {
  const void *a, *b, *added;
  void* c;
};

/// Elements of a matmul in 8 bits.
struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};
float to_float(E4m3 x) { return from_e4m3(x.bits); }
float to_float(E5m2 x) { return from_e5m2(x.bits); }

/// A matmul by three loops of operands of types T and U, with its epilogue in type W and a
/// result of type R.
template <class T, class R, class W, class U = T>
void multiply(const CudaGemm& g, const Operands& at) {
  const T* a = static_cast<const T*>(at.a);
  const U* b = static_cast<const U*>(at.b);
  const R *added = static_cast<const R*>(at.added), *bias = static_cast<const R*>(g.bias),
          *before = static_cast<const R*>(g.before);
  R *c = static_cast<R*>(at.c), *kept = static_cast<R*>(g.kept);
  const auto load = [](auto x) {
    if constexpr (std::is_arithmetic_v<decltype(x)>)
      return static_cast<W>(x);
    else
      return static_cast<W>(to_float(x));
  };
  const auto store = [](W x) {
    if constexpr (std::is_arithmetic_v<R>)
      return static_cast<R>(x);
    else
      return narrowed(static_cast<float>(x), R{});
  };
  for (int64_t x = 0; x < g.batch; ++x, a += g.stride_a, b += g.stride_b, c += g.stride_c) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        W sum = 0;
        for (int64_t k = 0; k < g.k; ++k) {
          sum += load(a[g.transposed_a ? k * g.lda + i : i * g.lda + k]) *
                 load(b[g.transposed_b ? j * g.ldb + k : k * g.ldb + j]);
        }
        const int64_t to = i * g.ldc + j;
        if (g.adds) sum += load(added[x * g.stride_c + to]);
        if (bias != nullptr) sum += load(bias[j]);
        if (kept != nullptr) kept[to] = store(sum);
        if (g.gelu) sum = math::gelu(sum);
        if (before != nullptr) sum *= math::gelu_grad(load(before[to]));
        c[to] = store(sum);
      }
    }
    for (int64_t i = 0; g.sums != nullptr && i < (g.sums_of_a ? g.m : g.n); ++i) {
      W sum = 0;
      for (int64_t k = 0; k < g.k; ++k)
        sum += g.sums_of_a ? load(a[g.transposed_a ? k * g.lda + i : i * g.lda + k])
                           : load(b[g.transposed_b ? i * g.ldb + k : k * g.ldb + i]);
      const int64_t to = x * g.stride_sums + i;
      if (g.sums_type == g.result)
        static_cast<R*>(g.sums)[to] = store(sum);
      else if constexpr (std::is_same_v<T, BFloat16> || std::is_same_v<T, Float16>)
        static_cast<T*>(g.sums)[to] = narrowed(static_cast<float>(sum), T{});
    }
  }
}

template <class T>
void multiply_narrow(const CudaGemm& g, const Operands& at) {
  g.result == g.dtype ? multiply<T, T, float>(g, at) : multiply<T, float, float>(g, at);
}

template <class R>
void multiply_bytes(const CudaGemm& g, const Operands& at) {
  const bool a = g.float8->at(0) == Float8::e5m2, b = g.float8->at(1) == Float8::e5m2;
  a   ? multiply<E5m2, R, float, E4m3>(g, at)
  : b ? multiply<E4m3, R, float, E5m2>(g, at)
      : multiply<E4m3, R, float, E4m3>(g, at);
}

/// What cuBLASLt can multiply in 8 bits.
bool suits_bytes(const CudaGemm& g) {
  const int64_t sizes =
      g.m | g.n | g.k | g.lda | g.ldb | g.stride_a | g.stride_b | g.align_a % 16 | g.align_b % 16;
  return !g.transposed_a && g.transposed_b && sizes % 16 == 0 && g.dtype != DType::float64 &&
         (g.float8->at(0) == Float8::e4m3 || g.float8->at(1) == Float8::e4m3);
}

bool has_epilogue(const CudaGemm& g) {
  return g.bias != nullptr || g.gelu || g.before != nullptr || g.sums != nullptr;
}

CudaRange range(const void* at, int64_t rows, int64_t columns, int64_t leading, int64_t stride,
                const CudaGemm& g, DType type) {
  return {at, ((g.batch - 1) * stride + (rows - 1) * leading + columns) * size_of(type)};
}

}  // namespace

std::string EmulatedBlas::why_not(const CudaGemm& gemm) const {
  const EmulatorSettings& settings = state_.settings;
  if (!settings.has_matmuls) return "there are no matmuls";
  if (has_epilogue(gemm) && !settings.has_epilogues) return "there are no epilogues";
  if (!gemm.float8) return "";
  if (!settings.has_float8) return "there are no matmuls in 8 bits";
  return suits_bytes(gemm) && !has_epilogue(gemm) ? "" : "none in 8 bits that is so";
}

void EmulatedBlas::count(const CudaGemm& gemm) {
  EmulatorCounts& counts = state_.counts;
  if (gemm.float8) ++counts.float8_matmuls;
  if (gemm.tf32 && gemm.dtype == DType::float32) ++counts.tf32_matmuls;
  if (has_epilogue(gemm)) ++counts.epilogues;
  if (gemm.adds) ++counts.sums;
}

CudaMatmul EmulatedBlas::prepare(const CudaGemm& gemm) {
  const std::string why = why_not(gemm);
  TESSERA_CHECK(why != "none in 8 bits that is so",
                "a matmul in 8 bits that the library does not have");
  if (!why.empty()) return nullptr;
  for (const void* side : {gemm.bias, static_cast<const void*>(gemm.kept), gemm.before,
                           static_cast<const void*>(gemm.sums)})
    TESSERA_CHECK(reinterpret_cast<uintptr_t>(side) % 16 == 0, "an epilogue's operand lies oddly");
  count(gemm);
  return reinterpret_cast<CudaMatmul>(new Prepared{gemm});
}

std::vector<std::string> EmulatedBlas::algorithms(CudaMatmul, int most) {
  const std::vector<double>& algorithm_seconds = state_.settings.algorithm_seconds;
  std::vector<std::string> words;
  if (algorithm_seconds.size() < 2) return words;  // nothing to choose from
  for (size_t k = 0; k < algorithm_seconds.size() && words.size() < static_cast<size_t>(most); ++k)
    words.push_back(fmt::format("a{}", k));
  return words;
}

bool EmulatedBlas::use_algorithm(CudaMatmul matmul, const std::string& algorithm) {
  const std::lock_guard lock(state_.mutex);
  for (size_t k = 0; k < state_.settings.algorithm_seconds.size(); ++k) {
    if (algorithm != fmt::format("a{}", k)) continue;
    reinterpret_cast<Prepared*>(matmul)->algorithm = k;
    state_.counts.used.push_back(algorithm);
    return true;
  }
  return false;
}

void EmulatedBlas::run(CudaMatmul matmul, const void* a, const void* b, const void* added, void* c,
                       void* workspace, CudaStream stream) {
  const Prepared& p = *reinterpret_cast<Prepared*>(matmul);
  run(p.gemm, p.algorithm, a, b, added, c, workspace, stream);
}

void EmulatedBlas::run(const CudaGemm& g, size_t algorithm, const void* a, const void* b,
                       const void* added, void* c, void* workspace, CudaStream s) {
  auto aligned = [](const void* at, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(bytes) == 0;
  };
  TESSERA_CHECK(aligned(a, g.align_a) && aligned(b, g.align_b) && aligned(c, g.align_c) &&
                    (added == nullptr || aligned(added, g.align_c)),
                "a matmul's operands are not aligned as was said");
  TESSERA_CHECK((added != nullptr) == g.adds, "a matmul has not the addend that was said");
  ++state_.counts.matmuls;
  EmulatorState::Work work{"matmul", {}, {}, {}};
  const CudaRange result = range(c, g.m, g.n, g.ldc, g.stride_c, g, g.result);
  const DType type = g.float8 ? DType::uint8 : g.dtype;
  work.reads = {g.transposed_a ? range(a, g.k, g.m, g.lda, g.stride_a, g, type)
                               : range(a, g.m, g.k, g.lda, g.stride_a, g, type),
                g.transposed_b ? range(b, g.n, g.k, g.ldb, g.stride_b, g, type)
                               : range(b, g.k, g.n, g.ldb, g.stride_b, g, type)};
  for (const void* side : {added, g.before}) {
    if (side != nullptr) work.reads.push_back({side, result.bytes});
  }
  if (g.bias != nullptr) work.reads.push_back({g.bias, g.n * size_of(g.result)});
  work.writes = {result, {workspace, kWorkspace}};
  if (g.kept != nullptr) work.writes.push_back({g.kept, result.bytes});
  if (g.sums != nullptr)
    work.writes.push_back({g.sums, ((g.batch - 1) * g.stride_sums + (g.sums_of_a ? g.m : g.n)) *
                                       size_of(g.sums_type)});
  const double seconds = state_.settings.algorithm_seconds.at(algorithm) +
                         (has_epilogue(g) ? state_.settings.epilogue_seconds : 0);
  work.run = [this, seconds, g = g, at = Operands{a, b, added, c}] {
    {
      const std::lock_guard lock(state_.mutex);
      state_.slept += seconds;
    }
    if (g.float8) {
      return g.result == DType::float32    ? multiply_bytes<float>(g, at)
             : g.result == DType::bfloat16 ? multiply_bytes<BFloat16>(g, at)
                                           : multiply_bytes<Float16>(g, at);
    }
    if (g.dtype == DType::float64) return multiply<double, double, double>(g, at);
    if (g.dtype == DType::float32) return multiply<float, float, float>(g, at);
    g.dtype == DType::float16 ? multiply_narrow<Float16>(g, at) : multiply_narrow<BFloat16>(g, at);
  };
  state_.submit(s, std::move(work));
}

void EmulatedBlas::release(CudaMatmul matmul) { delete reinterpret_cast<Prepared*>(matmul); }

}  // namespace tessera::test
