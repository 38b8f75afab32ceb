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
/// True if the kernel of a "contract" step can run its pointwise program: a sum with what the
/// result holds, in the type that it is computed in.
bool takes_epilogue(const Step& step);
/// Bytes of workspace that the kernel of a step needs if `threads` share it in parts of `least_ns`.
int64_t workspace_bytes(const Step& step, int threads, double least_ns = kLeastPartNs);

}  // namespace tessera
