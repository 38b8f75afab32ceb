// Text files that a user names, read and written as a whole.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>

namespace tessera {

/// Reads the text file at `path`. Throws an io error that names `what` and the path. Only regular
/// files are opened, since opening a pipe would wait for a writer; paths in /dev are allowed.
std::string read_text_file(const char* what, const std::string& path);

/// Throws an io error unless a file can be written at `path` ("" is allowed): no folder, a folder
/// without write permission, something that is no regular file, or a link of another user. A link
/// of this user, or of root, is followed.
void require_writable(const std::string& path);
/// require_writable(), then fopen(). Throws io errors.
std::FILE* open_output(const std::string& path, bool append);
/// Writes a whole file, which appears atomically when it is complete. If that fails, nothing of it
/// remains and an existing file is unchanged. Does nothing if `path` is "". Throws io errors.
void write_text_file(const std::string& path, const std::string& text);
/// The folder that `path` is in; "." for a bare name.
std::string folder_of(const std::string& path);
/// The folder `path` as an absolute path without a separator or "." at its end, so that the name of
/// a temporary folder beside it can be made of it.
std::filesystem::path folder_path(const std::string& path);

}  // namespace tessera
