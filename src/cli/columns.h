// Columns that a text takes on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera::cli {

/// Columns of a text in UTF-8 without control characters: two for an East Asian wide character or
/// an emoji, none for a mark that is drawn over the character before it.
int columns(std::string_view text);
/// The longest beginning of `text` that takes at most `width` columns.
std::string first_columns(std::string_view text, int width);
/// `text` with lines of at most `width` columns, broken between words; what goes on is indented two
/// columns more than the line, or as far as what stands behind its label ("layout  "). A longer
/// word stays whole, and so does what is there to be copied: flags from "--mesh" on, or a command
/// that begins with "tessera". `width` < 20: as it is.
std::string wrapped(std::string_view text, int width);

}  // namespace tessera::cli
