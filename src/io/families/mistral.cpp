// Mistral (Jiang et al. 2023): a Llama whose layers may all have a window.
#include "io/families/decoder.h"

namespace tessera {

namespace {
nn::TransformerOptions mistral_options(KeyedJson& config) {
  nn::TransformerOptions o = decoder_options(config, 8);
  o.spans[0].window = window_of(config, 4096);
  return o;
}
}  // namespace

const Family kMistral = {"mistral", mistral_options, decoder_weights, {"*.rotary_emb.inv_freq"}};

}  // namespace tessera
