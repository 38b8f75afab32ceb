// BERT (Devlin et al. 2019) as a model of masked tokens. Its pooler and the prediction of the next
// sentence are not parts of that model, and transformers leaves them out, too.
#include "io/families/decoder.h"

namespace tessera {

namespace {

nn::TransformerOptions bert_options(KeyedJson& config) {
  nn::TransformerOptions o;
  o.causal = false;
  o.weighted = true;
  o.vocab = config.whole("vocab_size");
  o.d_model = config.whole("hidden_size");
  o.layers = config.whole("num_hidden_layers", {}, 1, kMostLayers);
  o.length = o.positions = config.whole("max_position_embeddings", 512);
  o.learned_positions = true;
  o.token_types = config.whole("type_vocab_size", 2);
  o.embedding_norm = true;
  o.placement = nn::NormPlacement::after;
  o.norm.eps = config.number("layer_norm_eps", 1e-12);
  o.heads.count = config.whole("num_attention_heads");
  if (o.d_model % o.heads.count != 0)
    config.refuse("num_attention_heads", fmt::format("it must divide hidden_size {}", o.d_model));
  o.heads.d_head = o.d_model / o.heads.count;
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = o.heads.out_bias = true;
  o.mlp.ff = config.whole("intermediate_size");
  o.mlp.bias = true;
  o.mlp.activation = activation_of(config, "hidden_act", "gelu");
  o.head_transform = o.head_bias = true;
  o.tied = config.flag("tie_word_embeddings", true);
  config.require_value("position_embedding_type", "absolute");
  config.require_value("is_decoder", false);
  config.require_value("add_cross_attention", false);
  return o;
}

std::vector<WeightRule> bert_weights(const nn::TransformerOptions& o) {
  std::vector<WeightRule> rules;
  const auto add_norm = [&](const std::string& tensor, const std::string& parameter) {
    rules.push_back({tensor + ".LayerNorm.weight", "d_model", parameter + ".scale"});
    rules.push_back({tensor + ".LayerNorm.bias", "d_model", parameter + ".bias"});
  };
  const auto add_dense = [&](const std::string& tensor, const std::string& out,
                             const std::string& in, const std::string& parameter) {
    rules.push_back({tensor + ".weight", out + ", " + in, parameter + ".w"});
    rules.push_back({tensor + ".bias", out, parameter + ".b"});
  };
  const std::string embeddings = "bert.embeddings", layer = "bert.encoder.layer.{layer}.",
                    heads = "heads*d_head", head = "cls.predictions.";
  rules.push_back({embeddings + ".word_embeddings.weight", "vocab, d_model", "embedding"});
  rules.push_back({embeddings + ".position_embeddings.weight", "positions, d_model", "position"});
  rules.push_back(
      {embeddings + ".token_type_embeddings.weight", "token_types, d_model", "token_type"});
  add_norm(embeddings, "embedding_norm");
  for (const char* part : {"query", "key", "value"})
    add_dense(layer + "attention.self." + part, heads, "d_model",
              std::string("block.attention.") + part);
  add_dense(layer + "attention.output.dense", "d_model", heads, "block.attention.out");
  add_norm(layer + "attention.output", "block.norm1");
  add_dense(layer + "intermediate.dense", "ff", "d_model", "block.mlp.up");
  add_dense(layer + "output.dense", "d_model", "ff", "block.mlp.down");
  add_norm(layer + "output", "block.norm2");
  add_dense(head + "transform.dense", "d_transform", "d_model", "head_transform");
  add_norm(head + "transform", "head_norm");
  rules.push_back({head + "bias", "vocab", "head.b"});
  rules.push_back({head + "decoder.bias", "vocab", "head.b", true});
  rules.push_back(
      {head + "decoder.weight", "vocab, d_model", o.tied ? "embedding" : "head.w", o.tied});
  return rules;
}

}  // namespace

const Family kBert = {
    .model_type = "bert",
    .options = bert_options,
    .weights = bert_weights,
    .ignored = {"bert.embeddings.position_ids", "bert.pooler.*", "cls.seq_relationship.*"},
    .old_ends = {{"LayerNorm.weight", "LayerNorm.gamma"}, {"LayerNorm.bias", "LayerNorm.beta"}}};

}  // namespace tessera
