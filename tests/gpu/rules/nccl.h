// A stand-in for NCCL that enforces its rules, with ranks that are threads. Communicators are
// non-blocking: a call is in its stream only after its communicator has been polled, a communicator
// takes no calls until the last ones are, and one with an error or after an abort takes none.
#pragma once

#include <string>

namespace tessera::test::rules {

/// The function of NCCL of that name; null if it has none. "": not null.
void* find_nccl(const std::string& symbol);

}  // namespace tessera::test::rules
