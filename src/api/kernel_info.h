// What the CPU device tells the compile half.
#pragma once

#include <set>
#include <string>

#include "runtime/program.h"

namespace tessera {

/// Composites that have a kernel of their own.
std::set<std::string> composite_kernels();
/// Scratch memory that the kernel of a step needs.
int64_t workspace_bytes(const Step& step);

}  // namespace tessera
