// Matrix products of the emulated card, and the ranges that its profiler shows.
#include "base/fail.h"
#include "cuda_emulator.h"
#include "kernels/float16.h"

namespace tessera::test {

namespace {

/// A matrix product by three loops.
template <class T, class W, class Load, class Store>
void multiply(const CudaGemm& g, const void* pa, const void* pb, void* pc, Load load, Store store) {
  const T *a = static_cast<const T*>(pa), *b = static_cast<const T*>(pb);
  T* c = static_cast<T*>(pc);
  for (int64_t x = 0; x < g.batch; ++x, a += g.stride_a, b += g.stride_b, c += g.stride_c) {
    for (int64_t i = 0; i < g.m; ++i) {
      for (int64_t j = 0; j < g.n; ++j) {
        W sum = 0;
        for (int64_t k = 0; k < g.k; ++k) {
          sum += load(a[g.transposed_a ? k * g.lda + i : i * g.lda + k]) *
                 load(b[g.transposed_b ? j * g.ldb + k : k * g.ldb + j]);
        }
        c[i * g.ldc + j] = store(sum);
      }
    }
  }
}

CudaRange range(const void* at, int64_t rows, int64_t columns, int64_t leading, int64_t stride,
                const CudaGemm& g) {
  return {at, ((g.batch - 1) * stride + (rows - 1) * leading + columns) * size_of(g.dtype)};
}

}  // namespace

CudaProduct CudaEmulator::prepare(const CudaGemm& gemm) {
  if (!has_products) return nullptr;
  if (gemm.tf32 && gemm.dtype == DType::float32) ++tf32_products;
  return reinterpret_cast<CudaProduct>(new CudaGemm(gemm));
}

void CudaEmulator::run(CudaProduct product, const void* a, const void* b, void* c, void* workspace,
                       CudaStream s) {
  const CudaGemm g = *reinterpret_cast<CudaGemm*>(product);
  auto aligned = [](const void* at, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(at) % static_cast<uintptr_t>(bytes) == 0;
  };
  check(aligned(a, g.align_a) && aligned(b, g.align_b) && aligned(c, g.align_c),
        "a product's operands are not aligned as was said");
  ++products;
  Work work{"product", {}, {}, {}};
  work.reads = {g.transposed_a ? range(a, g.k, g.m, g.lda, g.stride_a, g)
                               : range(a, g.m, g.k, g.lda, g.stride_a, g),
                g.transposed_b ? range(b, g.n, g.k, g.ldb, g.stride_b, g)
                               : range(b, g.k, g.n, g.ldb, g.stride_b, g)};
  work.writes = {range(c, g.m, g.n, g.ldc, g.stride_c, g), {workspace, product_workspace()}};
  work.run = [=] {
    auto same = [](auto x) { return x; };
    if (g.dtype == DType::float64) return multiply<double, double>(g, a, b, c, same, same);
    if (g.dtype == DType::float32) return multiply<float, float>(g, a, b, c, same, same);
    auto narrow = [&](auto type) {
      using T = decltype(type);
      multiply<T, float>(
          g, a, b, c, [](T x) { return to_float(x); }, [](float x) { return narrowed(x, T{}); });
    };
    g.dtype == DType::float16 ? narrow(Float16{}) : narrow(BFloat16{});
  };
  submit(s, std::move(work));
}

void CudaEmulator::release(CudaProduct product) { delete reinterpret_cast<CudaGemm*>(product); }

void CudaEmulator::push_range(const char* text) {
  const std::lock_guard lock(mutex_);
  shown.emplace_back(static_cast<int>(open_ranges++), text);
}
void CudaEmulator::pop_range() { --open_ranges; }

}  // namespace tessera::test
