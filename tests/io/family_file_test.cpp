// Families that a file in the model's folder describes: the same models as by the tables in C++,
// and what a file may not say.
#include "io/families/family_file.h"

#include <filesystem>

#include "support/io_folder.h"
#include "support/model_run.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::kModels;
namespace fs = std::filesystem;

constexpr const char* kLlamaFile = R"(model_type = "llama"
ignored_tensors = ["*.rotary_emb.inv_freq"]

[options]
vocab = {key = "vocab_size"}
d_model = {key = "hidden_size"}
layers = {key = "num_hidden_layers"}
length = {key = "max_position_embeddings"}
heads.count = {key = "num_attention_heads"}
heads.key_heads = {key = "num_key_value_heads", default = {option = "heads.count"}}
heads.d_head = {key = "head_dim", default = 0}
heads.query_bias = {key = "attention_bias", default = false}
heads.key_bias = {option = "heads.query_bias"}
heads.value_bias = {option = "heads.query_bias"}
heads.out_bias = {option = "heads.query_bias"}
mlp.ff = {key = "intermediate_size"}
mlp.gated = true
mlp.activation = {key = "hidden_act", default = "silu"}
mlp.bias = {key = "mlp_bias", default = false}
norm = {kind = "rms", eps = {key = "rms_norm_eps"}}
rotary.base = {key = "rope_theta", default = 10000}
rotary.parameters = {key = "rope_parameters", default = false}
tied = {key = "tie_word_embeddings", default = false}

[config]
fixed = {pretraining_tp = 1}

[tensors]
"model.embed_tokens.weight" = {is = "embedding", dims = "vocab, d_model"}
"model.layers.{layer}.input_layernorm.weight" = {is = "block.norm1.scale", dims = "d_model"}
"model.layers.{layer}.self_attn.q_proj.weight" = {is = "block.attention.query.w", dims = "heads*heads_per_key*d_head, d_model"}
"model.layers.{layer}.self_attn.k_proj.weight" = {is = "block.attention.key.w", dims = "heads*d_head, d_model"}
"model.layers.{layer}.self_attn.v_proj.weight" = {is = "block.attention.value.w", dims = "heads*d_head, d_model"}
"model.layers.{layer}.self_attn.o_proj.weight" = {is = "block.attention.out.w", dims = "d_model, heads*heads_per_key*d_head"}
"model.layers.{layer}.self_attn.q_proj.bias" = {is = "block.attention.query.b", dims = "heads*heads_per_key*d_head"}
"model.layers.{layer}.post_attention_layernorm.weight" = {is = "block.norm2.scale", dims = "d_model"}
"model.layers.{layer}.mlp.gate_proj.weight" = {is = "block.mlp.gate.w", dims = "ff, d_model"}
"model.layers.{layer}.mlp.up_proj.weight" = {is = "block.mlp.up.w", dims = "ff, d_model"}
"model.layers.{layer}.mlp.down_proj.weight" = {is = "block.mlp.down.w", dims = "d_model, ff"}
"model.norm.weight" = {is = "norm.scale", dims = "d_model"}
"lm_head.weight" = {is = "head.w", dims = "vocab, d_model", or_copy_of = "embedding"}
)";

constexpr const char* kGpt2File = R"(model_type = "gpt2"
optional_prefix = "transformer."

[options]
vocab = {key = "vocab_size"}
d_model = {key = "n_embd"}
layers = {key = "n_layer"}
length = {key = "n_positions"}
learned_positions = {option = "length"}
heads.count = {key = "n_head"}
heads.query_bias = true
heads.key_bias = true
heads.value_bias = true
heads.out_bias = true
heads.scale = {key = "scale_attn_weights", values = {true = 0, false = 1}}
mlp.ff = {key = "n_inner", default = {option = "d_model", times = 4}}
mlp.bias = true
mlp.activation = {key = "activation_function"}
norm.eps = {key = "layer_norm_epsilon"}
tied = true

[config]
ignored = ["attn_pdrop", "embd_pdrop", "resid_pdrop", "reorder_and_upcast_attn", "summary_activation",
           "summary_first_dropout", "summary_proj_to_labels", "summary_type", "summary_use_proj"]
fixed = {add_cross_attention = false, scale_attn_by_inverse_layer_idx = false, tie_word_embeddings = true}

[tensors]
"transformer.wte.weight" = {is = "embedding", dims = "vocab, d_model"}
"transformer.wpe.weight" = {is = "position", dims = "positions, d_model"}
"transformer.h.{layer}.ln_1.weight" = {is = "block.norm1.scale", dims = "d_model"}
"transformer.h.{layer}.ln_1.bias" = {is = "block.norm1.bias", dims = "d_model"}
"transformer.h.{layer}.attn.c_attn.weight" = [
  {is = "block.attention.query.w", dims = "d_model, 0/3*heads*d_head"},
  {is = "block.attention.key.w", dims = "d_model, 1/3*heads*d_head"},
  {is = "block.attention.value.w", dims = "d_model, 2/3*heads*d_head"}]
"transformer.h.{layer}.attn.c_attn.bias" = [
  {is = "block.attention.query.b", dims = "0/3*heads*d_head"},
  {is = "block.attention.key.b", dims = "1/3*heads*d_head"},
  {is = "block.attention.value.b", dims = "2/3*heads*d_head"}]
"transformer.h.{layer}.attn.c_proj.weight" = {is = "block.attention.out.w", dims = "heads*d_head, d_model"}
"transformer.h.{layer}.attn.c_proj.bias" = {is = "block.attention.out.b", dims = "d_model"}
"transformer.h.{layer}.ln_2.weight" = {is = "block.norm2.scale", dims = "d_model"}
"transformer.h.{layer}.ln_2.bias" = {is = "block.norm2.bias", dims = "d_model"}
"transformer.h.{layer}.mlp.c_fc.weight" = {is = "block.mlp.up.w", dims = "d_model, ff"}
"transformer.h.{layer}.mlp.c_fc.bias" = {is = "block.mlp.up.b", dims = "ff"}
"transformer.h.{layer}.mlp.c_proj.weight" = {is = "block.mlp.down.w", dims = "ff, d_model"}
"transformer.h.{layer}.mlp.c_proj.bias" = {is = "block.mlp.down.b", dims = "d_model"}
"transformer.ln_f.weight" = {is = "norm.scale", dims = "d_model"}
"transformer.ln_f.bias" = {is = "norm.bias", dims = "d_model"}
"lm_head.weight" = {is = "embedding", dims = "vocab, d_model", copy = true}
)";

constexpr const char* kGemma2File = R"(model_type = "gemma2"
[options]
vocab = {key = "vocab_size"}
d_model = {key = "hidden_size"}
layers = {key = "num_hidden_layers"}
length = {key = "max_position_embeddings"}
heads.count = {key = "num_attention_heads"}
heads.key_heads = {key = "num_key_value_heads"}
heads.d_head = {key = "head_dim"}
heads.scale = {key = "query_pre_attn_scalar", power = -0.5}
heads.soft_cap = {key = "attn_logit_softcapping", default = 0}
mlp = {ff = {key = "intermediate_size"}, gated = true, activation = {key = "hidden_activation"}}
norm = {kind = "rms", eps = {key = "rms_norm_eps"}, one_plus = true, placement = "both"}
rotary.parameters = {key = "rope_parameters"}
window = {key = "sliding_window"}
layers_with_window = {key = "layer_types", values = {sliding_attention = true, full_attention = false}}
embedding_scale = {option = "d_model", power = 0.5}
logits_cap = {key = "final_logit_softcapping", default = 0}
tied = true
[config]
fixed = {attention_bias = false, tie_word_embeddings = true, use_bidirectional_attention = false}
[tensors]
"model.embed_tokens.weight" = {is = "embedding", dims = "vocab, d_model"}
"model.layers.{layer}.input_layernorm.weight" = {is = "block.norm1.scale", dims = "d_model"}
"model.layers.{layer}.post_attention_layernorm.weight" = {is = "block.norm1_after.scale", dims = "d_model"}
"model.layers.{layer}.pre_feedforward_layernorm.weight" = {is = "block.norm2.scale", dims = "d_model"}
"model.layers.{layer}.post_feedforward_layernorm.weight" = {is = "block.norm2_after.scale", dims = "d_model"}
"model.layers.{layer}.self_attn.q_proj.weight" = {is = "block.attention.query.w", dims = "heads*heads_per_key*d_head, d_model"}
"model.layers.{layer}.self_attn.k_proj.weight" = {is = "block.attention.key.w", dims = "heads*d_head, d_model"}
"model.layers.{layer}.self_attn.v_proj.weight" = {is = "block.attention.value.w", dims = "heads*d_head, d_model"}
"model.layers.{layer}.self_attn.o_proj.weight" = {is = "block.attention.out.w", dims = "d_model, heads*heads_per_key*d_head"}
"model.layers.{layer}.mlp.gate_proj.weight" = {is = "block.mlp.gate.w", dims = "ff, d_model"}
"model.layers.{layer}.mlp.up_proj.weight" = {is = "block.mlp.up.w", dims = "ff, d_model"}
"model.layers.{layer}.mlp.down_proj.weight" = {is = "block.mlp.down.w", dims = "d_model, ff"}
"model.norm.weight" = {is = "norm.scale", dims = "d_model"}
)";

/// T5 1.1: an encoder, relative positions, a head of its own.
std::string t5_file() {
  std::string text = R"(model_type = "t5"
[options]
vocab = {key = "vocab_size"}
d_model = {key = "d_model"}
encoder_layers = {key = "num_layers"}
layers = {key = "num_decoder_layers", default = {option = "encoder_layers"}}
length = {key = "n_positions", default = 512}
heads = {count = {key = "num_heads"}, d_head = {key = "d_kv"}, scale = 1}
mlp.ff = {key = "d_ff"}
mlp.gated = {key = "feed_forward_proj", values = {gated-gelu = true, relu = false}}
mlp.activation = {key = "feed_forward_proj", values = {gated-gelu = "gelu_new", relu = "relu"}}
norm = {kind = "rms", eps = {key = "layer_norm_epsilon"}}
relative.buckets = {key = "relative_attention_num_buckets"}
relative.distance = {key = "relative_attention_max_distance"}
start_token = {key = "decoder_start_token_id"}
end_token = {key = "eos_token_id"}
[config]
fixed = {is_encoder_decoder = true, is_decoder = false, tie_word_embeddings = false}
ignored = ["classifier_dropout", "dropout_rate", "initializer_factor"]
[tensors]
"shared.weight" = {is = "embedding", dims = "vocab, d_model"}
"encoder.embed_tokens.weight" = {is = "embedding", dims = "vocab, d_model", copy = true}
"decoder.embed_tokens.weight" = {is = "embedding", dims = "vocab, d_model", copy = true}
"lm_head.weight" = {is = "head.w", dims = "vocab, d_model"}
"encoder.final_layer_norm.weight" = {is = "encoder.norm.scale", dims = "d_model"}
"decoder.final_layer_norm.weight" = {is = "norm.scale", dims = "d_model"}
)";
  const auto tensor = [&](const std::string& name, const std::string& is, const char* dims) {
    text += fmt::format("\"{}\" = {{is = \"{}\", dims = \"{}\"}}\n", name, is, dims);
  };
  for (const std::string stack : {"encoder", "decoder"}) {
    const std::string layer = stack + ".block.{layer}.layer.",
                      dense = stack == "encoder" ? "1" : "2",
                      scope = stack == "encoder" ? "encoder." : "", block = scope + "block.";
    tensor(stack + ".block.0.layer.0.SelfAttention.relative_attention_bias.weight",
           scope + "relative.w", "relative_buckets, heads");
    for (const std::string part : {"attention", "cross"}) {
      if (part == "cross" && stack == "encoder") continue;
      const std::string in = layer + (part == "cross" ? "1.EncDecAttention." : "0.SelfAttention.");
      tensor(in + "q.weight", block + part + ".query.w", "heads*d_head, d_model");
      tensor(in + "k.weight", block + part + ".key.w", "heads*d_head, d_model");
      tensor(in + "v.weight", block + part + ".value.w", "heads*d_head, d_model");
      tensor(in + "o.weight", block + part + ".out.w", "d_model, heads*d_head");
    }
    tensor(layer + "0.layer_norm.weight", block + "norm1.scale", "d_model");
    if (stack == "decoder")
      tensor(layer + "1.layer_norm.weight", block + "norm_cross.scale", "d_model");
    tensor(layer + dense + ".layer_norm.weight", block + "norm2.scale", "d_model");
    tensor(layer + dense + ".DenseReluDense.wi_0.weight", block + "mlp.gate.w", "ff, d_model");
    tensor(layer + dense + ".DenseReluDense.wi_1.weight", block + "mlp.up.w", "ff, d_model");
    tensor(layer + dense + ".DenseReluDense.wo.weight", block + "mlp.down.w", "d_model, ff");
  }
  return text;
}

/// A copy of a model with a file of its family.
std::string with_file(const Folder& f, const std::string& name, const std::string& file) {
  fs::remove_all(f(name));
  fs::copy(kModels + name, f(name), fs::copy_options::recursive);
  f.write(name + "/family.toml", file);
  return f(name);
}

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  REQUIRE(at != text.npos);
  return text.replace(at, from.size(), to);
}

TEST_CASE("a family in a file gives the model that the table in C++ gives", "[model_folder]") {
  const Folder f;
  const std::pair<const char*, std::string> cases[] = {
      {"llama", kLlamaFile}, {"gpt2", kGpt2File}, {"gemma2", kGemma2File}, {"t5", t5_file()}};
  for (const auto& [name, file] : cases) {
    INFO(name);
    const ModelFolder folder(with_file(f, name, file)), built_in(kModels + name);
    CHECK(folder.config_hash() != built_in.config_hash());
    const std::string expected = kModels + name + "/expected.st";
    for (const char* rules : {"", "heads,ff,vocab:model"}) {
      const test::Run run = test::run_model(folder, test::options_of(folder, true),
                                            *rules ? "model:2" : "one:1", rules, expected);
      CHECK(test::difference(run.logits, SafetensorsReader(expected).read("logits")) < 1e-4);
    }
  }
}

TEST_CASE("what a family's file may not say is refused with its line", "[model_folder]") {
  struct Case {
    const char *from, *to, *message;
  };
  const Case cases[] = {
      {"model_type = \"llama\"", "model_type = \"mine\"",
       "'DIR/llama/config.json': 'model_type' is \"llama\"; 'DIR/llama/family.toml' describes "
       "'mine'"},
      {"model_type = \"llama\"", "", "model_type is missing"},
      {"model_type = \"llama\"", "model_type = \"a.b\"", "has letters other than"},
      {"model_type = \"llama\"", "model_type = 4", "line 1: model_type is a text"},
      {"ignored_tensors =", "ignore_tensors =",
       "line 2: the key 'ignore_tensors' is not known; did you mean 'ignored_tensors'?"},
      {"[\"*.rotary_emb.inv_freq\"]", "[7]", "line 2: ignored_tensors is a list of texts"},
      {"d_model = {key", "d_modl = {key",
       "line 6: there is no option 'd_modl'; did you mean 'd_model'?"},
      {"d_model = {key = \"hidden_size\"}", "", "[options] lacks 'd_model', which every family"},
      {"mlp.gated = true", "mlp.gate = true", "there is no option 'mlp.gate'"},
      {"heads.count = {key", "heads.count = {from", "'from' is not known"},
      {"{key = \"head_dim\", default = 0}", "{default = 0}",
       "option 'heads.d_head' has a key of config.json or another option"},
      {"{key = \"head_dim\", default = 0}", "[8]", "option 'heads.d_head' is a text, a number"},
      {"default = {option = \"heads.count\"}", "default = {option = \"heads.cunt\"}",
       "option 'heads.key_heads' is that of 'heads.cunt', which [options] lacks"},
      {"heads.query_bias = {key = \"attention_bias\", default = false}",
       "heads.query_bias = {option = \"heads.key_bias\"}", "refers to itself by other options"},
      {"{key = \"vocab_size\"}", "{key = \"vocabulary\"}",
       "'DIR/llama/config.json': 'vocabulary' is missing; the option 'vocab' "
       "('DIR/llama/family.toml', line 5) has no default"},
      {"{key = \"vocab_size\"}", "{key = \"hidden_act\"}",
       "'hidden_act' is \"silu\"; it must be a whole number from 1 to 1073741824 for the option "
       "'vocab'"},
      {"mlp.gated = true", "mlp.gated = 1", "line 17: option 'mlp.gated' is 1; it must be true or"},
      {"default = \"silu\"}", "values = {relu = \"relu\"}}",
       "'hidden_act' is \"silu\"; there are values of relu for the option 'mlp.activation'"},
      {"{key = \"hidden_act\", default = \"silu\"}", "\"mish\"",
       "option 'mlp.activation' is \"mish\"; it must be one of silu, swish, gelu"},
      {"default = \"silu\"}", "values = 3}", "values of option 'mlp.activation' is a table"},
      {"default = \"silu\"}", "power = \"x\"}", "power of option 'mlp.activation' is a number"},
      {"default = \"silu\"}", "times = 2}", "'hidden_act' is \"silu\"; it must be a number"},
      {"{key = \"rope_parameters\", default = false}", "\"llama3\"",
       "option 'rotary.parameters' is \"llama3\"; it is an object of config.json"},
      {"mlp.gated = true", "mlp.gated = true\nlayers_with_window = 3",
       "option 'layers_with_window' is 3; it must be a list of true and false"},
      {"default = {option = \"heads.count\"}}", "times = 1.5}", "do not fit"},
      {"fixed = {", "fixes = {", "[config]: 'fixes' is not known; did you mean 'fixed'?"},
      {"pretraining_tp = 1", "pretraining_tp = 2",
       "'pretraining_tp' is 1; Tessera knows only 2 here"},
      {"pretraining_tp = 1", "pretraining_tp = []",
       "the fixed value of 'pretraining_tp' is a text"},
      {"fixed = {pretraining_tp = 1}", "", "'pretraining_tp' is 1; Tessera does not know this key"},
      {"\"model.norm.weight\" =", "model.norm.weight =", "or its name has dots and no quotes"},
      {"{is = \"norm.scale\", dims", "{is = \"norm.scale\", dim",
       "tensor 'model.norm.weight' is no {is = \"PARAMETER\", dims = \"DIM, DIM\"}: it lacks "
       "'dims'"},
      {"is = \"norm.scale\"", "is = \"norm.scal\"",
       "its tensors have 0 of the 32 elements of the parameter 'norm.scale' [d_model=32]; each is "
       "in one tensor; this model lacks 'block.attention.query.b' (line 35), 'norm.scal' (line "
       "40)"},
      {"\"model.norm.weight\" = {is = \"norm.scale\", dims = \"d_model\"}", "",
       "its tensors have 0 of the 32 elements of the parameter 'norm.scale'"},
      {"\"vocab, d_model\"}", "\"vocab, dmodel\"}",
       "line 29: tensor 'model.embed_tokens.weight' has a dim 'dmodel'; did you mean 'd_model'?"},
      {"\"vocab, d_model\"}", "\"vocab\"}",
       "line 29: the dims \"vocab\" of 'model.embed_tokens.weight' lack 'd_model' of its "
       "parameter"},
      {"\"vocab, d_model\"}", "\"vocab, 3/3*d_model\"}", "'3/3' is no place in a dim"},
      {"\"vocab, d_model\"}", "\"vocab, d_model\", copy = 1}",
       "copy of tensor 'model.embed_tokens.weight' is true or false"},
      {"layers.{layer}.mlp.up", "layers.{layers}.mlp.up",
       "tensor 'model.layers.{layers}.mlp.up_proj.weight' has '{layers}'; a name may have {layer} "
       "and {expert}"},
      {"or_copy_of = \"embedding\"", "or_copies = true", "'or_copies' is not known"},
      {"embed_tokens", "embed_token",
       "missing: model.embed_token.weight; not in the model: model.embed_tokens.weight"},
      {"[tensors]", "[tensors", "'DIR/llama/family.toml': "},
      {"[options]", "[option]", "the key 'option' is not known"},
  };
  const Folder f;
  for (const Case& c : cases) {
    const std::string file = edited(kLlamaFile, c.from, c.to);
    const std::string message = f.error([&] {
      const ModelFolder folder(with_file(f, "llama", file));
      test::run_model(folder, test::options_of(folder, true), "one:1", "",
                      kModels + "llama/expected.st");
    });
    INFO(c.to << "\n" << message);
    CHECK(message.starts_with("io [model] "));
    CHECK(message.find(c.message) != std::string::npos);
  }
}

TEST_CASE("a copy that stands before its tensor in a family's file is compared, too",
          "[model_folder]") {
  const Folder f;
  const std::string head =
      "\"lm_head.weight\" = {is = \"head.w\", dims = \"vocab, d_model\", "
      "or_copy_of = \"embedding\"}\n";
  std::string file = edited(kLlamaFile, head, "");
  file = edited(file, "[tensors]\n", "[tensors]\n" + head);
  file = edited(file, "tied = {key = \"tie_word_embeddings\", default = false}", "tied = true");
  file = edited(file, "fixed = {pretraining_tp = 1}",
                "fixed = {pretraining_tp = 1}\nignored = [\"tie_word_embeddings\"]");
  const ModelFolder folder(with_file(f, "llama", file));
  CHECK(f.error([&] {
           test::run_model(folder, test::options_of(folder, true), "one:1", "",
                           kModels + "llama/expected.st");
         }).find("makes 'lm_head.weight' a copy of 'model.embed_tokens.weight'") !=
        std::string::npos);
}

TEST_CASE("windows of a family's file fit the layers", "[model_folder]") {
  const Folder f;
  const auto message = [&](const char* from, const char* to) {
    return f.error([&] { ModelFolder{with_file(f, "gemma2", edited(kGemma2File, from, to))}; });
  };
  CHECK(message("window = {key = \"sliding_window\"}", "window = 0")
            .find("layers_with_window has a layer with a window, but window is 0") !=
        std::string::npos);
  CHECK(message("layers = {key = \"num_hidden_layers\"}", "layers = 3")
            .find("layers_with_window has 2 entries for 3 layers") != std::string::npos);
  const char* const heads = "heads.count = {key = \"num_attention_heads\"}";
  CHECK(message(heads, "heads.count = {key = \"num_attention_heads\", times = 0.75}")
            .find("3 heads cannot share 2 key heads") != std::string::npos);
  const std::string derived = edited(kGemma2File, "heads.d_head = {key = \"head_dim\"}",
                                     "heads.d_head = {key = \"head_dim\", times = 0}");
  CHECK(ModelFolder{with_file(f, "gemma2", derived)}.options().heads.d_head == 8);
  const std::string uneven =
      edited(derived, heads, "heads.count = {key = \"num_attention_heads\", times = 0.75}");
  CHECK(f.error([&] {
           ModelFolder{with_file(f, "gemma2", uneven)};
         }).find("heads.count 3 does not divide d_model 32; give heads.d_head") !=
        std::string::npos);
  CHECK(message("heads.d_head = {key = \"head_dim\"}", "relative.buckets = 3")
            .find("relative.buckets 3 is a multiple of 4") != std::string::npos);
}

}  // namespace TESSERA_FILE
}  // namespace tessera
