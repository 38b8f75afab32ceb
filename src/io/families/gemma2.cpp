// Gemma 2 (Gemma team 2024): norms around each part, soft caps, every other layer with a window.
#include <cmath>

#include "io/families/gemma.h"

namespace tessera {

nn::TransformerOptions gemma_options(KeyedJson& config) {
  nn::TransformerOptions o;
  o.vocab = config.whole("vocab_size");
  o.d_model = config.whole("hidden_size");
  o.layers = config.whole("num_hidden_layers", {}, 1, kMostLayers);
  o.mlp.ff = config.whole("intermediate_size");
  o.mlp.gated = true;
  o.mlp.activation = activation_of(config, "hidden_activation", "gelu_pytorch_tanh");
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.norm.eps = config.number("rms_norm_eps", 1e-6);
  o.norm.one_plus = true;
  o.placement = nn::NormPlacement::both;
  o.heads.count = config.whole("num_attention_heads", 8);
  o.heads.key_heads = config.whole("num_key_value_heads", 4);
  if (o.heads.count % o.heads.key_heads != 0)
    config.refuse("num_key_value_heads",
                  fmt::format("it must divide num_attention_heads {}", o.heads.count));
  o.heads.d_head = config.whole("head_dim", 256);
  const double scalar = config.number("query_pre_attn_scalar", 256);
  if (scalar <= 0) config.refuse("query_pre_attn_scalar", "it must be positive");
  o.heads.scale = 1 / std::sqrt(scalar);
  const bool bias = config.flag("attention_bias", false);
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = bias;
  o.embedding_scale = std::sqrt(static_cast<double>(o.d_model));
  o.tied = config.flag("tie_word_embeddings", true);
  config.require_value("use_bidirectional_attention", false);
  o.spans[0].rotary = true;
  return o;
}

void set_alternating_windows(KeyedJson& config, nn::TransformerOptions& o, int64_t each) {
  set_windows(config, o, window_of(config, 4096), 0);
  if (config.has("layer_types")) return;
  for (int64_t i = 0; i < o.layers; ++i)
    o.pattern[static_cast<size_t>(i)] = (i + 1) % each == 0 || o.spans[1].window == 0 ? 0 : 1;
}

std::vector<WeightRule> gemma_weights(const nn::TransformerOptions& o) {
  std::vector<WeightRule> rules = decoder_weights(o);
  const std::string layer = "model.layers.{layer}.";
  for (WeightRule& rule : rules) {
    if (rule.tensor == layer + "post_attention_layernorm.weight")
      rule.parameter = "block.norm1_after.scale";
  }
  rules.push_back({layer + "pre_feedforward_layernorm.weight", "d_model", "block.norm2.scale"});
  rules.push_back(
      {layer + "post_feedforward_layernorm.weight", "d_model", "block.norm2_after.scale"});
  return rules;
}

namespace {
nn::TransformerOptions gemma2_options(KeyedJson& config) {
  nn::TransformerOptions o = gemma_options(config);
  o.length = config.whole("max_position_embeddings", 8192);
  o.spans[0].rotation = rotation_of(config, 10000);
  set_alternating_windows(config, o, 2);
  config.allow_null({"attn_logit_softcapping", "final_logit_softcapping"});
  const auto cap_of = [&](const char* key, double fallback) {
    const double cap = config.is_null(key) ? config.number(key, 0) : config.number(key, fallback);
    if (cap < 0) config.refuse(key, "a cap is positive, or null");
    return cap;
  };
  o.heads.soft_cap = cap_of("attn_logit_softcapping", 50);
  o.logits_cap = cap_of("final_logit_softcapping", 30);
  return o;
}
}  // namespace

const Family kGemma2 = {"gemma2", gemma2_options, gemma_weights, {"*.rotary_emb*.inv_freq"}};

}  // namespace tessera
