// A temporary folder for tests of files, and errors with its path taken out.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "support/catch.h"
#include "tessera/error.h"

namespace tessera::test {

/// A folder that is removed at the end.
struct Folder {
  Folder() {
    std::string path = (std::filesystem::temp_directory_path() / "tessera-io-XXXXXX").string();
    REQUIRE(mkdtemp(path.data()));
    dir = path;
  }
  ~Folder() { std::filesystem::remove_all(dir); }
  std::string operator()(const std::string& name) const { return dir + "/" + name; }
  std::string write(const std::string& name, const std::string& bytes) const {
    std::ofstream((*this)(name), std::ios::binary) << bytes;
    return (*this)(name);
  }
  std::string read(const std::string& name) const {
    std::ifstream in((*this)(name), std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::set<std::string> names() const {
    std::set<std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(dir))
      all.insert(entry.path().filename());
    return all;
  }
  /// The message of the Error that `work` throws, behind its kind.
  template <class F>
  std::string error(F work) const {
    try {
      work();
    } catch (const Error& e) {
      std::string text = std::string(to_string(e.kind())) + " " + e.what();
      for (size_t at; (at = text.find(dir)) != text.npos;) text.replace(at, dir.size(), "DIR");
      return text;
    }
    return "no error";
  }
  std::string dir;
};

}  // namespace tessera::test
