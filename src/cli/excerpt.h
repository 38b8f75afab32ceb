// Where the culprit of an error stands: an argument or a line of a file, with a caret under it.
#pragma once

#include <string>
#include <vector>

namespace tessera::cli {

/// For "layout rule 'ff:modle': the mesh has no axis 'modle'" and the arguments {"train", "gpt",
/// "--layout", "ff:modle"}:
///
///     --layout ff:modle
///                 ^^^^^
///
/// The culprit is the shortest of the quoted texts that stands once, as a whole word, in all values
/// of options together; else in the words before them. What follows "did you mean" or "known:" is
/// none. Of a message "FILE: ... line 7 ..." about a readable file it is that line. Empty if
/// nothing is found: a caret at the wrong place is worse than none.
std::string excerpt(const std::string& message, const std::vector<std::string>& arguments);

}  // namespace tessera::cli
