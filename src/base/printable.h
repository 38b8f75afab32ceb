// Text from files, fit for a terminal.
#pragma once

#include <string>
#include <string_view>

namespace tessera {

/// `text` with control characters but tabs and line ends, and bytes that are no UTF-8, as \xNN: a
/// name in a file must not move the cursor or rename the window.
std::string printable(std::string_view text);

}  // namespace tessera
