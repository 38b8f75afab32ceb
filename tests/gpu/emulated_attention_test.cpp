// Attention of the emulated GPU, which tests compare with.
#include <cmath>
#include <random>

#include "base/float16.h"
#include "gpu/emulator.h"
#include "support/catch.h"

namespace tessera::test {

namespace TESSERA_FILE {

/// Rows of float16 on the GPU: [position, head, width] of one batch entry behind the other.
struct Rows {
  Rows(CudaEmulator& gpu, int64_t batch, int64_t heads, int64_t positions, int64_t width)
      : strides{positions * heads * width, width, heads * width},
        at(static_cast<Float16*>(gpu.memory().allocate(batch * strides.batch * 2))) {}
  double get(int64_t b, int64_t h, int64_t i, int64_t d) const {
    return to_float(at[b * strides.batch + h * strides.head + i * strides.position + d]);
  }
  CudaAttend::Strides strides;
  Float16* at;
};

constexpr int64_t kBatch = 2, kHeads = 4, kKeyHeads = 2, kQueries = 5, kKeys = 7, kWidth = 8;
constexpr double kScale = 0.5;

struct Operands {
  explicit Operands(CudaEmulator& gpu) : gpu(gpu) {
    std::mt19937 random{3};
    std::normal_distribution<float> normal;
    for (const Rows* r : {&query, &grad, &key, &value}) {
      for (int64_t i = 0; i < kBatch * r->strides.batch; ++i) r->at[i] = to_float16(normal(random));
    }
  }
  Rows of_queries() { return Rows(gpu, kBatch, kHeads, kQueries, kWidth); }
  Rows of_keys() { return Rows(gpu, kBatch, kKeyHeads, kKeys, kWidth); }

  CudaEmulator& gpu;
  Rows query = of_queries(), out = of_queries(), grad = of_queries(), query_grad = of_queries();
  Rows key = of_keys(), value = of_keys(), key_grad = of_keys(), value_grad = of_keys();
  float* log_sum = static_cast<float*>(gpu.memory().allocate(kBatch * kHeads * kQueries * 4));
  static constexpr int64_t kWorkspace = 1 << 20;
  void* workspace = gpu.memory().allocate(kWorkspace);
};

void run(CudaEmulator& gpu, CudaStream stream, const Operands& o, bool causal, bool backward) {
  CudaAttend a;
  a.dtype = DType::float16;
  a.backward = backward;
  a.causal = causal;
  a.scale = kScale;
  a.batch = kBatch;
  a.heads = kHeads;
  a.key_heads = kKeyHeads;
  a.queries = kQueries;
  a.keys = kKeys;
  a.width = kWidth;
  a.query = a.out = a.grad = a.query_grad = o.query.strides;
  a.key = a.value = a.key_grad = a.value_grad = o.key.strides;
  a.log_sum = {kHeads * kQueries, kQueries, 1};
  std::string why;
  REQUIRE(gpu.attention(why) != nullptr);
  CudaAttentionApi& library = *gpu.attention(why);
  CHECK(library.prepare(a, gpu.attention_bytes - 1, why) == nullptr);
  CHECK(why.find("bytes") != std::string::npos);
  const CudaAttention attention = library.prepare(a, Operands::kWorkspace, why);
  REQUIRE(attention != nullptr);
  library.run(attention,
              {o.query.at, o.key.at, o.value.at, o.out.at, o.log_sum, o.grad.at, o.query_grad.at,
               o.key_grad.at, o.value_grad.at},
              o.workspace, stream);
  library.release(attention);
}

void check_forward(const Operands& o, bool causal) {
  for (int64_t row = 0; row < kBatch * kHeads * kQueries; ++row) {
    const int64_t i = row % kQueries, h = row / kQueries % kHeads, b = row / kQueries / kHeads;
    const int64_t shared = h / (kHeads / kKeyHeads);
    double sum = 0, first = 0;
    for (int64_t j = 0; j < (causal ? i + 1 : kKeys); ++j) {
      double logit = 0;
      for (int64_t d = 0; d < kWidth; ++d)
        logit += kScale * o.query.get(b, h, i, d) * o.key.get(b, shared, j, d);
      sum += std::exp(logit);
      first += std::exp(logit) * o.value.get(b, shared, j, 0);
    }
    CHECK(o.log_sum[row] == Approx(std::log(sum)).margin(1e-5));
    CHECK(o.out.get(b, h, i, 0) == Approx(first / sum).margin(2e-3));
  }
}

/// The sum of the products of two tensors' elements, or of one's elements.
double sum_of(const Rows& a, const Rows* b = nullptr) {
  double sum = 0;
  for (int64_t i = 0; i < kBatch * a.strides.batch; ++i)
    sum += to_float(a.at[i]) * (b == nullptr ? 1 : to_float(b->at[i]));
  return sum;
}

TEST_CASE("attention of the emulated GPU, and by graphs of cuDNN, has the sums that it must have",
          "[cuda]") {
  const bool direct = GENERATE(true, false);
  CudaEmulator gpu;
  gpu.has_cudnn = true;
  gpu.direct = gpu.direct || direct;
  gpu.cudnn_version = 91600;  // the first that has these gradients
  gpu.contexts().use(0);
  CudaStream stream = gpu.streams().make_stream();
  const Operands o(gpu);
  for (const bool causal : {false, true}) {
    run(gpu, stream, o, causal, false);
    run(gpu, stream, o, causal, true);
    gpu.streams().synchronize(stream);
    check_forward(o, causal);
    // A factor of all queries is one of all keys; the shares of a query add up to 1.
    const double by_query = sum_of(o.query, &o.query_grad);
    CHECK(by_query == Approx(sum_of(o.key, &o.key_grad)).margin(0.05));
    CHECK(std::abs(by_query) > 0.2);
    CHECK(sum_of(o.value_grad) == Approx(sum_of(o.grad)).margin(0.1));
    // The loss is linear in the values.
    CHECK(sum_of(o.value, &o.value_grad) == Approx(sum_of(o.grad, &o.out)).margin(0.1));
  }
  CHECK(gpu.attentions == 4);
  CHECK(gpu.take_misuses().empty());
}

TEST_CASE("cuDNN's attention before 9.10 gets finite logits for keys that are not seen", "[cuda]") {
  CudaEmulator gpu;
  gpu.has_cudnn = true;
  gpu.cudnn_version = 90100;
  gpu.contexts().use(0);
  CudaStream stream = gpu.streams().make_stream();
  const Operands o(gpu);
  run(gpu, stream, o, true, false);
  gpu.streams().synchronize(stream);
  check_forward(o, true);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test
