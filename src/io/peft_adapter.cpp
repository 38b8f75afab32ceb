// PEFT names an adapter by the module of the layer: "model.layers.0.self_attn.q_proj.weight" has
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" and ".lora_B.weight".
#include "io/peft_adapter.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/fail.h"
#include "base/files.h"

namespace tessera {

namespace fs = std::filesystem;

namespace {

constexpr std::string_view kWeightSuffix = ".weight";

struct AdaptedTensor {
  std::string module;
  const TensorPart* part;
  std::vector<std::string> in, out;  ///< dims of each side, in the order of the tensor
  bool in_first = false;             ///< the tensor is [in, out]
};

std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

AdaptedTensor adapted_tensor(const MappedTensor& t, const ExportSource& source) {
  AdaptedTensor result{
      t.name.substr(0, t.name.size() - kWeightSuffix.size()), t.parts.data(), {}, {}};
  const auto& a = source.manifest().tensors.at(source.adapter_of(t.parts[0].parameter, 'a')).shape;
  for (const PartDim& d : t.parts[0].dims) {
    const bool is_in = std::find(a.dims.begin(), a.dims.end(), d.name) != a.dims.end();
    (is_in ? result.in : result.out).push_back(d.name);
    if (&d == t.parts[0].dims.data()) result.in_first = is_in;
  }
  return result;
}

std::vector<AdaptedTensor> adapted_tensors(const ExportSource& source, const TensorMap& map) {
  std::vector<AdaptedTensor> result;
  for (const MappedTensor& t : map.tensors) {
    const auto is_adapted = [&](const TensorPart& p) { return source.is_adapted(p.parameter); };
    if (t.is_copy || std::none_of(t.parts.begin(), t.parts.end(), is_adapted)) continue;
    TESSERA_REQUIRE(
        t.parts.size() == 1 && t.name.ends_with(kWeightSuffix),
        "[export] '{}' holds several layers ('{}' is one), each with an adapter of its own, "
        "which PEFT cannot express; export the merged model",
        t.name, t.parts[0].parameter);
    result.push_back(adapted_tensor(t, source));
  }
  return result;
}

/// Names that fit these modules and no others: their last parts, or all of each.
std::set<std::string> targets_of(const std::vector<AdaptedTensor>& adapted, const TensorMap& map) {
  std::set<std::string> modules, short_names;
  for (const AdaptedTensor& t : adapted) {
    modules.insert(t.module);
    short_names.insert(last_part(t.module));
  }
  for (const MappedTensor& t : map.tensors) {
    if (!t.name.ends_with(kWeightSuffix)) continue;
    const std::string module = t.name.substr(0, t.name.size() - kWeightSuffix.size());
    if (!modules.contains(module) && short_names.contains(last_part(module))) return modules;
  }
  return short_names;
}

/// A matrix of `rows` by the rest, as float32. `order` are the dims of x row by row.
std::vector<float> transposed(const Elements& x, const std::vector<std::string>& order) {
  std::vector<int64_t> strides, sizes;
  for (const std::string& name : order) {
    const auto d = std::find(x.dims.begin(), x.dims.end(), name) - x.dims.begin();
    int64_t stride = 1;
    for (size_t i = static_cast<size_t>(d) + 1; i < x.sizes.size(); ++i) stride *= x.sizes[i];
    strides.push_back(stride);
    sizes.push_back(x.sizes[static_cast<size_t>(d)]);
  }
  std::vector<float> result(x.values.size());
  std::vector<int64_t> index(order.size(), 0);
  for (float& value : result) {
    int64_t at = 0;
    for (size_t d = 0; d < index.size(); ++d) at += index[d] * strides[d];
    value = static_cast<float>(x.values[static_cast<size_t>(at)]);
    for (size_t d = index.size(); d-- > 0 && ++index[d] == sizes[d];) index[d] = 0;
  }
  return result;
}

TensorInfo matrix(const std::string& name, int64_t rows, int64_t columns) {
  TensorInfo info;
  info.name = name;
  info.dtype = DType::float32;
  info.sizes = {rows, columns};
  return info;
}

}  // namespace

int64_t write_peft_adapter(const std::string& folder, const ExportSource& source,
                           const TensorMap& map, const nn::TransformerOptions& model,
                           const std::string& base) {
  const std::vector<AdaptedTensor> adapted = adapted_tensors(source, map);
  OpenShards shards(source.path(), source.manifest());
  const int64_t rank = source.lora().rank;
  std::vector<TensorInfo> infos;
  std::vector<std::vector<float>> values;
  for (const AdaptedTensor& t : adapted) {
    const auto add = [&](char which, const char* name, std::vector<std::string> order) {
      const Elements x =
          source.read(shards, source.adapter_of(t.part->parameter, which), t.part->at);
      values.push_back(transposed(x, order));
      const int64_t other = std::ssize(x.values) / rank;
      infos.push_back(matrix(fmt::format("base_model.model.{}.{}.weight", t.module, name),
                             which == 'a' ? rank : other, which == 'a' ? other : rank));
    };
    std::vector<std::string> a = {"rank"}, b = t.out;
    a.insert(a.end(), t.in.begin(), t.in.end());
    b.emplace_back("rank");
    add('a', "lora_A", a);
    add('b', "lora_B", b);
  }
  SafetensorsWriter file((fs::path(folder) / "adapter_model.safetensors").string(), infos,
                         {{"format", "pt"}});
  for (size_t i = 0; i < infos.size(); ++i)
    file.write(infos[i].name, values[i].data(), std::ssize(values[i]) * 4);
  file.finish();
  const bool in_first = std::any_of(adapted.begin(), adapted.end(),
                                    [](const AdaptedTensor& t) { return t.in_first; });
  nlohmann::json task;  // PEFT has none for masked tokens
  if (model.causal) task = model.encoder_layers > 0 ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
  const nlohmann::json config = {{"peft_type", "LORA"},
                                 {"task_type", task},
                                 {"base_model_name_or_path", base},
                                 {"r", rank},
                                 {"lora_alpha", source.lora().alpha},
                                 {"lora_dropout", source.lora().dropout},
                                 {"target_modules", targets_of(adapted, map)},
                                 {"bias", "none"},
                                 {"fan_in_fan_out", in_first},
                                 {"inference_mode", true}};
  write_text_file((fs::path(folder) / "adapter_config.json").string(), config.dump(2) + "\n");
  return std::ssize(infos);
}

}  // namespace tessera
