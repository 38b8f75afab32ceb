// Runs a program for all threads of all blocks, warp by warp.
//
// The lanes of a warp that stand at the same instruction execute it together; of several places the
// first in the text goes on, so lanes that parted meet again. Instructions that need others wait
// for them; where those cannot come any more, that is an error with the places of both.
#pragma once

#include <vector>

#include "gpu/host_kernels.h"
#include "gpu/ptx/program.h"

namespace tessera::test::ptx {

/// Instructions that were executed are set in `executed`, which has one byte for each. `given`:
/// null where any memory is allowed. Throws at the first thing that is wrong.
void run(const Program& program, const void* args, int64_t blocks, int threads,
         const KernelMemory* given, std::vector<uint8_t>& executed);

}  // namespace tessera::test::ptx
