#include "gpu/rules/cublaslt.h"

#include <cublasLt.h>

#include <algorithm>
#include <cstring>

#include "gpu/cublaslt/attributes.h"
#include "gpu/rules/driver.h"

namespace tessera::test::rules {

namespace {

constexpr int kRows = 1000, kColumns = 1001, kLeading = 1002, kType = 1003, kCompute = 1004;
constexpr size_t kIndex = 7, kAlignment = 6;  ///< of an algorithm's words
constexpr size_t kWorkspace = 4096, kWorkspaceAlignment = 256, kEpilogueAlignment = 16,
                 kVector = 16;  ///< bytes that fast algorithms load at once

template <class Tag>
const Attributes& of(Tag tag) {
  return *reinterpret_cast<const Attributes*>(tag);
}

size_t version() { return 130000; }
const char* text(cublasStatus_t status) {
  return status == CUBLAS_STATUS_NOT_INITIALIZED ? "CUBLAS_STATUS_NOT_INITIALIZED"
         : status == CUBLAS_STATUS_INVALID_VALUE ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == CUBLAS_STATUS_NOT_SUPPORTED ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                                 : "CUBLAS_STATUS_EXECUTION_FAILED";
}
/// A handle is of the GPU that was current; its number plus one.
cublasStatus_t create(cublasLtHandle_t* handle) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return CUBLAS_STATUS_NOT_INITIALIZED;
  *handle = reinterpret_cast<cublasLtHandle_t>(static_cast<intptr_t>(in.context->gpu) + 1);
  return CUBLAS_STATUS_SUCCESS;
}
cublasStatus_t make_desc(cublasLtMatmulDesc_t* d, cublasComputeType_t compute, cudaDataType_t) {
  make(d);
  return set(*d, kCompute, &compute, sizeof(compute));
}
cublasStatus_t make_layout(cublasLtMatrixLayout_t* l, cudaDataType type, uint64_t rows,
                           uint64_t columns, int64_t leading) {
  if (leading < static_cast<int64_t>(rows)) return CUBLAS_STATUS_INVALID_VALUE;
  make(l);
  set(*l, kRows, &rows, sizeof(rows));
  set(*l, kColumns, &columns, sizeof(columns));
  set(*l, kType, &type, sizeof(type));
  return set(*l, kLeading, &leading, sizeof(leading));
}

struct Matrix {
  explicit Matrix(cublasLtMatrixLayout_t layout)
      : rows(static_cast<int64_t>(get<uint64_t>(of(layout), kRows, 0))),
        columns(static_cast<int64_t>(get<uint64_t>(of(layout), kColumns, 0))),
        leading(get<int64_t>(of(layout), kLeading, 0)),
        stride(get<int64_t>(of(layout), CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, 0)),
        batch(get<int32_t>(of(layout), CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, 1)),
        type(get<cudaDataType>(of(layout), kType, CUDA_R_32F)) {}
  int64_t rows, columns, leading, stride, batch;
  cudaDataType type;
};

std::optional<Float8> float8_of(cudaDataType type) {
  if (type == CUDA_R_8F_E4M3) return Float8::e4m3;
  if (type == CUDA_R_8F_E5M2) return Float8::e5m2;
  return std::nullopt;
}
DType dtype_of(cudaDataType type) {
  return type == CUDA_R_64F    ? DType::float64
         : type == CUDA_R_16BF ? DType::bfloat16
         : type == CUDA_R_16F  ? DType::float16
                               : DType::float32;
}

/// The row-major matmul whose transpose this column-major one is; nothing if the library has none
/// of these types and sizes.
std::optional<CudaGemm> read(cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t first,
                             cublasLtMatrixLayout_t second, cublasLtMatrixLayout_t result) {
  const Attributes& d = of(how);
  const Matrix a(first), b(second), c(result);
  CudaGemm g;
  g.transposed_b = get(d, CUBLASLT_MATMUL_DESC_TRANSA, CUBLAS_OP_N) == CUBLAS_OP_T;
  g.transposed_a = get(d, CUBLASLT_MATMUL_DESC_TRANSB, CUBLAS_OP_N) == CUBLAS_OP_T;
  g.n = c.rows, g.m = c.columns, g.k = g.transposed_b ? a.rows : a.columns;
  g.batch = c.batch;
  g.ldb = a.leading, g.lda = b.leading, g.ldc = c.leading;
  g.stride_b = a.stride, g.stride_a = b.stride, g.stride_c = c.stride;
  if ((g.transposed_b ? a.columns : a.rows) != g.n ||
      (g.transposed_a ? b.rows : b.columns) != g.m ||
      (g.transposed_a ? b.columns : b.rows) != g.k || a.batch != c.batch || b.batch != c.batch)
    return std::nullopt;
  g.result = dtype_of(c.type);
  if (const auto of_a = float8_of(b.type), of_b = float8_of(a.type); of_a || of_b) {
    if (!of_a || !of_b) return std::nullopt;
    g.float8 = {*of_a, *of_b};
    g.align_a = g.align_b = kEpilogueAlignment;
  } else {
    g.dtype = dtype_of(a.type);
    if (a.type != b.type || (g.result != g.dtype && g.result != DType::float32))
      return std::nullopt;
  }
  const auto compute = get(d, kCompute, CUBLAS_COMPUTE_32F);
  if ((compute == CUBLAS_COMPUTE_64F) != (g.dtype == DType::float64)) return std::nullopt;
  g.tf32 = compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto epilogue = get<uint32_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE, CUBLASLT_EPILOGUE_DEFAULT);
  const auto pointer = [&](int which) { return get<void*>(d, which, nullptr); };
  void* side = pointer(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER);
  if (epilogue == CUBLASLT_EPILOGUE_BGRADA || epilogue == CUBLASLT_EPILOGUE_BGRADB) {
    g.sums = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    g.sums_of_a = epilogue == CUBLASLT_EPILOGUE_BGRADB;
    g.stride_sums = get<int64_t>(d, CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, 0);
    g.sums_type = dtype_of(
        static_cast<cudaDataType>(get<int32_t>(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, c.type)));
    if (g.sums == nullptr || (g.sums_type != g.result && g.sums_type != g.dtype) ||
        (g.batch > 1 && g.stride_sums == 0))
      return std::nullopt;
  } else if (epilogue == CUBLASLT_EPILOGUE_DGELU) {
    g.before = side;
  } else {
    if ((epilogue & CUBLASLT_EPILOGUE_BIAS) != 0)
      g.bias = pointer(CUBLASLT_MATMUL_DESC_BIAS_POINTER);
    g.gelu = (epilogue & CUBLASLT_EPILOGUE_GELU) != 0;
    if ((epilogue & CUBLASLT_EPILOGUE_GELU_AUX & ~CUBLASLT_EPILOGUE_GELU) != 0) g.kept = side;
  }
  const bool has_side = g.before != nullptr || g.kept != nullptr;
  if (has_side && get<int64_t>(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, 0) != g.ldc)
    return std::nullopt;
  for (const void* at :
       {g.bias, static_cast<const void*>(g.kept), g.before, static_cast<const void*>(g.sums)}) {
    if (reinterpret_cast<uintptr_t>(at) % kEpilogueAlignment != 0) return std::nullopt;
  }
  return g;
}

/// What it was told of an operand; 256 if nothing.
uint64_t alignment(cublasLtMatmulPreference_t preference, int which) {
  return get<uint32_t>(of(preference), which, kWorkspaceAlignment);
}

cublasStatus_t heuristic(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                         cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t, cublasLtMatrixLayout_t c,
                         cublasLtMatmulPreference_t preference, int most,
                         cublasLtMatmulHeuristicResult_t results[], int* count) {
  *count = 0;
  Machine& m = *Machine::current();
  const std::optional<CudaGemm> g = read(how, a, b, c);
  if (!g || !m.gpu.blas().why_not(*g).empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto workspace = get<uint64_t>(of(preference), CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, 0);
  if (workspace < kWorkspace) return CUBLAS_STATUS_NOT_SUPPORTED;
  uint64_t aligned = kVector;
  for (const int which :
       {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES})
    aligned = std::min(aligned, alignment(preference, which));
  const int all = static_cast<int>(m.settings.algorithm_seconds.size());
  for (; *count < most && *count < all; ++*count) {
    cublasLtMatmulHeuristicResult_t& r = results[*count];
    r = {};
    r.algo.data[kIndex] = static_cast<uint64_t>(*count);
    r.algo.data[kAlignment] = aligned < kVector ? 1 : kVector;
    r.workspaceSize = kWorkspace;
    r.state = CUBLAS_STATUS_SUCCESS;
  }
  return CUBLAS_STATUS_SUCCESS;
}

/// It does not look at alignments.
cublasStatus_t check_algorithm(cublasLtHandle_t, cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                               cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t,
                               cublasLtMatrixLayout_t c, const cublasLtMatmulAlgo_t* algorithm,
                               cublasLtMatmulHeuristicResult_t* result) {
  *result = {};
  result->workspaceSize = kWorkspace;
  const std::optional<CudaGemm> g = read(how, a, b, c);
  const Machine& m = *Machine::current();
  return g && algorithm->data[kIndex] < m.settings.algorithm_seconds.size()
             ? CUBLAS_STATUS_SUCCESS
             : CUBLAS_STATUS_INVALID_VALUE;
}

cublasStatus_t multiply(cublasLtHandle_t handle, cublasLtMatmulDesc_t how, const void* alpha,
                        const void* pa, cublasLtMatrixLayout_t la, const void* pb,
                        cublasLtMatrixLayout_t lb, const void* beta, const void* pc,
                        cublasLtMatrixLayout_t lc, void* pd, cublasLtMatrixLayout_t ld,
                        const cublasLtMatmulAlgo_t* algorithm, void* workspace, size_t bytes,
                        cudaStream_t stream) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return CUBLAS_STATUS_EXECUTION_FAILED;
  const auto given = reinterpret_cast<CUstream>(stream);
  EmulatorState::Stream* there = find_stream(*in.m, given);
  if (reinterpret_cast<intptr_t>(handle) != in.context->gpu + 1 || there == nullptr ||
      there->gpu != in.context->gpu)
    return CUBLAS_STATUS_INVALID_VALUE;
  if (check_capture(*in.m, given, *there) != CUDA_SUCCESS) return CUBLAS_STATUS_EXECUTION_FAILED;
  std::optional<CudaGemm> g = read(how, la, lb, ld);
  if (!g || !in.m->gpu.blas().why_not(*g).empty()) return CUBLAS_STATUS_NOT_SUPPORTED;
  const auto number = [&](const void* at) {
    return g->dtype == DType::float64 ? *static_cast<const double*>(at)
                                      : static_cast<double>(*static_cast<const float*>(at));
  };
  g->adds = number(beta) != 0;
  const auto is_aligned = [&](const void* at) {
    return reinterpret_cast<uintptr_t>(at) % algorithm->data[kAlignment] == 0;
  };
  const char* last = static_cast<const char*>(workspace) + bytes - 1;
  if (in.m->gpu.memory().gpu_of(last) != in.context->gpu) return CUBLAS_STATUS_INVALID_VALUE;
  if (number(alpha) != 1 || (g->adds && number(beta) != 1) || (lc != ld) || bytes < kWorkspace ||
      workspace == nullptr || reinterpret_cast<uintptr_t>(workspace) % kWorkspaceAlignment != 0 ||
      algorithm->data[kIndex] >= in.m->settings.algorithm_seconds.size())
    return CUBLAS_STATUS_INVALID_VALUE;
  if (!is_aligned(pa) || !is_aligned(pb) || !is_aligned(pd) || (g->adds && !is_aligned(pc)))
    return CUBLAS_STATUS_NOT_SUPPORTED;
  in.m->gpu.blas().run(*g, algorithm->data[kIndex], pb, pa, g->adds ? pc : nullptr, pd, workspace,
                       reinterpret_cast<CudaStream>(there));
  return CUBLAS_STATUS_SUCCESS;
}

template <class F>
void* as(F function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* find_cublaslt(const std::string& symbol) {
  using Desc = cublasLtMatmulDesc_t;
  using Layout = cublasLtMatrixLayout_t;
  using Preference = cublasLtMatmulPreference_t;
  static const std::map<std::string, void*> all = {
      {"", as(&version)},
      {"cublasLtCreate", as<decltype(&cublasLtCreate)>(&create)},
      {"cublasLtMatmul", as<decltype(&cublasLtMatmul)>(&multiply)},
      {"cublasLtMatmulDescCreate", as<decltype(&cublasLtMatmulDescCreate)>(&make_desc)},
      {"cublasLtMatmulDescDestroy", as<decltype(&cublasLtMatmulDescDestroy)>(&drop<Desc>)},
      {"cublasLtMatmulDescSetAttribute",
       as<decltype(&cublasLtMatmulDescSetAttribute)>(&set<Desc, cublasLtMatmulDescAttributes_t>)},
      {"cublasLtMatrixLayoutCreate", as<decltype(&cublasLtMatrixLayoutCreate)>(&make_layout)},
      {"cublasLtMatrixLayoutDestroy", as<decltype(&cublasLtMatrixLayoutDestroy)>(&drop<Layout>)},
      {"cublasLtMatrixLayoutSetAttribute", as<decltype(&cublasLtMatrixLayoutSetAttribute)>(
                                               &set<Layout, cublasLtMatrixLayoutAttribute_t>)},
      {"cublasLtMatmulPreferenceCreate",
       as<decltype(&cublasLtMatmulPreferenceCreate)>(&make<Preference>)},
      {"cublasLtMatmulPreferenceDestroy",
       as<decltype(&cublasLtMatmulPreferenceDestroy)>(&drop<Preference>)},
      {"cublasLtMatmulPreferenceSetAttribute",
       as<decltype(&cublasLtMatmulPreferenceSetAttribute)>(
           &set<Preference, cublasLtMatmulPreferenceAttributes_t>)},
      {"cublasLtMatmulAlgoGetHeuristic", as<decltype(&cublasLtMatmulAlgoGetHeuristic)>(&heuristic)},
      {"cublasLtMatmulAlgoCheck", as<decltype(&cublasLtMatmulAlgoCheck)>(&check_algorithm)},
      {"cublasLtGetVersion", as<decltype(&cublasLtGetVersion)>(&version)},
      {"cublasLtGetStatusString", as<decltype(&cublasLtGetStatusString)>(&text)}};
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace tessera::test::rules
