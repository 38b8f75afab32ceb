// Layers, optimizers, attention, mixtures of experts, and what is around a model.
#include "support/inventory.h"

namespace tessera::test {

namespace {

InventorySection services_rows() {
  return {
      "Services of the graph",
      {{"unique names", "`Graph::unique_name`; a second input or parameter of a name is an error",
        "tests/ops/errors_ops_test.cpp"},
       {"rewrite_stack_variables, autostack",
        "left out: small tensors are packed into one arena, and their collectives combined",
        "tests/lower/schedule_test.cpp"},
       {"combine_assignments",
        "`Graph::update`; all updates of a run are stored together; a second one of one tensor "
        "is refused",
        "tests/ops/errors_ops_test.cpp"},
       {"make_variables_untrainable", "`Graph::state`, `stop_gradient`", "stop_gradient"},
       {"clone_operations, capture_operations",
        "`MicrobatchScope`; a model is built again by its own function; random numbers do not "
        "change "
        "when they are drawn again",
        "tests/grad/microbatches_test.cpp"},
       {"trainable_variables, all_variables, name_to_variable, to_string",
        "`Graph::parameters`, `Graph::stored`, `Graph::find`, `Graph::to_string`",
        "tests/ops/errors_ops_test.cpp"},
       {"Lowering, export, counters", "`Session`, `explain`",
        "tests/collectives/collectives_test.cpp"},
       {"checkpoint hooks", "`Checkpoints`; each rank writes its own parts",
        "tests/io/checkpoint_test.cpp"}}};
}

InventorySection loops_rows() {
  return {"Loops and branches",
          {{"WhileLoopOperation, while_loop",
            "`while_loop`, with gradients; the most iterations are given, as memory is planned",
            "while_loop"},
           {"while_loop(has_accumulators)",
            "`IterationResults::sums`: partial from iteration to iteration, combined once after "
            "the loop",
            "while_loop"},
           {"num_loop_vars", "left out: every carry is a buffer that an iteration writes in place",
            "tests/ops/loops_test.cpp"},
           {"scan over layers (asked for)", "`scan`, `repeat`; `GptOptions::scan`", "scan"},
           {"cond (asked for)", "`cond`; one branch runs", "cond"}}};
}

InventorySection microbatches_rows() {
  return {"Microbatches",
          {{"interleaved examples, one reduction",
            "`minimize_in_microbatches`, `sum_over_microbatches`; random numbers are those of the "
            "whole batch; the "
            "loss is the mean over the parts, not their sum",
            "tests/grad/microbatches_test.cpp"}}};
}

InventorySection variables_rows() {
  return {"Variables and checkpoints",
          {{"VariableDType, get_variable",
            "`Graph::parameter`; parameters are float32 and are read in the activations' dtype",
            "tests/session/session_test.cpp"},
           {"Assign, assign_add, assign_sub", "`Graph::update`", "tests/lower/fuse_test.cpp"},
           {"StackedVariable, ReadVariable", "left out: as for rewrite_stack_variables",
            "tests/lower/schedule_test.cpp"},
           {"checkpoints of whole tensors",
            "`Checkpoints`, `read_tensor`; a checkpoint has parts of any layout",
            "tests/io/checkpoint_test.cpp"},
           {"flexible restore", "`read_tensor`", "tests/io/checkpoint_test.cpp"}}};
}

InventorySection meshes_rows() {
  return {"Mesh implementations",
          {{"MeshImpl", "`Cluster`, `Mesh`", "tests/collectives/collectives_test.cpp"},
           {"PlacementMeshImpl",
            "`Cluster::threads`; ranks are threads of one process, without a graph of its own each",
            "tests/collectives/collectives_test.cpp"},
           {"SimdMeshImpl",
            "`Cluster::from_environment`; processes under MPI; integers and float32 are sent as "
            "what they are",
            "examples/hello.cpp"},
           {"topology mapping, HierarchicalTiling",
            "`Mesh::parse`; coordinates by host and local rank; `@class` binds an axis to a class "
            "of links",
            "tests/session/errors_test.cpp"},
           {"BalancedVariablePlacer, host calls, test_utils",
            "left out: there are no master copies to place; tests use `testing::test_op`",
            "tests/ops/own_op_test.cpp"}}};
}

InventorySection layers_rows() {
  return {
      "Layers",
      {{"unit_scaling_convention, us_einsum", "`einsum`; a product by a constant",
        "dense_of_unit_variance"},
       {"dense", "`dense`, `DenseOptions`", "dense dense_to_its_own_dim dense_of_experts"},
       {"dense_product", "`dense_product`", "dense_product"},
       {"VarianceScalingInitializer", "`variance_scaling`, `glorot_uniform`, `he_normal`",
        "tests/ops/layers_test.cpp"},
       {"conv1d, separable_conv1d, depthwise by shifts", "`conv`, `shift`",
        "conv1d_same separable_conv depthwise_conv_by_shifts conv_depthwise"},
       {"conv2d, conv3d and their transposes", "`conv_layer`", "conv_layer conv_transpose_layer"},
       {"layer_norm", "`norm`, `layer_norm`; eps 1e-6 there",
        "norm layer_norm tests/mesh_tensorflow/layers.cpp"},
       {"softmax_cross_entropy_with_logits",
        "`cross_entropy`, `smoothed`; its label_smoothing s of n classes is s (n - 1) / n here",
        "cross_entropy cross_entropy_soft_z smoothed"},
       {"sigmoid_cross_entropy_with_logits, weights_nonzero",
        "`sigmoid_cross_entropy`, `nonzero_weights`", "sigmoid_cross_entropy nonzero_weights"},
       {"dense_relu_dense", "`feed_forward`", "feed_forward"},
       {"local_self_attention_spatial_blocks, local_2d", "`attention`, `reshape`",
        "local_block_attention_2d"},
       {"masked_local_attention_1d",
        "`local_attention`; what lies before the sequence has no weight",
        "local_attention local_attention_both_sides local_attention_longer_blocks"},
       {"multihead_attention and its legacy forms",
        "`multihead_attention`, `self_attention`; logits have no scale there, but the first "
        "weights: scale 1",
        "multihead_attention encdec_attention tests/mesh_tensorflow/attention.cpp"},
       {"dot_product_attention", "`attention`, `biased_attention`",
        "attention attention_bias attention_dropout attention_dropout_shared_length "
        "attention_dropout_shared_heads attention_value_dim attention_shared_queries"},
       {"attention masks and biases",
        "`causal_mask`, `segment_mask`, `window_mask`, `prefix_mask`; where a query sees nothing, "
        "zeros (there, by rounding, the sum of all values)",
        "mask_causal mask_segments mask_window mask_prefix attention_mask"},
       {"memory-compressed attention, compress_mean", "`compress_mean`",
        "compress_mean memory_compressed_attention"},
       {"embedding", "`embedding`", "embedding"},
       {"reversible_half_residual_and_swap",
        "`feed_forward`; its values; activations are kept, not computed from outputs",
        "reversible_half_residual"},
       {"clip_activation_gradient", "`clip_gradient`", "tests/ops/layers_test.cpp clip_gradient"},
       {"multiplicative_jitter, annealed_dropout", "`jitter`, `dropout_at`", "jitter dropout_at"}}};
}

InventorySection optimizers_rows() {
  return {
      "Optimizers",
      {{"SgdOptimizer", "`sgd`", "tests/nn/optim_test.cpp"},
       {"MomentumOptimizer", "`momentum`, `MomentumOptions`; without the delay by a step",
        "tests/nn/optim_test.cpp tests/mesh_tensorflow/training_test.cpp"},
       {"AdamWeightDecay", "`adam`, `AdamOptions`", "tests/nn/optim_test.cpp"},
       {"Adafactor",
        "`adafactor`; nothing averages over stacked dims, the clipping of updates neither",
        "tests/nn/optim_test.cpp tests/mesh_tensorflow/training_test.cpp"},
       {"adafactor_decay_rate_adam, _pow", "`AdafactorOptions`", "tests/nn/optim_test.cpp"},
       {"Adafactor and Adam with several learning rates", "`with_rates`; every pattern counts",
        "tests/nn/optim_test.cpp"},
       {"make_optimizer, hparams constructors, product_learning_rate",
        "`Schedule`; another product is a number for each step",
        "tests/cli/cli_test.cpp tests/mesh_tensorflow/training_test.cpp"},
       {"linear_warmup, truncated_rsqrt, linear_decay, learning_rate_schedule_noam, "
        "slanted_triangular",
        "`Schedule`: `warmup`, `flat`, `cooldown`, `start`; a warmup is a step ahead, so that no "
        "rate is 0",
        "tests/mesh_tensorflow/training_test.cpp tests/session/errors_test.cpp"},
       {"BERT's clip_by_global_norm", "`MinimizeOptions`; with every optimizer",
        "tests/session/session_test.cpp"},
       {"LAMB, Lion (do not exist)", "`lamb`, `lion`", "tests/nn/optim_test.cpp"}}};
}

InventorySection attention_rows() {
  return {
      "Attention",
      {{"attention", "`attention`, `biased_attention`",
        "attention attention_causal attention_bias attention_extra_logit"},
       {"attention(z_loss_coeff)", "`square`, `reduce_logsumexp` of the logits",
        "attention_z_loss"},
       {"hybrid_attention, synthetic_attention",
        "`softmax`, `einsum`; lengths are dims, not a constant",
        "synthesizer_random synthesizer_factorized synthesizer_dense synthesizer_plus_attention"},
       {"AttentionParams, shared_kv, heads dims", "`MultiHeadOptions`",
        "multihead_attention shared_kv_attention"},
       {"local_attention_1d", "`local_attention`, `LocalOptions`",
        "local_attention local_attention_ahead local_attention_segments"},
       {"maybe_reshape_attention_input_for_2d_sharding",
        "left out: a layout rule: `\"batch:rows;heads:cols\"` or `\"batch:rows+cols\"`",
        "attention"},
       {"SelfAttention, multi-query and grouped heads", "`self_attention`",
        "multihead_attention multi_query_attention grouped_query_attention attention_shared_keys"},
       {"relative positions", "`relative_buckets`, `relative_bias`, `relative_distances`",
        "relative_buckets relative_buckets_causal relative_bias relative_distances"},
       {"EncDecAttention, TransparentEncDecAttention", "`multihead_attention`",
        "encdec_attention transparent_attention"},
       {"LocalSelfAttention", "`local_attention`", "local_attention"},
       {"TalkingHeads", "`talking_heads`", "talking_heads"},
       {"GeneralBilinear, Branched", "`einsum`, `attention`",
        "general_bilinear_attention tests/mesh_tensorflow/variants.cpp"},
       {"Synthesizer, relative_position_spans",
        "`relative_buckets`, `segment_mask`; spans are segments with positions of their own",
        "synthesizer_dense relative_buckets mask_segments"},
       {"ExpertsSelfAttention, ExpertsEncDecAttention",
        "`moe`, `self_attention`; projections of experts are dense layers with a stacked dim, "
        "between dispatch and combine",
        "tests/ops/moe_test.cpp dense_of_experts"},
       {"Conv1DLayer, SeparableConv1DLayer", "`conv`, `shift`", "conv1d_same separable_conv"},
       {"LightweightConv, DynamicConv, their Conv1DLocalAttn, LocalConvAttnBlock",
        "`shift`, `softmax`, `dense_product`", "lightweight_conv dynamic_conv dense_product"},
       {"DenseReluDense, ParallelLayer", "`feed_forward`", "feed_forward parallel_layers"},
       {"causal, prefix, packed segments",
        "`causal_mask`, `prefix_mask`, `segment_mask`, `segment_positions`",
        "mask_causal mask_prefix mask_segments segment_positions"},
       {"rotary positions (do not exist), sinusoids", "`rotary`, `sinusoids`",
        "rotary rotary_positions sinusoids"}}};
}

InventorySection experts_rows() {
  return {"Mixture of experts",
          {{"MoE1D, transformer_moe_layer_v1", "`moe`", "tests/ops/moe_test.cpp"},
           {"MoE2D, transformer_moe_layer_v2",
            "`route`; `route` twice, the second with the first's gates as importance",
            "route_in_two_levels"},
           {"groups, _split_into_groups",
            "`reshape`; a group is a dim; where rows are too long, a reshape makes more of them, "
            "of exactly that size",
            "route_top_2"},
           {"capacity", "`RoutingOptions`", "tests/ops/moe_test.cpp route_bounded_capacity"},
           {"top_2", "`Gating::tokens_choose`",
            "route_top_2 route_top_2_importance route_top_2_threshold route_top_2_first_only "
            "route_top_2_random route_top_3"},
           {"top_n (its balance loss for second choices takes the third)",
            "`Gating::tokens_choose`; with `first_for_all` importance counts as there",
            "route_top_3 route_first_for_all tests/mesh_tensorflow/experts.cpp"},
           {"switch", "`Gating::tokens_choose`", "route_switch route_sampled"},
           {"ntlb", "`Gating::rescue`, without `renormalize`", "route_no_token_left_behind"},
           {"switch_max", "`Gating::strongest`", "route_switch_max"},
           {"expert_selection",
            "`Gating::tokens_compete`; `Gating::experts_choose` has gates over the experts",
            "route_tokens_compete route_expert_choice"},
           {"use_second_place_expert_prob, _temp", "`second_place`, `second_sample`",
            "route_second_place route_second_place_sampled"},
           {"word_embed_mode", "`embedding` of `MoeOptions`, with `stop_gradient`",
            "tests/mesh_tensorflow/experts.cpp"},
           {"balance and z losses", "`Routing`, `RoutingOptions`; padding counts for none",
            "route_top_2 route_second_balance route_tokens_compete"}}};
}

InventorySection models_rows() {
  return {"Models and decoding",
          {{"Unitransformer, Bitransformer",
            "`nn::transformer`; `causal` and `encoder_layers` of its options",
            "tests/nn/transformer_test.cpp"},
           {"sample_autoregressive, Bitransformer.decode",
            "`Generator`; `nn::decoder` keeps keys and values as state",
            "tests/generate/generator_test.cpp"},
           {"beam_search",
            "`Generator::search`; scores are divided by n^p in place of ((5 + n) / 6)^alpha",
            "tests/generate/beam_search_test.cpp"},
           {"bert.py", "`nn::transformer` without `causal`, `MaskedData`",
            "tests/io/model_folder_test.cpp"}}};
}

InventorySection training_rows() {
  return {"Training",
          {{"input_reader.py", "`DataSource`, `Batcher`", "tests/io/checkpoint_test.cpp"},
           {"model_executor.py", "`run_cli`", "tests/cli/inspect_test.cpp"},
           {"data_aug_lib.py",
            "left out: augmentation of images is the data source's, before a batch is fed",
            "tests/io/io_test.cpp"}}};
}

}  // namespace

std::vector<InventorySection> layer_inventory() {
  return {services_rows(), loops_rows(),  microbatches_rows(), variables_rows(),
          meshes_rows(),   layers_rows(), optimizers_rows(),   attention_rows(),
          experts_rows(),  models_rows(), training_rows()};
}

}  // namespace tessera::test
