// PEFT names an adapter by the module of the layer: "model.layers.0.self_attn.q_proj.weight" has
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" and ".lora_B.weight".
#include "io/peft_adapter.h"

#include <algorithm>
#include <cctype>
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

std::string module_of(const std::string& tensor) { return tensor.substr(0, tensor.rfind('.')); }
std::string last_part(const std::string& module) { return module.substr(module.rfind('.') + 1); }

/// A matrix of the files, and which of its parts have matrices of LoRA. The parts are layers that
/// share it, as query, key and value in GPT-2: their adapters are one of the sum of their ranks.
struct AdaptedTensor {
  const MappedTensor* tensor;
  std::vector<const TensorPart*> parts;
  int in = 1;  ///< the axis of the tensor that a layer reads
};

/// The part's dims along an axis of its matrix.
std::vector<PartDim> dims_along(const MappedTensor& t, const TensorPart& part, int axis) {
  size_t d = 0;
  for (int64_t size = 1; d < part.dims.size() && size < t.sizes[0]; ++d) size *= part.dims[d].size;
  const auto middle = part.dims.begin() + static_cast<long>(d);
  return axis == 0 ? std::vector(part.dims.begin(), middle) : std::vector(middle, part.dims.end());
}

/// Where the part's elements lie along an axis.
std::vector<int64_t> places_along(const MappedTensor& t, const TensorPart& part, int axis) {
  std::vector<int64_t> places = {0};
  for (const PartDim& d : dims_along(t, part, axis)) {
    std::vector<int64_t> finer;
    for (const int64_t place : places) {
      for (int64_t i = 0; i < d.count; ++i) finer.push_back(place * d.size + d.first + i);
    }
    places = std::move(finer);
  }
  return places;
}

std::vector<std::string> names_of(const std::vector<PartDim>& dims) {
  std::vector<std::string> names;
  for (const PartDim& d : dims) {
    if (!d.name.empty()) names.push_back(d.name);
  }
  return names;
}

std::vector<AdaptedTensor> adapted_tensors(const ExportSource& source, const TensorMap& map) {
  std::vector<AdaptedTensor> result;
  for (const MappedTensor& t : map.tensors) {
    AdaptedTensor adapted{&t, {}};
    for (const TensorPart& part : t.parts) {
      if (!t.is_copy && source.is_adapted(part.parameter)) adapted.parts.push_back(&part);
    }
    if (adapted.parts.empty()) continue;
    TESSERA_REQUIRE(t.sizes.size() == 2 && t.name.ends_with(kWeightSuffix),
                    "[export] '{}' has matrices of LoRA, and is no matrix of a layer, which PEFT "
                    "cannot express; export the merged model",
                    t.name);
    const std::string a = source.adapter_of(adapted.parts[0]->parameter, 'a');
    const auto& read = source.manifest().tensors.at(a).shape.dims;
    const std::vector<std::string> rows = names_of(dims_along(t, *adapted.parts[0], 0));
    if (std::ranges::any_of(rows, [&](const std::string& name) {
          return std::ranges::find(read, name) != read.end();
        }))
      adapted.in = 0;
    result.push_back(std::move(adapted));
  }
  return result;
}

/// "model.layers.1.mlp.experts.0.up_proj.weight": the file has a matrix for each expert.
bool is_of_expert(const std::string& tensor) {
  constexpr std::string_view kExperts = ".experts.";
  const size_t at = tensor.find(kExperts);
  return at != tensor.npos &&
         std::isdigit(static_cast<unsigned char>(tensor[at + kExperts.size()]));
}

struct Targets {
  std::set<std::string> modules, parameters;
  bool has_experts = false;
};

/// Modules: names that fit these and no others, their last parts or all of each. transformers 5
/// keeps the matrices of all experts as one parameter. PEFT takes each module that is called like
/// one of an expert for that parameter, so that others of the name are listed as parameters.
Targets targets_of(const std::vector<AdaptedTensor>& adapted, const TensorMap& map) {
  std::set<std::string> of_experts, short_names;
  for (const MappedTensor& t : map.tensors) {
    if (is_of_expert(t.name)) of_experts.insert(last_part(module_of(t.name)));
  }
  Targets targets;
  for (const AdaptedTensor& t : adapted) {
    const std::string module = module_of(t.tensor->name);
    const bool is_expert = is_of_expert(t.tensor->name);
    targets.has_experts |= is_expert;
    if (!is_expert && of_experts.contains(last_part(module))) {
      targets.parameters.insert(t.tensor->name);
    } else {
      targets.modules.insert(module);
      short_names.insert(last_part(module));
    }
  }
  const bool fit = std::ranges::none_of(map.tensors, [&](const MappedTensor& t) {
    const std::string module = module_of(t.name);
    return t.name.ends_with(kWeightSuffix) && !targets.modules.contains(module) &&
           !targets.parameters.contains(t.name) && short_names.contains(last_part(module)) &&
           is_of_expert(t.name) == of_experts.contains(last_part(module));
  });
  if (fit) targets.modules = std::move(short_names);
  return targets;
}

/// The modules that hold trained tensors beside LoRA, as a whole.
std::set<std::string> modules_to_save(const TrainedTensors& trained,
                                      const std::vector<AdaptedTensor>& adapted) {
  std::set<std::string> modules;
  for (const MappedTensor* t : trained.tensors) {
    TESSERA_REQUIRE(t->name.ends_with(kWeightSuffix) || t->name.ends_with(".bias"),
                    "[export] '{}' was trained, and PEFT saves whole modules only, with weight and "
                    "bias; export the merged model",
                    t->name);
    modules.insert(module_of(t->name));
  }
  std::erase_if(modules, [&](const std::string& inner) {
    return std::ranges::any_of(
        modules, [&](const std::string& outer) { return inner.starts_with(outer + "."); });
  });
  for (const AdaptedTensor& t : adapted) {
    for (const std::string& module : modules)
      TESSERA_REQUIRE(
          !t.tensor->name.starts_with(module + "."),
          "[export] '{}' has matrices of LoRA, and something of '{}' was trained beside "
          "them, which PEFT cannot express; export the merged model",
          t.tensor->name, module);
  }
  return modules;
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

TensorInfo tensor_info(const std::string& name, const std::vector<int64_t>& sizes) {
  TensorInfo info;
  info.name = name;
  info.dtype = DType::float32;
  info.sizes = sizes;
  return info;
}

}  // namespace

int64_t write_peft_adapter(const std::string& folder, const ExportSource& source,
                           const TensorMap& map, const nn::TransformerOptions& model,
                           const std::string& base, const TrainedTensors& trained) {
  const std::vector<AdaptedTensor> adapted = adapted_tensors(source, map);
  const std::set<std::string> saved = modules_to_save(trained, adapted);
  OpenShards shards(source.path(), source.manifest());
  const int64_t rank = source.lora().rank;
  std::vector<TensorInfo> infos;
  std::vector<std::vector<float>> values;
  nlohmann::json ranks = nlohmann::json::object(), alphas = ranks;
  for (const AdaptedTensor& t : adapted) {
    const auto parts = std::ssize(t.parts);
    const int64_t in = t.tensor->sizes[static_cast<size_t>(t.in)],
                  out = t.tensor->sizes[static_cast<size_t>(1 - t.in)], all = rank * parts;
    std::vector<float> a(static_cast<size_t>(all * in)), b(static_cast<size_t>(out * all));
    for (int64_t part = 0; part < parts; ++part) {
      const TensorPart& p = *t.parts[static_cast<size_t>(part)];
      const auto matrix_of = [&](char which, int axis) {
        std::vector<std::string> order = names_of(dims_along(*t.tensor, p, axis));
        order.insert(order.begin(), "rank");
        return transposed(source.read(shards, source.adapter_of(p.parameter, which), p.at), order);
      };
      const std::vector<float> from = matrix_of('a', t.in), to = matrix_of('b', 1 - t.in);
      const std::vector<int64_t> columns = places_along(*t.tensor, p, t.in),
                                 rows = places_along(*t.tensor, p, 1 - t.in);
      for (int64_t r = 0; r < rank; ++r) {
        for (int64_t i = 0; i < std::ssize(columns); ++i)
          a[(part * rank + r) * in + columns[i]] = from[r * std::ssize(columns) + i];
        for (int64_t i = 0; i < std::ssize(rows); ++i)
          b[rows[i] * all + part * rank + r] = to[r * std::ssize(rows) + i];
      }
    }
    const std::string module = module_of(t.tensor->name);
    infos.push_back(
        tensor_info(fmt::format("base_model.model.{}.lora_A.weight", module), {all, in}));
    infos.push_back(
        tensor_info(fmt::format("base_model.model.{}.lora_B.weight", module), {out, all}));
    values.push_back(std::move(a));
    values.push_back(std::move(b));
    if (parts == 1) continue;
    ranks[module] = all;
    alphas[module] = source.lora().alpha * static_cast<double>(parts);
  }
  const size_t matrices = infos.size();
  std::vector<const MappedTensor*> whole;
  for (const MappedTensor& t : map.tensors) {
    if (std::ranges::none_of(saved, [&](const auto& m) { return t.name.starts_with(m + "."); }))
      continue;
    whole.push_back(&t);
    infos.push_back(tensor_info("base_model.model." + t.name, t.sizes));
  }
  SafetensorsWriter file((fs::path(folder) / "adapter_model.safetensors").string(), infos,
                         {{"format", "pt"}});
  for (size_t i = 0; i < matrices; ++i)
    file.write(infos[i].name, values[i].data(), std::ssize(values[i]) * 4);
  for (size_t i = 0; i < whole.size(); ++i) {
    const std::vector<std::byte> bytes = trained.elements(*whole[i], DType::float32);
    file.write(infos[matrices + i].name, bytes.data(), std::ssize(bytes));
  }
  file.finish();
  nlohmann::json task;  // PEFT has none for masked tokens
  if (model.causal) task = model.encoder_layers > 0 ? "SEQ_2_SEQ_LM" : "CAUSAL_LM";
  const Targets targets = targets_of(adapted, map);
  const bool has_dropout = targets.parameters.empty() && !targets.has_experts;  // PEFT's rule
  nlohmann::json config = {
      {"peft_type", "LORA"},
      {"task_type", task},
      {"base_model_name_or_path", base},
      {"r", rank},
      {"lora_alpha", source.lora().alpha},
      {"rank_pattern", ranks},
      {"alpha_pattern", alphas},
      {"lora_dropout", has_dropout ? source.lora().dropout : 0.0},
      {"target_modules", targets.modules},
      {"bias", "none"},
      {"fan_in_fan_out",
       std::ranges::any_of(adapted, [](const AdaptedTensor& t) { return t.in == 0; })},
      {"inference_mode", true}};
  if (!targets.parameters.empty()) config["target_parameters"] = targets.parameters;
  if (!saved.empty()) config["modules_to_save"] = saved;
  write_text_file((fs::path(folder) / "adapter_config.json").string(), config.dump(2) + "\n");
  return std::ssize(infos);
}

}  // namespace tessera
