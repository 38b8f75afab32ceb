#include "plan/memory_limit.h"

#include <algorithm>

namespace tessera {

namespace {

// As kTooLarge, for estimates that a plan of the candidate's kind has corrected.
constexpr double kSurelyTooLarge = 1.1;

}  // namespace

MemoryEstimate MemoryLimit::estimate(const Candidate& c) const {
  return candidates_.estimates(c.recompute_option)
      .memory(candidates_.assignment(c), c.storage, candidates_.microbatching(c));
}

bool MemoryLimit::fits_estimate(const Candidate& c, double slack) {
  if (bytes_ == 0) return true;
  const MemoryEstimate m = estimate(c);
  const auto limit = static_cast<double>(bytes_);
  if (m.stored > limit) least_stored_ = std::min(least_stored_, m.stored);
  const double factor = corrections_.memory(c).value_or(1);
  return m.stored <= limit && m.stored + factor * m.transient <= slack * limit;
}

std::optional<size_t> MemoryLimit::fewest_microbatches(const Candidate& c, size_t from,
                                                       double slack) {
  Candidate with = c;
  for (size_t option = from; option < candidates_.microbatch_options(); ++option) {
    with.microbatch_option = option;
    if (fits_estimate(with, slack)) return option;
  }
  return std::nullopt;
}

std::optional<size_t> MemoryLimit::first_microbatch_option(const Candidate& c) {
  return fewest_microbatches(c, 0, kTooLarge);
}

bool MemoryLimit::surely_fits(const Candidate& c) {
  return fewest_microbatches(c, 0, 1 / kTooLarge) == size_t{0};
}

std::optional<size_t> MemoryLimit::next_microbatch_option(const Candidate& c) {
  return fewest_microbatches(c, c.microbatch_option + 1, kSurelyTooLarge);
}

bool MemoryLimit::is_too_large(const Candidate& c) const {
  const std::optional<double> factor = corrections_.memory(c);
  if (bytes_ == 0 || !factor) return false;
  const MemoryEstimate m = estimate(c);
  return m.stored + *factor * m.transient > kSurelyTooLarge * static_cast<double>(bytes_);
}

}  // namespace tessera
