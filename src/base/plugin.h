// Shared libraries of Tessera's own that are opened at run time, so that a program starts without
// what they link.
#pragma once

#include <string>

namespace tessera {

/// Opens `library` ("libtessera_cuda.so"): beside this library or program, above it, where it is
/// installed, or where the loader looks. Returns its function `name`; else null, and `why` says the
/// reason. It is never closed.
void* open_plugin(const std::string& library, const char* name, std::string& why);

}  // namespace tessera
