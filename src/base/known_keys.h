// The keys of a model folder's JSON files that change nothing of what is computed here, and why.
#pragma once

#include <string_view>

namespace tessera {

/// Whether `key` ("a.b" for b within a) of the file called `file` is known to change nothing: in
/// every such file, or in those of `kind` alone, such as a family of models.
bool changes_nothing(std::string_view key, std::string_view file, std::string_view kind);

}  // namespace tessera
