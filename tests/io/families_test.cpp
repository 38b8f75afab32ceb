// What config.json may say: damaged configurations are refused, or change the logits by more
// than five times the 1e-4 that parity allows. None is read as something else in silence.
#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/io_folder.h"
#include "support/model_run.h"

namespace tessera {
namespace TESSERA_FILE {

using test::Folder;
using test::kModels;
using Json = nlohmann::json;
namespace fs = std::filesystem;

/// A copy of a model with changes of its config.json: {pointer, value}; the value "-" removes.
using Edits = std::vector<std::pair<const char*, const char*>>;

ModelFolder damaged(const Folder& f, const std::string& name, const Edits& edits) {
  fs::remove_all(f(name));
  fs::copy(kModels + name, f(name), fs::copy_options::recursive);
  Json config = Json::parse(f.read(name + "/config.json"));
  for (const auto& [key, value] : edits) {
    const Json::json_pointer at(key);
    if (std::string(value) == "-") {
      config[at.parent_pointer()].erase(at.back());
    } else {
      config[at] = Json::parse(value);
    }
  }
  f.write(name + "/config.json", config.dump());
  return ModelFolder(f(name));
}

/// How far the logits of the damaged model are from the recorded ones, in deviations.
double distance(const ModelFolder& folder) {
  const std::string expected = folder.path() + "/expected.st";
  const test::Run run =
      test::run_model(folder, test::options_of(folder, true), "one:1", "", expected);
  return test::difference(run.logits, SafetensorsReader(expected).read("logits"));
}

constexpr const char* kChanges = "";  ///< not refused: the logits change

struct Damage {
  const char* model;
  Edits edits;
  std::string refusal;  ///< a part of the message
};

TEST_CASE("a damaged configuration is refused or changes the logits", "[model_folder]") {
  const std::vector<Damage> table = {
      // What other readers were caught with: a base or scaling that is dropped.
      {"llama", {{"/rope_parameters/rope_theta", "10000.0"}}, kChanges},
      {"llama",
       {{"/rope_parameters", R"({"rope_type": "default", "rope_theta": 5000.0})"}},
       kChanges},
      {"llama", {{"/rope_parameters/rope_type", "\"default\""}}, "'rope_parameters.factor' is 4.0"},
      {"llama",
       {{"/rope_parameters/rope_type", "\"longrope\""}},
       "'rope_parameters.rope_type' is \"longrope\"; Tessera knows default, linear, llama3 and "
       "yarn"},
      {"llama",
       {{"/rope_parameters/factor", "-"}},
       "'rope_parameters.factor' is missing; it must be a number"},
      {"llama", {{"/rope_parameters/original_max_position_embeddings", "32"}}, kChanges},
      {"llama", {{"/rope_parameters/low_freq_factor", "2.0"}}, kChanges},
      {"llama",
       {{"/rope_scaling", R"({"type": "linear", "factor": 2.0})"}},
       "'rope_scaling' is {\"factor\":2.0,\"type\":\"linear\"}; 'rope_parameters' says it too"},
      {"llama", {{"/top_k top_p", "1"}}, "'top_k top_p' is 1; Tessera does not know"},
      {"llama", {{"/", "1"}}, "'' is 1; Tessera does not know"},
      {"llama", {{"/rope_interleave", "true"}}, "'rope_interleave' is true; Tessera does not know"},
      {"llama", {{"/attention_bias", "true"}}, "missing: model.layers.0.self_attn.q_proj.bias"},
      {"llama", {{"/tie_word_embeddings", "true"}}, "a copy of 'model.embed_tokens.weight'"},
      {"llama", {{"/num_key_value_heads", "4"}}, "k_proj.weight is float32 [16, 32]"},
      {"llama", {{"/num_key_value_heads", "3"}}, "it must divide num_attention_heads 4"},
      {"llama", {{"/num_hidden_layers", "1"}}, "not in the model: model.layers.1."},
      {"llama", {{"/num_hidden_layers", "3"}}, "missing: model.layers.2."},
      {"llama", {{"/vocab_size", "95"}}, "embed_tokens.weight is float32 [96, 32]"},
      {"llama", {{"/num_hidden_layers", "100000"}}, "it must be a whole number from 1 to 10000"},
      {"llama", {{"/hidden_size", "\"32\""}}, "'hidden_size' is \"32\"; it must be a whole number"},
      {"llama", {{"/rms_norm_eps", "0.01"}}, kChanges},
      {"llama", {{"/rms_norm_eps", "-"}}, "'rms_norm_eps' is missing"},
      {"llama", {{"/hidden_act", "\"relu\""}}, kChanges},
      {"llama", {{"/hidden_act", "\"mish\""}}, "'hidden_act' is \"mish\"; Tessera knows silu"},
      {"llama", {{"/pretraining_tp", "2"}}, "'pretraining_tp' is 2; Tessera knows only 1 here"},
      {"llama", {{"/dtype", "\"int8\""}}, "weights are float32, bfloat16 or float16"},
      {"llama", {{"/model_type", "\"llama4\""}}, "'model_type' is \"llama4\"; Tessera knows llama"},
      {"llama", {{"/model_type", "-"}}, "'model_type' is missing"},
      {"llama-old", {{"/rope_scaling", "null"}}, kChanges},
      {"llama-old", {{"/rope_scaling", "-"}}, kChanges},
      {"llama-old", {{"/rope_scaling/factor", "2.0"}}, kChanges},
      {"llama-old", {{"/rope_scaling/type", "\"dynamic\""}}, "'rope_scaling.type' is \"dynamic\""},
      {"llama-old", {{"/rope_theta", "500000.0"}}, kChanges},
      {"llama-old", {{"/mlp_bias", "false"}}, "not in the model: model.layers.0.mlp."},
      {"llama-old", {{"/attention_bias", "false"}}, "not in the model: model.layers.0.self_attn."},
      {"llama-old", {{"/tie_word_embeddings", "false"}}, "missing: lm_head.weight"},
      {"mistral", {{"/sliding_window", "null"}}, kChanges},
      {"mistral", {{"/sliding_window", "8"}}, kChanges},
      {"mistral", {{"/rope_parameters/rope_theta", "1000000.0"}}, kChanges},
      {"mistral", {{"/head_dim", "16"}}, "q_proj.weight is bfloat16 [32, 32]"},
      {"mistral", {{"/tie_word_embeddings", "true"}}, "a copy of 'model.embed_tokens.weight'"},
      {"mistral", {{"/use_sliding_window", "false"}}, "'use_sliding_window' is false"},
      {"qwen2", {{"/rope_parameters/factor", "2.0"}}, kChanges},
      {"qwen2", {{"/rope_parameters/original_max_position_embeddings", "8"}}, kChanges},
      {"qwen2", {{"/rope_parameters/beta_slow", "1.0"}}, kChanges},
      {"qwen2", {{"/rope_parameters/truncate", "false"}}, kChanges},
      {"qwen2", {{"/rope_parameters/attention_factor", "1.0"}}, kChanges},
      {"qwen2",
       {{"/rope_parameters/mscale", "1.0"}},
       "'rope_parameters.mscale' is 1.0; mscale and mscale_all_dim count together only"},
      {"qwen2",
       {{"/rope_parameters/mscale", "2.0"}, {"/rope_parameters/mscale_all_dim", "0.5"}},
       kChanges},
      {"qwen2", {{"/rope_parameters/rope_type", "\"linear\""}}, "beta_fast' is 4.0"},
      {"qwen2",
       {{"/layer_types/1", "\"sliding_attention\""}},
       "there is a sliding_attention, but no sliding_window"},
      {"qwen2", {{"/tie_word_embeddings", "false"}}, "missing: lm_head.weight"},
      {"qwen2", {{"/model_type", "\"llama\""}}, "Tessera does not know this key"},
      {"qwen3", {{"/sliding_window", "10"}}, kChanges},
      {"qwen3", {{"/layer_types/0", "\"sliding_attention\""}}, kChanges},
      {"qwen3", {{"/layer_types/0", "\"chunked_attention\""}}, "Tessera knows sliding_attention"},
      {"qwen3", {{"/layer_types", "[\"full_attention\"]"}}, "num_hidden_layers is 2"},
      {"qwen3", {{"/rope_parameters/rope_theta", "-"}}, kChanges},
      {"qwen3", {{"/head_dim", "-"}}, "'head_dim' is missing; qwen3 does not derive it"},
      {"qwen3", {{"/attention_bias", "true"}}, "missing: model.layers.0.self_attn.q_proj.bias"},
      {"qwen3", {{"/rms_norm_eps", "0.01"}}, kChanges},
      {"gpt2", {{"/n_head", "2"}}, kChanges},
      {"gpt2", {{"/n_head", "5"}}, "'n_head' is 5; it must divide n_embd 32"},
      {"gpt2", {{"/activation_function", "\"gelu\""}}, kChanges},
      {"gpt2", {{"/layer_norm_epsilon", "0.01"}}, kChanges},
      {"gpt2", {{"/scale_attn_weights", "false"}}, kChanges},
      {"gpt2", {{"/scale_attn_by_inverse_layer_idx", "true"}}, "Tessera knows only false here"},
      {"gpt2", {{"/n_inner", "64"}}, "mlp.c_fc.weight is float16 [32, 128]"},
      {"gpt2", {{"/n_positions", "48"}}, "wpe.weight is float16 [64, 32]"},
      {"gpt2", {{"/tie_word_embeddings", "false"}}, "missing: lm_head.weight"},
      {"gemma2", {{"/attn_logit_softcapping", "null"}}, kChanges},
      {"gemma2", {{"/final_logit_softcapping", "null"}}, kChanges},
      {"gemma2", {{"/final_logit_softcapping", "-"}}, kChanges},
      {"gemma2", {{"/query_pre_attn_scalar", "12"}}, kChanges},
      {"gemma2", {{"/query_pre_attn_scalar", "0"}}, "it must be positive"},
      {"gemma2", {{"/sliding_window", "7"}}, kChanges},
      {"gemma2", {{"/layer_types", R"(["full_attention", "sliding_attention"])"}}, kChanges},
      {"gemma2", {{"/hidden_activation", "\"silu\""}}, kChanges},
      {"gemma3", {{"/rope_parameters/sliding_attention/rope_theta", "10000.0"}}, kChanges},
      {"gemma3", {{"/rope_parameters/full_attention/factor", "1.0"}}, kChanges},
      {"gemma3", {{"/rope_parameters/full_attention", "-"}}, kChanges},
      {"gemma3", {{"/rope_parameters/global", "{}"}}, "'rope_parameters.global' is {}"},
      {"gemma3", {{"/layer_types", "-"}}, kChanges},
      {"gemma3", {{"/query_pre_attn_scalar", "12"}}, kChanges},
      {"gemma3", {{"/attn_logit_softcapping", "50.0"}}, "Gemma 3 has none"},
      {"gemma3", {{"/use_bidirectional_attention", "true"}}, "Tessera knows only false here"},
      {"mixtral", {{"/num_experts_per_tok", "1"}}, kChanges},
      {"mixtral",
       {{"/num_experts_per_tok", "4"}},
       "'num_experts_per_tok' is 4; there are 3 experts"},
      {"mixtral", {{"/num_local_experts", "2"}}, "gate.weight is bfloat16 [3, 32]"},
      {"mixtral", {{"/num_local_experts", "4"}}, "missing: model.layers.0.block_sparse_moe."},
      {"mixtral", {{"/sliding_window", "7"}}, kChanges},
      {"mixtral", {{"/rope_parameters/rope_theta", "-"}}, kChanges},
      {"mixtral", {{"/output_router_logits", "true"}}, "Tessera knows only false here"},
      {"qwen3-moe", {{"/norm_topk_prob", "true"}}, kChanges},
      {"qwen3-moe", {{"/num_experts_per_tok", "2"}}, kChanges},
      {"qwen3-moe", {{"/num_experts", "5"}}, "'num_local_experts' is 5; 'num_experts' says it too"},
      {"qwen3-moe", {{"/moe_intermediate_size", "-"}}, "instead of [768, 32]"},
      {"qwen3-moe", {{"/mlp_only_layers", "[0]"}}, "'mlp_only_layers' is [0]"},
      {"qwen3-moe", {{"/decoder_sparse_step", "2"}}, "'decoder_sparse_step' is 2"},
      {"qwen3-moe", {{"/rope_parameters/rope_theta", "100.0"}}, kChanges},
      {"t5", {{"/relative_attention_max_distance", "16"}}, kChanges},
      {"t5", {{"/relative_attention_max_distance", "4"}}, "it must be more than half of"},
      {"t5", {{"/relative_attention_num_buckets", "16"}}, "bias.weight is bfloat16 [8, 4]"},
      {"t5", {{"/relative_attention_num_buckets", "6"}}, "it must be a multiple of 4"},
      {"t5", {{"/feed_forward_proj", "\"gated-silu\""}}, kChanges},
      {"t5", {{"/feed_forward_proj", "\"gelu_new\""}}, "missing: encoder.block.0.layer.1.Dense"},
      {"t5", {{"/feed_forward_proj", "\"gated-mish\""}}, "'feed_forward_proj' is \"gated-mish\""},
      {"t5", {{"/dense_act_fn", "\"gelu\""}}, "Tessera knows only \"gelu_new\" here"},
      {"t5", {{"/is_gated_act", "false"}}, "Tessera knows only true here"},
      {"t5", {{"/layer_norm_epsilon", "0.1"}}, kChanges},
      {"t5", {{"/tie_word_embeddings", "true"}}, "a copy of 'shared.weight'"},
      {"t5", {{"/tie_word_embeddings", "-"}}, "a copy of 'shared.weight'"},
      {"t5", {{"/scale_decoder_outputs", "true"}}, kChanges},
      {"t5", {{"/num_decoder_layers", "-"}}, "not in the model: decoder.block.2."},
      {"t5", {{"/num_layers", "3"}}, "missing: encoder.block.2."},
      {"t5", {{"/num_heads", "3"}}, "q.weight is bfloat16 [48, 32]"},
      {"t5", {{"/is_encoder_decoder", "false"}}, "Tessera knows only true here"},
      {"t5", {{"/decoder_start_token_id", "96"}}, "a whole number from 0 to 95"},
      {"t5-old", {{"/scale_decoder_outputs", "false"}}, kChanges},
      {"t5-old", {{"/tie_word_embeddings", "false"}}, "missing: lm_head.weight"},
      {"t5-old", {{"/dense_act_fn", "\"gelu\""}}, "Tessera knows only \"relu\" here"},
      {"t5-old", {{"/dense_act_fn", "\"gelu\""}, {"/feed_forward_proj", "\"gelu\""}}, kChanges},
      {"t5-old", {{"/relative_attention_max_distance", "-"}}, kChanges},
      {"t5-old", {{"/d_kv", "8"}}, "q.weight is bfloat16 [48, 32]"},
      {"bert", {{"/hidden_act", "\"gelu_new\""}}, kChanges},
      {"bert", {{"/layer_norm_eps", "0.01"}}, kChanges},
      {"bert", {{"/num_attention_heads", "2"}}, kChanges},
      {"bert", {{"/num_attention_heads", "5"}}, "it must divide hidden_size 32"},
      {"bert", {{"/type_vocab_size", "1"}}, "token_type_embeddings.weight is bfloat16 [2, 32]"},
      {"bert", {{"/tie_word_embeddings", "false"}}, "missing: cls.predictions.decoder.weight"},
      {"bert", {{"/position_embedding_type", "\"relative_key\""}}, "only \"absolute\" here"},
      {"bert", {{"/is_decoder", "true"}}, "Tessera knows only false here"},
      {"deepseek-v3", {{"/rope_parameters/rope_theta", "10000.0"}}, kChanges},
      {"deepseek-v3", {{"/rope_parameters/factor", "2.0"}}, kChanges},
      {"deepseek-v3", {{"/rope_parameters/mscale", "2.0"}}, kChanges},
      {"deepseek-v3", {{"/rope_parameters/mscale_all_dim", "1.0"}}, kChanges},
      {"deepseek-v3",
       {{"/rope_parameters/mscale", "-"}},
       "'rope_parameters.mscale_all_dim' is 0.6; mscale and mscale_all_dim count together only"},
      {"deepseek-v3", {{"/rope_interleave", "false"}}, kChanges},
      {"deepseek-v3", {{"/routed_scaling_factor", "1.0"}}, kChanges},
      {"deepseek-v3", {{"/norm_topk_prob", "false"}}, kChanges},
      {"deepseek-v3", {{"/num_experts_per_tok", "2"}}, kChanges},
      {"deepseek-v3",
       {{"/num_experts_per_tok", "5"}},
       "'num_experts_per_tok' is 5; the 2 best of 3 groups have 4 experts"},
      {"deepseek-v3", {{"/topk_group", "3"}}, kChanges},
      {"deepseek-v3", {{"/topk_group", "4"}}, "'topk_group' is 4; there are 3 groups"},
      {"deepseek-v3", {{"/n_group", "1"}, {"/topk_group", "1"}}, kChanges},
      {"deepseek-v3", {{"/n_group", "4"}}, "it must divide n_routed_experts 6"},
      {"deepseek-v3", {{"/scoring_func", "\"softmax\""}}, "only \"sigmoid\" here"},
      {"deepseek-v3", {{"/topk_method", "\"greedy\""}}, "only \"noaux_tc\" here"},
      {"deepseek-v3", {{"/moe_layer_freq", "2"}}, "Tessera knows only 1 here"},
      {"deepseek-v3", {{"/n_shared_experts", "1"}}, "shared_experts.gate_proj.weight is bfloat16"},
      {"deepseek-v3", {{"/first_k_dense_replace", "2"}}, "missing: model.layers.1.mlp.gate_proj"},
      {"deepseek-v3", {{"/first_k_dense_replace", "0"}}, "missing: model.layers.0.mlp.gate.weight"},
      {"deepseek-v3", {{"/num_hidden_layers", "2"}}, "not in the model: model.layers.2."},
      {"deepseek-v3", {{"/q_lora_rank", "null"}}, "missing: model.layers.0.self_attn.q_proj"},
      {"deepseek-v3",
       {{"/qk_nope_head_dim", "8"}},
       "'qk_head_dim' is 14; Tessera knows only 16 here"},
      {"deepseek-v3",
       {{"/qk_nope_head_dim", "10"}, {"/v_head_dim", "6"}, {"/qk_head_dim", "-"}},
       "q_b_proj.weight is bfloat16 [56, 12]"},
      {"deepseek-v3", {{"/num_key_value_heads", "2"}}, "as many as num_attention_heads, 4"},
      {"deepseek-v3", {{"/attention_bias", "true"}}, "Tessera knows only false here"},
      {"deepseek-v3",
       {{"/quantization_config", R"({"quant_method": "awq"})"}},
       "'quantization_config.quant_method' is \"awq\""},
      {"deepseek-v3-plain", {{"/rope_parameters/rope_theta", "10000.0"}}, kChanges},
      {"deepseek-v3-plain", {{"/rope_interleave", "-"}}, kChanges},
      {"deepseek-v3-plain", {{"/norm_topk_prob", "-"}}, kChanges},
      {"deepseek-v3-plain", {{"/q_lora_rank", "-"}}, "missing: model.layers.0.self_attn.q_a_proj"},
      {"deepseek-v3-plain",
       {{"/rope_parameters/rope_type", "\"yarn\""}, {"/rope_parameters/factor", "4.0"}},
       kChanges},
      {"vit", {{"/hidden_act", "\"relu\""}}, kChanges},
      {"vit", {{"/layer_norm_eps", "0.01"}}, kChanges},
      {"vit", {{"/num_attention_heads", "2"}}, kChanges},
      {"vit", {{"/num_attention_heads", "5"}}, "it must divide hidden_size 32"},
      {"vit", {{"/patch_size", "5"}}, "'patch_size' is 5; it must divide image_size 12"},
      {"vit", {{"/patch_size", "3"}}, "position_embeddings is bfloat16 [1, 10, 32]"},
      {"vit", {{"/image_size", "16"}}, "position_embeddings is bfloat16 [1, 10, 32]"},
      {"vit", {{"/num_channels", "1"}}, "'image_mean' is [0.4,0.5,0.6]; it must be a list of 1"},
      {"vit", {{"/qkv_bias", "false"}}, "not in the model: vit.encoder.layer."},
      {"vit", {{"/id2label/5", "\"more\""}}, "classifier.weight is bfloat16 [5, 32]"},
      {"vit", {{"/id2label", "[]"}}, "'id2label' is []; it names the classes"},
      {"vit", {{"/num_register_tokens", "4"}}, "Tessera does not know this key"},
  };
  const Folder f;
  std::map<std::string, int> caught;
  for (const Damage& d : table) {
    INFO(d.model << " " << d.edits[0].first << " = " << d.edits[0].second);
    ++caught[d.model];
    if (d.refusal == kChanges) {
      CHECK(distance(damaged(f, d.model, d.edits)) > 5e-4);
    } else {
      const std::string message = f.error([&] { distance(damaged(f, d.model, d.edits)); });
      INFO(message);
      CHECK(message.starts_with("io [model] "));
      CHECK(message.find(d.refusal) != std::string::npos);
    }
  }
  for (const auto& [model, times] : caught) CHECK(times >= 5);
  CHECK(caught.size() == 16);
}

TEST_CASE("rotation in the other order, and a norm that is not 1 + scale, change the logits",
          "[model_folder]") {
  const auto changed = [](const char* name, auto change) {
    const ModelFolder folder(kModels + name);
    nn::TransformerOptions o = test::options_of(folder, true);
    change(o);
    const std::string expected = folder.path() + "/expected.st";
    const test::Run run = test::run_model(folder, o, "one:1", "", expected);
    return test::difference(run.logits, SafetensorsReader(expected).read("logits"));
  };
  for (const char* name : {"llama", "mistral", "qwen2", "qwen3", "gemma2", "gemma3"}) {
    INFO(name);
    CHECK(changed(name, [](nn::TransformerOptions& o) {
            for (nn::SpanOptions& s : o.spans) s.rotation.interleaved = true;
          }) > 1e-2);
  }
  for (const char* name : {"gemma2", "gemma3"}) {
    CHECK(changed(name, [](nn::TransformerOptions& o) { o.norm.one_plus = false; }) > 1e-2);
    CHECK(changed(name, [](nn::TransformerOptions& o) { o.embedding_scale = 1; }) > 1e-2);
  }
}

TEST_CASE("pixels are normalized as preprocessor_config.json says", "[model_folder]") {
  const Folder f;
  const auto with = [&](const std::string& file) {
    const ModelFolder folder = damaged(f, "vit", {{"/image_size", "12"}});
    f.write("vit/preprocessor_config.json", file);
    return ModelFolder(folder.path());
  };
  CHECK(distance(with(R"({"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.4]})")) < 1e-4);
  CHECK(distance(with(R"({"image_mean": [0.4, 0.5, 0.6]})")) > 1e-2);
  CHECK(distance(with(R"({"do_normalize": false})")) > 1e-2);
  const nn::ImageOptions image = with(R"({"image_mean": [0.25]})").options().image;
  CHECK(image.mean == std::vector<double>{0.25, 0.25, 0.25});
  CHECK(image.deviation == std::vector<double>{0.5, 0.5, 0.5});
  const auto refused = [&](const char* file) { return f.error([&] { with(file); }); };
  const std::string start = "io [model] 'DIR/vit/preprocessor_config.json': ";
  CHECK(refused(R"({"image_mean": [0.5, 0.5]})") ==
        start + "'image_mean' is [0.5,0.5]; it must be a list of 3 numbers of at least -1000000");
  CHECK(refused(R"({"image_std": [0.5, 0.5, 0]})") ==
        start + "'image_std' is [0.5,0.5,0]; it must be a list of 3 numbers of at least 1e-06");
  CHECK(refused(R"({"rescale_factor": 1})") ==
        start +
            "'rescale_factor' is 1; Tessera reads pixels as numbers from 0 to 1, which is 1 / 255");
  CHECK(refused("[").find("preprocessor_config.json' is not JSON: line 1, column 2: ") !=
        std::string::npos);
  CHECK(refused("[]") == start + "it is not a JSON object");
  CHECK(refused(R"({"do_flip": true})") ==
        start +
            "'do_flip' is true; Tessera does not know this key, and it may change the model's "
            "numbers; known: do_normalize, do_rescale, image_mean, image_std, rescale_factor; if "
            "it does not, remove it");
}

/// A hash of the model of a config.json; "refused" for one that is not read.
std::string graph_of(const Folder& f, const Json& config) {
  fs::create_directories(f("m"));
  f.write("m/config.json", config.dump());
  try {
    const ModelFolder folder(f("m"));
    nn::TransformerOptions o = folder.options();
    o.batch = 1;
    if (o.image.classes == 0) o.length = o.target_length = 8;
    if (o.encoder_layers == 0) o.target_length = 0;
    Graph g;
    nn::transformer(g, o);
    return fmt::format("{:x}", std::hash<std::string>()(g.to_string()));
  } catch (const Error& e) {
    CHECK(e.kind() != ErrorKind::internal);
    return "refused";
  }
}

TEST_CASE("an adapter beside a model is not passed over", "[model_folder][errors]") {
  const Folder f;
  fs::copy(kModels + "llama", f("m"));
  f.write("m/adapter_config.json", "{}");
  CHECK(f.error([&] { ModelFolder(f("m")); }) ==
        "unsupported [model] 'DIR/m/adapter_config.json': transformers would apply this adapter to "
        "the model, and Tessera reads whole models; merge it with PEFT's merge_and_unload(), or "
        "move it to a folder of its own");
}

// fixtures/config_defaults.json, made by benchmarks/peers/hugging_face/defaults.py.
TEST_CASE("keys that are missing or null mean what transformers says", "[model_folder]") {
  const Folder f;
  std::ifstream in(TESSERA_SOURCE_DIR "/tests/io/fixtures/config_defaults.json");
  const Json file = Json::parse(in);
  CHECK(file.size() >= 16);
  int same = 0;
  for (const auto& [model, keys] : file.items()) {
    std::ifstream config_file(kModels + model + "/config.json");
    const Json config = Json::parse(config_file);
    for (const auto& [key, row] : keys.items()) {
      INFO(model << " " << key << " " << row.dump());
      const auto with = [&, &k = key](const Json& value) {
        Json changed = config;
        if (k == "rope_parameters")  // in one form, not in two
          for (const char* old : {"rope_scaling", "rope_theta", "rope_local_base_freq"})
            changed.erase(old);
        if (k == "num_local_experts") changed.erase("num_experts");
        if (value == "missing")
          changed.erase(k);
        else
          changed[k] = value;
        return graph_of(f, changed);
      };
      const auto check = [&](const std::string& ours, const Json& right) {
        if (right == "absent" || ours == "refused") return;
        // Of what transformers refuses, keys that change nothing may be null.
        CHECK(ours == with(right == "refused" ? Json("missing") : right));
        ++same;
      };
      check(with("missing"), row["missing"]);
      // None is false where a truth value is meant, and nothing where a number is.
      const bool is_flag = row["missing"].is_boolean() && row["null"].is_null();
      check(with(nullptr), is_flag ? Json(false) : row["null"]);
    }
  }
  CHECK(same > 200);
}

TEST_CASE("a configuration without a key means what transformers takes for it", "[model_folder]") {
  const Folder f;
  const auto without = [&](const char* model, const char* key) {
    return damaged(f, model, {{key, "-"}}).options();
  };
  CHECK(without("mistral", "/sliding_window").spans[0].window == 4096);
  CHECK(damaged(f, "mistral", {{"/sliding_window", "null"}}).options().spans[0].window == 0);
  CHECK(without("llama", "/num_key_value_heads").heads.key_heads == 4);
  CHECK(without("gemma3", "/layer_types").pattern == std::vector<int>{1, 1, 1});
  CHECK(without("gemma2", "/layer_types").pattern == std::vector<int>{1, 0});
  CHECK(without("gemma2", "/attn_logit_softcapping").heads.soft_cap == 50);
  CHECK(without("llama", "/head_dim").heads.d_head == 8);
  CHECK(without("t5-old", "/num_decoder_layers").layers == 2);
  CHECK(without("t5", "/decoder_start_token_id").start_token == 0);
  const nn::TransformerOptions old =
      damaged(f, "gemma3",
              {{"/rope_parameters", "-"},
               {"/rope_theta", "5000.0"},
               {"/rope_local_base_freq", "100.0"},
               {"/rope_scaling", R"({"rope_type": "linear", "factor": 2.0})"}})
          .options();
  const nn::TransformerOptions now = ModelFolder(kModels + "gemma3").options();
  for (size_t k = 0; k < 2; ++k) {
    CHECK(old.spans[k].rotation.base == now.spans[k].rotation.base);
    CHECK(old.spans[k].rotation.scaling.factor == now.spans[k].rotation.scaling.factor);
    CHECK(old.spans[k].window == now.spans[k].window);
  }
}

TEST_CASE("a hash tells configurations apart by what counts", "[model_folder]") {
  const Folder f;
  const std::string hash = ModelFolder(kModels + "llama").config_hash();
  CHECK(damaged(f, "llama", {{"/transformers_version", "\"4.0\""}}).config_hash() == hash);
  CHECK(damaged(f, "llama", {{"/rms_norm_eps", "1e-5"}}).config_hash() != hash);
}

}  // namespace TESSERA_FILE
}  // namespace tessera
