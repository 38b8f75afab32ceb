// A folder of Hugging Face as a model of the command line.
#pragma once

#include <memory>
#include <string>

#include "tessera/cli.h"

namespace tessera::cli {

/// Whether MODEL is a folder. Throws a usage error for a folder without config.json.
bool is_folder_model(const std::string& model);
/// Reads its config.json. Throws as ModelFolder.
std::shared_ptr<const ModelSpec> folder_model(const std::string& path);

}  // namespace tessera::cli
