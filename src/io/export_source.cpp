#include "io/export_source.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/fail.h"
#include "io/checkpoint_files.h"
#include "io/elements.h"

namespace tessera {

namespace {

constexpr std::string_view kWeight = ".w";

std::string checkpoint_in(const std::string& path) {
  const std::optional<Checkpoint> latest = find_latest(path);
  TESSERA_REQUIRE(latest.has_value(), "[export] '{}' holds no checkpoint", path);
  return latest->path;
}

int64_t product(const std::vector<int64_t>& sizes, size_t begin, size_t end) {
  int64_t n = 1;
  for (size_t i = begin; i < end; ++i) n *= sizes[i];
  return n;
}

}  // namespace

ExportSource::ExportSource(const std::string& path, const ExportOptions& options)
    : path_(checkpoint_in(path)), options_(options), manifest_(read_manifest(path_)) {
  if (options.average) require_averages(manifest_, path_);
  int64_t rank = 0;
  std::string adapter;
  for (const auto& [name, tensor] : manifest_.tensors) {
    if (!name.ends_with(".lora_a")) continue;
    adapter = name;
    rank = tensor.shape.sizes.back();
  }
  const auto said = manifest_.metadata.find("lora");
  if (options.lora.rank == 0 && rank > 0 && said != manifest_.metadata.end()) {
    const auto json = nlohmann::json::parse(said->second);
    options_.lora = {rank, json.at("alpha").get<double>(), json.at("dropout").get<double>()};
  }
  const int64_t wanted = options_.lora.rank;
  TESSERA_REQUIRE(wanted == rank, "[export] '{}' {}, but the options say {}", path_,
                  rank == 0
                      ? "has no parameters of LoRA"
                      : fmt::format("has parameters of LoRA of rank {} ('{}')", rank, adapter),
                  wanted == 0 ? "none" : fmt::format("rank {}", wanted));
  TESSERA_REQUIRE(
      !options.adapter || rank > 0,
      "[export] an adapter is asked for, but '{}' has no parameters of LoRA; train with "
      "model.lora_rank=8, or export the whole model",
      path_);
}

std::string ExportSource::name_of(const std::string& parameter) const {
  std::string average = average_name(parameter);
  return options_.average && manifest_.tensors.contains(average) ? average : parameter;
}

std::string ExportSource::adapter_of(const std::string& parameter, char which) const {
  if (!parameter.ends_with(kWeight)) return "";
  std::string name = parameter.substr(0, parameter.size() - kWeight.size()) + ".lora_" + which;
  return manifest_.tensors.contains(name) ? name : "";
}

Elements ExportSource::read(OpenShards& shards, const std::string& parameter,
                            const std::vector<std::pair<std::string, int64_t>>& at) const {
  const std::string name = name_of(parameter);
  const ManifestTensor &tensor = manifest_.tensors.at(name),
                       &declared = manifest_.tensors.at(parameter);
  TESSERA_REQUIRE(
      !declared.shape.dims.empty() || declared.shape.sizes.empty(),
      "[export] '{}' does not say the dims of '{}'; export a checkpoint that was saved by a "
      "session",
      path_, parameter);
  Elements result;
  Slice slice;
  slice.dtype = tensor.shape.dtype;
  slice.dims = result.dims = declared.shape.dims;
  for (size_t d = 0; d < slice.dims.size(); ++d) {
    const auto is_it = [&](const auto& index) { return index.first == slice.dims[d]; };
    const auto index = std::find_if(at.begin(), at.end(), is_it);
    slice.offset.push_back(index == at.end() ? 0 : index->second);
    slice.valid.push_back(index == at.end() ? declared.shape.sizes[d] : 1);
  }
  result.sizes = slice.valid;
  slice.strides.assign(slice.valid.size(), 1);
  for (size_t d = slice.strides.size(); d-- > 1;)
    slice.strides[d - 1] = slice.strides[d] * slice.valid[d];
  const int64_t count = product(result.sizes, 0, result.sizes.size());
  std::vector<std::byte> bytes(static_cast<size_t>(count * size_of(slice.dtype)));
  slice.data = bytes.data();
  read_slice(shards, name, tensor, slice);
  result.values.resize(static_cast<size_t>(count));
  convert_elements(bytes.data(), slice.dtype, result.values.data(), DType::float64, nullptr, count);
  return result;
}

Elements ExportSource::merged(OpenShards& shards, const std::string& parameter,
                              const std::vector<std::pair<std::string, int64_t>>& at) const {
  Elements w = read(shards, parameter, at);
  const Elements a = read(shards, adapter_of(parameter, 'a'), at),
                 b = read(shards, adapter_of(parameter, 'b'), at);
  // a is [stacked, in, rank], b [stacked, rank, out], w [stacked, in, out].
  const auto stacked =
      static_cast<size_t>(std::find(b.dims.begin(), b.dims.end(), "rank") - b.dims.begin());
  const int64_t matrices = product(a.sizes, 0, stacked), rank = a.sizes.back(),
                in = product(a.sizes, stacked, a.sizes.size() - 1),
                out = product(b.sizes, stacked + 1, b.sizes.size());
  const double scale = options_.lora.alpha / static_cast<double>(rank);
  for (int64_t m = 0; m < matrices; ++m) {
    const double *am = &a.values[static_cast<size_t>(m * in * rank)],
                 *bm = &b.values[static_cast<size_t>(m * rank * out)];
    double* wm = &w.values[static_cast<size_t>(m * in * out)];
    for (int64_t i = 0; i < in; ++i) {
      for (int64_t r = 0; r < rank; ++r) {
        const double factor = scale * am[i * rank + r];
        for (int64_t o = 0; o < out; ++o) wm[i * out + o] += factor * bm[r * out + o];
      }
    }
  }
  return w;
}

}  // namespace tessera
