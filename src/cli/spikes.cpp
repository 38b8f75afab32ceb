#include "cli/spikes.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <vector>

#include "base/fail.h"

namespace tessera::cli {

namespace {

constexpr size_t kKept = 128, kFewest = 32;
constexpr double kSpreads = 4, kLeastOfLoss = 0.1, kLeastOfNorm = 1;

float limit(const std::deque<double>& values, double least) {
  if (values.size() < kFewest) return std::numeric_limits<float>::infinity();
  std::vector<double> sorted(values.begin(), values.end());
  std::sort(sorted.begin(), sorted.end());
  const auto quantile = [&](double q) {
    return sorted[static_cast<size_t>(q * static_cast<double>(sorted.size() - 1) + 0.5)];
  };
  const double median = quantile(0.5);
  return static_cast<float>(
      median + std::max(kSpreads * (quantile(0.9) - quantile(0.1)), least * std::fabs(median)));
}

void keep(std::deque<double>& values, double value, float most) {
  values.push_back(std::min(value, static_cast<double>(most)));
  if (values.size() > kKept) values.pop_front();
}

}  // namespace

SpikeHistory::Limits SpikeHistory::limits() const {
  return {limit(losses_, kLeastOfLoss), limit(grad_norms_, kLeastOfNorm)};
}

// Compared in float32, as the function "train" compares where it leaves a step out.
std::string SpikeHistory::spike(double loss, double grad_norm) const {
  const Limits most = limits();
  const auto text = [](const char* what, double value, float limit) {
    return fmt::format("{} {:.4g} is above {:.4g}, far from those of the steps before", what, value,
                       limit);
  };
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return "";
  if (static_cast<float>(loss) > most.loss) return text("the loss", loss, most.loss);
  if (static_cast<float>(grad_norm) > most.grad_norm)
    return text("the gradient norm", grad_norm, most.grad_norm);
  return "";
}

void SpikeHistory::add(double loss, double grad_norm) {
  if (!std::isfinite(loss) || !std::isfinite(grad_norm)) return;
  const Limits most = limits();
  keep(losses_, loss, most.loss);
  keep(grad_norms_, grad_norm, most.grad_norm);
}

std::string SpikeHistory::to_string() const {
  std::string text;
  for (size_t i = 0; i < losses_.size(); ++i)
    text += fmt::format("{}{:.17g},{:.17g}", i == 0 ? "" : " ", losses_[i], grad_norms_[i]);
  return text;
}

SpikeHistory SpikeHistory::parse(const std::string& text, const std::string& file) {
  SpikeHistory history;
  const char *at = text.data(), *const end = at + text.size();
  const auto number = [&](char before_next) {
    double value = 0;
    const auto [stop, error] = std::from_chars(at, end, value);
    if (error != std::errc() || !std::isfinite(value) || (stop != end && *stop != before_next))
      fail(ErrorKind::io, "[checkpoint] '{}': its metadata 'spikes' has no number at character {}",
           file, at - text.data());
    at = stop == end ? end : stop + 1;
    return value;
  };
  while (at != end) {
    const double loss = number(',');
    history.losses_.push_back(loss);
    history.grad_norms_.push_back(number(' '));
  }
  if (history.losses_.size() > kKept)
    fail(ErrorKind::io, "[checkpoint] '{}': its metadata 'spikes' has {} steps; {} at most", file,
         history.losses_.size(), kKept);
  return history;
}

}  // namespace tessera::cli
