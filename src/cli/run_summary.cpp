#include "cli/run_summary.h"

#include <fmt/format.h>

#include "base/median.h"
#include "cli/report.h"

namespace tessera::cli {

void RunSummary::add(const StepRecord& record) {
  last_ = record;
  seconds_ += record.ms * 1e-3;
  rates_.push_back(record.tokens_per_s);
  shares_.push_back(record.peak_share);
}

std::string RunSummary::text(const BestEvaluation& best, const Places& places) const {
  if (rates_.empty()) return "";
  std::string text = fmt::format(
      "done    {} step{} in {}, median {}", rates_.size(), rates_.size() == 1 ? "" : "s",
      seconds_ < 10 ? fmt::format("{:.2f} s", seconds_) : duration(seconds_),
      with_unit(median(rates_), "tok/s"));
  if (const double share = median(shares_); share > 0)
    text += fmt::format(", {:.0f} % of the peak", 100 * share);
  text += fmt::format("; loss {:.4f}", last_.loss);
  if (best.step >= 0) text += fmt::format(", best eval {:.4f} at step {}", best.loss, best.step);
  if (last_.skipped > 0) text += fmt::format("; {} steps skipped", last_.skipped);
  if (!places.checkpoint.empty()) text += "\nsaved   " + places.checkpoint;
  if (!places.log.empty()) text += "\nlog     " + places.log;
  if (!places.next.empty()) text += "\nnext    " + places.next;
  return text;
}

std::string shell_word(const std::string& text) {
  constexpr const char* kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-+=./:,@%";
  if (!text.empty() && text.find_first_not_of(kPlain) == text.npos) return text;
  std::string word = "'";
  for (const char c : text) word += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return word + "'";
}

}  // namespace tessera::cli
