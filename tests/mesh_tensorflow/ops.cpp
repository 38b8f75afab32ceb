#include "mesh_tensorflow/ops.h"

namespace tessera::test {

namespace {

const Dim a("a", 3), b("b", 4), c("c", 2);

}  // namespace

// A case of one operand, of two, and an expression of g and x.
#define TESSERA_ONE(f) [](Graph&, const Tensors& x) -> Tensors { return {f(x[0])}; }
#define TESSERA_TWO(f) [](Graph&, const Tensors& x) -> Tensors { return {f(x[0], x[1])}; }
#define TESSERA_CASE(...)                                                       \
  [](Graph& g [[maybe_unused]], const Tensors& x [[maybe_unused]]) -> Tensors { \
    return __VA_ARGS__;                                                         \
  }

void add_mtf_pointwise(Builders& cases) {
  const Builders functions = {
      {"identity", TESSERA_ONE(identity)},
      {"sin", TESSERA_ONE(sin)},
      {"cos", TESSERA_ONE(cos)},
      {"square", TESSERA_ONE(square)},
      {"exp", TESSERA_ONE(exp)},
      {"sigmoid", TESSERA_ONE(sigmoid)},
      {"tanh", TESSERA_ONE(tanh)},
      {"negative", TESSERA_ONE(neg)},
      {"swish", TESSERA_ONE(silu)},
      {"gelu", TESSERA_ONE(gelu)},
      {"elu", TESSERA_ONE(elu)},
      {"selu", TESSERA_ONE(selu)},
      {"softplus", TESSERA_ONE(softplus)},
      {"relu", TESSERA_ONE(relu)},
      {"squared_relu", TESSERA_CASE({square(relu(x[0]))})},
      {"leaky_relu", TESSERA_ONE(leaky_relu)},
      {"sign", TESSERA_ONE(sign)},
      {"abs", TESSERA_ONE(abs)},
      {"sqrt", TESSERA_ONE(sqrt)},
      {"rsqrt", TESSERA_ONE(rsqrt)},
      {"log", TESSERA_ONE(log)},
      {"reciprocal", TESSERA_ONE(reciprocal)},
  };
  for (const auto& [name, build] : functions) {
    cases[name] = build;
    cases[name + "_corners"] = build;
  }
  for (const char* name : {"negative", "square", "sign", "abs"}) {
    cases[std::string(name) + "_int"] = functions.at(name);
  }
  cases["logical_not"] = TESSERA_ONE(logical_not);
  cases["leaky_relu_alpha"] = TESSERA_CASE({leaky_relu(x[0], 0.5)});
  cases["pow_int_exponent"] = TESSERA_CASE({pow(x[0], 3.0)});
  cases["pow_negative_base"] = TESSERA_CASE({pow(x[0], 3.0)});
  cases["pow_tensors"] = cases["pow_corners"] = TESSERA_TWO(pow);
  cases["stop_gradient"] = TESSERA_CASE({stop_gradient(x[0]) * x[0]});
  cases["clip_by_min_max"] = TESSERA_CASE({clip(x[0], -1, 1)});
  for (const char* name : {"to_int32", "to_int32_overflow", "bool_to_int", "int64_to_int32"}) {
    cases[name] = TESSERA_CASE({cast(x[0], DType::int32)});
  }
  for (const char* name : {"float_to_bool", "int_to_bool"}) {
    cases[name] = TESSERA_CASE({cast(x[0], DType::bool_)});
  }
  for (const char* name : {"to_float", "bool_to_float"}) {
    cases[name] = TESSERA_CASE({cast(x[0], DType::float32)});
  }
  cases["to_bfloat16"] = TESSERA_CASE({cast(cast(x[0], DType::bfloat16), DType::float32)});
  cases["cast_gradient"] = TESSERA_CASE({cast(cast(x[0], DType::bfloat16), DType::float32) * x[0]});
}

namespace {

void add_arithmetic(Builders& cases) {
  const Builders functions = {
      {"add", TESSERA_TWO(add)},         {"sub", TESSERA_TWO(sub)},
      {"multiply", TESSERA_TWO(mul)},    {"divide", TESSERA_TWO(div)},
      {"minimum", TESSERA_TWO(minimum)}, {"maximum", TESSERA_TWO(maximum)},
  };
  for (const auto& [name, build] : functions) {
    for (const char* end :
         {"", "_row", "_row_first", "_union", "_outer", "_other_order", "_crossed", "_of_ones"}) {
      cases[name + end] = build;
    }
    if (name != "divide") cases[name + "_int"] = build;
  }
  cases["add_scalar"] = TESSERA_CASE({x[0] + 0.5});
  cases["sub_scalar"] = TESSERA_CASE({x[0] - 0.5});
  cases["multiply_scalar"] = TESSERA_CASE({x[0] * 0.5});
  cases["divide_scalar"] = TESSERA_CASE({x[0] / 0.5});
  cases["minimum_scalar"] = TESSERA_CASE({minimum(x[0], 0.5)});
  cases["maximum_scalar"] = TESSERA_CASE({maximum(x[0], 0.5)});
  cases["divide_left_scalar"] = TESSERA_CASE({3.0 / x[0]});
  cases["sub_left_scalar"] = TESSERA_CASE({3.0 - x[0]});
  cases["divide_by_zero"] = TESSERA_TWO(div);
  cases["add_overflow"] = TESSERA_CASE({x[0] + x[1], x[0] - x[1], x[0] * x[1]});
  cases["add_n"] = TESSERA_CASE({x[0] + x[1] + x[2]});
  cases["add_to_shape"] = TESSERA_CASE({transpose(x[0] + x[1], {b, a})});
  cases["minimum_ties"] = TESSERA_TWO(minimum);
  cases["maximum_ties"] = TESSERA_TWO(maximum);
  cases["minimum_at_zero"] = TESSERA_CASE({minimum(x[0], 0.0)});
  cases["maximum_at_zero"] = TESSERA_CASE({maximum(x[0], 0.0)});
  cases["minimum_of_itself"] = TESSERA_CASE({minimum(x[0], x[0])});
  cases["maximum_of_itself"] = TESSERA_CASE({maximum(x[0], x[0])});
  for (const char* end : {"", "_int", "_int64", "_corners"}) {
    cases[std::string("floordiv") + end] = TESSERA_TWO(floor_div);
    cases[std::string("mod") + end] = TESSERA_TWO(mod);
  }
  cases["floordiv_scalar"] = TESSERA_CASE({floor_div(x[0], 4)});
  cases["mod_scalar"] = TESSERA_CASE({mod(x[0], 4)});
  cases["floordiv_left_scalar"] = TESSERA_CASE({floor_div(10, x[0])});
  cases["mod_left_scalar"] = TESSERA_CASE({mod(10, x[0])});
}

void add_logic(Builders& cases) {
  const Builders compared = {
      {"less", TESSERA_TWO(less)},       {"less_equal", TESSERA_TWO(less_equal)},
      {"greater", TESSERA_TWO(greater)}, {"greater_equal", TESSERA_TWO(greater_equal)},
      {"equal", TESSERA_TWO(equal)},     {"not_equal", TESSERA_TWO(not_equal)},
  };
  for (const auto& [name, build] : compared) cases[name] = cases[name + "_int"] = build;
  cases["less_scalar"] = TESSERA_CASE({x[0] < 1});
  cases["less_equal_scalar"] = TESSERA_CASE({x[0] <= 1});
  cases["greater_scalar"] = TESSERA_CASE({x[0] > 1});
  cases["greater_equal_scalar"] = TESSERA_CASE({x[0] >= 1});
  cases["equal_scalar"] = TESSERA_CASE({equal(x[0], 1)});
  cases["not_equal_scalar"] = TESSERA_CASE({not_equal(x[0], 1)});
  cases["equal_bool"] = TESSERA_TWO(equal);
  cases["logical_and"] = cases["logical_and_union"] = TESSERA_TWO(logical_and);
  cases["logical_or"] = cases["logical_or_union"] = TESSERA_TWO(logical_or);
  cases["where"] = cases["where_int"] = cases["where_other_is_nan"] =
      TESSERA_CASE({where(x[0], x[1], x[2])});
  cases["where_broadcast"] = cases["where_condition_wider"] =
      TESSERA_CASE({transpose(where(x[0], x[1], x[2]), {a, b})});
}

}  // namespace

void add_mtf_binary(Builders& cases) {
  add_arithmetic(cases);
  add_logic(cases);
}

void add_mtf_reductions(Builders& cases) {
#define TESSERA_REDUCTION(f)                                                     \
  for (const char* end : {"", "_of_one", "_corners", "_ties", "_int"}) {         \
    cases[std::string(#f) + end] = TESSERA_CASE({f(x[0], "b")});                 \
  }                                                                              \
  cases[#f "_to"] = TESSERA_CASE({f(x[0], {"a", "c"})});                         \
  cases[#f "_to_other_order"] = TESSERA_CASE({transpose(f(x[0], "b"), {c, a})}); \
  cases[#f "_all"] = TESSERA_CASE({f(x[0], {"a", "b"})});
  TESSERA_REDUCTION(reduce_sum)
  TESSERA_REDUCTION(reduce_mean)
  TESSERA_REDUCTION(reduce_max)
  TESSERA_REDUCTION(reduce_min)
#undef TESSERA_REDUCTION
  cases.erase("reduce_mean_int");
  cases["reduce_sum_int_overflow"] = TESSERA_ONE(sum_all);
  cases["reduce_all"] = TESSERA_CASE({reduce_all(x[0], "b")});
  cases["reduce_any"] = TESSERA_CASE({reduce_any(x[0], "b")});
  cases["reduce_all_to_scalar"] = TESSERA_CASE({reduce_all(x[0], {"a", "b"})});
  cases["reduce_any_to"] = TESSERA_CASE({reduce_any(x[0], {"b", "c"})});
  cases["reduce_first"] = cases["reduce_first_beside_nan"] =
      TESSERA_CASE({reduce_sum(slice(x[0], "b", 0, 1), "b")});
  for (const char* end : {"", "_large", "_corners", "_of_one"}) {
    cases[std::string("reduce_logsumexp") + end] = TESSERA_CASE({reduce_logsumexp(x[0], "b")});
    cases[std::string("softmax") + end] = TESSERA_CASE({softmax(x[0], "b")});
    cases[std::string("log_softmax") + end] = TESSERA_CASE({log_softmax(x[0], "b")});
  }
  // A further logit of 0.
  cases["reduce_logsumexp_extra_logit"] =
      TESSERA_CASE({reduce_logsumexp(pad(x[0], "b", 0, 1), "b")});
  cases["softmax_extra_logit"] =
      TESSERA_CASE({slice(softmax(pad(x[0], "b", 0, 1), "b"), "b", 0, 4)});
  cases["log_softmax_extra_logit"] =
      TESSERA_CASE({slice(log_softmax(pad(x[0], "b", 0, 1), "b"), "b", 0, 4)});
  cases["cumsum"] = cases["cumsum_int"] = TESSERA_CASE({cumsum(x[0], "b")});
  cases["cumsum_exclusive"] = cases["cumsum_of_one"] = TESSERA_CASE({cumsum(x[0], "b", true)});
}

void add_mtf_products(Builders& cases) {
  const Builder plain = [](Graph&, const Tensors& x) -> Tensors { return {einsum(x)}; };
  for (const char* name : {"einsum_matmul", "matmul", "einsum_reduces_shared", "einsum_alone",
                           "einsum_int", "einsum_scalar", "einsum_nan", "einsum_of_ones"}) {
    cases[name] = plain;
  }
  cases["einsum_batched"] = TESSERA_CASE({einsum(x, {a, b, Dim("d", 3)})});
  cases["einsum_three"] = TESSERA_CASE({einsum(x, {Dim("d", 3), a})});
  cases["einsum_square"] = TESSERA_CASE({einsum({x[0], x[0]})});
  cases["einsum_sum"] = TESSERA_CASE({einsum(x, {b})});
  cases["einsum_broadcasts"] = TESSERA_CASE({einsum(x, {Dim("e", 2), a, c})});
  cases["einsum_lone_dims"] =
      TESSERA_CASE({einsum({reduce_sum(x[0], "a"), reduce_sum(x[1], "c")}, {b})});
  cases["einsum_outer"] = TESSERA_CASE({einsum(x, {a, c})});
  cases["einsum_outer_reversed"] = TESSERA_CASE({einsum(x, {c, a})});
  cases["einsum_reduced_dims"] = TESSERA_CASE({einsum(x, {b})});
  cases["einsum_twice"] = TESSERA_CASE({einsum({x[0], reduce_sum(x[1], "c"), x[0]}, {a})});
}

void add_mtf_indexed(Builders& cases) {
  const Dim e("e", 5);
  cases["one_hot"] = cases["one_hot_int64"] = [e](Graph&, const Tensors& x) -> Tensors {
    return {one_hot(x[0], e)};
  };
  cases["one_hot_on_off"] = [e](Graph&, const Tensors& x) -> Tensors {
    return {one_hot(x[0], e, 2.5, -1.5)};
  };
  cases["one_hot_int"] = [e](Graph&, const Tensors& x) -> Tensors {
    return {one_hot(x[0], e, 7, -3, DType::int32)};
  };
  cases["one_hot_bool"] = [e](Graph&, const Tensors& x) -> Tensors {
    return {one_hot(x[0], e, 1, 0, DType::bool_)};
  };
  for (const char* end : {"", "_middle", "_outside", "_shared", "_shared_kept", "_int", "_bool",
                          "_repeats", "_beside_nan"}) {
    cases[std::string("gather") + end] = TESSERA_CASE({gather(x[0], x[1], "e", OutOfRange::zero)});
  }
  cases["gather_by_number"] = TESSERA_CASE({gather(x[0], constant(g, 3, DType::int32), "e")});
}

void add_mtf_ordered(Builders& cases) {
  auto top = [](int64_t k) -> Builder {
    return [k](Graph&, const Tensors& x) -> Tensors {
      const TopK found = top_k(x[0], "e", Dim("k", k));
      return {found.values, found.indices};
    };
  };
  const Builder first = [](Graph&, const Tensors& x) -> Tensors {
    const TopK found = top_1(x[0], "e");
    return {found.values, found.indices};
  };
  for (const char* end : {"", "_ties", "_infinite"}) {
    cases[std::string("argmax") + end] = TESSERA_CASE({argmax(x[0], "e")});
    cases[std::string("top_1") + end] = first;
    for (int k : {1, 2, 5}) cases["top_" + std::to_string(k) + "_of" + end] = top(k);
  }
  cases["top_3_of"] = top(3);
  cases["top_5_of_7"] = cases["top_5_int"] = top(5);
  cases["top_1_int"] = cases["top_1_nan"] = first;
  cases["argmax_of_one"] = cases["sample_with_temperature_0"] = TESSERA_CASE({argmax(x[0], "e")});
  for (int n : {0, 1, 4}) {
    cases["nth_largest_" + std::to_string(n)] = [n](Graph&, const Tensors& x) -> Tensors {
      return {nth_largest(x[0], "e", n)};
    };
    cases["nth_smallest_" + std::to_string(n)] = [n](Graph&, const Tensors& x) -> Tensors {
      return {nth_smallest(x[0], "e", n)};
    };
  }
}

}  // namespace tessera::test
