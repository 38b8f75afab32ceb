// The chart of what a sum is made of.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "pages/page.h"

namespace tessera::cli {

/// To the six digits that a page holds.
double rounded(double value);
/// One bar of parts that add up; parts of 0 are left out.
pages::Json bar_chart(const std::string& title, const std::string& unit, const std::string& label,
                      const std::vector<std::pair<std::string, double>>& parts);

}  // namespace tessera::cli
