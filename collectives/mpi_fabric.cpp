// Shared memory between the processes of one host. Each segment is an anonymous memory file (memfd)
// of its owner; a peer opens it through /proc/PID/fd/FD and maps it. Unlike MPI's shared windows,
// making and freeing a segment involves no other rank, so it can neither hang nor needs to be
// called in the same order by all; nothing is left behind when a process is killed; and the size of
// /dev/shm does not matter.
//
// At the start every rank tells all others its host, process and first segment. Ranks of one host
// try to map each other and look for a random number there. If that works for all ranks of the
// host, the host shares memory. Otherwise (between containers, for example) its ranks send
// messages.
#include "collectives/mpi_fabric.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <random>

#include "base/fail.h"

namespace tessera {

struct MpiFabric::Introduction {
  char host[256] = {};
  uint64_t pid_space = 0, cookie = 0;
  int64_t pid = 0;
  int64_t unasked_bytes = 0;
  Token control;
  cpu_set_t processors;
};

MpiFabric::MpiFabric(std::unique_ptr<Wire> wire)
    : Fabric(wire->rank()),
      wire_(std::move(wire)),
      progress_(std::make_unique<Progress>(mpi_api().allows_threads())) {}

std::shared_ptr<MpiFabric> MpiFabric::make(std::unique_ptr<Wire> wire, const MpiOptions& options,
                                           double seconds) {
  std::shared_ptr<MpiFabric> fabric(new MpiFabric(std::move(wire)));
  fabric->introduce(options, seconds);
  return fabric;
}

MpiFabric::~MpiFabric() {
  for (const auto& [key, import] : imports_) munmap(import.base, import.bytes);
  for (const auto& [base, segment] : segments_) {
    munmap(const_cast<char*>(base), segment.bytes);
    close(segment.fd);
  }
}

void MpiFabric::introduce(const MpiOptions& options, double seconds) {
  static_assert(std::is_trivially_copyable_v<Introduction>);
  control_ = new (map(sizeof(Control))) Control;
  Introduction mine;
  gethostname(mine.host, sizeof(mine.host) - 1);
  if (options.ranks_per_host > 0) {
    const std::string part = fmt::format("/{}", rank() / options.ranks_per_host);
    part.copy(mine.host + std::min<size_t>(std::strlen(mine.host), 200), part.size());
  }
  struct stat space {};
  if (stat("/proc/self/ns/pid", &space) == 0) mine.pid_space = space.st_ino;
  std::random_device random;
  mine.cookie = (static_cast<uint64_t>(random()) << 32 | random()) | 1;
  control_->cookie.store(mine.cookie);
  mine.pid = getpid(), mine.unasked_bytes = mpi_api().unasked_bytes();
  mine.control = token(control_);
  CPU_ZERO(&mine.processors);
  sched_getaffinity(0, sizeof(mine.processors), &mine.processors);

  const int size = wire_->size();
  std::vector<Introduction> all(size);
  wire_->all_gather(&mine, sizeof(mine), all.data(), seconds);
  hosts_.resize(size);
  cpu_set_t processors;
  CPU_ZERO(&processors);
  int neighbours = 0;
  for (int q = 0; q < size; ++q) {
    pids_.push_back(all[q].pid);
    host_names_.emplace_back(all[q].host);
    auto same = [&](int p) {
      return std::strcmp(all[p].host, all[q].host) == 0 && all[p].pid_space == all[q].pid_space;
    };
    int first = 0;
    while (!same(first)) ++first;
    hosts_[q] = first;
    if (!same(rank())) {
      wire_->limit_part(q, std::min(mine.unasked_bytes, all[q].unasked_bytes));
      continue;
    }
    ++neighbours;
    CPU_OR(&processors, &processors, &all[q].processors);
  }
  crowded_ = neighbours > CPU_COUNT(&processors);
  controls_.assign(size, nullptr);
  heard_.resize(size);
  controls_[rank()] = control_;
  const char met = options.share_memory && meet_neighbours(all);
  std::vector<char> every(size);
  wire_->all_gather(&met, 1, every.data(), seconds);
  const std::vector<int> hosts = hosts_;
  for (int q = 0; q < size; ++q) {
    bool whole = true;
    for (int p = 0; p < size; ++p) whole = whole && (hosts[p] != hosts[q] || every[p]);
    if (whole) continue;
    hosts_[q] = q;  // as a host of its own
    if (q != rank()) controls_[q] = nullptr;
  }
  alarm_ = &controls_[hosts_[rank()]]->alarm;
  one_host_ = std::count(hosts_.begin(), hosts_.end(), hosts_[0]) == size;
}

bool MpiFabric::meet_neighbours(const std::vector<Introduction>& all) {
  for (int q = 0; q < wire_->size(); ++q) {
    if (q == rank() || hosts_[q] != hosts_[rank()]) continue;
    try {
      auto* const control = static_cast<Control*>(resolve(q, all[q].control));
      if (control->cookie.load() != all[q].cookie) return false;
      controls_[q] = control;
    } catch (const Error&) {
      return false;
    }
  }
  return true;
}

bool MpiFabric::together(const std::vector<int>& ranks) const {
  for (const int q : ranks) {
    if (hosts_[q] != hosts_[ranks[0]]) return false;
  }
  return true;
}

void* MpiFabric::map(int64_t bytes) {
  const int64_t page = sysconf(_SC_PAGESIZE);
  const int64_t size = std::max(page, (bytes + page - 1) / page * page);
  const int fd = memfd_create("tessera", MFD_CLOEXEC);
  void* base = MAP_FAILED;
  if (fd >= 0 && ftruncate(fd, size) == 0) {
    base = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  if (base == MAP_FAILED) {
    const int code = errno;
    if (fd >= 0) close(fd);
    tessera::fail(ErrorKind::device, "[allocate] no shared memory for {} bytes on rank {}: {}",
                  bytes, rank(), std::strerror(code));
  }
  segments_[static_cast<const char*>(base)] = {size, fd, serial_++};
  return base;
}

void MpiFabric::unmap(void* memory) noexcept {
  const auto found = segments_.find(static_cast<const char*>(memory));
  if (found == segments_.end()) return;
  // Frees the pages even if peers still have them mapped: no peer uses them any more, except after
  // a failure.
  if (alarm_->state.load() == 0 && ftruncate(found->second.fd, 0) != 0) {
    // The pages are freed when the last peer unmaps them.
  }
  munmap(memory, found->second.bytes);
  close(found->second.fd);
  segments_.erase(found);
}

bool MpiFabric::visible(const void* memory, int64_t bytes) const {
  const char* const at = static_cast<const char*>(memory);
  auto next = segments_.upper_bound(at);
  if (next == segments_.begin()) return false;
  --next;
  return at + bytes <= next->first + next->second.bytes;
}

Token MpiFabric::token(const void* memory) const {
  const char* const at = static_cast<const char*>(memory);
  if (!visible(memory, 1)) return {};
  const auto segment = std::prev(segments_.upper_bound(at));
  return {segment->second.fd, segment->second.serial, segment->second.bytes, at - segment->first};
}

char* MpiFabric::import(int rank, const Token& token) {
  // A reused descriptor has a new serial number; the old mapping is stale.
  Import& known = imports_[{rank, token.segment}];
  if (known.base && known.serial == token.serial) return known.base;
  if (known.base) munmap(known.base, known.bytes);
  known = {};
  const std::string path = fmt::format("/proc/{}/fd/{}", pids_[rank], token.segment);
  const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
  void* base = MAP_FAILED;
  struct stat found {};
  if (fd >= 0 && fstat(fd, &found) == 0 && found.st_size == token.bytes) {
    base = mmap(nullptr, token.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  }
  const int code = errno;
  if (fd >= 0) close(fd);
  if (base == MAP_FAILED) {
    imports_.erase({rank, token.segment});
    tessera::fail(ErrorKind::comm, "[mpi] rank {} cannot map memory of rank {} ({}): {}",
                  this->rank(), rank, path, std::strerror(code));
  }
  known = {static_cast<char*>(base), token.bytes, token.serial};
  return known.base;
}

void* MpiFabric::resolve(int rank, const Token& token) {
  if (rank != this->rank()) return import(rank, token) + token.offset;
  for (const auto& [base, segment] : segments_) {
    if (segment.fd == token.segment) return const_cast<char*>(base) + token.offset;
  }
  tessera::fail(ErrorKind::internal, "[mpi] rank {} does not know its own segment", rank);
}

Status* MpiFabric::status(int rank) { return controls_[rank] ? &controls_[rank]->status : nullptr; }

bool MpiFabric::alive(int rank) {
  return !controls_[rank] || kill(static_cast<pid_t>(pids_[rank]), 0) == 0 || errno != ESRCH;
}

void MpiFabric::poll() {
  constexpr int kSeldom = 32;
  if (one_host_ || ++polls_ % kSeldom != 0) return;
  int rank = 0;
  std::string message;
  if (!wire_->receive_failure(rank, message)) return;
  uint32_t none = 0;
  if (!alarm_->state.compare_exchange_strong(none, 1)) return;
  alarm_->rank.store(rank);
  alarm_->text.store(message);
  alarm_->state.store(2);
}

std::string MpiFabric::whereabouts(int rank) {
  if (controls_[rank]) return Fabric::whereabouts(rank);
  const std::string who = fmt::format("rank {}{}", rank, place(rank));
  if (!heard_[rank]) return fmt::format("{} (not heard from yet)", who);
  return fmt::format("{} (last heard from in {})", who, describe(*heard_[rank]));
}

void MpiFabric::heard(const std::vector<int>& ranks, const std::shared_ptr<const Call>& call) {
  for (const int q : ranks) heard_[q] = call;
}

void MpiFabric::raise(const std::string& message) {
  const bool first = alarm_->state.load() == 0;
  Fabric::raise(message);
  wire_->abandon();
  if (!first) return;
  std::vector<int> others;
  for (int q = 0; q < wire_->size(); ++q) {
    if (hosts_[q] != hosts_[rank()]) others.push_back(q);
  }
  if (!others.empty()) wire_->send_failure(message, others);
}

}  // namespace tessera
