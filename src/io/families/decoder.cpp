#include "io/families/decoder.h"

#include <cmath>

namespace tessera {

nn::Activation activation_of(KeyedJson& config, const std::string& key,
                             const std::string& fallback) {
  return activation_named(config, key, config.text(key, fallback));
}

nn::Activation activation_named(const KeyedJson& config, const std::string& key,
                                const std::string& name) {
  if (name == "silu" || name == "swish") return nn::Activation::silu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return nn::Activation::gelu_tanh;
  if (name == "gelu") return nn::Activation::gelu;
  if (name == "relu") return nn::Activation::relu;
  config.refuse(key, "Tessera knows silu, swish, gelu, gelu_new, gelu_pytorch_tanh and relu");
}

double yarn_growth(double factor, double share) {
  return factor <= 1 ? 1 : 0.1 * share * std::log(factor) + 1;
}

nn::RotaryOptions rotation_of(KeyedJson scaling, double base, int64_t max_positions) {
  using Kind = nn::RotaryScaling::Kind;
  nn::RotaryOptions r;
  scaling.allow_null({"attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim",
                      "original_max_position_embeddings"});
  r.base = scaling.number("rope_theta", base);
  const char* const type_key = scaling.has("rope_type") ? "rope_type" : "type";
  const std::string type = scaling.text(type_key, "default");
  scaling.ignore({"rope_type", "type"});
  nn::RotaryScaling& s = r.scaling;
  if (type == "linear") {
    s.kind = Kind::linear;
  } else if (type == "llama3") {
    s.kind = Kind::llama3;
  } else if (type == "yarn") {
    s.kind = Kind::yarn;
  } else if (type != "default") {
    scaling.refuse(type_key, "Tessera knows default, linear, llama3 and yarn");
  }
  if (s.kind != Kind::none) s.factor = scaling.number("factor");
  if (s.kind == Kind::llama3) {
    s.low_frequency = scaling.number("low_freq_factor");
    s.high_frequency = scaling.number("high_freq_factor");
    s.original_length = scaling.number("original_max_position_embeddings");
  }
  if (s.kind == Kind::yarn) {
    s.original_length =
        scaling.number("original_max_position_embeddings", static_cast<double>(max_positions));
    s.beta_fast = scaling.number("beta_fast", 32);
    s.beta_slow = scaling.number("beta_slow", 1);
    s.truncate = scaling.flag("truncate", true);
    s.attention_factor = scaling.number("attention_factor", 0);
    const double mscale = scaling.number("mscale", 0), all = scaling.number("mscale_all_dim", 0);
    if ((mscale != 0) != (all != 0))
      scaling.refuse(mscale != 0 ? "mscale" : "mscale_all_dim",
                     "mscale and mscale_all_dim count together only, and the other is missing");
    if (s.attention_factor == 0 && mscale != 0)
      s.attention_factor = yarn_growth(s.factor, mscale) / yarn_growth(s.factor, all);
  }
  scaling.require_value("partial_rotary_factor", 1.0);
  scaling.require_all_read();
  return r;
}

nn::RotaryOptions rotation_of(KeyedJson& config, double default_base) {
  const double base = config.number("rope_theta", default_base);
  const int64_t positions = config.whole("max_position_embeddings");
  const bool both = config.has("rope_parameters") && config.has("rope_scaling");
  if (both)
    config.refuse("rope_scaling", "'rope_parameters' says it too, and only one of them counts");
  config.ignore({"rope_parameters", "rope_scaling"});
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (config.has(key)) return rotation_of(config.object(key), base, positions);
  }
  nn::RotaryOptions plain;
  plain.base = base;
  return plain;
}

nn::TransformerOptions decoder_options(KeyedJson& config, int64_t key_heads, double base) {
  nn::TransformerOptions o;
  o.vocab = config.whole("vocab_size");
  o.d_model = config.whole("hidden_size");
  o.layers = config.whole("num_hidden_layers", {}, 1, kMostLayers);
  o.length = config.whole("max_position_embeddings");
  o.mlp.ff = config.whole("intermediate_size");
  o.mlp.gated = true;
  o.mlp.activation = activation_of(config, "hidden_act", "silu");
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.norm.eps = config.number("rms_norm_eps");
  o.heads.count = config.whole("num_attention_heads");
  const bool as_many = key_heads == 0 || config.is_null("num_key_value_heads");
  o.heads.key_heads = config.whole("num_key_value_heads", as_many ? o.heads.count : key_heads);
  if (o.heads.count % o.heads.key_heads != 0)
    config.refuse("num_key_value_heads",
                  fmt::format("it must divide num_attention_heads {}", o.heads.count));
  if (!config.has("head_dim") && o.d_model % o.heads.count != 0)
    config.refuse("num_attention_heads",
                  fmt::format("without head_dim it must divide hidden_size {}", o.d_model));
  config.allow_null({"head_dim"});
  o.heads.d_head = config.whole("head_dim", o.d_model / o.heads.count);
  o.tied = config.flag("tie_word_embeddings", false);
  o.spans[0].rotary = true;
  o.spans[0].rotation = rotation_of(config, base);
  config.require_value("rope_interleaved", false);
  config.require_value("use_mrope", false);
  return o;
}

int64_t window_of(KeyedJson& config, int64_t fallback) {
  config.allow_null({"sliding_window"});
  return config.whole("sliding_window", config.is_null("sliding_window") ? 0 : fallback);
}

void set_windows(KeyedJson& config, nn::TransformerOptions& o, int64_t window, int64_t first) {
  std::vector<std::string> types;
  if (config.has("layer_types")) {
    types = config.texts("layer_types");
  } else {
    for (int64_t i = 0; i < o.layers; ++i)
      types.emplace_back(window > 0 && i >= first ? "sliding_attention" : "full_attention");
  }
  if (std::ssize(types) != o.layers)
    config.refuse("layer_types", fmt::format("num_hidden_layers is {}", o.layers));
  config.ignore({"layer_types"});
  nn::SpanOptions far = o.spans[0], near = far;
  far.window = 0;
  near.window = window;
  o.spans = {far, near};
  o.pattern.clear();
  for (const std::string& type : types) {
    if (type != "sliding_attention" && type != "full_attention")
      config.refuse("layer_types", "Tessera knows sliding_attention and full_attention");
    if (type == "sliding_attention" && window == 0)
      config.refuse("layer_types", "there is a sliding_attention, but no sliding_window");
    o.pattern.push_back(type == "sliding_attention" ? 1 : 0);
  }
}

std::vector<WeightRule> expert_weights(const nn::TransformerOptions& o, const ExpertNames& names) {
  std::vector<WeightRule> rules = decoder_weights(o);
  std::erase_if(rules, [](const WeightRule& r) { return r.parameter.starts_with("block.mlp."); });
  const std::string scope = fmt::format("model.layers.{{layer}}.{}.", names.scope),
                    expert = scope + "experts.{expert}.", parameter = "block.mlp.expert.";
  rules.push_back({scope + "gate.weight", "experts, d_model", "block.mlp.router.w"});
  rules.push_back({expert + names.gate + ".weight", "ff, d_model", parameter + "gate.w"});
  rules.push_back({expert + names.up + ".weight", "ff, d_model", parameter + "up.w"});
  rules.push_back({expert + names.down + ".weight", "d_model, ff", parameter + "down.w"});
  return rules;
}

std::vector<WeightRule> decoder_weights(const nn::TransformerOptions& o) {
  const std::string layer = "model.layers.{layer}.", attention = layer + "self_attn.";
  const std::string queries = "heads*heads_per_key*d_head", keys = "heads*d_head";
  std::vector<WeightRule> rules = {
      {"model.embed_tokens.weight", "vocab, d_model", "embedding"},
      {layer + "input_layernorm.weight", "d_model", "block.norm1.scale"},
      {attention + "q_proj.weight", queries + ", d_model", "block.attention.query.w"},
      {attention + "k_proj.weight", keys + ", d_model", "block.attention.key.w"},
      {attention + "v_proj.weight", keys + ", d_model", "block.attention.value.w"},
      {attention + "o_proj.weight", "d_model, " + queries, "block.attention.out.w"},
      {layer + "post_attention_layernorm.weight", "d_model", "block.norm2.scale"},
      {layer + "mlp.gate_proj.weight", "ff, d_model", "block.mlp.gate.w"},
      {layer + "mlp.up_proj.weight", "ff, d_model", "block.mlp.up.w"},
      {layer + "mlp.down_proj.weight", "d_model, ff", "block.mlp.down.w"},
      {"model.norm.weight", "d_model", "norm.scale"}};
  if (o.tied) {
    rules.push_back({"lm_head.weight", "vocab, d_model", "embedding", true});
  } else {
    rules.push_back({"lm_head.weight", "vocab, d_model", "head.w"});
  }
  const nn::HeadOptions& h = o.heads;
  if (h.query_bias)
    rules.push_back({attention + "q_proj.bias", queries, "block.attention.query.b"});
  if (h.key_bias) rules.push_back({attention + "k_proj.bias", keys, "block.attention.key.b"});
  if (h.value_bias) rules.push_back({attention + "v_proj.bias", keys, "block.attention.value.b"});
  if (h.out_bias) rules.push_back({attention + "o_proj.bias", "d_model", "block.attention.out.b"});
  if (h.norm) {
    rules.push_back({attention + "q_norm.weight", "d_head", "block.attention.query_norm.scale"});
    rules.push_back({attention + "k_norm.weight", "d_head", "block.attention.key_norm.scale"});
  }
  if (o.mlp.bias) {
    rules.push_back({layer + "mlp.gate_proj.bias", "ff", "block.mlp.gate.b"});
    rules.push_back({layer + "mlp.up_proj.bias", "ff", "block.mlp.up.b"});
    rules.push_back({layer + "mlp.down_proj.bias", "d_model", "block.mlp.down.b"});
  }
  return rules;
}

}  // namespace tessera
