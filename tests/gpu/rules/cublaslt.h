// A stand-in for cuBLASLt that enforces its rules: descriptors are read back into the matmul that
// they mean, which the emulated GPU computes. Alignments that the heuristic was told, the workspace
// and its alignment, and the types of a matmul are checked as the library's documentation says.
#pragma once

#include <string>

namespace tessera::test::rules {

/// The function of cuBLASLt of that name; null if it has none. "": not null.
void* find_cublaslt(const std::string& symbol);

}  // namespace tessera::test::rules
