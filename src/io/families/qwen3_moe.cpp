// Qwen 3 with experts (Yang et al. 2025). All layers have them.
#include "io/families/decoder.h"

namespace tessera {

namespace {

nn::TransformerOptions qwen3_moe_options(KeyedJson& config) {
  nn::TransformerOptions o = decoder_options(config, 4);
  const bool bias = config.flag("attention_bias", false);
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = bias;
  o.heads.norm = true;
  config.require_value("use_sliding_window", false);
  config.ignore({"sliding_window", "max_window_layers"});  // nothing without use_sliding_window
  o.mlp.ff = config.whole("moe_intermediate_size", 768);
  // transformers 5 writes the second name.
  const bool both = config.has("num_experts") && config.has("num_local_experts");
  if (both) config.refuse("num_local_experts", "'num_experts' says it too");
  o.mlp.experts = config.whole(config.has("num_experts") ? "num_experts" : "num_local_experts", 128,
                               1, kMostExperts);
  config.ignore({"num_experts", "num_local_experts"});
  o.mlp.choices = config.whole("num_experts_per_tok", 8);
  if (o.mlp.choices > o.mlp.experts)
    config.refuse("num_experts_per_tok", fmt::format("there are {} experts", o.mlp.experts));
  o.mlp.renormalize = config.flag("norm_topk_prob", false);
  config.require_value("decoder_sparse_step", 1);
  config.require_value("mlp_only_layers", nlohmann::json::array());
  config.require_value("output_router_logits", false);
  return o;
}

std::vector<WeightRule> qwen3_moe_weights(const nn::TransformerOptions& o) {
  return expert_weights(o, {"mlp", "gate_proj", "up_proj", "down_proj"});
}

}  // namespace

const Family kQwen3Moe = {
    "qwen3_moe", qwen3_moe_options, qwen3_moe_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
