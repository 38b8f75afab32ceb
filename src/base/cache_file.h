// Files of the cache folder. Anybody may have put them there: the owner is checked, links are not
// followed, reads are bounded, and what is written appears as a whole or not at all.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tessera {

/// The text of the file at `path`; none if there is no file. Throws an io error that names the file
/// if it is a link or otherwise no regular file, belongs to a user other than this process's and
/// root, has more than `most` bytes, or cannot be read.
std::optional<std::string> read_cache_file(const std::string& path, size_t most);
/// Writes a file, which replaces one of this name when it is complete and durable. Throws an io
/// error that names the file; then nothing of it remains.
void write_cache_file(const std::string& path, const std::string& text);
/// The same, but a file of this name stays as it is: the first writer's counts.
void add_cache_file(const std::string& path, const std::string& text);

/// The text of a file that holds one answer: format, key and value, with a checksum. `format` is a
/// line that names the kind of file and its version; `key` is everything that the value depends on.
std::string cache_entry(const std::string& format, const std::string& key,
                        const std::string& value);
/// The value in the text of such a file. Throws an io error, without the file's name, if it is of
/// another format or key, or damaged.
std::string cached_value(const std::string& text, const std::string& format,
                         const std::string& key);

}  // namespace tessera
