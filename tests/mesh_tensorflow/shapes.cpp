// Cases that move elements, windows, loops and gradients.
#include "mesh_tensorflow/ops.h"
#include "tessera/loops.h"

namespace tessera::test {

namespace {

const Dim a("a", 3), b("b", 4), c("c", 2), m("m", 8), p2("p", 2), q4("q", 4);

// A case that is an expression of g and x.
#define TESSERA_CASE(...)                                                        \
  [=](Graph& g [[maybe_unused]], const Tensors& x [[maybe_unused]]) -> Tensors { \
    return __VA_ARGS__;                                                          \
  }

void add_shifts(Builders& cases) {
  for (bool wrap : {false, true}) {
    const std::string end = wrap ? "_wrap" : "";
    for (int offset : {-7, -6, -3, -1, 0, 2, 5, 6, 9}) {
      cases["shift_" + std::to_string(offset) + end] =
          TESSERA_CASE({shift(x[0], "e", offset, wrap)});
    }
    cases["dynamic_shift" + end] = cases["dynamic_shift_rows" + end] =
        TESSERA_CASE({dynamic_shift(x[0], x[1], "e", wrap)});
    for (int halo : {1, 2, 3, 5}) {
      const std::string size = std::to_string(halo);
      cases["halo_exchange_" + size + end] =
          TESSERA_CASE({halo_exchange(x[0], "b", "c", halo, halo, wrap)});
      cases["left_halo_exchange_" + size + end] =
          TESSERA_CASE({halo_exchange(x[0], "b", "c", halo, 0, wrap)});
    }
  }
}

void add_parts(Builders& cases) {
  cases["slice"] = TESSERA_CASE({slice(x[0], "e", 1, 4)});
  cases["slice_one"] = TESSERA_CASE({slice(x[0], "e", 5, 1)});
  cases["slice_int"] = TESSERA_CASE({slice(x[0], "e", 0, 6)});
  cases["pad"] = TESSERA_CASE({pad(x[0], "e", 1, 2)});
  cases["pad_int"] = TESSERA_CASE({pad(x[0], "e", 0, 3)});
  cases["concat"] = TESSERA_CASE({concat(x, "e")});
  cases["concat_with_itself"] = TESSERA_CASE({concat({x[0], x[0] * 2.0, x[0]}, "e")});
  cases["split"] = TESSERA_CASE(split(x[0], "e", {1, 3, 2}));
  cases["split_equal"] = TESSERA_CASE(split(x[0], "e", {2, 2, 2}));
  cases["split_unused"] = TESSERA_CASE({split(x[0], "e", {2, 2, 2})[1]});
  cases["stack"] = TESSERA_CASE({stack({x[0], x[1], x[0]}, "s")});
  cases["stack_last"] = TESSERA_CASE({transpose(stack(x, "s"), {a, b, Dim("s", 2)})});
  cases["unstack"] = TESSERA_CASE(unstack(x[0], "b"));
}

}  // namespace

void add_mtf_shapes(Builders& cases) {
  add_shifts(cases);
  add_parts(cases);
  cases["reshape_merge"] = TESSERA_CASE({reshape(x[0], {a, m})});
  cases["reshape_split"] = TESSERA_CASE({reshape(x[0], {a, c, b})});
  cases["reshape_crossing"] = TESSERA_CASE({reshape(x[0], {Dim("p", 6), Dim("q", 2), c})});
  cases["reshape_ones"] = TESSERA_CASE({reshape(x[0], {Dim("p", 1), a, b, Dim("q", 1)})});
  cases["reshape_int"] = TESSERA_CASE({reshape(x[0], {Dim("m", 12)})});
  cases["rename"] = TESSERA_CASE({rename(x[0], "a", "z")});
  cases["rename_to_outer"] = TESSERA_CASE({x[0] * rename(x[0], "a", "z")});
  cases["replace_dimensions"] = TESSERA_CASE({reshape(x[0], {a, p2, q4})});
  cases["transpose"] = TESSERA_CASE({transpose(x[0], {c, a, b})});
  cases["broadcast"] = TESSERA_CASE({broadcast(x[0], {b, c, a})});
  cases["broadcast_int"] = TESSERA_CASE({broadcast(x[0], {a, b})});
  cases["range"] = TESSERA_CASE({iota(g, b), iota(g, b, DType::float32)});
  cases["constants"] =
      TESSERA_CASE({constant(g, 2.5, DType::float32, {a, b}), constant(g, 0, DType::int32, {a}),
                    constant(g, 1, DType::float32, {b}), constant(g, 0, x[0].dtype(), {a, b}),
                    constant(g, 1, x[0].dtype(), {a, b})});
  cases["dropout_of_nothing"] = TESSERA_CASE({dropout(x[0], 0)});
  cases["pool_tensor_1d"] = TESSERA_CASE({avg_pool(x[0], {{{"e", 2}}})});
  cases["pool_tensor_1d_max"] = TESSERA_CASE({max_pool(x[0], {{{"e", 3}}})});
  cases["stride_tensor_1d"] =
      TESSERA_CASE({reduce_sum(windows(x[0], "e", Dim("k", 1), {.stride = 3}), "k")});
}

void add_mtf_windows(Builders& cases) {
  auto conv_of = [](std::vector<ConvDim> dims, Padding padding) -> Builder {
    return TESSERA_CASE({conv(x[0], x[1], {dims, padding})});
  };
  auto transposed = [](std::vector<ConvDim> dims, Padding padding) -> Builder {
    return TESSERA_CASE({conv_transpose(x[0], x[1], {dims, padding})});
  };
  const ConvDim d{"d", "fd"}, h{"h", "fh"}, w{"w", "fw"}, h2{"h", "fh", 2}, w2{"w", "fw", 2};
  for (Padding padding : {Padding::same, Padding::valid}) {
    const std::string end = padding == Padding::same ? "same" : "valid";
    for (const char* kind : {"", "even_", "two_batches_"}) {
      cases["conv2d_" + (kind + end)] = conv_of({h, w}, padding);
    }
    cases["conv3d_" + end] = conv_of({d, h, w}, padding);
  }
  cases["conv2d_same_2"] = conv_of({h2, {"w", "fw", 3}}, Padding::same);
  cases["conv2d_valid_2"] = conv_of({h2, w2}, Padding::valid);
  cases["conv2d_pixel"] = conv_of({h, w}, Padding::same);
  cases["conv1d"] = conv_of({w2}, Padding::same);
  cases["conv3d_same_2"] = conv_of({d, h2, w2}, Padding::same);
  for (const char* name : {"2", "of_3_by_2"}) {
    cases[std::string("conv2d_transpose_") + name] = transposed({h2, w2}, Padding::same);
  }
  cases["conv2d_transpose_of_3_by_1"] = transposed({h, w}, Padding::same);
  cases["conv2d_transpose_of_2_by_3"] = transposed({{"h", "fh", 3}, {"w", "fw", 3}}, Padding::same);
  cases["conv2d_transpose_valid"] = transposed({h2, w2}, Padding::valid);
  cases["conv3d_transpose"] = transposed({{"d", "fd", 2}, h2, w2}, Padding::same);
  // Blocks are dims of Mesh TensorFlow's; here an image is whole, whatever splits it.
  cases["conv2d_layer_of_blocks"] = [=](Graph&, const Tensors& x) -> Tensors {
    const Dim n("n", 1), hb("hb", 2), wb("wb", 2), o("o", 2);
    const Tensor rows = transpose(x[0], {n, hb, Dim("h", 2), wb, Dim("w", 2), Dim("i", 2)});
    const Tensor image = reshape(rows, {n, Dim("h", 4), Dim("w", 4), Dim("i", 2)});
    const Tensor y = conv(image, x[1], {{h, w}});
    return {transpose(reshape(y, {n, hb, Dim("h", 2), wb, Dim("w", 2), o}),
                      {n, hb, wb, Dim("h", 2), Dim("w", 2), o})};
  };
  cases["max_pool2d"] = TESSERA_CASE({max_pool(x[0], {{{"h", 2}, {"w", 3}}})});
  cases["avg_pool2d"] = TESSERA_CASE({avg_pool(x[0], {{{"h", 2}, {"w", 3}}})});
  cases["max_pool2d_ties"] = TESSERA_CASE({max_pool(x[0], {{{"h", 2}, {"w", 2}}})});
  cases["avg_pool2d_ties"] = TESSERA_CASE({avg_pool(x[0], {{{"h", 2}, {"w", 2}}})});
  cases["max_pool3d"] = TESSERA_CASE({max_pool(x[0], {{{"d", 2}, {"h", 2}, {"w", 2}}})});
  cases["avg_pool3d"] = TESSERA_CASE({avg_pool(x[0], {{{"d", 2}, {"h", 2}, {"w", 2}}})});
}

void add_mtf_control(Builders& cases) {
  cases["while_loop"] = cases["while_loop_no_trip"] = [](Graph&, const Tensors& x) -> Tensors {
    return while_loop([](const Tensors& carry) { return At(carry[1]) < 5; },
                      [](const Iteration& iteration) -> IterationResults {
                        return {{iteration.carries[0] * 2.0 + 1.0, iteration.carries[1] + 1}};
                      },
                      x, 10)
        .carries;
  };
  cases["while_loop_of_data"] = [](Graph&, const Tensors& x) -> Tensors {
    return while_loop([](const Tensors& carry) { return sum_all(carry[0]) < 50; },
                      [](const Iteration& iteration) -> IterationResults {
                        return {{iteration.carries[0] * 1.5, iteration.carries[0]}};
                      },
                      {x[0], x[0]}, 10)
        .carries;
  };
  cases["while_loop_accumulators"] = [](Graph&, const Tensors& x) -> Tensors {
    const IterationResults all =
        while_loop([](const Tensors& carry) { return At(carry[0]) < 3; },
                   [&](const Iteration& iteration) -> IterationResults {
                     const Tensor i = cast(iteration.carries[0], DType::float32);
                     return {{iteration.carries[0] + 1}, {}, {reduce_sum(x[0] * i, "a")}};
                   },
                   {x[1]}, 10);
    return {all.carries[0], all.sums[0]};
  };
  cases["recompute_grad"] = [](Graph& g, const Tensors& x) -> Tensors {
    return recompute(g, [&]() -> Tensors { return {tanh(einsum({exp(x[0]), x[1]}))}; });
  };
  cases["custom_gradient"] = [](Graph&, const Tensors& x) -> Tensors {
    return custom_gradient(
        x, [](const Tensors& t) -> Tensors { return {square(t[0])}; },
        [](const Tensors& t, const Tensors&, const Tensors& dy) -> Tensors {
          return {dy[0] * t[0] * 10.0};
        });
  };
  cases["not_connected"] = TESSERA_CASE({sin(x[0])});
  cases["second_order"] = TESSERA_CASE(gradients(sum_all(log(x[0]) * x[0] * x[0]), {x[0]}));
}

void add_mtf_dtypes(Builders& cases) {
  for (DType dtype : {DType::bfloat16, DType::float16, DType::float64}) {
    for (const char* name : {"add", "sub", "multiply", "divide", "minimum", "maximum", "exp",
                             "tanh", "sigmoid", "gelu", "softplus", "square", "sqrt", "less",
                             "einsum", "reduce_sum", "reduce_mean", "softmax", "cumsum"}) {
      const std::string from = std::string(name) == "einsum" ? "einsum_matmul" : name;
      const Builder plain = cases.at(from);
      cases[std::string(name) + "_" + to_string(dtype)] = [=](Graph& g,
                                                              const Tensors& x) -> Tensors {
        Tensors narrow;
        for (const Tensor& operand : x) narrow.push_back(cast(operand, dtype));
        return {cast(plain(g, narrow)[0], DType::float32)};
      };
    }
  }
  cases["int64_arithmetic"] =
      TESSERA_CASE({x[0] + x[1], x[0] - x[1], x[0] * x[1], maximum(x[0], x[1]), less(x[0], x[1])});
  cases["uint8_arithmetic"] = TESSERA_CASE({x[0] + x[1], maximum(x[0], x[1]), less(x[0], x[1])});
  cases["int_to_bfloat16"] = TESSERA_CASE({cast(cast(x[0], DType::bfloat16), DType::float32)});
  cases["float_to_float16"] = TESSERA_CASE({cast(cast(x[0], DType::float16), DType::float32)});
  cases["int_to_uint8"] = cases["float_to_uint8"] = TESSERA_CASE({cast(x[0], DType::uint8)});
  cases["int_to_int64"] = cases["float_to_int64"] = TESSERA_CASE({cast(x[0], DType::int64)});
  cases["uint8_to_float"] = TESSERA_CASE({cast(x[0], DType::float32)});
}

#undef TESSERA_CASE

}  // namespace tessera::test
