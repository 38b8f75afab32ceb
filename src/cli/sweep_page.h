// The page of a sweep.
#pragma once

#include <string>
#include <vector>

#include "cli/sweep.h"

namespace tessera::cli {

/// `title`: the model.
std::string sweep_page(const std::string& title, const std::vector<SweepRow>& rows);

}  // namespace tessera::cli
