// Files of the cache folder. Anybody may have written them: reads are bounded, and what is written
// appears as a whole or not at all.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

namespace tessera {

/// The text of the file at `path`; none if there is no file. Throws an io error that names the file
/// if it is not a regular file, has more than `most` bytes or cannot be read.
std::optional<std::string> read_cache_file(const std::string& path, size_t most);
/// Writes a file, which replaces one of this name when it is complete and durable. Throws an io
/// error that names the file; then nothing of it remains.
void write_cache_file(const std::string& path, const std::string& text);
/// The same, but a file of this name stays as it is: the first writer's counts.
void add_cache_file(const std::string& path, const std::string& text);

}  // namespace tessera
