// Llama 2 and 3 (Touvron et al. 2023).
#include "io/families/decoder.h"

namespace tessera {

namespace {
nn::TransformerOptions llama_options(KeyedJson& config) {
  config.allow_null({"num_key_value_heads"});
  nn::TransformerOptions o = decoder_options(config);
  const bool bias = config.flag("attention_bias", false);
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = bias;
  o.mlp.bias = config.flag("mlp_bias", false);
  config.require_value("pretraining_tp", 1);
  return o;
}
}  // namespace

const Family kLlama = {"llama", llama_options, decoder_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
