// For front ends in other languages: whose line a call is.
#pragma once

#include <string>

namespace tessera {

/// While one lives, what this thread calls counts as called at `line` of `file`: nodes, errors and
/// reports name that line and not the front end's own. Of several, the latest counts. They end in
/// reverse order, on the thread that made them.
class CallerScope {
 public:
  CallerScope(std::string file, int line);
  ~CallerScope();
  CallerScope(const CallerScope&) = delete;

  const std::string& path() const { return path_; }  ///< of the file, as it was given
  std::string file() const { return path_.substr(path_.rfind('/') + 1); }
  int line() const { return line_; }
  /// That of this thread, or null.
  static const CallerScope* current();

 private:
  std::string path_;
  int line_;
  const CallerScope* outer_;
};

}  // namespace tessera
