#include <algorithm>

#include "base/fail.h"
#include "benchmarks/published_runs/runs.h"

namespace tessera::runs {

namespace {

struct Named {
  const char* name;
  Precision precision;
};

/// One scale for a tensor is known when all of it has been read once; scales of rows or blocks are
/// found while a block is converted. NVFP4 has both (NVIDIA 2025, arXiv:2509.25149): a scale for 16
/// elements, and one for the tensor, also of the transpose after a Hadamard transform. PyTorch
/// scales the rows of backward's products afterwards (torchao, pull request 1325). Transformer
/// Engine with delayed scaling takes the scale of earlier steps. Bytes: MXFP8 has a byte for 32
/// elements, NVFP4 half a byte for an element and one for 16, blocks of 128 have a float32.
constexpr Named kPrecisions[] = {
    {"fp16", {"bfloat16", 2, 0, false}},
    {"bf16", {"bfloat16", 2, 0, false}},
    {"fp8-delayed", {"float8", 1, 1, true}},
    {"fp8-tensorwise", {"float8", 1, 2, true}},
    {"fp8-rowwise", {"float8", 1, 2, false, true}},
    {"fp8-blockwise", {"float8", 1 + 4.0 / 128, 1, false}},
    {"mxfp8", {"mxfp8", 1 + 1.0 / 32, 1, false}},
    {"nvfp4", {"nvfp4", 0.5 + 1.0 / 16, 3, false}},
};

/// Other words of frameworks for the same.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"float16", "fp16"},          {"bfloat16", "bf16"},
    {"fp8", "fp8-tensorwise"},    {"float8", "fp8-tensorwise"},
    {"fp8-cs", "fp8-tensorwise"}, {"fp8-current", "fp8-tensorwise"},
    {"fp8-ds", "fp8-delayed"},    {"fp8-hybrid", "fp8-delayed"},
    {"fp8-row", "fp8-rowwise"},   {"fp8-block", "fp8-blockwise"},
    {"fp8-sc", "fp8-blockwise"},  {"fp8-subchannel", "fp8-blockwise"},
    {"fp8-mx", "mxfp8"},          {"fp4", "nvfp4"},
};

}  // namespace

Precision precision_of(const std::string& dtype) {
  if (dtype.empty()) return {};
  std::string name = dtype;
  std::replace(name.begin(), name.end(), '_', '-');
  if (name.starts_with("amp-")) name.erase(0, 4);
  if (name.starts_with("float8-")) name.replace(0, 6, "fp8");
  for (const auto& [alias, meant] : kAliases) {
    if (name == alias) name = meant;
  }
  std::vector<std::string> known;
  for (const Named& row : kPrecisions) {
    if (name == row.name) return row.precision;
    known.push_back(row.name);
  }
  fail(ErrorKind::usage, "dtype '{}' is none of {}, fp8 (tensorwise), or amp_ and one of them",
       dtype, fmt::join(known, ", "));
}

}  // namespace tessera::runs
