#include "support/inventory.h"

#include <utility>

namespace tessera::test {

namespace {

InventorySection types() {
  return {"Dims, shapes, meshes, layouts",
          {{"Dimension, Shape and their arithmetic",
            "`Dim`, `Shape`; `without`, `united`, `renamed`", "tests/ops/errors_ops_test.cpp"},
           {"one name with two sizes in a shape or an op", "an error that names both",
            "tests/ops/errors_ops_test.cpp"},
           {"convert_to_shape, convert_to_layout_rules",
            "`Mesh::parse`, `Layout::parse`; the same strings", "tests/session/errors_test.cpp"},
           {"LayoutRules, TensorLayout", "`Layout`; `explain` shows each tensor's",
            "tests/session/errors_test.cpp"},
           {"rules that name nothing are ignored", "an error with the nearest name; `name?` may",
            "tests/session/errors_test.cpp"},
           {"two dims of a tensor on one mesh axis", "an error, or `x.prefer(\"dim\")`",
            "tests/session/errors_test.cpp prefer"},
           {"slice_shape: sizes must divide", "any size: the tail is padded, exactly",
            "tests/ops/random_graphs_test.cpp"},
           {"tensor_dim_to_mesh_dim_size, ..._per_split",
            "left out: models do not see the layout, so that it cannot change a result",
            "docs/explanation/who-decides-a-layout.md"},
           {"log_variable_sizes, counters", "`explain`: bytes, flops, memory, each with a reason",
            "tests/lower/interval_test.cpp tests/ops/unet_test.cpp"},
           {"Lowering, verify_slice_shapes", "`Session`; the Program is checked when it is bound",
            "tests/lower/mutation_test.cpp"}}};
}

InventorySection pointwise() {
  return {"Pointwise",
          {{"identity, sin, cos, square, sqrt, rsqrt, log, exp, sigmoid, tanh", "the same names",
            "identity sin cos square sqrt rsqrt log exp sigmoid tanh"},
           {"pow (NaN for a negative base)", "`pow`, right for whole exponents", "pow"},
           {"negative, logical_not", "`-x`, `logical_not`", "neg logical_not"},
           {"swish, gelu, elu, selu, softplus, reciprocal, relu, leaky_relu",
            "`silu`, the others by their names; elu and selu precise near 0",
            "silu gelu elu selu softplus reciprocal relu leaky_relu"},
           {"sign, abs", "`sign`, `abs`", "sign abs"},
           {"cast, to_float, to_bfloat16, to_int32", "`cast`; to integers it saturates, NaN is 0",
            "cast_to_int cast_from_int cast_to_bfloat16"},
           {"cwise, slicewise, GenericGradOperation",
            "an op of your own: `Op` with a host function, roles of its dims, a gradient",
            "docs/how-to/adding-an-op.md examples/own_op.cpp tests/ops/own_op_test.cpp"},
           {"stop_gradient", "`stop_gradient`", "stop_gradient"},
           {"floor, round, ... (by cwise)",
            "`floor`, `ceil`, `round`, `erf`, `erf_inv`, `log1p`, `clip`",
            "floor ceil round erf erf_inv log1p clip"},
           {"add, sub, multiply, divide, add_n",
            "`+ - * /`; integers by a floating number are an error",
            "add sub mul div tests/ops/values_test.cpp"},
           {"floordiv, mod", "`floor_div`, `mod`; of floats as in Python, exact",
            "floor_div mod floor_div_int mod_int"},
           {"less, greater, equal, not_equal, ...", "the same names; `< <= > >=`",
            "less less_equal greater greater_equal equal not_equal"},
           {"logical_and, logical_or", "the same, and `logical_xor`",
            "logical_and logical_or logical_xor"},
           {"minimum, maximum (both get the whole gradient at a tie)",
            "the same names; a tie shares it", "minimum maximum maximum_ties minimum_ties"},
           {"where (the other branch's NaN leaks)", "`where`; nothing leaks",
            "where where_broadcast where_leaks_nothing"}}};
}

InventorySection products() {
  return {"Products and reductions",
          {{"einsum, matmul, multiply, us_einsum", "`einsum`, any number of operands",
            "einsum_matmul einsum_batched einsum_chain einsum_broadcasts einsum_lone_dims"},
           {"LazyAllreduceSum", "*partial* is a state of a tensor: reduced late, once",
            "einsum_of_partials tests/lower/mutation_test.cpp"},
           {"reduce_sum, _mean, _max, _min, _all, _any",
            "the same names, and `reduce_prod`; elements that tie share a gradient",
            "reduce_sum_two reduce_mean reduce_max_ties reduce_min_int reduce_prod_all reduce_any "
            "reduce_all"},
           {"reduce_first", "`reduce_sum(slice(x, dim, 0, 1), dim)`: NaN elsewhere does not leak",
            "slice"},
           {"reduce_logsumexp, log_softmax, softmax", "the same names",
            "reduce_logsumexp softmax log_softmax"},
           {"extra_logit", "`nn::BiasedOptions`, for attention; else a `pad` or `concat` before",
            "attention_extra_logit tests/mesh_tensorflow/ops.cpp"},
           {"cumsum (a product with n x n elements)", "`cumsum`; by slices where the dim is split",
            "cumsum cumsum_of_sum tests/lower/interval_test.cpp"},
           {"top_1, argmax", "`top_1`, `argmax`, `argmin`",
            "argmax argmax_ties top_of_slices top_of_slices_ties"},
           {"top_k", "`top_k`; candidates of slices where the dim is split",
            "top_k top_of_slices tests/lower/interval_test.cpp"},
           {"nth_largest_element, nth_smallest", "`nth_largest`, `nth_smallest`", "nth"},
           {"-", "`sort`, `argsort`", "sort order_ties"},
           {"sample_with_temperature",
            "`argmax(logits / t - log(-log(random_uniform(...))))`: Gumbel", "sampled"},
           {"pool_tensor_1d, stride_tensor_1d", "`max_pool`, `avg_pool`, `windows`",
            "max_pool avg_pool windows"}}};
}

InventorySection shapes() {
  return {
      "Shapes, slices, indices",
      {{"reshape (NotImplementedError for many layouts, wrong data for others)",
        "`reshape`: any to any, and never more than what must move",
        "reshape_4x6_to_6x4 reshape_crossing reshape_merge_uneven tests/ops/reshape_test.cpp"},
       {"rename_dimension, replace_dimensions", "`rename`, `reshape`", "rename rename_outer"},
       {"transpose, broadcast", "`transpose`, `broadcast`", "transpose broadcast"},
       {"concat, split, stack, unstack (not along a split dim)", "the same names; split dims too",
        "concat concat_of_sums split stack"},
       {"slice, pad (not along a split dim)", "`slice`, `pad`; split dims too", "slice pad"},
       {"shift", "`shift`", "shift"},
       {"dynamic_shift", "`dynamic_shift`", "dynamic_shift"},
       {"halo_exchange, left_halo_exchange",
        "`halo_exchange` over blocks; `conv`, pooling and `windows` need none",
        "halo_exchange windows"},
       {"one_hot, range", "`one_hot`, `iota`", "one_hot one_hot_on_off iota"},
       {"gather (an index out of range is a row of zeros)",
        "`gather`; an error, zero, drop or clamp, as you say",
        "gather gather_zero gather_drop gather_clamp"},
       {"-", "`scatter_add`, `scatter`, `dynamic_slice`, `dynamic_update`",
        "scatter_add scatter dynamic_slice dynamic_update"},
       {"-", "`fft`", "fft fft_of_factors"},
       {"constant, zeros, ones", "`constant`", "constant"},
       {"anonymize", "left out: a fetch brings a tensor whole", "tests/session/session_test.cpp"}}};
}

InventorySection convolutions() {
  return {
      "Convolution, pooling, spatial partitioning",
      {{"conv1d, conv2d, conv3d",
        "`conv`: any number of dims, stride, dilation, groups, same, valid or given padding",
        "conv1d_same conv1d_valid_dilated conv1d_given conv2d_same_2 conv2d_given conv3d"},
       {"an output size that is rounded down (fails for 7 x 7, stride 2)", "rounded up",
        "conv2d_same_2 conv2d_valid_2"},
       {"separable_conv1d, depthwise", "`conv` with groups", "conv_grouped conv_depthwise"},
       {"conv2d_transpose, conv3d_transpose (output channels not split)",
        "`conv_transpose`; any split", "conv_transpose conv_transpose_valid conv_transpose_sized"},
       {"conv2d_with_blocks, conv3d_with_blocks (wrong for a stride of 2)",
        "a rule: `height:rows;width:cols`; no dims of blocks",
        "conv2d_same_2 conv1d_far tests/lower/interval_test.cpp"},
       {"conv_transpose_with_blocks", "the same rule", "conv_transpose tests/ops/unet_test.cpp"},
       {"max_pool, avg_pool (window = stride, divisible)",
        "any window, stride and padding; elements that tie share a gradient",
        "max_pool max_pool_int avg_pool avg_pool_same"},
       {"batch_norm", "`nn::batch_norm`; any dims as channels, statistics over split dims",
        "tests/ops/unet_test.cpp tests/mesh_tensorflow/layers.cpp"},
       {"U-Net, 2-D and 3-D", "`nn::unet`", "tests/ops/unet_test.cpp"}}};
}

InventorySection control() {
  return {
      "Random numbers, gradients, side effects",
      {{"random_uniform, random_normal", "the same names; equal under every layout",
        "random_uniform random_normal truncated_normal"},
       {"dropout(noise_shape)", "`dropout`, `nn::dropout_shared`", "dropout dropout_shared"},
       {"gradients (None for what is not connected)", "`gradients`; zeros", "two_layers"},
       {"custom_gradient", "`custom_gradient`",
        "custom_gradient tests/grad/gradient_regions_test.cpp"},
       {"recompute_grad", "`recompute`; the same bits",
        "recompute tests/grad/gradient_regions_test.cpp"},
       {"Print", "`print`, `check_finite`", "print_check_finite tests/session/inspect_test.cpp"},
       {"depend", "left out: steps have no side effects to order",
        "docs/explanation/how-a-model-becomes-a-program.md"},
       {"import_tf_tensor, export_to_tf_tensor, laid-out import",
        "`Session::feed`, `feed_slices`, `fetch`; DLPack", "tests/session/dlpack_test.cpp"}}};
}

}  // namespace

std::vector<InventorySection> inventory() {
  std::vector<InventorySection> all = {types(),  pointwise(),    products(),
                                       shapes(), convolutions(), control()};
  for (InventorySection& section : layer_inventory()) all.push_back(std::move(section));
  return all;
}

}  // namespace tessera::test
