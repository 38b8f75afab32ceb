// MPI behind a narrow interface. Transfers are persistent requests, so starting a collective costs
// no set-up. A transfer over 2^30 bytes is split, because MPI 3.1 counts in int; one between hosts
// on a TCP network is split into messages that are sent eagerly. Messages of one pair and tag do
// not overtake each other, which keeps parts and generations in order.
//
// Tag 0 is for failures: one receive from any rank is posted at the start and tested during waits.
// After a failure nothing collective is called and MPI is not finalized: both would wait for peers
// that may be gone.
#include "collectives/mpi_transport.h"

#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/fail.h"

namespace tessera {
namespace {

constexpr int kFailureTag = 0, kFailureBytes = 2048;
constexpr int64_t kPart = int64_t{1} << 30;
using Clock = std::chrono::steady_clock;

/// A world of this process failed: finalizing may hang.
std::atomic<bool> any_abandoned{false};

void expect(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  fail(ErrorKind::comm, "[mpi] {} failed: {}", what, std::string(text, length));
}

void complete(MPI_Request& request, double seconds, const char* what) {
  const Clock::time_point start = Clock::now();
  for (int done = 0;;) {
    expect(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what);
    if (done) return;
    const double waited = std::chrono::duration<double>(Clock::now() - start).count();
    if (waited > seconds) {
      any_abandoned = true;
      fail(ErrorKind::comm,
           "[mpi] {}: not all ranks arrived within {:.3g} s; is one missing or dead?", what,
           seconds);
    }
    wait_briefly(waited, true);
  }
}

void finalize_at_exit() {
  int finalized = 0;
  if (!any_abandoned && MPI_Finalized(&finalized) == MPI_SUCCESS && !finalized) MPI_Finalize();
}

/// Open MPI's btl_tcp_eager_limit, less its own header. 0 if a network other than Ethernet has
/// devices in one of these folders.
int64_t tcp_eager_bytes() {
  constexpr int64_t kHeader = 256;
  for (const char* devices : {"/sys/class/infiniband", "/sys/class/cxi", "/sys/class/hfi1"}) {
    std::error_code none;
    if (std::filesystem::exists(devices, none) && !std::filesystem::is_empty(devices, none))
      return 0;
  }
  int provided = 0, index = 0, count = 0;
  if (MPI_T_init_thread(MPI_THREAD_SINGLE, &provided) != MPI_SUCCESS) return 0;
  uint64_t limit = 0;
  MPI_T_cvar_handle handle;
  if (MPI_T_cvar_get_index("btl_tcp_eager_limit", &index) == MPI_SUCCESS &&
      MPI_T_cvar_handle_alloc(index, nullptr, &handle, &count) == MPI_SUCCESS) {
    if (count == 1) MPI_T_cvar_read(handle, &limit);
    MPI_T_cvar_handle_free(&handle);
  }
  MPI_T_finalize();
  const auto bytes = static_cast<int64_t>(limit) - kHeader;
  return bytes > 0 && bytes < kPart ? bytes / 64 * 64 : 0;
}

}  // namespace

void wait_briefly(double waited, bool crowded) {
  constexpr double kLeast = 50e-6, kMost = 1e-3;
  if (waited < (crowded ? 200e-6 : 0.01)) {
    sched_yield();
  } else {
    usleep(static_cast<useconds_t>(1e6 * std::clamp(waited / (crowded ? 10 : 100), kLeast, kMost)));
  }
}

struct Wire::Handles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request failure = MPI_REQUEST_NULL;
  char failure_text[kFailureBytes] = {};
  bool abandoned = false;
};

void ensure_mpi() {
  int initialized = 0, finalized = 0;
  MPI_Finalized(&finalized);
  require(!finalized, "[make_mpi_world] MPI has been finalized; make the world before that");
  MPI_Initialized(&initialized);
  if (initialized) return;
  int provided = 0;
  expect(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
  std::atexit(finalize_at_exit);
}

bool allows_threads() {
  int provided = 0;
  return MPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
}

/// Cached: every MPI_T_init_thread leaks about 4 kB.
int64_t unasked_bytes() {
  static const int64_t bytes = tcp_eager_bytes();
  return bytes;
}

const void* mpi_comm_world() {
  static const MPI_Comm world = MPI_COMM_WORLD;
  return &world;
}

/// A rank's sort key is (first rank of its host, rank).
void Wire::order_by_host(double seconds) {
  constexpr int kLength = 256;
  char mine[kLength] = {};
  gethostname(mine, kLength - 1);
  std::vector<char> all(static_cast<size_t>(kLength) * static_cast<size_t>(size_));
  all_gather(mine, kLength, all.data(), seconds);
  const auto first_of = [&](int rank) {
    int first = 0;
    while (std::strncmp(&all[static_cast<size_t>(first) * kLength],
                        &all[static_cast<size_t>(rank) * kLength], kLength) != 0)
      ++first;
    return first;
  };
  bool in_order = true;
  for (int r = 1; r < size_; ++r) in_order = in_order && first_of(r - 1) <= first_of(r);
  if (in_order) return;
  MPI_Comm sorted;  // all ranks have just answered, so no wait is in vain
  expect(MPI_Comm_split(handles_->comm, 0, first_of(rank_) * size_ + rank_, &sorted),
         "MPI_Comm_split");
  MPI_Comm_free(&handles_->comm);
  handles_->comm = sorted;
  expect(MPI_Comm_set_errhandler(sorted, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  expect(MPI_Comm_rank(sorted, &rank_), "MPI_Comm_rank");
}

Wire::Wire(const void* comm, double seconds, bool by_host) : handles_(std::make_unique<Handles>()) {
  MPI_Comm original;
  std::memcpy(&original, comm, sizeof(original));
  MPI_Request request;
  expect(MPI_Comm_idup(original, &handles_->comm, &request), "MPI_Comm_idup");
  complete(request, seconds, "duplicating the communicator");
  expect(MPI_Comm_set_errhandler(handles_->comm, MPI_ERRORS_RETURN), "MPI_Comm_set_errhandler");
  expect(MPI_Comm_rank(handles_->comm, &rank_), "MPI_Comm_rank");
  expect(MPI_Comm_size(handles_->comm, &size_), "MPI_Comm_size");
  if (by_host) order_by_host(seconds);
  const MPI_Comm ours = handles_->comm;
  int* bound = nullptr;
  int known = 0;
  expect(MPI_Comm_get_attr(ours, MPI_TAG_UB, &bound, &known), "MPI_Comm_get_attr");
  largest_tag_ = known ? *bound : 32767;
  parts_.assign(static_cast<size_t>(size_), kPart);
  expect(MPI_Irecv(handles_->failure_text, kFailureBytes, MPI_CHAR, MPI_ANY_SOURCE, kFailureTag,
                   ours, &handles_->failure),
         "MPI_Irecv");
}

Wire::~Wire() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  if (handles_->abandoned) {
    // MPI may still write to the receive's buffer, so it must stay.
    handles_.release();
    return;
  }
  if (handles_->failure != MPI_REQUEST_NULL) {
    MPI_Cancel(&handles_->failure);
    MPI_Wait(&handles_->failure, MPI_STATUS_IGNORE);  // a cancelled receive completes locally
  }
  MPI_Comm_free(&handles_->comm);
}

void Wire::limit_part(int rank, int64_t bytes) {
  if (bytes > 0) parts_[static_cast<size_t>(rank)] = std::min(bytes, kPart);
}

void Wire::all_gather(const void* mine, int64_t bytes, void* all, double seconds) {
  MPI_Request request;
  const int count = static_cast<int>(bytes);
  expect(MPI_Iallgather(mine, count, MPI_CHAR, all, count, MPI_CHAR, handles_->comm, &request),
         "MPI_Iallgather");
  complete(request, seconds, "gathering the addresses of all ranks");
}

void Wire::send_failure(const std::string& message, const std::vector<int>& ranks) {
  // Buffer and requests outlive this call: a message to a dead rank never completes.
  auto* text = new char[kFailureBytes]();
  std::memcpy(text, message.data(), std::min<size_t>(message.size(), kFailureBytes - 1));
  std::vector<MPI_Request> requests(ranks.size());
  for (size_t i = 0; i < ranks.size(); ++i) {
    if (MPI_Isend(text, kFailureBytes, MPI_CHAR, ranks[i], kFailureTag, handles_->comm,
                  &requests[i])) {
      requests[i] = MPI_REQUEST_NULL;
    }
  }
  const Clock::time_point start = Clock::now();
  int done = 0;
  while (!done && Clock::now() - start < std::chrono::milliseconds(200)) {
    if (MPI_Testall(static_cast<int>(requests.size()), requests.data(), &done,
                    MPI_STATUSES_IGNORE)) {
      return;
    }
    sched_yield();
  }
  if (done) delete[] text;
}

bool Wire::receive_failure(int& rank, std::string& message) {
  if (handles_->failure == MPI_REQUEST_NULL) return false;
  int done = 0;
  MPI_Status status;
  if (MPI_Test(&handles_->failure, &done, &status) != MPI_SUCCESS || !done) return false;
  handles_->failure = MPI_REQUEST_NULL;
  rank = status.MPI_SOURCE;
  message = handles_->failure_text;
  return true;
}

void Wire::abandon() { handles_->abandoned = any_abandoned = true; }

struct Transfers::State {
  std::vector<MPI_Request> requests;
  std::vector<int> peers;
  std::vector<char> receives, done;
  std::vector<int> indices;
  std::vector<int> outstanding;  ///< the result of outstanding(), which a long wait calls often
  size_t left = 0;
  size_t first = 0;  ///< all before it are complete

  /// Tests the next requests that may not be complete; true if those are now.
  bool test_next() {
    constexpr size_t kAtOnce = 256;
    while (first < done.size() && done[first]) ++first;
    const size_t count = std::min(kAtOnce, done.size() - first);
    const bool all = test(first, count);
    if (all) first += count;
    return all;
  }
  bool test(size_t from, size_t count) {
    int completed = 0;
    expect(MPI_Testsome(static_cast<int>(count), requests.data() + from, &completed, indices.data(),
                        MPI_STATUSES_IGNORE),
           "a message");
    for (int i = 0; i < completed; ++i) done[from + static_cast<size_t>(indices[i])] = 1;
    if (completed > 0) left -= static_cast<size_t>(completed);
    const auto at = done.begin() + static_cast<std::ptrdiff_t>(from);
    return std::find(at, at + static_cast<std::ptrdiff_t>(count), 0) ==
           at + static_cast<std::ptrdiff_t>(count);
  }

  void add(const MPI_Request& request, int peer, bool receive) {
    requests.push_back(request);
    peers.push_back(peer);
    receives.push_back(receive);
    done.push_back(1);
    indices.push_back(0);
    outstanding.reserve(peers.capacity());
  }
};

Transfers::Transfers(Wire& wire) : wire_(&wire), state_(std::make_unique<State>()) {}
Transfers::Transfers(Transfers&&) noexcept = default;

Transfers::~Transfers() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (!state_ || finalized) return;
  for (size_t i = 0; i < state_->requests.size(); ++i) {
    // An outstanding receive must not be written after its buffer is gone. A send cannot be undone.
    if (!state_->done[i] && state_->receives[i]) MPI_Cancel(&state_->requests[i]);
    MPI_Request_free(&state_->requests[i]);
  }
}

void Transfers::send(int rank, int tag, const void* data, int64_t bytes) {
  const char* at = static_cast<const char*>(data);
  do {
    const int64_t n = std::min(bytes, wire_->part(rank));
    MPI_Request request;
    expect(MPI_Send_init(at, static_cast<int>(n), MPI_CHAR, rank, tag, wire_->handles().comm,
                         &request),
           "MPI_Send_init");
    state_->add(request, rank, false);
    at += n;
    bytes -= n;
  } while (bytes > 0);
}

void Transfers::receive(int rank, int tag, void* data, int64_t bytes) {
  char* at = static_cast<char*>(data);
  do {
    const int64_t n = std::min(bytes, wire_->part(rank));
    MPI_Request request;
    expect(MPI_Recv_init(at, static_cast<int>(n), MPI_CHAR, rank, tag, wire_->handles().comm,
                         &request),
           "MPI_Recv_init");
    state_->add(request, rank, true);
    at += n;
    bytes -= n;
  } while (bytes > 0);
}

void Transfers::start() {
  State& s = *state_;
  if (s.requests.empty()) return;
  expect(MPI_Startall(static_cast<int>(s.requests.size()), s.requests.data()), "MPI_Startall");
  std::fill(s.done.begin(), s.done.end(), 0);
  s.left = s.requests.size();
  s.first = 0;
}

bool Transfers::test() {
  State& s = *state_;
  while (s.left > 0 && s.test_next()) {
  }
  return s.left == 0;
}

const std::vector<int>& Transfers::outstanding() {
  std::vector<int>& ranks = state_->outstanding;
  ranks.clear();
  if (state_->left > 0) state_->test(0, state_->done.size());
  for (const bool receive : {true, false}) {
    for (size_t i = 0; i < state_->requests.size(); ++i) {
      const bool fresh = std::find(ranks.begin(), ranks.end(), state_->peers[i]) == ranks.end();
      if (!state_->done[i] && fresh && (state_->receives[i] != 0) == receive) {
        ranks.push_back(state_->peers[i]);
      }
    }
    if (!ranks.empty()) break;
  }
  return ranks;
}

}  // namespace tessera
