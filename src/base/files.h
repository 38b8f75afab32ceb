// Files and folders that a user names: what is there, and text files read and written as a whole.
// The system's refusals are io errors with the path, so no other room asks std::filesystem.
#pragma once

#include <cstdio>
#include <filesystem>
#include <string>
#include <vector>

namespace tessera {

enum class PathKind { nothing, file, folder, other };
/// What a path leads to, links followed. Throws an io error if the system cannot tell: a folder on
/// the way may not be searched, links lead in a circle, or the storage fails.
PathKind kind_of(const std::filesystem::path& path);
bool is_there(const std::filesystem::path& path);
bool is_file(const std::filesystem::path& path);
bool is_folder(const std::filesystem::path& path);
/// True if something has the name, such as a link without a target. Throws as kind_of() does.
bool is_taken(const std::filesystem::path& path);
/// The names in a folder, sorted. Throws an io error.
std::vector<std::string> names_in(const std::filesystem::path& folder);
/// Bytes of a file. Throws an io error.
int64_t size_of_file(const std::filesystem::path& file);
/// Makes a folder and those above it; they may be there. Throws an io error. `of`: the flag that
/// names the folder, for the message.
void make_folders(const std::filesystem::path& folder, const std::string& of = "");

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
