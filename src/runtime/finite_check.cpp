#include "runtime/finite_check.h"

#include <cmath>
#include <limits>

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

void NonFiniteSearch::examine(const Step& step) {
  ++examined_;
  if (!message_.empty()) return;
  message_ = examine_result(step);
  if (!message_.empty()) position_ = examined_;
}

/// "", or which element of the step's results is not finite.
std::string NonFiniteSearch::examine_result(const Step& step) const {
  for (const Instr& instr : step.pointwise.code) {
    if (instr.code == Code::mask && !std::isfinite(instr.imm))
      return "";  // padding of a maximum, a minimum or an order
  }
  for (const View& view : step.out) {
    if (!is_floating(view.dtype)) continue;
    View once = view;  // a number for each row is stored once
    for (size_t d = 0; d < once.sizes.size(); ++d) {
      if (once.strides[d] == 0) once.sizes[d] = 1;
    }
    if (!once.is_contiguous()) continue;
    std::vector<std::byte> held(static_cast<size_t>(once.elements() * size_of(view.dtype)));
    rank_.device.read(held.data(), memory_.address(view), static_cast<int64_t>(held.size()));
    const int64_t at = find_non_finite(held.data(), view.dtype, once.elements());
    if (at < 0) continue;
    const bool arrived = step.kind == StepKind::collective;
    return fmt::format(
        "[{}] element {} of its slice on rank {} is the first that is not finite{}{}; nothing was "
        "stored",
        step.origin.name, at, rank_.world.rank(),
        arrived ? fmt::format(", after the {} of parts that are", to_string(step.collective)) : "",
        step.origin.source.empty() ? "" : fmt::format(" ({})", step.origin.source));
  }
  return "";
}

}  // namespace tessera
