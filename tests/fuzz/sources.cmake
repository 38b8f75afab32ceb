# What reads files and texts from outside, without the rest of the library: what libFuzzer's program is made of, besides the
# folders io/families and tokenizer.
set(fuzz_sources base/cache_file base/caller base/crc32c base/dtype base/edit_distance base/env base/error base/files base/json base/part_file base/printable base/toml
  cli/config cli/keys cli/plain_charts cli/plan_cache cli/report cli/report_curves cli/report_page cli/report_steps cli/run_log cli/slow_ranks cli/stragglers gpu/device/gemm_algorithm_cache io/checkpoint_files io/checkpoint_one_file
  io/data_idx io/data_text io/file io/fingerprint io/manifest io/model_description io/output_file io/safetensors io/safetensors_write io/shard io/shards io/token_file
  io/token_file_megatron ir/layout ir/mesh nn/layer_runs pages/page cost/machine cost/machine_toml program/buffer_names program/kernels program/pipeline_share program/pipeline_table program/program program/read_program program/read_spec program/schedules/alternating_order program/schedules/gpipe program/schedules/interleaved program/schedules/list
  program/schedules/one_forward_one_backward program/schedules/zb_h1 program/schedules/zb_v program/specs program/text)
