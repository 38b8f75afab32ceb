// Qwen 2 and 2.5 (Yang et al. 2024): a Llama with biases of queries, keys and values. The key's
// counts: positions enter between it and the product.
#include "io/families/decoder.h"

namespace tessera {

namespace {
nn::TransformerOptions qwen2_options(KeyedJson& config) {
  config.allow_null({"num_key_value_heads"});
  nn::TransformerOptions o = decoder_options(config, 32);
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = true;
  const bool is_sliding = config.flag("use_sliding_window", false);
  const int64_t window = window_of(config, 4096), first = config.whole("max_window_layers", 28, 0);
  set_windows(config, o, is_sliding ? window : 0, first);
  return o;
}
}  // namespace

const Family kQwen2 = {"qwen2", qwen2_options, decoder_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
