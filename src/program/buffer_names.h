// Names in the text of a Program.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "program/program.h"

namespace tessera {

/// In quotes, with \" \\ and \n.
std::string quoted(const std::string& text);
/// The name as it is, or quoted if it has other characters than letters, digits and _ . / - * + '.
std::string name_text(const std::string& name);

/// A text for each buffer: its name, with "~2" for the second buffer of a name.
class BufferNames {
 public:
  BufferNames() = default;
  explicit BufferNames(const std::vector<Buffer>& buffers);
  /// The text of the next buffer.
  const std::string& add(const Buffer& buffer);
  std::string of(int buffer) const {
    return buffer < 0 ? "?" : texts_[static_cast<size_t>(buffer)];
  }

 private:
  std::vector<std::string> texts_;
  std::map<std::string, int> seen_;  ///< buffers of a name
};

}  // namespace tessera
