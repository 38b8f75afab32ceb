// config.json to what a model is: the family's table reads it, and every key has to be known.
#include "io/model_description.h"

#include "base/fail.h"
#include "base/hash.h"
#include "base/json.h"

namespace tessera {

namespace {

using FamilyPointer = std::shared_ptr<const Family>;

FamilyPointer family_of(ModelConfig& config, const FamilyPointer& own) {
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

/// Keys of every family that change nothing of what a training step computes. Rates of dropout are
/// among them: they are the caller's choice.
void ignore_common(ModelConfig& config) {
  config.ignore({"_model_name_or_path",
                 "_name_or_path",
                 "architectures",
                 "attention_dropout",
                 "auto_map",
                 "bos_token_id",
                 "cache_implementation",
                 "chunk_size_feed_forward",
                 "decoder_start_token_id",
                 "eos_token_id",
                 "finetuning_task",
                 "hidden_dropout",
                 "id2label",
                 "initializer_range",
                 "is_decoder",
                 "is_encoder_decoder",
                 "is_llama_config",
                 "label2id",
                 "output_attentions",
                 "output_hidden_states",
                 "pad_token_id",
                 "prefix",
                 "problem_type",
                 "return_dict",
                 "sep_token_id",
                 "task_specific_params",
                 "tokenizer_class",
                 "torchscript",
                 "transformers.js_config",
                 "transformers_version",
                 "unk_token_id",
                 "unsloth_fixed",
                 "unsloth_version",
                 "use_cache"});
  // Settings of generation, which old files have, too.
  config.ignore({"do_sample", "max_length", "max_new_tokens", "min_length", "num_beams",
                 "num_return_sequences", "repetition_penalty", "temperature", "top_k", "top_p"});
}

/// "dtype" of transformers 5, "torch_dtype" of 4.
DType dtype_of(ModelConfig& config) {
  const char* const key = config.has("dtype") ? "dtype" : "torch_dtype";
  config.ignore({"dtype", "torch_dtype"});
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
  ModelConfig config(file, values);
  ModelDescription d;
  d.path = path;
  d.family = family_of(config, own);
  ignore_common(config);
  d.dtype = dtype_of(config);
  d.options = d.family->options(config);
  config.require_all_read();
  d.options.name = d.family->model_type;
  d.options.scan = d.options.can_scan();
  d.hash = fmt::format("{:016x}", hash_of(config.read_text() + d.family->text));
  return d;
}

}  // namespace tessera
