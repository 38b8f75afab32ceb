// What is not finite in the padding of a slice, or the identity of a maximum over no elements, is
// no fault: what follows masks it. So each buffer that holds something not finite keeps its cause,
// the earliest result that was not finite though all that it was made of is, and a result that is
// finite ends the trail. The cause of the guard is what the user looks for.
//
// A trail may come from another rank, which sent what is not finite though the parts of this rank
// are: then the cause is there. So a rank's own causes count before those that a rank has sent on,
// and these before what has only arrived, wherever they lie in the run.
#include "runtime/finite_check.h"

#include <cmath>
#include <limits>
#include <optional>
#include <tuple>
#include <vector>

#include "base/fail.h"

namespace tessera {

namespace {

/// The first element that is not finite, or -1.
int64_t find_non_finite(const void* data, DType dtype, int64_t elements) {
  for (int64_t i = 0; i < elements; ++i) {
    double x = 0;
    if (dtype == DType::float32) x = static_cast<const float*>(data)[i];
    if (dtype == DType::float64) x = static_cast<const double*>(data)[i];
    if (is_narrow(dtype)) {  // all exponent bits set
      const int exponent = dtype == DType::float16 ? 0x7C00 : 0x7F80;
      x = (static_cast<const uint16_t*>(data)[i] & exponent) == exponent
              ? std::numeric_limits<double>::infinity()
              : 0;
    }
    if (!std::isfinite(x)) return i;
  }
  return -1;
}

}  // namespace

bool is_finite(const RankContext& rank, const RankMemory& memory, const View& view) {
  uint64_t held = 0;
  rank.device.read(&held, memory.address(view), size_of(view.dtype));
  return find_non_finite(&held, view.dtype, 1) < 0;
}

namespace {

/// The row-major position of the first element of `view` that is not finite, or -1. A number that
/// is repeated along a dim is stored once.
int64_t find_non_finite(Device& device, const void* address, const View& view) {
  View once = view;
  int64_t span = 1;
  for (size_t d = 0; d < once.sizes.size(); ++d) {
    if (once.strides[d] == 0) once.sizes[d] = 1;
    span += (once.sizes[d] - 1) * once.strides[d];
  }
  std::vector<std::byte> held(static_cast<size_t>(span * size_of(view.dtype)));
  device.read(held.data(), address, static_cast<int64_t>(held.size()));
  if (once.is_contiguous()) return find_non_finite(held.data(), view.dtype, once.elements());
  std::vector<int64_t> index(once.sizes.size(), 0);
  for (int64_t position = 0, at = 0; position < once.elements(); ++position) {
    const std::byte* element = held.data() + at * size_of(view.dtype);
    if (find_non_finite(element, view.dtype, 1) == 0) return position;
    size_t d = index.size();
    while (d > 0) {
      --d;
      at += once.strides[d];
      if (++index[d] < once.sizes[d]) break;
      at -= index[d] * once.strides[d];
      index[d] = 0;
    }
  }
  return -1;
}

}  // namespace

void NonFiniteSearch::examine(const Step& step) {
  ++examined_;
  const bool is_collective = step.kind == StepKind::collective;
  std::optional<Cause> from;
  for (const View& view : step.in) {
    const auto bad = bad_.find(view.buffer);
    if (bad != bad_.end() && (!from || bad->second.position < from->position)) from = bad->second;
  }
  if (is_collective && from && from->position + kSent < sent_.position)
    sent_ = {from->position + kSent, from->message};
  for (const View& view : step.out) {
    const bool may_be_bad = is_floating(view.dtype);
    const int64_t at = may_be_bad ? find_non_finite(rank_.device, memory_.address(view), view) : -1;
    if (at >= 0) {
      const Cause cause =
          from ? *from : Cause{examined_ + (is_collective ? kArrived : 0), text(step, view, at)};
      Cause& known = bad_.emplace(view.buffer, cause).first->second;
      if (cause.position < known.position) known = cause;
    } else if (view.elements() * size_of(view.dtype) >=
               rank_.program.buffers[static_cast<size_t>(view.buffer)].bytes) {
      bad_.erase(view.buffer);
    }
  }
}

void NonFiniteSearch::conclude(const View& guard) {
  const auto bad = bad_.find(guard.buffer);
  if (bad != bad_.end()) cause_ = bad->second;
  if (sent_.position < cause_.position) cause_ = sent_;
}

std::string NonFiniteSearch::text(const Step& step, const View& result, int64_t element) const {
  std::string name = step.origin.name, source = step.origin.source;
  if (step.out.size() > 1 && sources_ != nullptr) {  // fused ones have a line each
    const auto of = sources_->find(rank_.program.buffers[static_cast<size_t>(result.buffer)].name);
    if (of != sources_->end()) std::tie(name, source) = *of;
  }
  const bool arrived = step.kind == StepKind::collective;
  return fmt::format(
      "[{}] element {} of its slice on rank {} is the first that is not finite{}{}; nothing was "
      "stored",
      name, element, rank_.world.rank(),
      arrived ? fmt::format(", after the {} of parts that are", to_string(step.collective)) : "",
      source.empty() ? "" : fmt::format(" ({})", source));
}

}  // namespace tessera
