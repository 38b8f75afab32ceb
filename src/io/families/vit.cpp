// ViT (Dosovitskiy et al. 2021) as a classifier of images.
#include "io/families/decoder.h"

namespace tessera {

namespace {

/// transformers has the number of classes in the names of classes, and 2 without them.
int64_t classes_of(KeyedJson& config) {
  const nlohmann::json names = config.value("id2label");
  if (names.is_null()) return config.whole("num_labels", 2);
  if (!names.is_object() || names.empty()) config.refuse("id2label", "it names the classes");
  return std::ssize(names);
}

nn::TransformerOptions vit_options(KeyedJson& config) {
  nn::TransformerOptions o;
  o.causal = false;
  o.d_model = config.whole("hidden_size");
  o.layers = config.whole("num_hidden_layers", {}, 1, kMostLayers);
  o.heads.count = config.whole("num_attention_heads");
  if (o.d_model % o.heads.count != 0)
    config.refuse("num_attention_heads", fmt::format("it must divide hidden_size {}", o.d_model));
  o.heads.d_head = o.d_model / o.heads.count;
  o.heads.query_bias = o.heads.key_bias = o.heads.value_bias = config.flag("qkv_bias", true);
  o.heads.out_bias = true;
  o.mlp.ff = config.whole("intermediate_size");
  o.mlp.bias = true;
  o.mlp.activation = activation_of(config, "hidden_act", "gelu");
  o.norm.eps = config.number("layer_norm_eps", 1e-12);
  nn::ImageOptions& image = o.image;
  image.rows = image.cols = config.whole("image_size", 224, 1, 1 << 16);
  image.patch = config.whole("patch_size", 16, 1, 1 << 16);
  if (image.rows % image.patch != 0)
    config.refuse("patch_size", fmt::format("it must divide image_size {}", image.rows));
  image.channels = config.whole("num_channels", 3, 1, 1 << 16);
  image.classes = classes_of(config);
  o.length = image.tokens();
  return o;
}

std::vector<WeightRule> vit_weights(const nn::TransformerOptions& o) {
  std::vector<WeightRule> rules;
  const std::string embeddings = "vit.embeddings.", layer = "vit.encoder.layer.{layer}.",
                    heads = "heads*d_head";
  const auto add = [&](const std::string& tensor, const std::string& out, const std::string& in,
                       const std::string& parameter, bool bias = true) {
    rules.push_back({tensor + ".weight", out + ", " + in, parameter + ".w"});
    if (bias) rules.push_back({tensor + ".bias", out, parameter + ".b"});
  };
  const auto add_norm = [&](const std::string& tensor, const std::string& parameter) {
    rules.push_back({tensor + ".weight", "d_model", parameter + ".scale"});
    rules.push_back({tensor + ".bias", "d_model", parameter + ".bias"});
  };
  rules.push_back({embeddings + "cls_token", "one, one, d_model", "class_token"});
  rules.push_back({embeddings + "position_embeddings", "one, positions, d_model", "position"});
  add(embeddings + "patch_embeddings.projection", "d_model",
      "channels, filter_height, filter_width", "patch");
  add_norm(layer + "layernorm_before", "block.norm1");
  for (const char* part : {"query", "key", "value"})
    add(layer + "attention.attention." + part, heads, "d_model",
        std::string("block.attention.") + part, o.heads.query_bias);
  add(layer + "attention.output.dense", "d_model", heads, "block.attention.out");
  add_norm(layer + "layernorm_after", "block.norm2");
  add(layer + "intermediate.dense", "ff", "d_model", "block.mlp.up");
  add(layer + "output.dense", "d_model", "ff", "block.mlp.down");
  add_norm("vit.layernorm", "norm");
  add("classifier", "classes", "d_model", "head");
  return rules;
}

}  // namespace

const Family kVit = {
    "vit", vit_options, vit_weights, {"vit.pooler.*", "vit.embeddings.mask_token"}};

}  // namespace tessera
