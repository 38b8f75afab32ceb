// Mixtral (Jiang et al. 2024): a Mistral with experts.
#include "io/families/decoder.h"

namespace tessera {

namespace {

nn::TransformerOptions mixtral_options(KeyedJson& config) {
  nn::TransformerOptions o = decoder_options(config, 8, 1e6);
  o.spans[0].window = window_of(config, 0);
  o.mlp.experts = config.whole("num_local_experts", 8, 1, kMostExperts);
  o.mlp.choices = config.whole("num_experts_per_tok", 2);
  if (o.mlp.choices > o.mlp.experts)
    config.refuse("num_experts_per_tok", fmt::format("there are {} experts", o.mlp.experts));
  config.require_value("output_router_logits", false);
  return o;
}

std::vector<WeightRule> mixtral_weights(const nn::TransformerOptions& o) {
  return expert_weights(o, {"block_sparse_moe", "w1", "w3", "w2"});
}

}  // namespace

const Family kMixtral = {"mixtral", mixtral_options, mixtral_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
