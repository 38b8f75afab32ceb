#include "runtime/activity.h"

#include "base/fail.h"

namespace tessera {

namespace {

/// "[matmul] gpt.block3.mlp (model.cpp:41)", "[wait] call 12 loss (model.cpp:50)".
std::string text_of(const Step& step) {
  const Origin& from = step.origin;
  const std::string call = step.number < 0 ? "" : fmt::format(" call {}", step.number);
  return fmt::format("[{}]{} {}{}", step.host.op.empty() ? name_of(step) : step.host.op, call,
                     from.name, from.source.empty() ? "" : fmt::format(" ({})", from.source));
}

}  // namespace

RankActivity::Seen RankActivity::look() const {
  const std::lock_guard lock(mutex_);
  Seen seen;
  seen.thread = thread_.load(std::memory_order_relaxed);
  const Step* step = step_.load(std::memory_order_acquire);
  if (step == nullptr) return seen;
  seen.step = text_of(*step);
  seen.seconds = 1e-9 * static_cast<double>(now() - since_.load(std::memory_order_relaxed));
  seen.is_bounded = is_bounded_.load(std::memory_order_relaxed);
  return seen;
}

bool RankActivity::abandon() {
  const std::lock_guard lock(mutex_);
  if (step_.load(std::memory_order_acquire) == nullptr) return false;
  abandoned_.store(true, std::memory_order_relaxed);
  return true;
}

}  // namespace tessera
