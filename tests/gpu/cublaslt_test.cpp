// The code that calls cuBLASLt, with a library that does on the host what its documentation says:
// the same matmuls as the emulated GPU's.
#include <dlfcn.h>

#include <cmath>
#include <random>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "support/apart.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

using Multiply = bool (*)(const std::string& library, const CudaGemm& gemm, const void* a,
                          const void* b, const void* added, void* c, std::string& log);

/// Memory of an emulated GPU with random numbers, a piece an operand.
struct Pieces {
  explicit Pieces(CudaEmulator& gpu) : gpu(gpu) {}
  float* add(int64_t count) {
    auto* at = static_cast<float*>(gpu.memory().allocate(count * 4));
    for (int64_t i = 0; i < count; ++i) at[i] = static_cast<float>(normal(random));
    return at;
  }
  CudaEmulator& gpu;
  std::mt19937 random{7};
  std::normal_distribution<double> normal;
};

/// A matmul in 8 bits, by both.
double difference_in_bytes(CudaEmulator& gpu, CudaStream stream, void* workspace, Multiply multiply,
                           CudaGemm g) {
  Pieces pieces(gpu);
  g.m = 16, g.n = 32, g.k = 48;
  g.lda = g.ldb = 64, g.ldc = 36;
  g.batch = 2;
  g.stride_a = 16 * 64, g.stride_b = 32 * 64, g.stride_c = 16 * 36;
  g.align_a = g.align_b = g.align_c = 16;
  auto *a = reinterpret_cast<uint8_t*>(pieces.add(512)),
       *b = reinterpret_cast<uint8_t*>(pieces.add(1024));
  for (int64_t i = 0; i < 2048; ++i) a[i] = static_cast<uint8_t>(pieces.random() & 0x3f);
  for (int64_t i = 0; i < 4096; ++i) b[i] = static_cast<uint8_t>(pieces.random() & 0xbf);
  const int64_t count = 2 * 16 * 36;
  float *first = pieces.add(count), *second = pieces.add(count);
  std::copy(first, first + count, second);
  std::string log;
  const bool done = multiply(TESSERA_CUBLASLT, g, a, b, g.adds ? first : nullptr, first, log);
  INFO(log);
  REQUIRE(done);
  const CudaMatmul matmul = gpu.blas().prepare(g);
  gpu.blas().run(matmul, a, b, g.adds ? second : nullptr, second, workspace, stream);
  gpu.streams().synchronize(stream);
  gpu.blas().release(matmul);
  double most = 0, largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, apart(first[i], second[i]));
    largest = std::max<double>(largest, std::abs(first[i]));
  }
  return most / largest;
}

/// A matmul of random matrices with gaps behind their rows, by both; the largest difference of
/// what is written.
double difference(CudaEmulator& gpu, CudaStream stream, void* workspace, Multiply multiply,
                  CudaGemm g) {
  Pieces pieces(gpu);
  g.m = 5;
  g.n = 8;
  g.k = 3;
  g.lda = (g.transposed_a ? g.m : g.k) + 1;
  g.ldb = (g.transposed_b ? g.k : g.n) + 2;
  g.ldc = g.n + 8;
  const int64_t count = g.batch * 200;
  g.stride_a = 100;
  g.stride_b = 120;
  g.stride_c = 150;
  const float *a = pieces.add(count), *b = pieces.add(count), *added = pieces.add(count);
  float *first = pieces.add(count), *second = pieces.add(count), *kept = pieces.add(count);
  std::copy(first, first + count, second);
  std::vector<float> sides(kept, kept + count);
  if (g.bias != nullptr) g.bias = pieces.add(count);
  if (g.before != nullptr) g.before = pieces.add(count);
  if (g.kept != nullptr) g.kept = kept;
  if (g.sums != nullptr) g.sums = kept, g.stride_sums = 16;
  std::string log;
  const void* from = g.adds ? added : nullptr;
  const bool done = multiply(TESSERA_CUBLASLT, g, a, b, from, first, log);
  INFO(log);
  REQUIRE(done);
  std::swap_ranges(kept, kept + count, sides.begin());
  const CudaMatmul matmul = gpu.blas().prepare(g);
  gpu.blas().run(matmul, a, b, from, second, workspace, stream);
  gpu.streams().synchronize(stream);
  gpu.blas().release(matmul);
  double most = 0;
  for (int64_t i = 0; i < count; ++i) {
    most = std::max(most, apart(first[i], second[i]));
    most = std::max(most, apart(kept[i], sides[static_cast<size_t>(i)]));
  }
  return most;
}

TEST_CASE("the calls of cuBLASLt mean the matmuls that they are made for", "[cuda]") {
  void* library = dlopen(TESSERA_CUBLASLT, RTLD_NOW | RTLD_LOCAL);
  void* cuda = dlopen(TESSERA_CUDA_LIBRARY, RTLD_NOW | RTLD_LOCAL);
  REQUIRE(library != nullptr);
  REQUIRE(cuda != nullptr);
  const auto multiply = reinterpret_cast<Multiply>(dlsym(cuda, "tessera_cuda_multiply"));
  const auto used = reinterpret_cast<int (*)()>(dlsym(library, "fake_algorithm_used"));
  CudaEmulator gpu;
  gpu.contexts().use(0);
  CudaStream stream = gpu.streams().make_stream();
  void* workspace = gpu.memory().allocate(gpu.blas().workspace());
  float mark = 0;
  for (int way = 0; way < 4; ++way) {
    CudaGemm plain;
    plain.transposed_a = way % 2 == 1;
    plain.transposed_b = way / 2 == 1;
    const auto check = [&](auto change) {
      CudaGemm g = plain;
      change(g);
      CHECK(difference(gpu, stream, workspace, multiply, g) < 1e-5);
      CHECK(used() == 2);  // the last that the library finds
    };
    check([](CudaGemm& g) { g.batch = 3; });
    check([](CudaGemm& g) { g.adds = true, g.batch = 2; });
    check([&](CudaGemm& g) { g.bias = &mark; });
    check([&](CudaGemm& g) { g.bias = &mark, g.adds = true; });
    check([&](CudaGemm& g) { g.gelu = true; });
    check([&](CudaGemm& g) { g.gelu = true, g.bias = &mark; });
    check([&](CudaGemm& g) { g.gelu = true, g.kept = &mark; });
    check([&](CudaGemm& g) { g.gelu = true, g.bias = &mark, g.kept = &mark; });
    check([&](CudaGemm& g) { g.before = &mark; });
    for (const bool of_a : {false, true}) {
      check([&](CudaGemm& g) { g.sums = &mark, g.sums_of_a = of_a; });
      check([&](CudaGemm& g) { g.sums = &mark, g.sums_of_a = of_a, g.batch = 3; });
    }
  }
  CudaGemm bytes;
  bytes.transposed_b = true;
  for (const auto& [of_a, of_b] : {std::pair{Float8::e4m3, Float8::e4m3},
                                   {Float8::e5m2, Float8::e4m3},
                                   {Float8::e4m3, Float8::e5m2}}) {
    for (const bool adds : {false, true}) {
      bytes.float8 = {of_a, of_b};
      bytes.adds = adds;
      CHECK(difference_in_bytes(gpu, stream, workspace, multiply, bytes) < 1e-5);
      CHECK(used() == 2);
    }
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
