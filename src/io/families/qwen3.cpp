// Qwen 3 (Yang et al. 2025): a Llama with norms of queries and keys, and heads of any size.
#include "io/families/decoder.h"

namespace tessera {

namespace {
nn::TransformerOptions qwen3_options(KeyedJson& config) {
  if (!config.has("head_dim")) config.refuse("head_dim", "qwen3 does not derive it");
  config.allow_null({"num_key_value_heads"});
  nn::TransformerOptions o = decoder_options(config, 32);
  const bool bias = config.flag("attention_bias", false);
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = bias;
  o.heads.norm = true;
  const bool is_sliding = config.flag("use_sliding_window", false);
  const int64_t window = window_of(config, 4096), first = config.whole("max_window_layers", 28, 0);
  set_windows(config, o, is_sliding ? window : 0, first);
  return o;
}
}  // namespace

const Family kQwen3 = {"qwen3", qwen3_options, decoder_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
