#include "gpu/device/staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera {

namespace {
constexpr int64_t kRing = int64_t{4} << 20, kPiece = kRing / 4;
}  // namespace

GpuStaging::GpuStaging(CudaApi& api, std::function<void(CudaEvent)> await)
    : api_(api), await_(std::move(await)) {}

GpuStaging::~GpuStaging() {
  try {
    for (const Pending& p : pending_) api_.streams().release(p.passed);
    for (CudaEvent event : free_) api_.streams().release(event);
    if (memory_ != nullptr) api_.memory().release_host(memory_);
  } catch (const std::exception&) {  // the GPU failed: nothing can be saved
  }
}

void GpuStaging::drop_first() {
  free_.push_back(pending_.front().passed);
  pending_.pop_front();
}

/// Waits for the oldest copies until none occupies the requested bytes.
char* GpuStaging::room(int64_t bytes) {
  if (memory_ == nullptr) memory_ = static_cast<char*>(api_.memory().allocate_host(kRing));
  if (next_ + bytes > kRing) next_ = 0;
  while (!pending_.empty() && api_.streams().passed(pending_.front().passed)) drop_first();
  auto taken = [&](const Pending& p) { return p.begin < next_ + bytes && next_ < p.end; };
  while (std::any_of(pending_.begin(), pending_.end(), taken)) {
    await_(pending_.front().passed);
    drop_first();
  }
  return memory_ + next_;
}

void GpuStaging::copy(void* to, const void* host, int64_t bytes, CudaStream stream) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t piece = std::min(bytes - done, kPiece);
    char* here = room(piece);
    std::memcpy(here, static_cast<const char*>(host) + done, static_cast<size_t>(piece));
    if (free_.empty()) free_.push_back(api_.streams().make_event());
    api_.memory().to_device(static_cast<char*>(to) + done, here, piece, stream);
    const CudaEvent passed = free_.back();
    api_.streams().record(passed, stream);
    free_.pop_back();
    pending_.push_back({next_, next_ + piece, passed});
    next_ += (piece + 63) / 64 * 64;
    done += piece;
  }
}

}  // namespace tessera
