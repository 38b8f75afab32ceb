#include "cli/best.h"

#include <cmath>
#include <cstdio>

#include "base/fail.h"

namespace tessera::cli {

bool BestEvaluation::take(int64_t at, double value) {
  if (!std::isfinite(value) || (step >= 0 && value >= loss)) return false;
  step = at;
  loss = value;
  return true;
}

bool BestEvaluation::ends_before(int64_t next, int64_t every, int64_t patience) const {
  if (patience == 0 || every == 0 || step < 0 || next % every != 0) return false;
  return next / every - step / every >= patience;
}

std::string BestEvaluation::to_string() const {
  return step < 0 ? "" : fmt::format("{} {:.17g}", step, loss);
}

BestEvaluation BestEvaluation::parse(const std::string& text, const std::string& path) {
  BestEvaluation best;
  if (text.empty()) return best;
  long long at = -1;
  char rest = 0;
  if (std::sscanf(text.c_str(), "%lld %lf%c", &at, &best.loss, &rest) != 2 || at < 0)
    fail(ErrorKind::io, "[checkpoint] '{}': its metadata 'best' is '{}', not a step and a loss",
         path, text);
  best.step = at;
  return best;
}

}  // namespace tessera::cli
