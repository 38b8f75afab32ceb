// GPT-2's way to write bytes as visible characters, which vocabularies of byte-level BPE use.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace tessera {

/// The bytes that a token of such a vocabulary stands for; nullopt if it has a character that
/// stands for no byte.
std::optional<std::string> bytes_of_visible(std::string_view token);

}  // namespace tessera
