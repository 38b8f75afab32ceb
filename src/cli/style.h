// Colours of what a person reads on a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera::cli {

/// Whether output to `descriptor` is coloured: a terminal, NO_COLOR is unset or empty
/// (no-color.org), and TERM is not "dumb".
bool is_coloured(int descriptor);

enum class Colour { bold, faint, red, yellow, green };

/// `text` in this colour if `coloured`, else as it is.
std::string styled(std::string_view text, Colour colour, bool coloured);

/// The label at the beginning of a line of the log ("warning:", "error:", "mesh", "eval at step
/// 20:") in the colour of its kind.
std::string with_label(const std::string& line, bool coloured);

}  // namespace tessera::cli
