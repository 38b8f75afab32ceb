// cuBLASLt's matrices are column-major. A row-major C = A B is its C' = B' A' in the same memory,
// so the operands are swapped and nothing is copied.
#include "gpu/library/cublaslt.h"

#include <cublasLt.h>

#include <iterator>
#include <map>
#include <utility>
#include <vector>

#include "gpu/library/driver.h"
#include "gpu/library/shared_library.h"

namespace tessera::cuda {

namespace {
cudaDataType_t type_of(DType t) {
  switch (t) {
    case DType::float64:
      return CUDA_R_64F;
    case DType::bfloat16:
      return CUDA_R_16BF;
    case DType::float16:
      return CUDA_R_16F;
    default:
      return CUDA_R_32F;
  }
}

cudaDataType_t type_of(Float8 format) {
  return format == Float8::e4m3 ? CUDA_R_8F_E4M3 : CUDA_R_8F_E5M2;
}
}  // namespace

struct CublasLt::Calls {
  cuda::Library lt;
#define TESSERA_MEMBER(name) decltype(&::name) name##_ = nullptr;
#include "gpu/library/cublaslt.inc"
#undef TESSERA_MEMBER
  std::map<int, cublasLtHandle_t> handles;  ///< by GPU
  std::string why_not;                      ///< empty: cuBLASLt is available

  explicit Calls(const std::string& path)
      : lt(path.empty()
               ? std::vector<std::string>{"libcublasLt.so." TESSERA_TEXT(TESSERA_CUDA_MAJOR),
                                          "libcublasLt.so"}
               : std::vector<std::string>{path}) {
    if (!lt.is_open()) {
      why_not = "there is no cuBLASLt: " + lt.why_not();
      return;
    }
    try {
#define TESSERA_MEMBER(name) lt.get(name##_, #name);
#include "gpu/library/cublaslt.inc"
#undef TESSERA_MEMBER
    } catch (const Error& e) {
      why_not = fmt::format("this cuBLASLt is too old: {}", e.what());
    }
  }
  void check(cublasStatus_t status, const char* call, int line) const {
    check_call(status == CUBLAS_STATUS_SUCCESS, call,
               status == CUBLAS_STATUS_SUCCESS ? "" : cublasLtGetStatusString_(status), __FILE__,
               line);
  }
};

#define CHECKED(name) [&](auto... args) { lib.check(lib.name##_(args...), #name, __LINE__); }

struct CublasLt::Matmul {
  cublasLtHandle_t handle = nullptr;
  cublasLtMatmulDesc_t operation = nullptr;
  cublasLtMatrixLayout_t a = nullptr, b = nullptr, c = nullptr;
  cublasLtMatmulPreference_t preference = nullptr;
  cublasLtMatmulAlgo_t algorithm{};
  bool wide = false, adds = false;
};

CublasLt::CublasLt(const Driver* driver, const Contexts* contexts, Options options)
    : driver_(driver), contexts_(contexts), options_(std::move(options)) {}
CublasLt::~CublasLt() = default;

CublasLt::Calls& CublasLt::calls() {
  const std::lock_guard lock(mutex_);
  if (!calls_) calls_ = std::make_unique<Calls>(options_.path);
  return *calls_;
}

namespace {

/// Limits the workspace and states the operands' alignment. Split-K partial sums keep the compute
/// type, whatever the type of the result.
template <class Functions>
cublasLtMatmulPreference_t make_preference(Functions& lib, const CudaGemm& g, int64_t bytes) {
  cublasLtMatmulPreference_t preference = nullptr;
  CHECKED(cublasLtMatmulPreferenceCreate)(&preference);
  const auto workspace = static_cast<uint64_t>(bytes);
  CHECKED(cublasLtMatmulPreferenceSetAttribute)
  (preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, static_cast<const void*>(&workspace),
   sizeof(workspace));
  const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
  CHECKED(cublasLtMatmulPreferenceSetAttribute)
  (preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, static_cast<const void*>(&sums),
   sizeof(sums));
  auto require_alignment = [&](cublasLtMatmulPreferenceAttributes_t which, int64_t bytes) {
    const auto alignment = static_cast<uint32_t>(bytes);
    CHECKED(cublasLtMatmulPreferenceSetAttribute)
    (preference, which, static_cast<const void*>(&alignment), sizeof(alignment));
  };
  require_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, g.align_b);
  require_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, g.align_a);
  require_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, g.align_c);
  require_alignment(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, g.align_c);
  return preference;
}

/// The library's columns are the rows of its D, so a bias has one element for each of them. Its
/// first operand is B. It calls the sums of an operand the gradient of a bias. The heuristic reads
/// the pointers for their alignment; all calls of a matmul use the same pointers.
template <class Functions>
void set_epilogue(Functions& lib, cublasLtMatmulDesc_t operation, const CudaGemm& g) {
  const bool has_side = g.kept != nullptr || g.before != nullptr;
  uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  if (g.before != nullptr) {
    epilogue = CUBLASLT_EPILOGUE_DGELU;
  } else if (g.gelu) {
    epilogue = g.bias == nullptr ? (has_side ? CUBLASLT_EPILOGUE_GELU_AUX : CUBLASLT_EPILOGUE_GELU)
               : has_side        ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS
                                 : CUBLASLT_EPILOGUE_GELU_BIAS;
  } else if (g.bias != nullptr) {
    epilogue = CUBLASLT_EPILOGUE_BIAS;
  }
  const auto set = [&](cublasLtMatmulDescAttributes_t which, const auto& value) {
    CHECKED(cublasLtMatmulDescSetAttribute)
    (operation, which, static_cast<const void*>(&value), sizeof(value));
  };
  if (g.sums != nullptr)
    epilogue = g.sums_of_a ? CUBLASLT_EPILOGUE_BGRADB : CUBLASLT_EPILOGUE_BGRADA;
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (g.sums != nullptr) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.sums);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(g.sums_type)));
    set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, g.stride_sums);
  }
  if (g.bias != nullptr) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, g.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, static_cast<int32_t>(type_of(g.result)));
  }
  if (has_side) {
    const void* side = g.before != nullptr ? g.before : g.kept;
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, side);
    set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, g.ldc);
  }
}

/// True if an 8-bit matmul is expected to take less time than a 16-bit one, conversion of its
/// operands included. Half of the 16-bit time (an H100 sustains 8e14 FLOP/s) is compared with the
/// conversion: about 3 bytes per element at 3e12 bytes/s, plus 3 us per launch. Close cases are
/// measured.
bool pays_in_bytes(const CudaGemm& g) {
  const auto m = static_cast<double>(g.m), n = static_cast<double>(g.n),
             k = static_cast<double>(g.k), times = static_cast<double>(g.batch);
  return times * m * n * k / 8e14 > times * 3 * (m + n) * k / 3e12 + 2 * 3e-6;
}

}  // namespace

CudaMatmul CublasLt::prepare(const CudaGemm& g) {
  if (!is_floating(g.dtype) || (g.float8 && !options_.always_bytes && !pays_in_bytes(g)))
    return nullptr;
  Calls& lib = calls();
  if (!lib.why_not.empty()) return nullptr;
  auto matmul = std::make_unique<Matmul>();
  {
    const std::lock_guard lock(mutex_);
    cublasLtHandle_t& handle = lib.handles[current_gpu()];
    if (handle == nullptr) CHECKED(cublasLtCreate)(&handle);
    matmul->handle = handle;
  }
  matmul->wide = g.dtype == DType::float64;
  matmul->adds = g.adds;
  const cublasComputeType_t compute = matmul->wide ? CUBLAS_COMPUTE_64F
                                      : g.tf32 && g.dtype == DType::float32
                                          ? CUBLAS_COMPUTE_32F_FAST_TF32
                                          : CUBLAS_COMPUTE_32F;
  CHECKED(cublasLtMatmulDescCreate)
  (&matmul->operation, compute, matmul->wide ? CUDA_R_64F : CUDA_R_32F);
  const cublasOperation_t first = g.transposed_b ? CUBLAS_OP_T : CUBLAS_OP_N,
                          second = g.transposed_a ? CUBLAS_OP_T : CUBLAS_OP_N;
  CHECKED(cublasLtMatmulDescSetAttribute)
  (matmul->operation, CUBLASLT_MATMUL_DESC_TRANSA, static_cast<const void*>(&first), sizeof(first));
  CHECKED(cublasLtMatmulDescSetAttribute)
  (matmul->operation, CUBLASLT_MATMUL_DESC_TRANSB, static_cast<const void*>(&second),
   sizeof(second));
  set_epilogue(lib, matmul->operation, g);
  auto layout = [&](cublasLtMatrixLayout_t* made, cudaDataType_t type, int64_t rows,
                    int64_t columns, int64_t leading, int64_t stride) {
    const int32_t batch = static_cast<int32_t>(g.batch);
    CHECKED(cublasLtMatrixLayoutCreate)
    (made, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(columns), leading);
    CHECKED(cublasLtMatrixLayoutSetAttribute)
    (*made, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<const void*>(&batch), sizeof(batch));
    CHECKED(cublasLtMatrixLayoutSetAttribute)
    (*made, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, static_cast<const void*>(&stride),
     sizeof(stride));
  };
  const cudaDataType_t second_type = g.float8 ? type_of(g.float8->at(0)) : type_of(g.dtype),
                       first_type = g.float8 ? type_of(g.float8->at(1)) : type_of(g.dtype);
  layout(&matmul->a, first_type, g.transposed_b ? g.k : g.n, g.transposed_b ? g.n : g.k, g.ldb,
         g.stride_b);
  layout(&matmul->b, second_type, g.transposed_a ? g.m : g.k, g.transposed_a ? g.k : g.m, g.lda,
         g.stride_a);
  layout(&matmul->c, type_of(g.result), g.n, g.m, g.ldc, g.stride_c);
  matmul->preference = make_preference(lib, g, workspace());
  const std::vector<cublasLtMatmulAlgo_t> found = find(*matmul, 1);
  const CudaMatmul made = reinterpret_cast<CudaMatmul>(matmul.release());
  if (!found.empty()) {
    reinterpret_cast<Matmul*>(made)->algorithm = found[0];
    return made;
  }
  release(made);
  return nullptr;
}

/// The algorithms that need at most the workspace; none if the library refuses.
std::vector<cublasLtMatmulAlgo_t> CublasLt::find(const Matmul& p, int most) {
  Calls& lib = calls();
  std::vector<cublasLtMatmulHeuristicResult_t> results(static_cast<size_t>(most));
  int count = 0;
  const cublasStatus_t status = lib.cublasLtMatmulAlgoGetHeuristic_(
      p.handle, p.operation, p.a, p.b, p.c, p.c, p.preference, most, results.data(), &count);
  std::vector<cublasLtMatmulAlgo_t> found;
  for (int k = 0; status == CUBLAS_STATUS_SUCCESS && k < count; ++k) {
    const auto& result = results[static_cast<size_t>(k)];
    if (result.state == CUBLAS_STATUS_SUCCESS &&
        result.workspaceSize <= static_cast<size_t>(options_.workspace))
      found.push_back(result.algo);
  }
  return found;
}

std::string CublasLt::why_not() { return calls().why_not; }

std::string CublasLt::version() {
  return fmt::format("cuBLASLt {}", calls().cublasLtGetVersion_());
}

std::string CublasLt::library() {
  int number = 0;
  driver_->check(driver_->cuDriverGetVersion_(&number), "cuDriverGetVersion", __LINE__);
  return fmt::format("{} on {}, driver {}", version(), contexts_->current().name, number);
}

std::vector<std::string> CublasLt::algorithms(CudaMatmul given, int most) {
  std::vector<std::string> words;
  for (const cublasLtMatmulAlgo_t& algorithm : find(*reinterpret_cast<Matmul*>(given), most)) {
    words.emplace_back();
    for (const uint64_t part : algorithm.data) words.back() += fmt::format("{:016x}", part);
  }
  return words;
}

bool CublasLt::use_algorithm(CudaMatmul given, const std::string& word) {
  Matmul& p = *reinterpret_cast<Matmul*>(given);
  cublasLtMatmulAlgo_t algorithm{};
  constexpr size_t kDigits = 16;
  if (word.size() != kDigits * std::size(algorithm.data) ||
      word.find_first_not_of("0123456789abcdef") != std::string::npos)
    return false;
  for (size_t k = 0; k < std::size(algorithm.data); ++k)
    algorithm.data[k] = std::stoull(word.substr(k * kDigits, kDigits), nullptr, 16);
  cublasLtMatmulHeuristicResult_t result{};
  const cublasStatus_t status = calls().cublasLtMatmulAlgoCheck_(p.handle, p.operation, p.a, p.b,
                                                                 p.c, p.c, &algorithm, &result);
  if (status != CUBLAS_STATUS_SUCCESS ||
      result.workspaceSize > static_cast<size_t>(options_.workspace))
    return false;
  p.algorithm = algorithm;
  return true;
}

void CublasLt::run(CudaMatmul given, const void* a, const void* b, const void* added, void* c,
                   void* workspace, CudaStream stream) {
  const Matmul& p = *reinterpret_cast<Matmul*>(given);
  Calls& lib = calls();
  const float one = 1, zero = 0;
  const double wide_one = 1, wide_zero = 0;
  const void* alpha = p.wide ? static_cast<const void*>(&wide_one) : &one;
  const void* none = p.wide ? static_cast<const void*>(&wide_zero) : &zero;
  const void *beta = p.adds ? alpha : none, *from = p.adds ? added : c;
  CHECKED(cublasLtMatmul)
  (p.handle, p.operation, alpha, b, p.a, a, p.b, beta, from, p.c, c, p.c, &p.algorithm, workspace,
   static_cast<size_t>(options_.workspace), reinterpret_cast<cudaStream_t>(stream));
}

void CublasLt::release(CudaMatmul given) {
  const std::unique_ptr<Matmul> p(reinterpret_cast<Matmul*>(given));
  Calls& lib = calls();
  CHECKED(cublasLtMatmulPreferenceDestroy)(p->preference);
  CHECKED(cublasLtMatrixLayoutDestroy)(p->a);
  CHECKED(cublasLtMatrixLayoutDestroy)(p->b);
  CHECKED(cublasLtMatrixLayoutDestroy)(p->c);
  CHECKED(cublasLtMatmulDescDestroy)(p->operation);
}

}  // namespace tessera::cuda
