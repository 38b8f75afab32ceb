// What cuBLASLt's calls mean, on the host and in float32: for the test of the code that makes them.
// Matrices are column-major. D = act(op(A) op(B) + beta C + bias), the bias an element for each row
// of D; aux lies as D with a leading dim of its own. The gradient of a bias is the sums of op(A) or
// op(B) over k.
#include <cublasLt.h>

#include <cmath>
#include <cstring>

#include "base/float8.h"
#include "gpu/cublaslt/attributes.h"

namespace {

using tessera::test::Attributes;
using tessera::test::drop;
using tessera::test::get;
using tessera::test::make;
using tessera::test::set;

constexpr int kRows = 1000, kColumns = 1001, kLeading = 1002, kType = 1003;

struct Matrix {
  explicit Matrix(cublasLtMatrixLayout_t layout) {
    const auto& a = *reinterpret_cast<const Attributes*>(layout);
    rows = get<uint64_t>(a, kRows, 0);
    columns = get<uint64_t>(a, kColumns, 0);
    leading = get<int64_t>(a, kLeading, 0);
    type = get<cudaDataType>(a, kType, CUDA_R_32F);
    batch = get<int32_t>(a, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1);
    stride = get<int64_t>(a, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0);
  }
  uint64_t rows, columns;
  int64_t leading, stride;
  int32_t batch;
  cudaDataType type;
  bool has_bytes() const { return type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2; }
  double load(const void* from, int64_t i) const {
    const uint8_t byte = static_cast<const uint8_t*>(from)[has_bytes() ? i : 0];
    return type == CUDA_R_8F_E4M3   ? tessera::from_e4m3(byte)
           : type == CUDA_R_8F_E5M2 ? tessera::from_e5m2(byte)
                                    : static_cast<const float*>(from)[i];
  }
  int64_t at(int64_t x, uint64_t i, uint64_t j) const {
    return x * stride + static_cast<int64_t>(j) * leading + static_cast<int64_t>(i);
  }
};

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}
double slope(double x) { return (gelu(x + 1e-5) - gelu(x - 1e-5)) / 2e-5; }

int used = -1;  ///< the number of the algorithm of the last matmul

}  // namespace

extern "C" {

int fake_algorithm_used() { return used; }

size_t cublasLtGetVersion() { return 1; }
const char* cublasLtGetStatusString(cublasStatus_t) { return "an error"; }
cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(&used);
  return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* d, cublasComputeType_t,
                                        cudaDataType_t) {
  return make(d);
}
cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) { return drop(d); }
cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                              cublasLtMatmulDescAttributes_t which,
                                              const void* value, size_t bytes) {
  return set(d, which, value, bytes);
}
cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* l, cudaDataType type,
                                          uint64_t rows, uint64_t columns, int64_t leading) {
  make(l);
  set(*l, kRows, &rows, sizeof(rows));
  set(*l, kColumns, &columns, sizeof(columns));
  set(*l, kType, &type, sizeof(type));
  return set(*l, kLeading, &leading, sizeof(leading));
}
cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) { return drop(l); }
cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l,
                                                cublasLtMatrixLayoutAttribute_t which,
                                                const void* value, size_t bytes) {
  return set(l, which, value, bytes);
}
cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* p) { return make(p); }
cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) { return drop(p); }
cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                    cublasLtMatmulPreferenceAttributes_t which,
                                                    const void* value, size_t bytes) {
  return set(p, which, value, bytes);
}

/// Three algorithms, of which the second cannot be had. Of bytes only the transposed first matrix
/// by the second, all sizes multiples of 16, and at most one in e5m2.
cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how,
                                              cublasLtMatrixLayout_t la, cublasLtMatrixLayout_t lb,
                                              cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                              cublasLtMatmulPreference_t, int most,
                                              cublasLtMatmulHeuristicResult_t results[],
                                              int* count) {
  const auto& d = *reinterpret_cast<const Attributes*>(how);
  const Matrix a(la), b(lb);
  const bool ta = get(d, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T,
             tb = get(d, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  *count = 0;
  if (a.has_bytes() != b.has_bytes()) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (a.has_bytes()) {
    const uint64_t sizes = a.rows | a.columns | b.columns | static_cast<uint64_t>(a.leading) |
                           static_cast<uint64_t>(b.leading);
    if (!ta || tb || sizes % 16 != 0 || (a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2))
      return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  for (*count = 0; *count < most && *count < 3; ++*count) {
    cublasLtMatmulHeuristicResult_t& r = results[*count];
    r = {};
    r.algo.data[7] = static_cast<uint64_t>(*count);
    r.state = *count == 1 ? CUBLAS_STATUS_NOT_SUPPORTED : CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t, cublasLtMatmulDesc_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                       const cublasLtMatmulAlgo_t* algorithm,
                                       cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  return algorithm->data[7] < 3 ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t, cublasLtMatmulDesc_t how, const void* alpha,
                              const void* pa, cublasLtMatrixLayout_t la, const void* pb,
                              cublasLtMatrixLayout_t lb, const void* beta, const void* pc,
                              cublasLtMatrixLayout_t lc, void* pd, cublasLtMatrixLayout_t ld,
                              const cublasLtMatmulAlgo_t* algorithm, void*, size_t, cudaStream_t) {
  const auto& d = *reinterpret_cast<const Attributes*>(how);
  const bool ta = get(d, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T,
             tb = get(d, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  const uint32_t act = get<uint32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  const auto* bias = get<const float*>(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr);
  auto* aux = get<float*>(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, nullptr);
  const int64_t aux_leading = get<int64_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0);
  const Matrix a(la), b(lb), c(lc), to(ld);
  const uint64_t inner = ta ? a.rows : a.columns;
  if ((ta ? a.columns : a.rows) != to.rows || (tb ? b.rows : b.columns) != to.columns ||
      (tb ? b.columns : b.rows) != inner)
    return CUBLAS_STATUS_INVALID_VALUE;
  used = static_cast<int>(algorithm->data[7]);
  for (int64_t x = 0; x < to.batch; ++x) {
    for (uint64_t i = 0; i < to.rows; ++i) {
      for (uint64_t j = 0; j < to.columns; ++j) {
        double sum = 0;
        for (uint64_t k = 0; k < inner; ++k) {
          sum += a.load(pa, ta ? a.at(x, k, i) : a.at(x, i, k)) *
                 b.load(pb, tb ? b.at(x, j, k) : b.at(x, k, j));
        }
        sum *= *static_cast<const float*>(alpha);
        const float scale = *static_cast<const float*>(beta);
        if (scale != 0) sum += scale * static_cast<const float*>(pc)[c.at(x, i, j)];
        if (act & CUBLASLT_EPILOGUE_BIAS) sum += bias[i];
        float* side = aux == nullptr ? nullptr : aux + static_cast<int64_t>(j) * aux_leading + i;
        if (act == CUBLASLT_EPILOGUE_DGELU) {
          sum *= slope(*side);
        } else if (act & CUBLASLT_EPILOGUE_GELU) {
          if (act & 128) *side = static_cast<float>(sum);
          sum = gelu(sum);
        }
        static_cast<float*>(pd)[to.at(x, i, j)] = static_cast<float>(sum);
      }
    }
    const bool of_a = act == CUBLASLT_EPILOGUE_BGRADA;
    if (!of_a && act != CUBLASLT_EPILOGUE_BGRADB) continue;
    float* sums = get<float*>(d, CUBLASLT_MATMUL_DESC_BIAS_POINTER, nullptr) +
                  x * get<int64_t>(d, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 0);
    for (uint64_t i = 0; i < (of_a ? to.rows : to.columns); ++i) {
      double sum = 0;
      for (uint64_t k = 0; k < inner; ++k)
        sum += of_a ? a.load(pa, ta ? a.at(x, k, i) : a.at(x, i, k))
                    : b.load(pb, tb ? b.at(x, i, k) : b.at(x, k, i));
      sums[i] = static_cast<float>(sum);
    }
  }
  return CUBLAS_STATUS_SUCCESS;
}
}
