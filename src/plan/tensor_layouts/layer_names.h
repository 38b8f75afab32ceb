// Names of the same tensor in several layers.
#pragma once

#include <string>

namespace tessera {

/// "gpt.block*.add_1" of "gpt.block0.add_1": the name in all layers, as a glob.
std::string in_all_layers(const std::string& name);

}  // namespace tessera
