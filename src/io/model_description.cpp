// config.json to what a model is: the family's table reads it, and every key has to be known.
#include "io/model_description.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/json.h"

namespace tessera {

namespace {

using FamilyPointer = std::shared_ptr<const Family>;

FamilyPointer family_of(KeyedJson& config, const FamilyPointer& own) {
  const std::string type = config.text("model_type");
  if (own) {
    if (type != own->model_type)
      config.refuse("model_type", fmt::format("'{}' describes '{}'", own->file, own->model_type));
    return own;
  }
  std::vector<std::string> known;
  for (const Family* f : families()) {
    if (f->model_type == type) return {FamilyPointer(), f};
    known.emplace_back(f->model_type);
  }
  config.refuse(
      "model_type",
      fmt::format("Tessera knows {}; describe another family in {} beside it{}",
                  fmt::join(known, ", "), kFamilyFile,
                  suggestion(type, known).starts_with("; did") ? suggestion(type, known) : ""));
}

/// "dtype" of transformers 5, "torch_dtype" of 4.
DType dtype_of(KeyedJson& config) {
  const char* const key = config.has("dtype") ? "dtype" : "torch_dtype";
  config.ignore({"dtype", "torch_dtype"});
  config.allow_null({key});
  const std::string name = config.text(key, "float32");
  for (const DType d : {DType::float32, DType::bfloat16, DType::float16}) {
    if (name == to_string(d)) return d;
  }
  config.refuse(key, "weights are float32, bfloat16 or float16");
}

}  // namespace

ModelDescription describe_model(const std::string& path, const std::string& file,
                                const std::string& text, FamilyPointer own) {
  const nlohmann::json values = parse_json(text);
  if (values.is_discarded())
    fail(ErrorKind::io, "[model] '{}' is not JSON: {}", file, json_fault(text));
  KeyedJson config(file, values);
  ModelDescription d;
  d.path = path;
  d.family = family_of(config, own);
  config.set_kind(d.family->model_type);
  d.dtype = dtype_of(config);
  d.options = d.family->options(config);
  config.require_all_read();
  d.options.name = d.family->model_type;
  d.options.scan = d.options.can_scan();
  d.hash = fmt::format("{:016x}", hash_of(config.read_text() + d.family->text));
  return d;
}

}  // namespace tessera
