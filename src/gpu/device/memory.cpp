#include "gpu/device/memory.h"

#include <algorithm>
#include <cstring>

#include "base/fail.h"

namespace tessera {

namespace {

constexpr int64_t kAlignment = 256;
constexpr const char* kRemedy =
    "use more ranks, a smaller batch, or a layout that splits parameters or state";

int64_t rounded(int64_t bytes) {
  return (std::max<int64_t>(bytes, 1) + kAlignment - 1) / kAlignment * kAlignment;
}
double gib(int64_t bytes) { return static_cast<double>(bytes) / (1 << 30); }
std::string size_text(int64_t bytes) {
  const bool is_small = bytes < (1 << 20);
  return fmt::format("{:.2f} {}iB", static_cast<double>(bytes) / (is_small ? 1 << 10 : 1 << 20),
                     is_small ? "K" : "M");
}

}  // namespace

/// "persistent 2.0 MiB, transient 1.5 MiB": what is allocated and what is to come, added up by
/// purpose.
std::string GpuMemory::rows(const std::vector<std::pair<const char*, int64_t>>& more) const {
  std::vector<std::pair<std::string, int64_t>> all;
  auto add = [&](const std::string& what, int64_t bytes) {
    const auto row =
        std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.first == what; });
    row == all.end() ? void(all.emplace_back(what, bytes)) : void(row->second += bytes);
  };
  for (const Block& m : blocks_) add(m.what, m.bytes);
  for (const auto& [what, bytes] : more) add(what, rounded(bytes));
  std::string text;
  for (const auto& [what, bytes] : all)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, size_text(bytes));
  return text;
}

void GpuMemory::require_room(const std::vector<std::pair<const char*, int64_t>>& more) const {
  int64_t held = 0, wanted = 0;
  for (const Block& m : blocks_) held += m.bytes;
  for (const auto& [what, bytes] : more) wanted += rounded(bytes);
  const int64_t limit = gpu_.options.loan.memory_limit;
  if (limit <= 0 || held + wanted <= limit) return;
  fail(ErrorKind::device, "rank {} may take {} of {} but needs {} ({}); raise memory_limit, {}",
       gpu_.world.rank(), size_text(limit), gpu_.name(), size_text(held + wanted), rows(more),
       kRemedy);
}

void* GpuMemory::allocate(int64_t wanted, const char* what) {
  const UseGpu here(gpu_);
  const CudaLoan& loan = gpu_.options.loan;
  const int64_t bytes = rounded(wanted);
  require_room({{what, wanted}});
  void* memory = loan.allocate ? loan.allocate(bytes) : from_driver(bytes, what);
  if (loan.allocate && (memory == nullptr || gpu_.api.memory().gpu_of(memory) != gpu_.number ||
                        reinterpret_cast<uintptr_t>(memory) % kAlignment != 0)) {
    if (memory != nullptr) loan.release(memory, bytes);
    fail(ErrorKind::device,
         "[adopt_cuda] rank {} asked the host program's allocator for {} bytes on {} for "
         "{} and got {}; it returns memory of that GPU at a multiple of {}. Held before: "
         "{}; else {}",
         gpu_.world.rank(), bytes, gpu_.name(), what, fmt::ptr(memory), kAlignment, rows({}),
         kRemedy);
  }
  blocks_.push_back({what, memory, bytes});
  streams_.follow_loan();  // the host program's stream may still use memory that its allocator
                           // hands out
  gpu_.api.memory().clear(memory, bytes, streams_.compute());
  return memory;
}

/// What NCCL and the libraries take when they are first used; arenas leave it.
int64_t GpuMemory::left_by(const char* what, int64_t total) const {
  constexpr int64_t kLibraries = int64_t{256} << 20, kNccl = int64_t{384} << 20, kShare = 64;
  const bool is_arena = std::strcmp(what, "persistent") == 0 || std::strcmp(what, "transient") == 0;
  if (!is_arena) return 0;
  return std::min(total / kShare, kLibraries + (gpu_.options.use_groups ? kNccl : 0));
}

void* GpuMemory::from_driver(int64_t bytes, const char* what) {
  const int64_t free = gpu_.api.memory().free_memory(),
                total = gpu_.api.contexts().gpus().at(static_cast<size_t>(gpu_.number)).memory,
                left = left_by(what, total);
  std::string refusal;
  if (bytes + left <= free) {
    try {
      return gpu_.api.memory().allocate(bytes);
    } catch (const Error& e) {
      refusal = fmt::format(", and the driver does not give them in one piece ({})", e.what());
    }
  }
  int64_t held = 0;
  for (const Block& m : blocks_) held += m.bytes;
  fail(ErrorKind::device,
       "rank {} needs {:.2f} GiB more on {} for {} but {:.2f} GiB are free{}{}; of its {:.2f} GiB "
       "this rank has {:.2f} and others {:.2f} (nvidia-smi lists the processes); {}",
       gpu_.world.rank(), gib(bytes), gpu_.name(), what, gib(free),
       left > 0 ? fmt::format(", of which {:.2f} are left to CUDA's libraries", gib(left)) : "",
       refusal, gib(total), gib(held), gib(std::max<int64_t>(total - free - held, 0)), kRemedy);
}

void* GpuMemory::pinned(int64_t bytes) {
  pinned_.push_back(gpu_.api.memory().allocate_host(std::max<int64_t>(bytes, 1)));
  return pinned_.back();
}

/// Kernels use pinned memory at its host address: each access crosses the bus.
void* GpuMemory::allocate_on_host(int64_t bytes) {
  const UseGpu here(gpu_);
  try {
    return std::memset(pinned(bytes), 0, static_cast<size_t>(bytes));
  } catch (const Error& e) {
    fail(ErrorKind::device,
         "rank {} needs {:.2f} GiB of the host's memory for optimizer state, which the host does "
         "not give to {}: {}; leave the state on the GPU (train.offload=none), or split it over "
         "more ranks with --zero 1",
         gpu_.world.rank(), gib(bytes), gpu_.name(), e.what());
  }
}

void* GpuMemory::workspace() {
  if (workspace_ == nullptr)
    workspace_ = allocate(gpu_.api.blas().workspace(), "workspace of matmuls");
  return workspace_;
}

bool GpuMemory::is_transient(const CudaRange& range) const {
  const char* at = static_cast<const char*>(range.first);
  return std::any_of(blocks_.begin(), blocks_.end(), [&](const Block& block) {
    const char* first = static_cast<const char*>(block.first);
    return std::strcmp(block.what, "transient") == 0 && at >= first &&
           at + range.bytes <= first + block.bytes;
  });
}

void GpuMemory::release_pinned() {
  for (void* memory : pinned_) gpu_.api.memory().release_host(memory);
  pinned_.clear();
}

void GpuMemory::release() {
  const CudaLoan& loan = gpu_.options.loan;
  for (const Block& b : blocks_)
    loan.allocate ? loan.release(b.first, b.bytes) : gpu_.api.memory().release(b.first);
  blocks_.clear();
}

}  // namespace tessera
