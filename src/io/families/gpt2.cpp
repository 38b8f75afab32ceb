// GPT-2 (Radford et al. 2019). Its matrices are [in, out], and one holds queries, keys and values.
#include "io/families/decoder.h"

namespace tessera {

namespace {

nn::TransformerOptions gpt2_options(KeyedJson& config) {
  nn::TransformerOptions o;
  o.vocab = config.whole("vocab_size");
  o.d_model = config.whole("n_embd");
  o.layers = config.whole("n_layer", {}, 1, kMostLayers);
  o.length = o.positions = config.whole("n_positions");
  o.learned_positions = true;
  o.heads.count = config.whole("n_head");
  if (o.d_model % o.heads.count != 0)
    config.refuse("n_head", fmt::format("it must divide n_embd {}", o.d_model));
  o.heads.d_head = o.d_model / o.heads.count;
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = true;
  config.allow_null({"n_inner"});
  o.mlp.ff = config.whole("n_inner", 4 * o.d_model);
  o.mlp.bias = true;
  o.mlp.activation = activation_of(config, "activation_function", "gelu_new");
  o.norm.eps = config.number("layer_norm_epsilon", 1e-5);
  o.tied = config.flag("tie_word_embeddings", true);
  if (!config.flag("scale_attn_weights", true)) o.heads.scale = 1;
  config.require_value("scale_attn_by_inverse_layer_idx", false);
  config.require_value("add_cross_attention", false);
  return o;
}

std::vector<WeightRule> gpt2_weights(const nn::TransformerOptions& o) {
  const std::string layer = "transformer.h.{layer}.";
  std::vector<WeightRule> rules = {
      {"transformer.wte.weight", "vocab, d_model", "embedding"},
      {"transformer.wpe.weight", "positions, d_model", "position"},
      {layer + "ln_1.weight", "d_model", "block.norm1.scale"},
      {layer + "ln_1.bias", "d_model", "block.norm1.bias"},
      {layer + "attn.c_proj.weight", "heads*d_head, d_model", "block.attention.out.w"},
      {layer + "attn.c_proj.bias", "d_model", "block.attention.out.b"},
      {layer + "ln_2.weight", "d_model", "block.norm2.scale"},
      {layer + "ln_2.bias", "d_model", "block.norm2.bias"},
      {layer + "mlp.c_fc.weight", "d_model, ff", "block.mlp.up.w"},
      {layer + "mlp.c_fc.bias", "ff", "block.mlp.up.b"},
      {layer + "mlp.c_proj.weight", "ff, d_model", "block.mlp.down.w"},
      {layer + "mlp.c_proj.bias", "d_model", "block.mlp.down.b"},
      {"transformer.ln_f.weight", "d_model", "norm.scale"},
      {"transformer.ln_f.bias", "d_model", "norm.bias"}};
  const char* const parts[] = {"query", "key", "value"};
  for (int i = 0; i < 3; ++i) {
    const std::string parameter = std::string("block.attention.") + parts[i];
    rules.push_back({layer + "attn.c_attn.weight", fmt::format("d_model, {}/3*heads*d_head", i),
                     parameter + ".w"});
    rules.push_back(
        {layer + "attn.c_attn.bias", fmt::format("{}/3*heads*d_head", i), parameter + ".b"});
  }
  if (o.tied) {
    rules.push_back({"lm_head.weight", "vocab, d_model", "embedding", true});
  } else {
    rules.push_back({"lm_head.weight", "vocab, d_model", "head.w"});
  }
  return rules;
}

}  // namespace

const Family kGpt2 = {.model_type = "gpt2",
                      .options = gpt2_options,
                      .weights = gpt2_weights,
                      .ignored = {"*h.*.attn.bias", "*h.*.attn.masked_bias"},
                      .optional_prefix = "transformer."};

}  // namespace tessera
