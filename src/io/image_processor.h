// preprocessor_config.json of a folder: how pixels become what a model of images reads.
#pragma once

#include <string>

#include "tessera/nn_transformer.h"

namespace tessera {

/// Sets mean and deviation of the channels for pixels from 0 to 1. Without the file they are 0.5,
/// as transformers has it for ViT. Throws io errors for values that do not fit, and for pixels that
/// are rescaled in another way than by 1 / 255.
void read_image_processor(const std::string& folder, nn::ImageOptions& image);

}  // namespace tessera
