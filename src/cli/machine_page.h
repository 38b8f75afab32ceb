// The page of a measured machine profile.
#pragma once

#include <string>

#include "tessera/machine.h"

namespace tessera::cli {

/// A profile that calibrate measured, which is kept at `path`.
std::string machine_page(const Machine& machine, const std::string& path);

}  // namespace tessera::cli
