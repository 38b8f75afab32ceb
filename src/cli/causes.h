// What the time of a step went to, and how two steps differ in that.
#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tessera::cli {

/// (cause, seconds) of a step; they add up to it.
using Causes = std::vector<std::pair<std::string, double>>;

/// A cause of a step's time in either of two; 0 where one has it not.
struct CauseOfBoth {
  std::string name;
  double a = 0, b = 0;
};
std::vector<CauseOfBoth> causes_of_both(const Causes& a, const Causes& b);

double seconds_of(const Causes& step);

/// "B takes 0.348 ms (90 %) more than A, most of it waiting for b (+0.327)."
std::string verdict(const std::string& name_a, const Causes& a, const std::string& name_b,
                    const Causes& b);

}  // namespace tessera::cli
