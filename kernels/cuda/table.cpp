#include <algorithm>
#include <iterator>

#include "kernels/cuda/generate.h"

namespace tessera::cuda {

Generate find_generator(std::string_view kernel) {
  struct Entry {
    std::string_view name;
    Generate generate;
  };
  static constexpr Entry kTable[] = {
      {"pointwise", generate_pointwise},
      {"copy", generate_pointwise},
      {"fill", generate_pointwise},
      {"cumsum", generate_cumsum},
      {"arg_reduce", generate_arg_reduce},
      {"top_k", generate_top_k},
      {"window", generate_window},
      {"fold", generate_fold},
      {"conv", generate_conv},
  };
  const auto it = std::find_if(std::begin(kTable), std::end(kTable),
                               [&](const Entry& e) { return e.name == kernel; });
  return it == std::end(kTable) ? nullptr : it->generate;
}

}  // namespace tessera::cuda
