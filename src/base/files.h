// Files of text that a user names, read and written whole.
#pragma once

#include <cstdio>
#include <string>

namespace tessera {

/// The text of `what` at `path`. Throws an io error that names both; what is no regular file is
/// refused before it is opened, since a pipe would wait for a writer, but for paths under /dev,
/// where whoever names one means it.
std::string read_text_file(const char* what, const std::string& path);

/// Throws an io error unless a file could be written at `path` ("" is fine): no folder for it, none
/// that may be written, or something there that is no regular file (as above).
void require_writable(const std::string& path);
/// require_writable(), then fopen(). Throws io errors.
std::FILE* open_output(const std::string& path, bool append);
/// Writes a whole file, which appears when it is complete; where that fails nothing is left of it,
/// and what was there before stays. Nothing if `path` is "". Throws io errors.
void write_text_file(const std::string& path, const std::string& text);

}  // namespace tessera
