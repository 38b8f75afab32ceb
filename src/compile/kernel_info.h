// What the CPU device tells the compiler.
#pragma once

#include <set>
#include <string>

#include "kernels/common/kernel.h"
#include "program/program.h"

namespace tessera {

struct Op;

/// Composites that have a kernel of their own.
std::set<const Op*> composite_kernels();
/// Bytes of workspace that the kernel of a step needs if `threads` share it in parts of `least_ns`.
int64_t workspace_bytes(const Step& step, int threads, double least_ns = kLeastPartNs);

}  // namespace tessera
