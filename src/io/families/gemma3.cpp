// Gemma 3, the text model (Gemma team 2025): Gemma 2 with norms of queries and keys, and rotary
// positions of their own for the five layers with a window that go with each one without.
#include "io/families/gemma.h"

namespace tessera {

namespace {

nn::RotaryOptions rotation_of_kind(KeyedJson& parameters, const char* kind, double base,
                                   int64_t positions) {
  if (parameters.has(kind)) return rotation_of(parameters.object(kind), base, positions);
  parameters.ignore({kind});
  nn::RotaryOptions plain;
  plain.base = base;
  return plain;
}

/// transformers 5 has an object for each kind of layer, 4 two bases and a scaling of full layers.
void set_rotations(KeyedJson& config, nn::TransformerOptions& o) {
  nn::RotaryOptions &far = o.spans[0].rotation, &near = o.spans[1].rotation;
  const double base = config.number("rope_theta", 1e6),
               local = config.number("rope_local_base_freq", 1e4);
  far.base = base;
  near.base = local;
  if (config.has("rope_scaling")) far = rotation_of(config.object("rope_scaling"), base, o.length);
  if (config.has("rope_parameters")) {
    if (config.has("rope_scaling"))
      config.refuse("rope_scaling", "'rope_parameters' says it too, and only one of them counts");
    KeyedJson parameters = config.object("rope_parameters");
    far = rotation_of_kind(parameters, "full_attention", base, o.length);
    near = rotation_of_kind(parameters, "sliding_attention", local, o.length);
    parameters.require_all_read();
  }
  config.ignore({"rope_scaling", "rope_parameters"});
}

nn::TransformerOptions gemma3_options(KeyedJson& config) {
  nn::TransformerOptions o = gemma_options(config);
  o.length = config.whole("max_position_embeddings", 131072);
  o.heads.norm = true;
  set_alternating_windows(config, o, config.whole("sliding_window_pattern", 6));
  set_rotations(config, o);
  config.allow_null({"final_logit_softcapping"});
  o.logits_cap = config.number("final_logit_softcapping", 0);
  if (config.has("attn_logit_softcapping"))
    config.refuse("attn_logit_softcapping",
                  "Gemma 3 has none, and transformers ignores it; set it to null");
  return o;
}

}  // namespace

const Family kGemma3 = {"gemma3_text", gemma3_options, gemma_weights, {"*.rotary_emb*.inv_freq"}};

}  // namespace tessera
