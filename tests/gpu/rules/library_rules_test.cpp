// Each rule of NCCL and cuBLASLt that their stand-ins enforce, broken once.
#include <cublasLt.h>
#include <nccl.h>

#include "base/fail.h"
#include "gpu/emulator.h"
#include "gpu/rules/cublaslt.h"
#include "gpu/rules/driver.h"
#include "gpu/rules/nccl.h"
#include "support/catch.h"
#include "support/expect_error.h"

namespace tessera::test::rules {

namespace TESSERA_FILE {

#define NCCL(name) reinterpret_cast<decltype(&::name)>(find_nccl(#name))
#define LT(name) reinterpret_cast<decltype(&::name)>(find_cublaslt(#name))

/// Two ranks with a GPU each, by one thread.
struct TwoRanks {
  CudaEmulator gpu{2};
  ncclComm_t comms[2] = {};
  CudaStream streams[2] = {};
  float* memory[2] = {};

  explicit TwoRanks(bool joined = true) {
    gpu.direct = false;
    gpu.has_groups = true;
    ncclUniqueId id{};
    for (int r = 0; r < 2; ++r) {
      use(r);
      if (r == 0) CHECK(NCCL(ncclGetUniqueId)(&id) == ncclSuccess);
      streams[r] = gpu.streams().make_stream();
      memory[r] = static_cast<float*>(gpu.memory().allocate(64));
      gpu.memory().clear(memory[r], 64, streams[r]);
      ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
      config.blocking = 0;
      CHECK(NCCL(ncclCommInitRankConfig)(&comms[r], 2, id, r, &config) == ncclInProgress);
      if (r == 0) CHECK(state(0) == ncclInProgress);
    }
    for (int r = 0; joined && r < 2; ++r) CHECK(state(r) == ncclSuccess);
  }
  void use(int rank) { gpu.contexts().use(rank); }
  ncclResult_t state(int rank) {
    ncclResult_t state = ncclInternalError;
    CHECK(NCCL(ncclCommGetAsyncError)(comms[rank], &state) == ncclSuccess);
    return state;
  }
  ncclResult_t reduce(int rank, size_t count, CudaStream stream,
                      ncclDataType_t type = ncclFloat32) {
    return NCCL(ncclAllReduce)(memory[rank], memory[rank], count, type, ncclSum, comms[rank],
                               reinterpret_cast<cudaStream_t>(stream));
  }
  void make(int rank, size_t count, ncclDataType_t type = ncclFloat32) {
    use(rank);
    CHECK(reduce(rank, count, streams[rank], type) == ncclInProgress);
    CHECK(state(rank) == ncclInProgress);
    CHECK(state(rank) == ncclSuccess);
  }
};

TEST_CASE("rules of NCCL: a communicator is polled until it has joined, and after calls",
          "[cuda]") {
  TwoRanks ranks(false);
  CHECK(ranks.state(1) == ncclSuccess);
  ranks.use(0);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInvalidUsage);  // it was not asked
  CHECK(ranks.state(0) == ncclSuccess);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInProgress);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInvalidUsage);
  const int64_t before = ranks.gpu.state().streams[0]->enqueued;
  CHECK(ranks.state(0) == ncclInProgress);
  CHECK(ranks.gpu.state().streams[0]->enqueued == before);  // not in its stream yet
  CHECK(ranks.state(0) == ncclSuccess);
  CHECK(ranks.gpu.state().streams[0]->enqueued > before);
  ranks.make(1, 16);
  ranks.gpu.streams().synchronize(ranks.streams[1]);
}

TEST_CASE("rules of NCCL: groups, streams of the communicator's GPU, an end", "[cuda]") {
  TwoRanks ranks;
  CHECK(NCCL(ncclGroupEnd)() == ncclInvalidUsage);
  ranks.use(0);
  CHECK(ranks.reduce(0, 16, ranks.streams[1]) == ncclInvalidUsage);
  ranks.use(1);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInvalidUsage);
  ranks.use(0);
  CHECK(NCCL(ncclGroupStart)() == ncclSuccess);
  CHECK(ranks.reduce(0, 8, ranks.streams[0]) == ncclSuccess);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclSuccess);
  CHECK(NCCL(ncclGroupEnd)() == ncclInProgress);
  ncclUniqueId id{};
  ncclComm_t comm = nullptr;
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  CHECK(NCCL(ncclCommInitRankConfig)(&comm, 2, id, 0, &config) == ncclInvalidArgument);
  id.internal[0] = 'x';
  CHECK(NCCL(ncclCommInitRankConfig)(&comm, 2, id, 2, &config) == ncclInvalidArgument);
  CHECK(ranks.gpu.take_misuses().empty());
  ncclResult_t state{};
  CHECK(NCCL(ncclCommAbort)(ranks.comms[0]) == ncclSuccess);
  CHECK(NCCL(ncclCommAbort)(ranks.comms[0]) == ncclInvalidArgument);
  CHECK(NCCL(ncclCommGetAsyncError)(ranks.comms[0], &state) == ncclInvalidArgument);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInvalidArgument);
  CHECK(ranks.gpu.take_misuses().size() == 3);
}

TEST_CASE("rules of NCCL: all ranks call the same", "[cuda]") {
  for (const bool other_count : {true, false}) {
    TwoRanks ranks;
    ranks.make(0, 16);
    ranks.make(1, other_count ? 8 : 16, other_count ? ncclFloat32 : ncclInt32);
    const std::string what = other_count ? "8 of float32 on rank 1" : "16 of int32 on rank 1";
    expect_error(ErrorKind::internal, {"collective 0 of a group", "16 elements of float32", what},
                 [&] {
                   ranks.gpu.streams().synchronize(ranks.streams[1]);
                   ranks.use(0);
                   ranks.gpu.streams().synchronize(ranks.streams[0]);
                 });
  }
}

TEST_CASE("rules of NCCL: a call in a capture that was invalidated fails", "[cuda]") {
  TwoRanks ranks;
  ranks.use(0);
  ranks.gpu.graphs().begin_capture(ranks.streams[0]);
  CUdeviceptr memory = 0;
  CHECK(rules::cuMemAlloc(&memory, 64) == CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
  CHECK(ranks.reduce(0, 16, ranks.streams[0]) == ncclInProgress);
  CHECK(ranks.state(0) == ncclInProgress);
  CHECK(ranks.state(0) == ncclUnhandledCudaError);
}

TEST_CASE("rules of cuBLASLt: types, shapes, alignment and workspace", "[cuda]") {
  CudaEmulator gpu;
  gpu.direct = false;
  gpu.contexts().use(0);
  const CudaStream stream = gpu.streams().make_stream();
  constexpr size_t kWorkspace = 4096;
  char* memory = static_cast<char*>(gpu.memory().allocate(4 * kWorkspace));
  char* workspace = memory + 3 * kWorkspace;
  gpu.memory().clear(memory, 4 * kWorkspace, stream);
  cublasLtHandle_t handle = nullptr;
  CHECK(LT(cublasLtCreate)(&handle) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatrixLayout_t layout = nullptr, wide = nullptr, half = nullptr;
  CHECK(LT(cublasLtMatrixLayoutCreate)(&layout, CUDA_R_32F, 8, 8, 4) ==
        CUBLAS_STATUS_INVALID_VALUE);
  CHECK(LT(cublasLtMatrixLayoutCreate)(&layout, CUDA_R_32F, 8, 8, 8) == CUBLAS_STATUS_SUCCESS);
  CHECK(LT(cublasLtMatrixLayoutCreate)(&wide, CUDA_R_32F, 8, 16, 8) == CUBLAS_STATUS_SUCCESS);
  CHECK(LT(cublasLtMatrixLayoutCreate)(&half, CUDA_R_16F, 8, 8, 8) == CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulPreference_t preference = nullptr;
  CHECK(LT(cublasLtMatmulPreferenceCreate)(&preference) == CUBLAS_STATUS_SUCCESS);
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t which, auto value) {
    CHECK(LT(cublasLtMatmulPreferenceSetAttribute)(preference, which, &value, sizeof(value)) ==
          CUBLAS_STATUS_SUCCESS);
  };
  cublasLtMatmulDesc_t plain = nullptr, doubled = nullptr;
  CHECK(LT(cublasLtMatmulDescCreate)(&plain, CUBLAS_COMPUTE_32F, CUDA_R_32F) ==
        CUBLAS_STATUS_SUCCESS);
  CHECK(LT(cublasLtMatmulDescCreate)(&doubled, CUBLAS_COMPUTE_64F, CUDA_R_64F) ==
        CUBLAS_STATUS_SUCCESS);
  cublasLtMatmulHeuristicResult_t result{};
  const auto suggest = [&](cublasLtMatmulDesc_t how, cublasLtMatrixLayout_t a,
                           cublasLtMatrixLayout_t b) {
    int count = 0;
    const cublasStatus_t status = LT(cublasLtMatmulAlgoGetHeuristic)(
        handle, how, a, b, layout, layout, preference, 1, &result, &count);
    CHECK((status == CUBLAS_STATUS_SUCCESS) == (count == 1));
    return status;
  };
  CHECK(suggest(plain, layout, layout) == CUBLAS_STATUS_NOT_SUPPORTED);  // without a workspace
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, uint64_t{kWorkspace});
  prefer(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, uint32_t{16});
  CHECK(suggest(doubled, layout, layout) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(suggest(plain, layout, half) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(suggest(plain, layout, wide) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(suggest(plain, layout, layout) == CUBLAS_STATUS_SUCCESS);
  const float one = 1, zero = 0, two = 2;
  const auto multiply = [&](const float* alpha, const char* a, char* space, size_t bytes) {
    return LT(cublasLtMatmul)(handle, plain, alpha, a, layout, memory + 1024, layout, &zero,
                              memory + 2048, layout, memory + 2048, layout, &result.algo, space,
                              bytes, reinterpret_cast<cudaStream_t>(stream));
  };
  CHECK(multiply(&two, memory, workspace, kWorkspace) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(&one, memory + 4, workspace, kWorkspace) == CUBLAS_STATUS_NOT_SUPPORTED);
  CHECK(multiply(&one, memory, workspace, kWorkspace / 2) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(&one, memory, workspace + 16, kWorkspace) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(&one, memory, workspace, 2 * kWorkspace) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(&one, memory, nullptr, kWorkspace) == CUBLAS_STATUS_INVALID_VALUE);
  CHECK(multiply(&one, memory, workspace, kWorkspace) == CUBLAS_STATUS_SUCCESS);
  CHECK(rules::cuCtxSetCurrent(nullptr) == CUDA_SUCCESS);
  CHECK(multiply(&one, memory, workspace, kWorkspace) == CUBLAS_STATUS_EXECUTION_FAILED);
}

}  // namespace TESSERA_FILE
}  // namespace tessera::test::rules
