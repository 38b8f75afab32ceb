// A family of models that a file describes, in TOML: how config.json becomes options, and how the
// tensors map to parameters. docs/how-to/own-families.md has the whole format.
#pragma once

#include <string>

#include "io/families/family.h"

namespace tessera {

/// Reads `text`, the content of the file `path`. Throws io errors that name the file and the line,
/// for invalid TOML and for tables, options and dims that are not known; the functions of the
/// family throw io errors for values of config.json that do not fit.
Family read_family(const std::string& path, const std::string& text);

}  // namespace tessera
