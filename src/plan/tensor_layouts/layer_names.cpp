#include "plan/tensor_layouts/layer_names.h"

#include <algorithm>
#include <cctype>

namespace tessera {

std::string in_all_layers(const std::string& name) {
  std::string glob;
  for (size_t i = 0; i < name.size();) {
    size_t end = i;
    while (end < name.size() && std::isdigit(static_cast<unsigned char>(name[end])) != 0) ++end;
    const bool is_copy = end > i && end < name.size() && name[end] == '.';
    glob += is_copy ? "*" : end > i ? name.substr(i, end - i) : std::string(1, name[i]);
    i = std::max(end, i + 1);
  }
  return glob;
}

}  // namespace tessera
