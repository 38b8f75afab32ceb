// The value of data.path: one path, or a blend of several with weights.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "tessera/data.h"

namespace tessera::cli {

struct WeightedPath {
  double weight = 1;
  std::string path;
};

/// "corpus.idx" as one path; "0.7:a.idx,0.3:b.idx" as two with weights. Throws a usage error for an
/// element of a blend without a weight, and for a weight that is no number above 0.
std::vector<WeightedPath> parse_data_path(const std::string& text);
/// One source as `open` opens it, or a BlendData of several; `held_out`: without repeating.
std::unique_ptr<DataSource> open_data(
    const std::string& text, bool held_out,
    const std::function<std::unique_ptr<DataSource>(const std::string& path)>& open);

}  // namespace tessera::cli
