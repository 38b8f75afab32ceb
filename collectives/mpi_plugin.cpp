// What libtessera_mpi.so exports: MPI as MpiApi. Transfers are persistent requests, so starting a
// collective costs no set-up. A transfer over 2^30 bytes is split, because MPI 3.1 counts in int;
// one between hosts on a TCP network is split into messages that are sent eagerly. Messages of one
// pair and tag do not overtake each other, which keeps parts and generations in order.
//
// Tag 0 is for failures: one receive from any rank is posted at the start and tested during waits.
// After a failure nothing collective is called and MPI is not finalized: both would wait for peers
// that may be gone.
#include <mpi.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "base/fail.h"
#include "collectives/mpi_api.h"
#include "collectives/wait_briefly.h"

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

struct Handles {
  MPI_Comm comm = MPI_COMM_NULL;
  MPI_Request failure = MPI_REQUEST_NULL;
  char failure_text[kFailureBytes] = {};
  bool abandoned = false;
};

class MpiWire final : public Wire {
 public:
  MpiWire(const void* comm, double seconds, bool by_host);
  ~MpiWire() override;
  MpiWire(const MpiWire&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  int64_t largest_tag() const override { return largest_tag_; }
  void limit_part(int rank, int64_t bytes) override;
  std::unique_ptr<Transfers> transfers() override;
  void all_gather(const void* mine, int64_t bytes, void* all, double seconds) override;
  void send_failure(const std::string& message, const std::vector<int>& ranks) override;
  bool receive_failure(int& rank, std::string& message) override;
  void abandon() override { handles_->abandoned = any_abandoned = true; }

  MPI_Comm comm() const { return handles_->comm; }
  /// The most bytes of one message with `rank`.
  int64_t part(int rank) const { return parts_[static_cast<size_t>(rank)]; }

 private:
  void order_by_host(double seconds);
  std::unique_ptr<Handles> handles_;
  int rank_ = 0, size_ = 1;
  int64_t largest_tag_ = 0;
  std::vector<int64_t> parts_;
};

/// A rank's sort key is (first rank of its host, rank).
void MpiWire::order_by_host(double seconds) {
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

MpiWire::MpiWire(const void* comm, double seconds, bool by_host)
    : handles_(std::make_unique<Handles>()) {
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

MpiWire::~MpiWire() {
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

void MpiWire::limit_part(int rank, int64_t bytes) {
  if (bytes > 0) parts_[static_cast<size_t>(rank)] = std::min(bytes, kPart);
}

void MpiWire::all_gather(const void* mine, int64_t bytes, void* all, double seconds) {
  MPI_Request request;
  const int count = static_cast<int>(bytes);
  expect(MPI_Iallgather(mine, count, MPI_CHAR, all, count, MPI_CHAR, handles_->comm, &request),
         "MPI_Iallgather");
  complete(request, seconds, "gathering the addresses of all ranks");
}

void MpiWire::send_failure(const std::string& message, const std::vector<int>& ranks) {
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

bool MpiWire::receive_failure(int& rank, std::string& message) {
  if (handles_->failure == MPI_REQUEST_NULL) return false;
  int done = 0;
  MPI_Status status;
  if (MPI_Test(&handles_->failure, &done, &status) != MPI_SUCCESS || !done) return false;
  handles_->failure = MPI_REQUEST_NULL;
  rank = status.MPI_SOURCE;
  message = handles_->failure_text;
  return true;
}

class MpiTransfers final : public Transfers {
 public:
  explicit MpiTransfers(MpiWire& wire) : wire_(wire) {}
  ~MpiTransfers() override;
  MpiTransfers(const MpiTransfers&) = delete;

  void send(int rank, int tag, const void* data, int64_t bytes) override;
  void receive(int rank, int tag, void* data, int64_t bytes) override;
  void start() override;
  bool test() override;
  const std::vector<int>& outstanding() override;

 private:
  bool test_next();
  bool test(size_t from, size_t count);
  void add(const MPI_Request& request, int peer, bool receive);

  MpiWire& wire_;
  std::vector<MPI_Request> requests_;
  std::vector<int> peers_;
  std::vector<char> receives_, done_;
  std::vector<int> indices_;
  std::vector<int> outstanding_;  ///< the result of outstanding(), which a long wait calls often
  size_t left_ = 0;
  size_t first_ = 0;  ///< all before it are complete
};

MpiTransfers::~MpiTransfers() {
  int finalized = 0;
  MPI_Finalized(&finalized);
  if (finalized) return;
  for (size_t i = 0; i < requests_.size(); ++i) {
    // An outstanding receive must not be written after its buffer is gone. A send cannot be undone.
    if (!done_[i] && receives_[i]) MPI_Cancel(&requests_[i]);
    MPI_Request_free(&requests_[i]);
  }
}

/// Tests the next requests that may not be complete; true if those are now.
bool MpiTransfers::test_next() {
  constexpr size_t kAtOnce = 256;
  while (first_ < done_.size() && done_[first_]) ++first_;
  const size_t count = std::min(kAtOnce, done_.size() - first_);
  const bool all = test(first_, count);
  if (all) first_ += count;
  return all;
}

bool MpiTransfers::test(size_t from, size_t count) {
  int completed = 0;
  expect(MPI_Testsome(static_cast<int>(count), requests_.data() + from, &completed, indices_.data(),
                      MPI_STATUSES_IGNORE),
         "a message");
  for (int i = 0; i < completed; ++i) done_[from + static_cast<size_t>(indices_[i])] = 1;
  if (completed > 0) left_ -= static_cast<size_t>(completed);
  const auto at = done_.begin() + static_cast<std::ptrdiff_t>(from);
  return std::find(at, at + static_cast<std::ptrdiff_t>(count), 0) ==
         at + static_cast<std::ptrdiff_t>(count);
}

void MpiTransfers::add(const MPI_Request& request, int peer, bool receive) {
  requests_.push_back(request);
  peers_.push_back(peer);
  receives_.push_back(receive);
  done_.push_back(1);
  indices_.push_back(0);
  outstanding_.reserve(peers_.capacity());
}

void MpiTransfers::send(int rank, int tag, const void* data, int64_t bytes) {
  const char* at = static_cast<const char*>(data);
  do {
    const int64_t n = std::min(bytes, wire_.part(rank));
    MPI_Request request;
    expect(MPI_Send_init(at, static_cast<int>(n), MPI_CHAR, rank, tag, wire_.comm(), &request),
           "MPI_Send_init");
    add(request, rank, false);
    at += n;
    bytes -= n;
  } while (bytes > 0);
}

void MpiTransfers::receive(int rank, int tag, void* data, int64_t bytes) {
  char* at = static_cast<char*>(data);
  do {
    const int64_t n = std::min(bytes, wire_.part(rank));
    MPI_Request request;
    expect(MPI_Recv_init(at, static_cast<int>(n), MPI_CHAR, rank, tag, wire_.comm(), &request),
           "MPI_Recv_init");
    add(request, rank, true);
    at += n;
    bytes -= n;
  } while (bytes > 0);
}

void MpiTransfers::start() {
  if (requests_.empty()) return;
  expect(MPI_Startall(static_cast<int>(requests_.size()), requests_.data()), "MPI_Startall");
  std::fill(done_.begin(), done_.end(), 0);
  left_ = requests_.size();
  first_ = 0;
}

bool MpiTransfers::test() {
  while (left_ > 0 && test_next()) {
  }
  return left_ == 0;
}

const std::vector<int>& MpiTransfers::outstanding() {
  outstanding_.clear();
  if (left_ > 0) test(0, done_.size());
  for (const bool receive : {true, false}) {
    for (size_t i = 0; i < requests_.size(); ++i) {
      const bool fresh =
          std::find(outstanding_.begin(), outstanding_.end(), peers_[i]) == outstanding_.end();
      if (!done_[i] && fresh && (receives_[i] != 0) == receive) outstanding_.push_back(peers_[i]);
    }
    if (!outstanding_.empty()) break;
  }
  return outstanding_;
}

std::unique_ptr<Transfers> MpiWire::transfers() { return std::make_unique<MpiTransfers>(*this); }

std::string text_of_library() {
  char text[MPI_MAX_LIBRARY_VERSION_STRING] = {};
  int length = 0;
  MPI_Get_library_version(text, &length);
  return text;
}

/// "Open MPI v4" of "Open MPI v4.1.4, package: ...": the implementation and its major version.
std::string family_of(const std::string& library) {
  size_t end = 0;
  while (end < library.size() && std::isdigit(static_cast<unsigned char>(library[end])) == 0) ++end;
  while (end < library.size() && std::isdigit(static_cast<unsigned char>(library[end])) != 0) ++end;
  std::string family;
  for (const char c : library.substr(0, end)) {
    if (std::isspace(static_cast<unsigned char>(c)) == 0)
      family += c;
    else if (!family.empty() && family.back() != ' ')
      family += ' ';
  }
  return family;
}

/// The same of the MPI whose header was compiled; empty if it does not say.
std::string family_of_header() {
#if defined(OPEN_MPI)
  return fmt::format("Open MPI v{}", OMPI_MAJOR_VERSION);
#elif defined(I_MPI_VERSION)
  return "";
#elif defined(MPICH_VERSION)
  return family_of("MPICH Version: " MPICH_VERSION);
#else
  return "";
#endif
}

class OpenedMpi final : public MpiApi {
 public:
  OpenedMpi() {
    const std::string built = family_of_header(), found = family_of(library());
    if (!built.empty() && built != found) {
      fail(ErrorKind::unsupported,
           "libtessera_mpi.so was built with {}, but the MPI of this process is {}; start with the "
           "MPI that it was built with, or build Tessera with this one",
           built, found);
    }
  }
  std::string version() const override {
    int major = 0, minor = 0;
    MPI_Get_version(&major, &minor);
    const std::string text = library();
    return fmt::format("MPI {}.{} ({})", major, minor, text.substr(0, text.find_first_of(",\n")));
  }
  std::string library() const override { return text_of_library(); }
  void ensure() override {
    int initialized = 0, finalized = 0;
    MPI_Finalized(&finalized);
    TESSERA_REQUIRE(!finalized,
                    "[make_mpi_world] MPI has been finalized; make the world before that");
    MPI_Initialized(&initialized);
    if (initialized) return;
    int provided = 0;
    expect(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &provided), "MPI_Init_thread");
    std::atexit(finalize_at_exit);
  }
  const void* world() const override { return &world_; }
  std::unique_ptr<Wire> duplicate(const void* comm, double seconds, bool by_host) override {
    return std::make_unique<MpiWire>(comm, seconds, by_host);
  }
  bool allows_threads() const override {
    int provided = 0;
    return MPI_Query_thread(&provided) == MPI_SUCCESS && provided == MPI_THREAD_MULTIPLE;
  }
  /// Cached: every MPI_T_init_thread leaks about 4 kB.
  int64_t unasked_bytes() const override {
    static const int64_t bytes = tcp_eager_bytes();
    return bytes;
  }

 private:
  const MPI_Comm world_ = MPI_COMM_WORLD;
};

}  // namespace

}  // namespace tessera

extern "C" {

/// See MpiOpen.
tessera::MpiApi* tessera_mpi_open(std::string& why) {
  try {
    static tessera::OpenedMpi opened;
    return &opened;
  } catch (const std::exception& e) {
    why = e.what();
    return nullptr;
  }
}
}
