#include "cli/source_text.h"

#include <charconv>
#include <filesystem>
#include <fstream>

#include "base/printable.h"

namespace tessera::cli {

namespace {

constexpr int kBefore = 2, kAfter = 3;  ///< lines of code around a place
constexpr int kMostLines = 200000;      ///< of a file
constexpr size_t kMostLetters = 160;    ///< of a line

/// The numbers of the lines that are shown, by file name.
std::map<std::string, std::set<int>> lines_around(const std::set<std::string>& places) {
  std::map<std::string, std::set<int>> lines;
  for (const std::string& place : places) {
    const size_t colon = place.rfind(':');
    int line = 0;
    if (colon == place.npos) continue;
    std::from_chars(place.data() + colon + 1, place.data() + place.size(), line);
    if (line < 1 || line > kMostLines) continue;
    for (int n = line - kBefore; n <= line + kAfter; ++n) lines[place.substr(0, colon)].insert(n);
  }
  return lines;
}

/// The file at `path`, if it can be read. A relative one is relative to where the compiler ran:
/// tried are the current folder and that of the program.
std::ifstream open_source(const std::string& path) {
  std::error_code error;
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe", error);
  for (const std::filesystem::path& at :
       {std::filesystem::path(path), program.parent_path() / path}) {
    if (!path.empty() && std::filesystem::is_regular_file(at, error)) return std::ifstream(at);
  }
  return {};
}

}  // namespace

pages::Json code_around(const std::set<std::string>& places,
                        const std::map<std::string, std::string>& files) {
  pages::Json code = pages::Json::object();
  for (const auto& [name, lines] : lines_around(places)) {
    const auto path = files.find(name);
    if (path == files.end()) continue;
    std::ifstream file = open_source(path->second);
    std::string text;
    for (int n = 1; n <= *lines.rbegin() && std::getline(file, text); ++n) {
      if (!lines.contains(n)) continue;
      if (text.size() > kMostLetters) {
        text.resize(kMostLetters);
        text += " ...";
      }
      code[name][std::to_string(n)] = printable(text);
    }
  }
  return code;
}

}  // namespace tessera::cli
