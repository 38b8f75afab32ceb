// DeepSeek-V3 and R1 (DeepSeek-AI 2024): latent attention, a few dense layers, then experts chosen
// by sigmoids, in groups, with a bias that balances them, beside one that all tokens take.
#include <cmath>

#include "io/families/decoder.h"

namespace tessera {

namespace {

/// Kinds of layers.
constexpr int kDense = 0, kExperts = 1;

void read_heads(KeyedJson& config, nn::HeadOptions& h) {
  if (h.key_heads != h.count)
    config.refuse("num_key_value_heads",
                  fmt::format("latent attention has as many as num_attention_heads, {}", h.count));
  const int64_t plain = config.whole("qk_nope_head_dim", 128);
  h.latent.rank = config.whole("kv_lora_rank", 512);
  h.latent.query_rank = config.whole("q_lora_rank", config.is_null("q_lora_rank") ? 0 : 1536);
  h.latent.d_rotary = config.whole("qk_rope_head_dim", 64);
  h.latent.d_value = config.whole("v_head_dim", 128);
  h.d_head = plain + h.latent.d_rotary;
  // What transformers derives and writes.
  config.require_value("head_dim", h.latent.d_rotary);
  config.require_value("qk_head_dim", h.d_head);
  config.require_value("attention_bias", false);
}

/// Logits grow with mscale_all_dim, squared, as both queries and keys do.
void scale_logits(KeyedJson& config, nn::HeadOptions& h) {
  for (const char* key : {"rope_parameters", "rope_scaling"}) {
    if (!config.has(key)) continue;
    KeyedJson scaling = config.object(key);
    scaling.allow_null({"mscale_all_dim"});
    const double share = scaling.number("mscale_all_dim", 0);
    if (share == 0) continue;
    const double growth = yarn_growth(scaling.number("factor"), share);
    h.scale = growth * growth / std::sqrt(static_cast<double>(h.d_head));
  }
}

void read_experts(KeyedJson& config, nn::MlpLayerOptions& m) {
  m.ff = config.whole("moe_intermediate_size", 2048);
  m.experts = config.whole("n_routed_experts", 256, 1, kMostExperts);
  m.choices = config.whole("num_experts_per_tok", 8);
  m.groups = config.whole("n_group", 8);
  m.best_groups = config.whole("topk_group", 4);
  if (m.experts % m.groups != 0)
    config.refuse("n_group", fmt::format("it must divide n_routed_experts {}", m.experts));
  if (m.best_groups > m.groups)
    config.refuse("topk_group", fmt::format("there are {} groups", m.groups));
  const int64_t open = m.experts / m.groups * m.best_groups;
  if (m.choices > open)
    config.refuse("num_experts_per_tok", fmt::format("the {} best of {} groups have {} experts",
                                                     m.best_groups, m.groups, open));
  m.scores = nn::Scores::sigmoid;
  m.choice_bias = true;
  m.renormalize = config.flag("norm_topk_prob", !config.is_null("norm_topk_prob"));
  m.scale = config.number("routed_scaling_factor", 2.5);
  m.shared_ff = m.ff * config.whole("n_shared_experts", 1);
  config.require_value("scoring_func", "sigmoid");
  config.require_value("topk_method", "noaux_tc");
  config.require_value("moe_layer_freq", 1);
  config.require_value("output_router_logits", false);
}

/// Numbers of 8 bits in the files change nothing of the model; load() refuses them.
void read_quantization(KeyedJson& config) {
  if (!config.has("quantization_config")) return;
  KeyedJson numbers = config.object("quantization_config");
  numbers.require_value("quant_method", "fp8");
  numbers.require_all_read();
}

nn::TransformerOptions deepseek_options(KeyedJson& config) {
  config.allow_null({"num_key_value_heads", "q_lora_rank", "norm_topk_prob", "rope_interleave"});
  nn::TransformerOptions o = decoder_options(config, 128);
  read_heads(config, o.heads);
  scale_logits(config, o.heads);
  o.spans[0].rotation.interleaved =
      config.flag("rope_interleave", !config.is_null("rope_interleave"));
  o.spans.push_back(o.spans[0]);
  o.spans[kDense].mlp = o.mlp;
  read_experts(config, o.mlp);
  const int64_t dense = config.whole("first_k_dense_replace", 3, 0);
  o.pattern.clear();
  for (int64_t i = 0; i < o.layers; ++i) o.pattern.push_back(i < dense ? kDense : kExperts);
  read_quantization(config);
  config.require_value("pretraining_tp", 1);
  return o;
}

void add_attention(std::vector<WeightRule>& rules, const nn::HeadOptions& h) {
  const nn::LatentOptions& l = h.latent;
  const int64_t plain = h.d_head - l.d_rotary;
  const std::string scope = "model.layers.{layer}.self_attn.", parameter = "block.attention.";
  const auto add = [&](const char* tensor, const std::string& dims, const char* name) {
    rules.push_back({scope + tensor + ".weight", dims, parameter + name});
  };
  const auto add_both = [&](const char* tensor, const std::string& first, const char* first_name,
                            const std::string& second, const char* second_name) {
    add(tensor, first, first_name);
    add(tensor, second, second_name);
  };
  const std::string from = l.query_rank > 0 ? "d_query_latent" : "d_model";
  if (l.query_rank > 0) {
    add("q_a_proj", "d_query_latent, d_model", "query_latent.w");
    add("q_a_layernorm", "d_query_latent", "query_latent_norm.scale");
  }
  add_both(l.query_rank > 0 ? "q_b_proj" : "q_proj",
           fmt::format("heads*d_plain+{}, {}", l.d_rotary, from), "query.w",
           fmt::format("heads*{}+d_rotary, {}", plain, from), "query_rotary.w");
  add_both("kv_a_proj_with_mqa", fmt::format("d_latent+{}, d_model", l.d_rotary), "latent.w",
           fmt::format("{}+d_rotary, d_model", l.rank), "key_rotary.w");
  add("kv_a_layernorm", "d_latent", "latent_norm.scale");
  add_both("kv_b_proj", fmt::format("heads*d_plain+{}, d_latent", l.d_value), "key.w",
           fmt::format("heads*{}+d_value, d_latent", plain), "value.w");
  add("o_proj", "d_model, heads*d_value", "out.w");
}

std::vector<WeightRule> deepseek_weights(const nn::TransformerOptions& o) {
  std::vector<WeightRule> rules;
  for (WeightRule& rule : decoder_weights(o)) {
    if (rule.parameter.starts_with("block.attention.")) continue;
    if (rule.parameter.starts_with("block.mlp.")) rule.span = kDense;
    rules.push_back(std::move(rule));
  }
  add_attention(rules, o.heads);
  const std::string scope = "model.layers.{layer}.mlp.";
  const auto add = [&](const std::string& tensor, const char* dims, const std::string& name) {
    rules.push_back({scope + tensor, dims, "block.mlp." + name, false, kExperts});
  };
  add("gate.weight", "experts, d_model", "router.w");
  add("gate.e_score_correction_bias", "experts", "router.bias");
  for (const auto& [tensors, name] :
       {std::pair("experts.{expert}.", "expert."), std::pair("shared_experts.", "shared.")}) {
    add(std::string(tensors) + "gate_proj.weight", "ff, d_model", std::string(name) + "gate.w");
    add(std::string(tensors) + "up_proj.weight", "ff, d_model", std::string(name) + "up.w");
    add(std::string(tensors) + "down_proj.weight", "d_model, ff", std::string(name) + "down.w");
  }
  return rules;
}

}  // namespace

const Family kDeepseekV3 = {
    .model_type = "deepseek_v3",
    .options = deepseek_options,
    .weights = deepseek_weights,
    .ignored = {"*.rotary_emb.inv_freq"},
    .mark_of_more_layers = "model.layers.{layer}.eh_proj.weight",
    .refused = {
        {"*.weight_scale_inv",
         "the weights are blocks of 8-bit numbers with scales, which Tessera does not read; "
         "convert them to bfloat16 and remove quantization_config"}}};

}  // namespace tessera
