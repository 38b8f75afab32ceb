// T5, T5 1.1 and Flan-T5 (Raffel et al. 2020): an encoder and a decoder, whose logits have no scale
// and get a learned bias for each distance.
#include <cmath>

#include "io/families/decoder.h"

namespace tessera {

namespace {

/// feed_forward_proj: "relu", "gated-gelu", "gated-silu", ... Files of transformers 5 also have the
/// two keys that it stands for.
void read_mlp(KeyedJson& config, nn::MlpLayerOptions& mlp) {
  const std::string key = "feed_forward_proj", name = config.text(key, "relu");
  mlp.gated = name.starts_with("gated-");
  const std::string activation = mlp.gated ? name.substr(6) : name;
  // "gated-gelu" alone is gelu by tanh.
  const std::string meant = name == "gated-gelu" ? "gelu_new" : activation;
  mlp.activation = activation_named(config, key, meant);
  if (config.is_null("is_gated_act") && mlp.gated)
    config.refuse("is_gated_act", fmt::format("feed_forward_proj is {}", name));
  config.require_value("is_gated_act", mlp.gated);
  config.require_value("dense_act_fn", meant);
}

nn::TransformerOptions t5_options(KeyedJson& config) {
  nn::TransformerOptions o;
  o.vocab = config.whole("vocab_size");
  o.d_model = config.whole("d_model");
  o.encoder_layers = config.whole("num_layers", {}, 1, kMostLayers);
  config.allow_null({"num_decoder_layers", "scale_decoder_outputs", "tie_word_embeddings"});
  o.layers = config.whole("num_decoder_layers", o.encoder_layers, 1, kMostLayers);
  o.length = o.target_length = config.whole("n_positions", 512);
  o.heads.count = config.whole("num_heads");
  o.heads.d_head = config.whole("d_kv");
  o.heads.scale = 1;
  o.mlp.ff = config.whole("d_ff");
  read_mlp(config, o.mlp);
  o.norm.kind = nn::NormOptions::Kind::rms;
  o.norm.eps = config.number("layer_norm_epsilon", 1e-6);
  o.relative_buckets = config.whole("relative_attention_num_buckets", 32);
  o.relative_distance = config.whole("relative_attention_max_distance", 128);
  if (o.relative_buckets % 4 != 0)
    config.refuse("relative_attention_num_buckets", "it must be a multiple of 4");
  if (o.relative_distance <= o.relative_buckets / 2)
    config.refuse("relative_attention_max_distance",
                  "it must be more than half of relative_attention_num_buckets");
  o.tied = config.flag("tie_word_embeddings", true);
  if (config.flag("scale_decoder_outputs", o.tied && !config.is_null("scale_decoder_outputs")))
    o.logits_scale = 1 / std::sqrt(static_cast<double>(o.d_model));
  o.start_token = static_cast<int32_t>(
      config.whole("decoder_start_token_id", config.whole("pad_token_id", 0, 0), 0, o.vocab - 1));
  o.end_token = static_cast<int32_t>(config.whole("eos_token_id", 1, 0, o.vocab - 1));
  config.require_value("is_encoder_decoder", true);
  config.require_value("is_decoder", false);
  return o;
}

std::vector<WeightRule> t5_weights(const nn::TransformerOptions& o) {
  const std::string heads = "heads*d_head";
  std::vector<WeightRule> rules = {
      {"shared.weight", "vocab, d_model", "embedding"},
      {"encoder.embed_tokens.weight", "vocab, d_model", "embedding", true},
      {"decoder.embed_tokens.weight", "vocab, d_model", "embedding", true},
      {"encoder.final_layer_norm.weight", "d_model", "encoder.norm.scale"},
      {"decoder.final_layer_norm.weight", "d_model", "norm.scale"},
      {"lm_head.weight", "vocab, d_model", o.tied ? "embedding" : "head.w", o.tied}};
  const auto add_attention = [&](const std::string& tensor, const std::string& parameter) {
    const std::pair<const char*, const char*> names[] = {
        {"q", "query"}, {"k", "key"}, {"v", "value"}};
    for (const auto& [theirs, ours] : names)
      rules.push_back({fmt::format("{}.{}.weight", tensor, theirs), heads + ", d_model",
                       fmt::format("{}.{}.w", parameter, ours)});
    rules.push_back({tensor + ".o.weight", "d_model, " + heads, parameter + ".out.w"});
  };
  const auto add_norm = [&](const std::string& part, const std::string& parameter) {
    rules.push_back({part + "layer_norm.weight", "d_model", parameter + ".scale"});
  };
  for (const std::string stack : {"encoder", "decoder"}) {
    const std::string scope = stack == "encoder" ? "encoder." : "", block = scope + "block.",
                      layer = stack + ".block.{layer}.layer.",
                      feed_forward = stack == "encoder" ? "1." : "2.",
                      dense = layer + feed_forward + "DenseReluDense.";
    add_attention(layer + "0.SelfAttention", block + "attention");
    add_norm(layer + "0.", block + "norm1");
    rules.push_back({stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                     "relative_buckets, heads", scope + "relative.w"});
    if (stack == "decoder") {
      add_attention(layer + "1.EncDecAttention", block + "cross");
      add_norm(layer + "1.", block + "norm_cross");
    }
    add_norm(layer + feed_forward, block + "norm2");
    if (o.mlp.gated) rules.push_back({dense + "wi_0.weight", "ff, d_model", block + "mlp.gate.w"});
    rules.push_back(
        {dense + (o.mlp.gated ? "wi_1.weight" : "wi.weight"), "ff, d_model", block + "mlp.up.w"});
    rules.push_back({dense + "wo.weight", "d_model, ff", block + "mlp.down.w"});
  }
  return rules;
}

}  // namespace

// Some old files have biases in the decoder's first cross-attention, which nothing reads.
const Family kT5 = {"t5",
                    t5_options,
                    t5_weights,
                    {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"}};

}  // namespace tessera
