// Parts of Tessera that are libraries of their own, opened when they are needed: what speaks to
// CUDA, what speaks to MPI. Without them a program starts as well.
#pragma once

#include <string>

namespace tessera {

/// The path of such a library: beside this library or program, above it, or where it is installed;
/// else `file` itself, for the loader to find. Whether it is there is told by `found`.
std::string path_of_part(const std::string& file, bool& found);
/// Opens it. `global`: libraries opened later see its symbols and those of the libraries that it
/// needs. Null: `why` says why not.
void* open_part(const std::string& file, bool global, std::string& why);

}  // namespace tessera
