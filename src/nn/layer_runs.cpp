#include <fmt/format.h>

#include "tessera/nn_transformer.h"

namespace tessera::nn {

bool TransformerOptions::can_scan() const {
  TransformerOptions looped = *this;
  looped.scan = true;
  return layers == 1 || std::ssize(layer_runs(looped)) < layers;
}

std::vector<LayerRun> layer_runs(const TransformerOptions& o) {
  std::vector<LayerRun> runs;
  const bool is_last_apart = o.ahead.depth > 0 && o.ahead.kind == MultiTokenOptions::Kind::parallel;
  for (int64_t i = 0; i < o.layers; ++i) {
    const bool apart = is_last_apart && i == o.layers - 1;
    if (o.scan && i > 0 && !apart && o.kind_of(i) == o.kind_of(i - 1)) {
      ++runs.back().count;
    } else {
      runs.push_back({i});
    }
  }
  for (LayerRun& run : runs) {
    const bool is_all = o.scan && run.count == o.layers;
    run.is_loop = is_all || run.count > 1;
    run.block = is_all ? "block" : fmt::format("block{}", run.first);
  }
  return runs;
}

}  // namespace tessera::nn
