#include "base/known_keys.h"

namespace tessera {

namespace {

struct KnownKeys {
  std::string_view file, kind;  ///< kind: "" for all
  std::string_view why;
  std::string_view keys;  ///< separated and surrounded by blanks
};

constexpr KnownKeys kKnown[] = {
    {"config.json", "", "names of files, programs and classes",
     " _commit_hash _model_name_or_path _name_or_path architectures auto_map finetuning_task "
     "is_llama_config problem_type tokenizer_class torchscript transformers.js_config "
     "transformers_version unsloth_fixed unsloth_version "},
    {"config.json", "", "rates of dropout and first values are the caller's choice",
     " attention_dropout classifier_dropout hidden_dropout initializer_factor initializer_range "},
    {"config.json", "", "what a call of transformers returns, and how much memory it takes",
     " cache_implementation chunk_size_feed_forward output_attentions output_hidden_states "
     "return_dict use_cache use_return_dict "},
    {"config.json", "", "tokens and texts belong to tokenizers and generation",
     " bos_token_id decoder_start_token_id eos_token_id pad_token_id prefix sep_token_id "
     "task_specific_params unk_token_id "},
    {"config.json", "", "settings of generation, which old files have: flags and requests say them",
     " do_sample max_length max_new_tokens min_length num_beams num_return_sequences "
     "repetition_penalty temperature top_k top_p "},
    {"config.json", "", "the kind of a model, which model_type says",
     " id2label is_decoder is_encoder_decoder label2id "},
    {"config.json", "bert", "parts beside the model of masked tokens",
     " directionality gradient_checkpointing pooler_fc_size pooler_num_attention_heads "
     "pooler_num_fc_layers pooler_size_per_head pooler_type "},
    {"config.json", "bert", "rates of dropout",
     " attention_probs_dropout_prob hidden_dropout_prob "},
    {"config.json", "deepseek_v3", "how the authors' program divides and balances experts",
     " aux_loss_alpha ep_size seq_aux "},
    {"config.json", "deepseek_v3", "layers that predict further ahead are left out",
     " num_mtp_layers num_nextn_predict_layers "},
    {"config.json", "deepseek_v3", "numbers of 8 bits are refused where weights are read",
     " quantization_config quantization_config.activation_scheme quantization_config.fmt "
     "quantization_config.weight_block_size "},
    {"config.json", "gemma2", "hidden_activation counts in its place", " hidden_act "},
    {"config.json", "gemma3_text", "hidden_activation counts in its place", " hidden_act "},
    {"config.json", "gemma3_text", "layer_types says it, and transformers reads no cap",
     " _sliding_window_pattern attn_logit_softcapping "},
    {"config.json", "gpt2", "rates of dropout", " attn_pdrop embd_pdrop resid_pdrop "},
    {"config.json", "gpt2", "n_positions counts, and sums are in float32 anyway",
     " n_ctx reorder_and_upcast_attn "},
    {"config.json", "gpt2", "heads of other tasks",
     " summary_activation summary_first_dropout summary_proj_to_labels summary_type "
     "summary_use_proj "},
    {"config.json", "mixtral", "of the loss that balances experts, which is the caller's choice",
     " router_aux_loss_coef router_jitter_noise "},
    {"config.json", "qwen3_moe", "of the loss that balances experts, which is the caller's choice",
     " router_aux_loss_coef "},
    {"config.json", "t5", "rates of dropout, and what no version reads",
     " dropout_rate output_past "},
    {"config.json", "vit", "rates of dropout",
     " attention_probs_dropout_prob hidden_dropout_prob "},
    {"config.json", "vit", "parts beside the classifier",
     " encoder_stride num_labels pooler_act pooler_output_size "},

    {"preprocessor_config.json", "", "names of programs and classes",
     " feature_extractor_type image_processor_type processor_class auto_map "
     "_valid_processor_keys "},
    {"preprocessor_config.json", "", "images come in the size of the model, or are refused",
     " crop_size crop_pct do_center_crop do_convert_rgb do_pad do_resize resample size "
     "default_to_square pad_size input_data_format data_format device disable_grouping "
     "return_tensors "},

    {"generation_config.json", "", "names and versions",
     " _from_model_config _commit_hash transformers_version trust_remote_code "},
    {"generation_config.json", "", "other tokens belong to the tokenizer and the template",
     " bos_token_id decoder_start_token_id pad_token_id "},
    {"generation_config.json", "",
     "the caller says how texts are drawn, how long they are and how many",
     " assistant_confidence_threshold assistant_lookbehind diversity_penalty do_sample "
     "early_stopping epsilon_cutoff eta_cutoff is_assistant length_penalty max_length "
     "max_matching_ngram_size max_new_tokens max_time min_length min_new_tokens min_p "
     "num_assistant_tokens num_assistant_tokens_schedule num_beam_groups num_beams "
     "num_return_sequences penalty_alpha prompt_lookup_num_tokens repetition_penalty "
     "target_lookbehind temperature top_h top_k top_p typical_p "},
    {"generation_config.json", "", "what a call returns, and how much memory it takes",
     " cache_config cache_implementation compile_config disable_compile low_memory "
     "output_attentions output_hidden_states output_logits output_scores prefill_chunk_size "
     "return_dict_in_generate return_legacy_cache token_healing use_cache use_mtp "},

    {"tokenizer_config.json", "", "names of files, programs and classes",
     " auto_map backend dtype is_local local_files_only name_or_path processor_class "
     "special_tokens_map_file tokenizer_file tokenizer_type transformers_version use_fast "
     "vocab_file from_slow "},
    {"tokenizer_config.json", "", "lengths and padding of batches are the caller's",
     " max_len max_length model_input_names model_max_length pad_to_multiple_of "
     "pad_token_type_id padding padding_side stride truncation truncation_side "
     "truncation_strategy "},
    {"tokenizer_config.json", "", "decoding writes every byte of every token",
     " clean_up_tokenization_spaces errors spaces_between_special_tokens "},
    {"tokenizer_config.json", "", "the chat template says it",
     " response_schema response_template use_default_system_prompt "},
    {"tokenizer_config.json", "tokenizer.json", "tokenizer.json has the stages that these chose",
     " add_bos_token add_eos_token add_prefix_space byte_fallback do_basic_tokenize do_lower_case "
     "do_split "
     "do_lowercase_and_remove_accent keep_accents legacy never_split remove_space sp_model_kwargs "
     "strip_accents tokenize_chinese_chars tokenizer_class trim_offsets unk_id "
     "wordpieces_prefix "}};

}  // namespace

bool changes_nothing(std::string_view key, std::string_view file, std::string_view kind) {
  if (key.empty() || key.find(' ') != key.npos) return false;
  for (const KnownKeys& known : kKnown) {
    if (known.file != file || !(known.kind.empty() || known.kind == kind)) continue;
    for (size_t at = 0; (at = known.keys.find(key, at)) != known.keys.npos; at += key.size()) {
      if (known.keys[at - 1] == ' ' && known.keys[at + key.size()] == ' ') return true;
    }
  }
  return false;
}

}  // namespace tessera
