#include "kernels/common/segments_fault.h"

#include <fmt/format.h>

namespace tessera::kernels {

std::string segments_go_back(const char* of, int64_t from, int64_t to, int64_t position) {
  return fmt::format(
      "the segments of the {} go back from {} to {} at position {}; number the documents of a row "
      "upwards, with 0 only for padding at its end",
      of, from, to, position);
}

}  // namespace tessera::kernels
