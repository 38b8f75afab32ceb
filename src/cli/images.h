// Images with labels, from the folder that data.path names.
#pragma once

#include <memory>

#include "tessera/cli.h"
#include "tessera/data.h"

namespace tessera::cli {

/// The files {train,test}-images-idx3-ubyte.gz, or idx4 for images with channels, and
/// {train,test}-labels-idx1-ubyte.gz. Throws a usage error without data.path, or with the right
/// path if the images are in a subfolder, and errors of IdxData.
std::unique_ptr<DataSource> open_images(const Config& config, bool held_out);

}  // namespace tessera::cli
