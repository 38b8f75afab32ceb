// config.json as it was published with models: all keys are known, and the model that they make has
// the published number of parameters.
#include <nlohmann/json.hpp>

#include "support/io_folder.h"
#include "tessera/model_folder.h"

namespace tessera {
namespace TESSERA_FILE {

struct Published {
  const char* name;
  const char* config;
  int64_t parameters;
  double base;  ///< of the rotary positions of the first kind of layers
};

const Published kPublished[] = {
    {"Llama 2 7B", R"({"_name_or_path": "x", "architectures": ["LlamaForCausalLM"],
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 11008, "max_position_embeddings": 4096,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 32, "pretraining_tp": 1, "rms_norm_eps": 1e-05, "rope_scaling": null,
      "tie_word_embeddings": false, "torch_dtype": "float16", "transformers_version": "4.31.0.dev0",
      "use_cache": true, "vocab_size": 32000})",
     6738415616, 10000},
    {"Llama 3.2 1B", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009],
      "head_dim": 64, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
      "intermediate_size": 8192, "max_position_embeddings": 131072, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 32, "num_hidden_layers": 16,
      "num_key_value_heads": 8, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_scaling": {"factor": 32.0, "high_freq_factor": 4.0, "low_freq_factor": 1.0,
                       "original_max_position_embeddings": 8192, "rope_type": "llama3"},
      "rope_theta": 500000.0, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.45.0.dev0", "use_cache": true, "vocab_size": 128256})",
     1235814400, 500000},
    {"SmolLM2 135M", R"({"architectures": ["LlamaForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu",
      "hidden_size": 576, "initializer_range": 0.041666666666666664, "intermediate_size": 1536,
      "is_llama_config": true, "max_position_embeddings": 8192, "mlp_bias": false,
      "model_type": "llama", "num_attention_heads": 9, "num_hidden_layers": 30,
      "num_key_value_heads": 3, "pad_token_id": 2, "pretraining_tp": 1, "rms_norm_eps": 1e-05,
      "rope_interleaved": false, "rope_scaling": null, "rope_theta": 100000,
      "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers.js_config": {"kv_cache_dtype": {"q4f16": "float16"}},
      "transformers_version": "4.42.3", "use_cache": true, "vocab_size": 49152})",
     134515008, 100000},
    {"Mistral 7B v0.3", R"({"architectures": ["MistralForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mistral", "num_attention_heads": 32, "num_hidden_layers": 32,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
      "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.42.0.dev0", "use_cache": true, "vocab_size": 32768})",
     7248023552, 1000000},
    {"Qwen 2.5 0.5B", R"({"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 151643, "eos_token_id": 151643, "hidden_act": "silu", "hidden_size": 896,
      "initializer_range": 0.02, "intermediate_size": 4864, "max_position_embeddings": 32768,
      "max_window_layers": 24, "model_type": "qwen2", "num_attention_heads": 14,
      "num_hidden_layers": 24, "num_key_value_heads": 2, "rms_norm_eps": 1e-06,
      "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": true,
      "torch_dtype": "bfloat16", "transformers_version": "4.40.1", "use_cache": true,
      "use_mrope": false, "use_sliding_window": false, "vocab_size": 151936})",
     494032768, 1000000},
    {"Qwen 3 0.6B", R"({"architectures": ["Qwen3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 151643, "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 1024, "initializer_range": 0.02,
      "intermediate_size": 3072, "max_position_embeddings": 40960, "max_window_layers": 28,
      "model_type": "qwen3", "num_attention_heads": 16, "num_hidden_layers": 28,
      "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_scaling": null, "rope_theta": 1000000,
      "sliding_window": null, "tie_word_embeddings": true, "torch_dtype": "bfloat16",
      "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936})",
     596049920, 1000000},
    {"Mixtral 8x7B v0.1", R"({"architectures": ["MixtralForCausalLM"], "attention_dropout": 0.0,
      "bos_token_id": 1, "eos_token_id": 2, "hidden_act": "silu", "hidden_size": 4096,
      "initializer_range": 0.02, "intermediate_size": 14336, "max_position_embeddings": 32768,
      "model_type": "mixtral", "num_attention_heads": 32, "num_experts_per_tok": 2,
      "num_hidden_layers": 32, "num_key_value_heads": 8, "num_local_experts": 8,
      "output_router_logits": false, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
      "router_aux_loss_coef": 0.02, "sliding_window": null, "tie_word_embeddings": false,
      "torch_dtype": "bfloat16", "transformers_version": "4.36.0.dev0", "use_cache": true,
      "vocab_size": 32000})",
     46702792704, 1000000},
    {"Qwen 3 30B A3B", R"({"architectures": ["Qwen3MoeForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "bos_token_id": 151643, "decoder_sparse_step": 1,
      "eos_token_id": 151645, "head_dim": 128, "hidden_act": "silu", "hidden_size": 2048,
      "initializer_range": 0.02, "intermediate_size": 6144, "max_position_embeddings": 40960,
      "max_window_layers": 48, "mlp_only_layers": [], "model_type": "qwen3_moe",
      "moe_intermediate_size": 768, "norm_topk_prob": true, "num_attention_heads": 32,
      "num_experts": 128, "num_experts_per_tok": 8, "num_hidden_layers": 48,
      "num_key_value_heads": 4, "output_router_logits": false, "rms_norm_eps": 1e-06,
      "rope_scaling": null, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.001,
      "sliding_window": null, "tie_word_embeddings": false, "torch_dtype": "bfloat16",
      "transformers_version": "4.51.0", "use_cache": true, "use_sliding_window": false,
      "vocab_size": 151936})",
     30532122624, 1000000},
    {"DeepSeek-V3", R"({"architectures": ["DeepseekV3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "auto_map": {"AutoConfig": "configuration_deepseek.DeepseekV3Config"},
      "bos_token_id": 0, "eos_token_id": 1, "ep_size": 1, "first_k_dense_replace": 3,
      "hidden_act": "silu", "hidden_size": 7168, "initializer_range": 0.02,
      "intermediate_size": 18432, "kv_lora_rank": 512, "max_position_embeddings": 163840,
      "model_type": "deepseek_v3", "moe_intermediate_size": 2048, "moe_layer_freq": 1, "n_group": 8,
      "n_routed_experts": 256, "n_shared_experts": 1, "norm_topk_prob": true,
      "num_attention_heads": 128, "num_experts_per_tok": 8, "num_hidden_layers": 61,
      "num_key_value_heads": 128, "num_nextn_predict_layers": 1, "q_lora_rank": 1536,
      "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
      "quantization_config": {"activation_scheme": "dynamic", "fmt": "e4m3", "quant_method": "fp8",
                              "weight_block_size": [128, 128]},
      "rms_norm_eps": 1e-06,
      "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                       "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                       "type": "yarn"},
      "rope_theta": 10000, "routed_scaling_factor": 2.5, "scoring_func": "sigmoid",
      "tie_word_embeddings": false, "topk_group": 4, "topk_method": "noaux_tc",
      "torch_dtype": "bfloat16", "transformers_version": "4.33.1", "use_cache": true,
      "v_head_dim": 128, "vocab_size": 129280})",
     671026419200, 10000},
    {"GPT-2", R"({"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"],
      "attn_pdrop": 0.1, "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256,
      "initializer_range": 0.02, "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024,
      "n_embd": 768, "n_head": 12, "n_layer": 12, "n_positions": 1024, "resid_pdrop": 0.1,
      "summary_activation": null, "summary_first_dropout": 0.1, "summary_proj_to_labels": true,
      "summary_type": "cls_index", "summary_use_proj": true,
      "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}},
      "vocab_size": 50257})",
     124439808, 10000},
    {"Gemma 2 2B", R"({"architectures": ["Gemma2ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "attn_logit_softcapping": 50.0, "bos_token_id": 2,
      "cache_implementation": "hybrid", "eos_token_id": 1, "final_logit_softcapping": 30.0,
      "head_dim": 256, "hidden_act": "gelu_pytorch_tanh",
      "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 2304, "initializer_range": 0.02,
      "intermediate_size": 9216, "max_position_embeddings": 8192, "model_type": "gemma2",
      "num_attention_heads": 8, "num_hidden_layers": 26, "num_key_value_heads": 4,
      "pad_token_id": 0, "query_pre_attn_scalar": 256, "rms_norm_eps": 1e-06,
      "rope_theta": 10000.0, "sliding_window": 4096, "torch_dtype": "float32",
      "transformers_version": "4.42.4", "use_cache": true, "vocab_size": 256000})",
     2614341888, 10000},
    {"Gemma 3 1B", R"({"architectures": ["Gemma3ForCausalLM"], "attention_bias": false,
      "attention_dropout": 0.0, "attn_logit_softcapping": null, "bos_token_id": 2,
      "cache_implementation": "hybrid", "eos_token_id": [1, 106], "final_logit_softcapping": null,
      "head_dim": 256, "hidden_activation": "gelu_pytorch_tanh", "hidden_size": 1152,
      "initializer_range": 0.02, "intermediate_size": 6912, "max_position_embeddings": 32768,
      "model_type": "gemma3_text", "num_attention_heads": 4, "num_hidden_layers": 26,
      "num_key_value_heads": 1, "pad_token_id": 0, "query_pre_attn_scalar": 256,
      "rms_norm_eps": 1e-06, "rope_local_base_freq": 10000, "rope_scaling": null,
      "rope_theta": 1000000, "sliding_window": 512, "sliding_window_pattern": 6,
      "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0", "use_cache": true,
      "vocab_size": 262144})",
     999885952, 1000000},
    {"Flan-T5 base", R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
      "d_model": 768, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
      "feed_forward_proj": "gated-gelu", "initializer_factor": 1.0, "is_encoder_decoder": true,
      "layer_norm_epsilon": 1e-06, "model_type": "t5", "n_positions": 512, "num_decoder_layers": 12,
      "num_heads": 12, "num_layers": 12, "output_past": true, "pad_token_id": 0,
      "relative_attention_max_distance": 128, "relative_attention_num_buckets": 32,
      "tie_word_embeddings": false, "transformers_version": "4.23.1", "use_cache": true,
      "vocab_size": 32128})",
     247577856, 10000},
    {"T5 small", R"({"architectures": ["T5ForConditionalGeneration"], "d_ff": 2048, "d_kv": 64,
      "d_model": 512, "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1,
      "initializer_factor": 1.0, "is_encoder_decoder": true, "layer_norm_epsilon": 1e-06,
      "model_type": "t5", "n_positions": 512, "num_heads": 8, "num_layers": 6, "output_past": true,
      "pad_token_id": 0, "relative_attention_num_buckets": 32,
      "task_specific_params": {"summarization": {"num_beams": 4}}, "use_cache": true,
      "vocab_size": 32128})",
     60506624, 10000},
    {"BERT base", R"({"architectures": ["BertForMaskedLM"], "attention_probs_dropout_prob": 0.1,
      "gradient_checkpointing": false, "hidden_act": "gelu", "hidden_dropout_prob": 0.1,
      "hidden_size": 768, "initializer_range": 0.02, "intermediate_size": 3072,
      "layer_norm_eps": 1e-12, "max_position_embeddings": 512, "model_type": "bert",
      "num_attention_heads": 12, "num_hidden_layers": 12, "pad_token_id": 0,
      "position_embedding_type": "absolute", "transformers_version": "4.6.0.dev0",
      "type_vocab_size": 2, "use_cache": true, "vocab_size": 30522})",
     109514298, 10000},
};

TEST_CASE("published configurations make models of the published sizes", "[model_folder]") {
  const test::Folder f;
  for (const Published& p : kPublished) {
    INFO(p.name);
    f.write("config.json", p.config);
    const ModelFolder folder(f.dir);
    nn::TransformerOptions o = folder.options();
    CHECK(o.spans[0].rotation.base == p.base);
    o.length = 8;
    o.target_length = 4;
    Graph g;
    nn::transformer(g, o);
    int64_t parameters = 0;
    for (const Tensor& t : g.parameters()) parameters += t.shape().elements();
    CHECK(parameters == p.parameters);
    // A published file with a key that nobody knows is refused.
    nlohmann::json more = nlohmann::json::parse(p.config);
    more["zero_centered"] = {{"bits", 4}};
    f.write("config.json", more.dump());
    CHECK(f.error([&] { ModelFolder{f.dir}; })
              .starts_with("io [model] 'DIR/config.json': 'zero_centered' is {\"bits\":4}; "
                           "Tessera does not know this key"));
  }
}

}  // namespace TESSERA_FILE
}  // namespace tessera
