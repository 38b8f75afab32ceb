#include "runtime/cuda_staging.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace tessera {

namespace {
constexpr int64_t kRing = int64_t{4} << 20, kPiece = kRing / 4;
}  // namespace

CudaStaging::CudaStaging(CudaApi& api, std::function<void(CudaEvent)> await)
    : api_(api), await_(std::move(await)) {}

CudaStaging::~CudaStaging() {
  try {
    for (const Pending& p : pending_) api_.release(p.passed);
    for (CudaEvent event : free_) api_.release(event);
    if (memory_ != nullptr) api_.release_host(memory_);
  } catch (const std::exception&) {  // a card that failed: nothing of it can be saved
  }
}

void CudaStaging::drop_first() {
  free_.push_back(pending_.front().passed);
  pending_.pop_front();
}

/// Waits for the oldest copies as long as one of them has what is asked for.
char* CudaStaging::room(int64_t bytes) {
  if (memory_ == nullptr) memory_ = static_cast<char*>(api_.allocate_host(kRing));
  if (next_ + bytes > kRing) next_ = 0;
  while (!pending_.empty() && api_.passed(pending_.front().passed)) drop_first();
  auto taken = [&](const Pending& p) { return p.begin < next_ + bytes && next_ < p.end; };
  while (std::any_of(pending_.begin(), pending_.end(), taken)) {
    await_(pending_.front().passed);
    drop_first();
  }
  return memory_ + next_;
}

void CudaStaging::copy(void* to, const void* host, int64_t bytes, CudaStream stream) {
  for (int64_t done = 0; done < bytes;) {
    const int64_t piece = std::min(bytes - done, kPiece);
    char* here = room(piece);
    std::memcpy(here, static_cast<const char*>(host) + done, static_cast<size_t>(piece));
    if (free_.empty()) free_.push_back(api_.make_event());
    api_.to_device(static_cast<char*>(to) + done, here, piece, stream);
    const CudaEvent passed = free_.back();
    api_.record(passed, stream);
    free_.pop_back();
    pending_.push_back({next_, next_ + piece, passed});
    next_ += (piece + 63) / 64 * 64;
    done += piece;
  }
}

}  // namespace tessera
