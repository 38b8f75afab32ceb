// One version of Unicode for patterns, whatever version PCRE2 knows.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// The version of Unicode whose categories patterns see: that of tokenizers and tiktoken.
inline constexpr const char* kUnicodeVersion = "16";

/// `text`, valid UTF-8, with each character whose category depends on the version of Unicode
/// replaced by an older one that has the category of Unicode 16, and as many bytes. `room` holds
/// the result if it is another text.
std::string_view with_old_characters(std::string_view text, std::string& room);

}  // namespace tessera
