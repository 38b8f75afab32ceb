#include "io/families/option_names.h"

#include "base/fail.h"
#include "base/keyed_json.h"

namespace tessera {

using O = NamedOptions;

const std::vector<OptionName>& option_names() {
  static const std::vector<OptionName> names = {
      {"vocab", [](O& o) -> OptionField { return &o.model.vocab; }, 1, 1 << 30, true},
      {"d_model", [](O& o) -> OptionField { return &o.model.d_model; }, 1, 1 << 30, true},
      {"layers", [](O& o) -> OptionField { return &o.model.layers; }, 1, kMostLayers, true},
      {"length", [](O& o) -> OptionField { return &o.model.length; }, 1, 1 << 30, true},
      {"encoder_layers", [](O& o) -> OptionField { return &o.model.encoder_layers; }, 0,
       kMostLayers},
      {"heads.count", [](O& o) -> OptionField { return &o.model.heads.count; }, 1, 1 << 20, true},
      {"heads.key_heads", [](O& o) -> OptionField { return &o.model.heads.key_heads; }, 0, 1 << 20},
      {"heads.d_head", [](O& o) -> OptionField { return &o.model.heads.d_head; }, 0, 1 << 20},
      {"heads.query_bias", [](O& o) -> OptionField { return &o.model.heads.query_bias; }},
      {"heads.key_bias", [](O& o) -> OptionField { return &o.model.heads.key_bias; }},
      {"heads.value_bias", [](O& o) -> OptionField { return &o.model.heads.value_bias; }},
      {"heads.out_bias", [](O& o) -> OptionField { return &o.model.heads.out_bias; }},
      {"heads.norm", [](O& o) -> OptionField { return &o.model.heads.norm; }},
      {"heads.scale", [](O& o) -> OptionField { return &o.model.heads.scale; }},
      {"heads.soft_cap", [](O& o) -> OptionField { return &o.model.heads.soft_cap; }},
      {"heads.sinks", [](O& o) -> OptionField { return &o.model.heads.sinks; }},
      {"mlp.ff", [](O& o) -> OptionField { return &o.model.mlp.ff; }, 1, 1 << 30, true},
      {"mlp.gated", [](O& o) -> OptionField { return &o.model.mlp.gated; }},
      {"mlp.activation", [](O& o) -> OptionField { return &o.model.mlp.activation; }},
      {"mlp.bias", [](O& o) -> OptionField { return &o.model.mlp.bias; }},
      {"mlp.experts", [](O& o) -> OptionField { return &o.model.mlp.experts; }, 0, kMostExperts},
      {"mlp.choices", [](O& o) -> OptionField { return &o.model.mlp.choices; }, 1, kMostExperts},
      {"mlp.renormalize", [](O& o) -> OptionField { return &o.model.mlp.renormalize; }},
      {"norm.kind", [](O& o) -> OptionField { return &o.model.norm.kind; }},
      {"norm.eps", [](O& o) -> OptionField { return &o.model.norm.eps; }},
      {"norm.one_plus", [](O& o) -> OptionField { return &o.model.norm.one_plus; }},
      {"norm.placement", [](O& o) -> OptionField { return &o.model.placement; }},
      {"parallel", [](O& o) -> OptionField { return &o.model.parallel; }},
      {"causal", [](O& o) -> OptionField { return &o.model.causal; }},
      {"start_token", [](O& o) -> OptionField { return &o.model.start_token; }},
      {"end_token", [](O& o) -> OptionField { return &o.model.end_token; }},
      {"learned_positions", [](O& o) -> OptionField { return &o.model.positions; }},
      {"relative.buckets", [](O& o) -> OptionField { return &o.model.relative_buckets; }},
      {"relative.distance", [](O& o) -> OptionField { return &o.model.relative_distance; }, 1},
      {"rotary.base", [](O& o) -> OptionField { return &o.model.spans[0].rotation.base; }},
      {"rotary.interleaved",
       [](O& o) -> OptionField { return &o.model.spans[0].rotation.interleaved; }},
      {"rotary.share", [](O& o) -> OptionField { return &o.model.spans[0].rotation.share; }},
      {"rotary.parameters", [](O& o) -> OptionField { return &o.model.spans[0].rotation; }},
      {"window", [](O& o) -> OptionField { return &o.window; }},
      {"layers_with_window", [](O& o) -> OptionField { return &o.windows; }},
      {"token_types", [](O& o) -> OptionField { return &o.model.token_types; }},
      {"embedding_norm", [](O& o) -> OptionField { return &o.model.embedding_norm; }},
      {"embedding_scale", [](O& o) -> OptionField { return &o.model.embedding_scale; }},
      {"logits_scale", [](O& o) -> OptionField { return &o.model.logits_scale; }},
      {"logits_cap", [](O& o) -> OptionField { return &o.model.logits_cap; }},
      {"tied", [](O& o) -> OptionField { return &o.model.tied; }},
      {"head_bias", [](O& o) -> OptionField { return &o.model.head_bias; }},
      {"head_transform", [](O& o) -> OptionField { return &o.model.head_transform; }}};
  return names;
}

const std::vector<std::pair<std::string, int>>& choices_of(const OptionField& field) {
  using Words = std::vector<std::pair<std::string, int>>;
  using nn::Activation, nn::NormPlacement;
  using Kind = nn::NormOptions::Kind;
  static const Words activations = {{"silu", int(Activation::silu)},
                                    {"swish", int(Activation::silu)},
                                    {"gelu", int(Activation::gelu)},
                                    {"gelu_new", int(Activation::gelu_tanh)},
                                    {"gelu_pytorch_tanh", int(Activation::gelu_tanh)},
                                    {"relu", int(Activation::relu)}},
                     norms = {{"layer", int(Kind::layer)}, {"rms", int(Kind::rms)}},
                     placements = {{"before", int(NormPlacement::before)},
                                   {"after", int(NormPlacement::after)},
                                   {"both", int(NormPlacement::both)}},
                     none = {};
  if (std::holds_alternative<Activation*>(field)) return activations;
  if (std::holds_alternative<Kind*>(field)) return norms;
  return std::holds_alternative<NormPlacement*>(field) ? placements : none;
}

nn::TransformerOptions finish(NamedOptions named) {
  nn::TransformerOptions& o = named.model;
  if (o.heads.d_head == 0) {
    TESSERA_REQUIRE(o.d_model % o.heads.count == 0,
                    "heads.count {} does not divide d_model {}; give heads.d_head", o.heads.count,
                    o.d_model);
    o.heads.d_head = o.d_model / o.heads.count;
  }
  o.learned_positions = o.positions > 0;
  o.weighted = !o.causal;
  if (o.encoder_layers > 0) o.target_length = o.length;
  TESSERA_REQUIRE(
      o.relative_buckets % 4 == 0 &&
          (o.relative_buckets == 0 || o.relative_distance > o.relative_buckets / 2),
      "relative.buckets {} is a multiple of 4, and relative.distance {} more than its half",
      o.relative_buckets, o.relative_distance);
  nn::SpanOptions& span = o.spans[0];
  span.rotary = named.rotary;
  span.window = named.window;
  if (named.windows.empty()) return o;
  TESSERA_REQUIRE(std::ssize(named.windows) == o.layers,
                  "layers_with_window has {} entries for {} layers", named.windows.size(),
                  o.layers);
  o.spans = {span, span};
  o.spans[0].window = 0;
  o.pattern.clear();
  for (const bool has_window : named.windows) {
    TESSERA_REQUIRE(!has_window || named.window > 0,
                    "layers_with_window has a layer with a window, but window is 0");
    o.pattern.push_back(has_window ? 1 : 0);
  }
  return o;
}

}  // namespace tessera
