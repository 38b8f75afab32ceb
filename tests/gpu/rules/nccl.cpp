#include "gpu/rules/nccl.h"

#include <nccl.h>

#include <algorithm>
#include <cstring>

#include "gpu/rules/driver.h"

namespace tessera::test::rules {

namespace {

using Call = std::function<ncclResult_t()>;

struct Communicator {
  CudaGroup group = nullptr;
  int gpu = 0;
  bool has_joined = false, was_called = false;
  ncclResult_t state = ncclInProgress;
  int polls = 0;            ///< since the calls that wait were made
  std::vector<Call> calls;  ///< of groups that ended, not yet in their stream
};

Communicator& of(ncclComm_t comm) { return *reinterpret_cast<Communicator*>(comm); }

std::set<ncclComm_t>& living() {
  static std::set<ncclComm_t> all;
  return all;
}
std::mutex& lock_of_all() {
  static std::mutex mutex;
  return mutex;
}

struct Group {
  int depth = 0;
  std::vector<std::pair<ncclComm_t, Call>> calls;
};
thread_local Group group;

bool is_living(ncclComm_t comm) {
  const std::lock_guard lock(lock_of_all());
  return living().count(comm) != 0;
}

DType dtype_of(ncclDataType_t type) {
  switch (type) {
    case ncclFloat32:
      return DType::float32;
    case ncclFloat64:
      return DType::float64;
    case ncclBfloat16:
      return DType::bfloat16;
    case ncclFloat16:
      return DType::float16;
    case ncclInt32:
      return DType::int32;
    case ncclInt64:
      return DType::int64;
    default:
      return DType::uint8;
  }
}
Combiner combiner_of(ncclRedOp_t op) {
  return op == ncclProd  ? Combiner::prod
         : op == ncclMax ? Combiner::max
         : op == ncclMin ? Combiner::min
                         : Combiner::sum;
}

ncclResult_t get_version(int* version) {
  *version = Machine::current()->settings.nccl_version;
  return ncclSuccess;
}

ncclResult_t get_id(ncclUniqueId* id) {
  const std::string name = Machine::current()->gpu.groups().group_id();
  std::memset(id->internal, 0, sizeof(id->internal));
  std::memcpy(id->internal, name.data(), std::min(name.size(), sizeof(id->internal)));
  return ncclSuccess;
}

ncclResult_t init(ncclComm_t* made, int size, ncclUniqueId id, int rank, ncclConfig_t* config) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return ncclUnhandledCudaError;
  if (rank < 0 || rank >= size || id.internal[0] == '\0') return ncclInvalidArgument;
  if (config == nullptr || config->blocking != 0) return ncclInvalidUsage;  // nobody asks for it
  auto* comm = new Communicator;
  comm->gpu = in.context->gpu;
  comm->group = in.m->gpu.groups().begin_join(std::string(id.internal), rank, size);
  *made = reinterpret_cast<ncclComm_t>(comm);
  const std::lock_guard lock(lock_of_all());
  living().insert(*made);
  return ncclInProgress;
}

/// Calls that wait get into their stream at the second poll.
ncclResult_t get_state(ncclComm_t handle, ncclResult_t* state) {
  Machine& m = *Machine::current();
  if (!is_living(handle)) {
    m.state.misuse("asked for the state of a group that was aborted");
    return ncclInvalidArgument;
  }
  Communicator& comm = of(handle);
  if (!comm.has_joined && !m.settings.never_joins && m.gpu.groups().has_joined(comm.group)) {
    comm.has_joined = true;
    comm.state = ncclSuccess;
  }
  if (comm.has_joined && comm.state == ncclInProgress && ++comm.polls > 1) {
    comm.state = ncclSuccess;
    for (const Call& call : std::exchange(comm.calls, {})) {
      if (comm.state == ncclSuccess) comm.state = call();
    }
  }
  if (comm.was_called && comm.state == ncclSuccess && !m.settings.trouble.empty())
    comm.state = ncclSystemError;
  *state = comm.state;
  return ncclSuccess;
}

ncclResult_t abort_comm(ncclComm_t handle) {
  Machine& m = *Machine::current();
  {
    const std::lock_guard lock(lock_of_all());
    if (living().erase(handle) == 0) {
      m.state.misuse("aborted a group twice");
      return ncclInvalidArgument;
    }
  }
  const std::unique_ptr<Communicator> comm(&of(handle));
  m.gpu.groups().abort(comm->group);
  return ncclSuccess;
}

ncclResult_t start_group() {
  ++group.depth;
  return ncclSuccess;
}

ncclResult_t end_group() {
  if (group.depth == 0) return ncclInvalidUsage;
  if (--group.depth > 0) return ncclSuccess;
  const auto calls = std::exchange(group.calls, {});
  for (const auto& [comm, call] : calls) {
    of(comm).calls.push_back(call);
    of(comm).was_called = true;
    of(comm).state = ncclInProgress;
    of(comm).polls = 0;
  }
  return calls.empty() ? ncclSuccess : ncclInProgress;
}

/// What is called at once or at the end of the group.
ncclResult_t enqueue(ncclComm_t handle, cudaStream_t stream,
                     std::function<void(EmulatedNccl&, CudaStream)> work) {
  const Entered in;
  if (in.result != CUDA_SUCCESS) return ncclUnhandledCudaError;
  Machine& m = *in.m;
  if (!is_living(handle)) {
    m.state.misuse("a call of a group that was aborted");
    return ncclInvalidArgument;
  }
  const auto given = reinterpret_cast<CUstream>(stream);
  EmulatorState::Stream* there = find_stream(m, given);
  if (of(handle).state != ncclSuccess || there == nullptr || there->gpu != of(handle).gpu ||
      in.context->gpu != of(handle).gpu)
    return ncclInvalidUsage;
  start_group();
  group.calls.emplace_back(handle, [&m, given, there, work = std::move(work)] {
    if (check_capture(m, given, *there) != CUDA_SUCCESS) return ncclUnhandledCudaError;
    EmulatedNccl& nccl = m.gpu.groups();
    nccl.begin_calls();
    work(nccl, reinterpret_cast<CudaStream>(there));
    nccl.end_calls();
    return ncclSuccess;
  });
  return end_group();
}

ncclResult_t all_reduce(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, [=](EmulatedNccl& nccl, CudaStream s) {
    nccl.all_reduce(of(comm).group, in, out, static_cast<int64_t>(count), dtype_of(type),
                    combiner_of(op), s);
  });
}
ncclResult_t reduce_scatter(const void* in, void* out, size_t count, ncclDataType_t type,
                            ncclRedOp_t op, ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, [=](EmulatedNccl& nccl, CudaStream s) {
    nccl.reduce_scatter(of(comm).group, in, out, static_cast<int64_t>(count), dtype_of(type),
                        combiner_of(op), s);
  });
}
ncclResult_t all_gather(const void* in, void* out, size_t count, ncclDataType_t type,
                        ncclComm_t comm, cudaStream_t stream) {
  return enqueue(comm, stream, [=](EmulatedNccl& nccl, CudaStream s) {
    nccl.all_gather(of(comm).group, in, out, static_cast<int64_t>(count), dtype_of(type), s);
  });
}

const char* text(ncclResult_t error) {
  switch (error) {
    case ncclSuccess:
      return "no error";
    case ncclUnhandledCudaError:
      return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
    case ncclSystemError:
      return Machine::current()->settings.trouble.c_str();
    case ncclInvalidArgument:
      return "invalid argument (run with NCCL_DEBUG=WARN for details)";
    case ncclInvalidUsage:
      return "invalid usage (run with NCCL_DEBUG=WARN for details)";
    case ncclInProgress:
      return "NCCL operation in progress";
    default:
      return "unknown result code";
  }
}

template <class F>
void* as(F function) {
  return reinterpret_cast<void*>(function);
}

}  // namespace

void* find_nccl(const std::string& symbol) {
  static const std::map<std::string, void*> all = {
      {"", as(&get_id)},
      {"ncclGetVersion", as<decltype(&ncclGetVersion)>(&get_version)},
      {"ncclGetUniqueId", as<decltype(&ncclGetUniqueId)>(&get_id)},
      {"ncclCommInitRankConfig", as<decltype(&ncclCommInitRankConfig)>(&init)},
      {"ncclCommGetAsyncError", as<decltype(&ncclCommGetAsyncError)>(&get_state)},
      {"ncclCommAbort", as<decltype(&ncclCommAbort)>(&abort_comm)},
      {"ncclGroupStart", as<decltype(&ncclGroupStart)>(&start_group)},
      {"ncclGroupEnd", as<decltype(&ncclGroupEnd)>(&end_group)},
      {"ncclAllReduce", as<decltype(&ncclAllReduce)>(&all_reduce)},
      {"ncclReduceScatter", as<decltype(&ncclReduceScatter)>(&reduce_scatter)},
      {"ncclAllGather", as<decltype(&ncclAllGather)>(&all_gather)},
      {"ncclGetErrorString", as<decltype(&ncclGetErrorString)>(&text)}};
  const auto found = all.find(symbol);
  return found == all.end() ? nullptr : found->second;
}

}  // namespace tessera::test::rules
