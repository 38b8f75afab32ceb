// How far two names are from each other.
#pragma once

#include <cstddef>
#include <string>

namespace tessera {

/// Number of insertions, deletions, replacements and swaps of neighbours that turn `b` into `a`.
size_t edit_distance(const std::string& a, const std::string& b);
/// True if one name may be a misspelling of the other: names of four letters or more, one edit
/// apart, which differ in a letter. "hidden1" and "hidden2", "length" and "_length" are meant, and
/// so are words of one letter, as in "len_q" and "len_k". Of three letters, "row" is near "rows".
bool is_near(const std::string& a, const std::string& b);

}  // namespace tessera
