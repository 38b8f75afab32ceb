#include "gpu/library/nccl.h"

#include <nccl.h>

#include <chrono>
#include <cstring>
#include <thread>

#include "gpu/library/shared_library.h"

namespace tessera::cuda {

namespace {

ncclDataType_t type_of(DType t) {
  switch (t) {
    case DType::float32:
      return ncclFloat32;
    case DType::float64:
      return ncclFloat64;
    case DType::bfloat16:
      return ncclBfloat16;
    case DType::float16:
      return ncclFloat16;
    case DType::int32:
      return ncclInt32;
    case DType::int64:
      return ncclInt64;
    default:
      return ncclUint8;
  }
}

ncclRedOp_t operator_of(Combiner combiner) {
  switch (combiner) {
    case Combiner::prod:
      return ncclProd;
    case Combiner::max:
      return ncclMax;
    case Combiner::min:
      return ncclMin;
    default:
      return ncclSum;
  }
}

/// The communicator called between begin_calls() and end_calls().
thread_local ncclComm_t called = nullptr;

ncclComm_t communicator(CudaGroup group) {
  called = reinterpret_cast<ncclComm_t>(group);
  return called;
}
cudaStream_t stream_of(CudaStream stream) { return reinterpret_cast<cudaStream_t>(stream); }

}  // namespace

struct Nccl::Calls {
  static constexpr int kOldest = 21400;  ///< the first one with non-blocking communicators
  Library library{{"libnccl.so.2", "libnccl.so"}};
  std::string why_not;
#define TESSERA_MEMBER(name) decltype(&::name) name##_ = nullptr;
#include "gpu/library/nccl.inc"
#undef TESSERA_MEMBER
  Calls() {
    if (!library.is_open()) {
      why_not = "there is no NCCL: " + library.why_not();
      return;
    }
    try {
#define TESSERA_MEMBER(name) library.get(name##_, #name);
#include "gpu/library/nccl.inc"
#undef TESSERA_MEMBER
      int version = 0;
      if (ncclGetVersion_(&version) != ncclSuccess || version < kOldest)
        why_not = fmt::format("this NCCL is {}.{}.{}, and 2.14 or newer is needed", version / 10000,
                              version / 100 % 100, version % 100);
    } catch (const Error& e) {
      why_not = fmt::format("this NCCL is too old: {}; 2.14 or newer is needed", e.what());
    }
  }
  void check(ncclResult_t result, const char* call, int line) const {
    const bool ok = result == ncclSuccess || result == ncclInProgress;
    check_call(ok, call, ok ? "" : ncclGetErrorString_(result), __FILE__, line);
  }
};

#define CHECKED(name) \
  [&](auto... args) { calls_->check(calls_->name##_(args...), #name, __LINE__); }

Nccl::Nccl() : calls_(std::make_shared<Calls>()) { why_not_ = calls_->why_not; }

std::string Nccl::group_id() {
  ncclUniqueId id{};
  CHECKED(ncclGetUniqueId)(&id);
  return std::string(id.internal, sizeof(id.internal));
}

CudaGroup Nccl::join(const std::string& id, int rank, int size, double seconds) {
  ncclUniqueId unique{};
  std::memcpy(unique.internal, id.data(), std::min(id.size(), sizeof(unique.internal)));
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  seconds_ = seconds;
  ncclComm_t made = nullptr;
  CHECKED(ncclCommInitRankConfig)(&made, size, unique, rank, &config);
  const auto start = std::chrono::steady_clock::now();
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    CHECKED(ncclCommGetAsyncError)(made, &state);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (state == ncclInProgress && waited.count() > seconds) {
      calls_->ncclCommAbort_(made);
      fail(ErrorKind::comm,
           "rank {} of {} waited {:.0f} s for the others to join a group of NCCL; NCCL_DEBUG=INFO "
           "shows what it waits for, and TESSERA_NCCL=off leaves it out",
           rank, size, seconds);
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  if (state != ncclSuccess) {
    calls_->ncclCommAbort_(made);
    fail(ErrorKind::comm,
         "NCCL did not make a group of {} ranks: {}; processes that share a GPU need an "
         "NCCL_HOSTID each, NCCL_DEBUG=INFO shows more, and TESSERA_NCCL=off leaves NCCL out",
         size, calls_->ncclGetErrorString_(state));
  }
  return reinterpret_cast<CudaGroup>(made);
}

void Nccl::begin_calls() {
  called = nullptr;
  CHECKED(ncclGroupStart)();
}

/// Communicators are non-blocking: calls are in their stream only when the state says so. On
/// failure the owner aborts them.
void Nccl::end_calls() {
  CHECKED(ncclGroupEnd)();
  const auto start = std::chrono::steady_clock::now();
  ncclResult_t state = called == nullptr ? ncclSuccess : ncclInProgress;
  while (state == ncclInProgress) {
    CHECKED(ncclCommGetAsyncError)(called, &state);
    const std::chrono::duration<double> waited = std::chrono::steady_clock::now() - start;
    if (state == ncclInProgress && waited.count() > seconds_) {
      fail(
          ErrorKind::comm,
          "NCCL waited {:.0f} s for the ranks of a group to call it; NCCL_DEBUG=INFO shows what it "
          "waits for, and TESSERA_NCCL=off leaves it out",
          seconds_.load());
    }
    if (state == ncclInProgress) std::this_thread::yield();
  }
  if (state != ncclSuccess) fail(ErrorKind::comm, "NCCL: {}", calls_->ncclGetErrorString_(state));
}

void Nccl::all_reduce(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      Combiner combiner, CudaStream stream) {
  CHECKED(ncclAllReduce)
  (in, out, static_cast<size_t>(count), type_of(dtype), operator_of(combiner), communicator(group),
   stream_of(stream));
}

void Nccl::reduce_scatter(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                          Combiner combiner, CudaStream stream) {
  CHECKED(ncclReduceScatter)
  (in, out, static_cast<size_t>(count), type_of(dtype), operator_of(combiner), communicator(group),
   stream_of(stream));
}

void Nccl::all_gather(CudaGroup group, const void* in, void* out, int64_t count, DType dtype,
                      CudaStream stream) {
  CHECKED(ncclAllGather)
  (in, out, static_cast<size_t>(count), type_of(dtype), communicator(group), stream_of(stream));
}

std::string Nccl::trouble(CudaGroup group) {
  ncclResult_t state = ncclSuccess;
  CHECKED(ncclCommGetAsyncError)(communicator(group), &state);
  return state == ncclSuccess || state == ncclInProgress ? "" : calls_->ncclGetErrorString_(state);
}

void Nccl::abort(CudaGroup group) noexcept { calls_->ncclCommAbort_(communicator(group)); }

}  // namespace tessera::cuda
