// What the CPU device tells the compile half.
#pragma once

#include <set>
#include <string>

#include "kernels/kernel.h"
#include "runtime/program.h"
#include "tessera/cluster.h"

namespace tessera {

struct Op;

/// Composites that have a kernel of their own.
std::set<const Op*> composite_kernels();
/// Scratch memory that the kernel of a step needs where `threads` share it in parts of `least_ns`.
int64_t workspace_bytes(const Step& step, int threads, double least_ns = kLeastPartNs);
/// The threads of one rank: `asked`, or for 0 the cores of this host over its ranks.
int threads_for(int asked, const Cluster& cluster);

}  // namespace tessera
