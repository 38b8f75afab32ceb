// The memory of a CUDA device: the driver's or the host program's, within its limit.
#include <algorithm>
#include <cstring>

#include "base/fail.h"
#include "runtime/cuda_device.h"

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

/// "persistent 2.0 MiB, transient 1.5 MiB": what is held and what is to come, the same together.
std::string CudaDevice::rows(const std::vector<std::pair<const char*, int64_t>>& more) const {
  std::vector<std::pair<std::string, int64_t>> all;
  auto add = [&](const std::string& what, int64_t bytes) {
    const auto row =
        std::find_if(all.begin(), all.end(), [&](const auto& r) { return r.first == what; });
    row == all.end() ? void(all.emplace_back(what, bytes)) : void(row->second += bytes);
  };
  for (const Memory& m : memory_) add(m.what, m.bytes);
  for (const auto& [what, bytes] : more) add(what, rounded(bytes));
  std::string text;
  for (const auto& [what, bytes] : all)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, size_text(bytes));
  return text;
}

void CudaDevice::require_room(const std::vector<std::pair<const char*, int64_t>>& more) const {
  int64_t held = 0, wanted = 0;
  for (const Memory& m : memory_) held += m.bytes;
  for (const auto& [what, bytes] : more) wanted += rounded(bytes);
  const int64_t limit = options_.loan.memory_limit;
  if (limit <= 0 || held + wanted <= limit) return;
  tessera::fail(
      ErrorKind::device, "rank {} may take {} of {} but needs {} ({}); raise memory_limit, {}",
      world_.rank(), size_text(limit), name(), size_text(held + wanted), rows(more), kRemedy);
}

void CudaDevice::expect(const std::vector<std::pair<const char*, int64_t>>& all) {
  require_room(all);
}

void* CudaDevice::allocate(int64_t wanted, const char* what) {
  const UseCard here(api_, card_);
  const CudaLoan& loan = options_.loan;
  const int64_t bytes = rounded(wanted);
  require_room({{what, wanted}});
  const int64_t free = loan.allocate ? bytes : api_.free_memory();
  if (bytes > free) {
    tessera::fail(ErrorKind::device,
                  "rank {} needs {:.2f} GiB more on {} for {} but {:.2f} GiB are free; {}",
                  world_.rank(), gib(bytes), name(), what, gib(free), kRemedy);
  }
  void* memory = loan.allocate ? loan.allocate(bytes) : api_.allocate(bytes);
  if (loan.allocate && (memory == nullptr || api_.card_of(memory) != card_ ||
                        reinterpret_cast<uintptr_t>(memory) % kAlignment != 0)) {
    if (memory != nullptr) loan.release(memory, bytes);
    tessera::fail(ErrorKind::device,
                  "[adopt_cuda] rank {} asked the host program's allocator for {} bytes on {} for "
                  "{} and got {}; it returns memory of that card at a multiple of {}. Held before: "
                  "{}; else {}",
                  world_.rank(), bytes, name(), what, fmt::ptr(memory), kAlignment, rows({}),
                  kRemedy);
  }
  memory_.push_back({what, memory, bytes});
  follow_loan();  // the host program's stream may still use what its allocator hands out
  api_.clear(memory, bytes, compute_);
  return memory;
}

void CudaDevice::release_memory() {
  const CudaLoan& loan = options_.loan;
  for (const Memory& m : memory_)
    loan.allocate ? loan.release(m.first, m.bytes) : api_.release(m.first);
  memory_.clear();
}

}  // namespace tessera
