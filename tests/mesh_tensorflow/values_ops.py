"""Writes ops.json: what the operations of Mesh TensorFlow and their gradients give on small inputs.

    benchmarks/peers/mesh_tensorflow/.venv/bin/python tests/mesh_tensorflow/values_ops.py

tests/mesh_tensorflow_ops_test.cpp makes each case again with Tessera. The output is a function of this file and of the version
of Mesh TensorFlow.
"""
import os

from record import case, flags, given, integers, mtf, np, real, tf, write

Dim, Shape = mtf.Dimension, mtf.Shape
nan, inf = float("nan"), float("inf")
a, b, c = Dim("a", 3), Dim("b", 4), Dim("c", 2)
AB, BC = "a=3 b=4", "b=4 c=2"


def pointwise():
    smooth = ["identity", "sin", "cos", "square", "exp", "sigmoid", "tanh", "negative", "swish", "gelu", "elu", "selu", "softplus",
              "relu", "squared_relu", "leaky_relu", "sign", "abs"]
    for name in smooth:
        case(name, [real(AB, -3, 3)], lambda mesh, x, f=getattr(mtf, name): f(x))
    for name in ["sqrt", "rsqrt", "log", "reciprocal"]:
        case(name, [real(AB, 0.1, 4)], lambda mesh, x, f=getattr(mtf, name): f(x))
    corners = given("a=3 b=5", [0, -0.0, inf, -inf, nan, 1, -1, 1e-30, -1e-30, 1e30, -1e30, 88, -88, 20, -20])
    for name in smooth + ["sqrt", "rsqrt", "log", "reciprocal"]:
        case(name + "_corners", [corners], lambda mesh, x, f=getattr(mtf, name): f(x))
    case("logical_not", [flags(AB)], lambda mesh, x: mtf.logical_not(x))
    case("leaky_relu_alpha", [given(AB, [-3, -2, -1, 0, 0, 0, 1, 2, 3, -0.5, 0.5, 4])], lambda mesh, x: mtf.leaky_relu(x, 0.5))
    for name in ["negative", "square", "sign", "abs"]:
        case(name + "_int", [integers(AB)], lambda mesh, x, f=getattr(mtf, name): f(x))
    case("pow_int_exponent", [real(AB, 0.2, 2)], lambda mesh, x: mtf.pow(x, 3.0))
    case("pow_negative_base", [given("a=3", [-2, -1, 2])], lambda mesh, x: mtf.pow(x, 3.0))
    case("pow_tensors", [real(AB, 0.2, 2), real("b=4", -2, 2)], lambda mesh, x, y: mtf.pow(x, y))
    case("pow_corners", [given("a=5", [0, 1, 2, inf, nan]), given("b=4", [0, 1, 2, -1])], lambda mesh, x, y: mtf.pow(x, y))
    case("stop_gradient", [real(AB)], lambda mesh, x: mtf.stop_gradient(x) * x)
    case("to_int32", [given("a=9", [3.9, -3.9, 0.5, -0.5, 2.5, -2.5, 0, 1e9, -1e9])], lambda mesh, x: mtf.to_int32(x))
    case("to_int32_overflow", [given("a=5", [3e9, -3e9, inf, -inf, nan])], lambda mesh, x: mtf.to_int32(x))
    case("to_float", [given("a=6", [0, 1, -7, 16777217, 2147483647, -2147483648], np.int32)], lambda mesh, x: mtf.to_float(x))
    case("to_bfloat16", [given("a=8", [1, 1.00390625, 1.01171875, -1.00390625, 3.14159, 1e-30, 65504, 3.3e38])],
         lambda mesh, x: mtf.to_float(mtf.to_bfloat16(x)))
    case("float_to_bool", [given("a=6", [0, -0.0, 0.5, -1, nan, inf])], lambda mesh, x: mtf.cast(x, tf.bool))
    case("bool_to_float", [flags(AB)], lambda mesh, x: mtf.to_float(x))
    case("bool_to_int", [flags(AB)], lambda mesh, x: mtf.to_int32(x))
    case("int_to_bool", [integers(AB, -1, 1)], lambda mesh, x: mtf.cast(x, tf.bool))
    case("int64_to_int32", [given("a=4", [1, -1, 4294967297, 2147483648], np.int64)], lambda mesh, x: mtf.to_int32(x))
    case("cast_gradient", [real(AB)], lambda mesh, x: mtf.to_float(mtf.to_bfloat16(x)) * x)
    case("clip_by_min_max", [given(AB, [-3, -1, -0.5, 0, 0.5, 1, 3, 2, -2, nan, inf, -inf])],
         lambda mesh, x: mtf.minimum(mtf.maximum(x, -1.0), 1.0))


def binary():
    pairs = {"add": mtf.add, "sub": mtf.sub, "multiply": mtf.multiply, "divide": mtf.divide, "minimum": mtf.minimum,
             "maximum": mtf.maximum}
    for name, f in pairs.items():
        case(name, [real(AB), real(AB, 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_row", [real(AB), real("b=4", 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_row_first", [real("b=4"), real(AB, 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_union", [real(AB), real(BC, 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_outer", [real("a=3"), real("b=4", 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_other_order", [real(AB), real("b=4 a=3", 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_crossed", [real("c=2 a=3"), real("a=3 b=4 c=2", 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_scalar", [real(AB)], lambda mesh, x, f=f: f(x, 0.5))
        case(name + "_of_ones", [real("a=1 b=4"), real("b=4 c=1", 0.5, 2)], lambda mesh, x, y, f=f: f(x, y))
    for name in ["add", "sub", "multiply", "minimum", "maximum"]:
        case(name + "_int", [integers(AB), integers("b=4")], lambda mesh, x, y, f=pairs[name]: f(x, y))
    case("divide_left_scalar", [real(AB, 0.5, 3)], lambda mesh, x: 3.0 / x)
    case("sub_left_scalar", [real(AB)], lambda mesh, x: 3.0 - x)
    case("divide_by_zero", [given("a=4", [1, -1, 0, nan]), given("c=2", [0, -0.0])], lambda mesh, x, y: x / y)
    case("add_overflow", [given("a=3", [2147483647, -2147483648, 5], np.int32), given("c=2", [1, -1], np.int32)],
         lambda mesh, x, y: [x + y, x - y, x * y])
    case("add_n", [real(AB), real("b=4"), real("a=3")], lambda mesh, x, y, z: mtf.add_n([x, y, z]))
    case("add_to_shape", [real("a=3"), real("b=4")], lambda mesh, x, y: mtf.add(x, y, output_shape=Shape([b, a])))
    ties = [given(AB, [1, 2, 3, 4, -1, 0, 0, 2, nan, inf, -inf, 0]), given("b=4", [1, 0, 3, 2])]
    for name in ["minimum", "maximum"]:
        case(name + "_ties", ties, lambda mesh, x, y, f=pairs[name]: f(x, y))
        case(name + "_at_zero", [given("a=5", [-1, 0, 1, 0, -0.0])], lambda mesh, x, f=pairs[name]: f(x, 0.0))
        case(name + "_of_itself", [real("a=3")], lambda mesh, x, f=pairs[name]: f(x, x))
    signs = [-7, 7, -6, 6, 0, -1, 1, 2147483647, -2147483648]
    divisors = [3, -3, 2, -2, 7]
    for name, f in {"floordiv": mtf.floordiv, "mod": mtf.mod}.items():
        case(name, [given("a=9", [-7, 7, -6, 6, 0, -1, 1, -0.5, 7.25]), given("b=4", [3, -3, 2.5, -0.5])],
             lambda mesh, x, y, f=f: f(x, y), gradient=False)
        case(name + "_int", [given("a=9", signs, np.int32), given("b=5", divisors, np.int32)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_int64", [given("a=9", signs, np.int64), given("b=5", divisors, np.int64)], lambda mesh, x, y, f=f: f(x, y))
        case(name + "_scalar", [integers(AB)], lambda mesh, x, f=f: f(x, 4))
        case(name + "_left_scalar", [given("a=4", [3, -3, 4, -4], np.int32)], lambda mesh, x, f=f: f(10, x))
        case(name + "_corners", [given("a=6", [1, -1, 0, inf, -inf, nan]), given("b=5", [0, -0.0, inf, -inf, 3])],
             lambda mesh, x, y, f=f: f(x, y), gradient=False)


def logic():
    compared = ["less", "less_equal", "greater", "greater_equal", "equal", "not_equal"]
    for name in compared:
        case(name, [given(AB, [1, 2, 3, 4, -1, 0, -0.0, nan, inf, -inf, 0.5, 2]), given("b=4", [1, 0, 3, nan])],
             lambda mesh, x, y, f=getattr(mtf, name): f(x, y))
        case(name + "_int", [integers(AB, -2, 2), integers(BC, -2, 2)], lambda mesh, x, y, f=getattr(mtf, name): f(x, y))
        case(name + "_scalar", [integers(AB, -2, 2)], lambda mesh, x, f=getattr(mtf, name): f(x, 1))
    for name in ["logical_and", "logical_or"]:
        case(name, [flags(AB), flags("b=4")], lambda mesh, x, y, f=getattr(mtf, name): f(x, y))
        case(name + "_union", [flags(AB), flags(BC)], lambda mesh, x, y, f=getattr(mtf, name): f(x, y))
    case("equal_bool", [flags(AB), flags("b=4")], lambda mesh, x, y: mtf.equal(x, y))
    case("where", [flags(AB), real(AB), real(AB)], lambda mesh, p, x, y: mtf.where(p, x, y))
    case("where_broadcast", [flags("b=4"), real(AB), real("a=3")],
         lambda mesh, p, x, y: mtf.where(p, x, y, output_shape=Shape([a, b])))
    case("where_condition_wider", [flags(AB), real("b=4"), real("a=3")],
         lambda mesh, p, x, y: mtf.where(p, x, y, output_shape=Shape([a, b])))
    case("where_int", [flags(AB), integers(AB), integers("b=4")], lambda mesh, p, x, y: mtf.where(p, x, y))
    case("where_other_is_nan", [given("a=4", [1, 0, 1, 0], np.bool_), given("a=4", [1, nan, 2, inf]), given("a=4", [nan, 3, inf, 4])],
         lambda mesh, p, x, y: mtf.where(p, x, y))


def reductions():
    reductions = {name: getattr(mtf, "reduce_" + name) for name in ["sum", "mean", "max", "min"]}
    for name, f in reductions.items():
        case("reduce_" + name, [real("a=3 b=4 c=2")], lambda mesh, x, f=f: f(x, reduced_dim=b))
        case(f"reduce_{name}_to", [real("a=3 b=4 c=2")], lambda mesh, x, f=f: f(x, output_shape=Shape([b])))
        case(f"reduce_{name}_to_other_order", [real("a=3 b=4 c=2")], lambda mesh, x, f=f: f(x, output_shape=Shape([c, a])))
        case(f"reduce_{name}_all", [real(AB)], lambda mesh, x, f=f: f(x))
        case(f"reduce_{name}_of_one", [real("a=3 b=1")], lambda mesh, x, f=f: f(x, reduced_dim=Dim("b", 1)))
        case(f"reduce_{name}_corners", [given("a=6 b=3", [1, nan, 2, inf, 1, 0, -inf, 1, 0, inf, -inf, 0, -inf, -inf, -inf, 0, -0.0, 0])],
             lambda mesh, x, f=f: f(x, reduced_dim=Dim("b", 3)))
        case(f"reduce_{name}_ties", [given(AB, [1, 2, 2, 0, 3, 3, 3, 3, 0, -0.0, 0, -1])], lambda mesh, x, f=f: f(x, reduced_dim=b))
        if name != "mean":
            case(f"reduce_{name}_int", [integers("a=3 b=4 c=2")], lambda mesh, x, f=f: f(x, reduced_dim=b))
    case("reduce_sum_int_overflow", [given("a=3", [2147483647, 1, 5], np.int32)], lambda mesh, x: mtf.reduce_sum(x))
    case("reduce_all", [given(AB, [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1], np.bool_)], lambda mesh, x: mtf.reduce_all(x, reduced_dim=b))
    case("reduce_any", [given(AB, [1, 1, 1, 1, 0, 0, 0, 0, 1, 0, 1, 1], np.bool_)], lambda mesh, x: mtf.reduce_any(x, reduced_dim=b))
    case("reduce_all_to_scalar", [flags(AB)], lambda mesh, x: mtf.reduce_all(x))
    case("reduce_any_to", [flags("a=3 b=4 c=2")], lambda mesh, x: mtf.reduce_any(x, output_shape=Shape([a])))
    case("reduce_first", [real(AB)], lambda mesh, x: mtf.reduce_first(x, reduced_dim=b))
    case("reduce_first_beside_nan", [given("a=2 b=2", [1, nan, 2, 3])], lambda mesh, x: mtf.reduce_first(x, reduced_dim=Dim("b", 2)))
    logits = given("a=6 b=3", [1, 2, 3, 1000, 1000, 999, -1000, -1000, -999, -inf, 0, 1, -inf, -inf, 2, 5, 5, 5])
    unreal = given("a=4 b=3", [-inf, -inf, -inf, inf, 0, 1, nan, 0, 1, inf, inf, -inf])
    for name in ["reduce_logsumexp", "softmax", "log_softmax"]:
        f = getattr(mtf, name)
        case(name, [real("a=3 b=4 c=2")], lambda mesh, x, f=f: f(x, b))
        case(name + "_large", [logits], lambda mesh, x, f=f: f(x, Dim("b", 3)))
        case(name + "_corners", [unreal], lambda mesh, x, f=f: f(x, Dim("b", 3)))
        case(name + "_of_one", [real("a=3 b=1")], lambda mesh, x, f=f: f(x, Dim("b", 1)))
        case(name + "_extra_logit", [real(AB)], lambda mesh, x, f=f: f(x, b, extra_logit=0.0))
    case("cumsum", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.cumsum(x, b))
    case("cumsum_exclusive", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.cumsum(x, b, exclusive=True))
    case("cumsum_int", [integers("a=3 b=4")], lambda mesh, x: mtf.cumsum(x, b))
    case("cumsum_of_one", [real("a=3 b=1")], lambda mesh, x: mtf.cumsum(x, Dim("b", 1), exclusive=True))


def products():
    case("einsum_matmul", [real(AB), real(BC)], lambda mesh, x, y: mtf.einsum([x, y]))
    case("matmul", [real(AB), real(BC)], lambda mesh, x, y: mtf.matmul(x, y, reduced_dims=[b]))
    case("einsum_batched", [real("a=3 b=4 c=2"), real("d=3 c=2 a=3")],
         lambda mesh, x, y: mtf.einsum([x, y], output_shape=Shape([a, b, Dim("d", 3)])))
    case("einsum_reduces_shared", [real("a=3 b=4"), real("a=3 b=4 c=2")], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_three", [real(AB), real(BC), real("c=2 d=3")],
         lambda mesh, x, y, z: mtf.einsum([x, y, z], output_shape=Shape([Dim("d", 3), a])))
    case("einsum_square", [given("a=6", [0, 1, 2, 3, 4, 5])], lambda mesh, x: mtf.einsum([x, x]))
    case("einsum_alone", [real(AB)], lambda mesh, x: mtf.einsum([x]))
    case("einsum_sum", [real(AB)], lambda mesh, x: mtf.einsum([x], output_shape=Shape([b])))
    case("einsum_broadcasts", [real(AB), real(BC)], lambda mesh, x, y: mtf.einsum([x, y], output_shape=Shape([Dim("e", 2), a, c])))
    case("einsum_lone_dims", [real(AB), real(BC)], lambda mesh, x, y: mtf.einsum([x, y], output_shape=Shape([b])))
    case("einsum_outer", [real("a=3"), real("c=2")], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_outer_reversed", [real("a=3"), real("c=2")], lambda mesh, x, y: mtf.einsum([x, y], output_shape=Shape([c, a])))
    case("einsum_reduced_dims", [real(AB), real(AB)], lambda mesh, x, y: mtf.einsum([x, y], reduced_dims=[a]))
    case("einsum_int", [integers(AB), integers(BC)], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_scalar", [real(AB), real("")], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_nan", [given("a=2 b=2", [nan, 1, 2, inf]), given("b=2 c=2", [0, 1, 2, 0])], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_of_ones", [real("a=1 b=1"), real("b=1 c=2")], lambda mesh, x, y: mtf.einsum([x, y]))
    case("einsum_twice", [real(AB), real(BC)], lambda mesh, x, y: mtf.einsum([x, y, x], output_shape=Shape([a])))


def indexed():
    outside = given("a=6", [0, 4, -1, 5, 2, 100], np.int32)
    e = Dim("e", 5)
    case("one_hot", [outside], lambda mesh, i: mtf.one_hot(i, e))
    case("one_hot_on_off", [outside], lambda mesh, i: mtf.one_hot(i, e, on_value=2.5, off_value=-1.5))
    case("one_hot_int", [integers("a=3 b=4", 0, 4)], lambda mesh, i: mtf.one_hot(i, e, on_value=7, off_value=-3, dtype=tf.int32))
    case("one_hot_bool", [integers("a=3", 0, 4)], lambda mesh, i: mtf.one_hot(i, e, on_value=True, off_value=False, dtype=tf.bool))
    case("one_hot_int64", [given("a=4", [0, 3, 5, 4], np.int64)], lambda mesh, i: mtf.one_hot(i, e))
    case("gather", [real("e=5 c=2"), integers(AB, 0, 4)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_middle", [real("c=2 e=5 d=3"), integers("a=3", 0, 4)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_outside", [real("e=5 c=2"), outside], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_shared", [real("a=3 e=5"), integers("a=3", 0, 4)],
         lambda mesh, w, i: mtf.gather(w, i, e, output_shape=Shape([a])))
    case("gather_shared_kept", [real("a=3 e=5 c=2"), integers(AB, 0, 4)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_by_number", [real("e=5 c=2")], lambda mesh, w: mtf.gather(w, 3, e))
    case("gather_int", [integers("e=5 c=2"), integers("a=3", 0, 4)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_bool", [flags("e=5 c=2"), integers("a=3", 0, 4)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_repeats", [real("e=5 c=2"), given("a=4", [1, 1, 1, 3], np.int32)], lambda mesh, w, i: mtf.gather(w, i, e))
    case("gather_beside_nan", [given("e=5", [nan, 1, inf, 3, 4]), given("a=2", [1, 3], np.int32)], lambda mesh, w, i: mtf.gather(w, i, e))


def ordered():
    ties = given("a=4 e=5", [1, 3, 3, 2, 3, 0, 0, 0, 0, 0, 5, 4, 3, 2, 1, -1, -2, -1, -2, -3])
    e = Dim("e", 5)
    strange = given("a=3 e=5", [inf, 1, inf, 2, -inf, -inf, -inf, -inf, -inf, -inf, 0, -0.0, 1, inf, -1])
    for name, x in {"": real("a=3 e=5 c=2"), "_ties": ties, "_infinite": strange}.items():
        case("argmax" + name, [x], lambda mesh, x: mtf.argmax(x, e))
        case("top_1" + name, [x], lambda mesh, x: mtf.top_1(x, e))
        for k in [1, 2, 5]:
            case(f"top_{k}_of{name}", [x], lambda mesh, x, k=k: mtf.top_k(x, e, Dim("k", k)))
    case("top_3_of", [real("a=3 e=5 c=2")], lambda mesh, x: mtf.top_k(x, e, Dim("k", 3)))
    case("top_5_of_7", [real("e=7 a=3")], lambda mesh, x: mtf.top_k(x, Dim("e", 7), Dim("k", 5)))
    case("top_1_int", [integers("a=3 e=5", -3, 3)], lambda mesh, x: mtf.top_1(x, e))
    case("top_5_int", [integers("a=3 e=5", -3, 3)], lambda mesh, x: mtf.top_k(x, e, Dim("k", 5)))
    case("top_1_nan", [given("a=3 e=3", [1, nan, 2, nan, 3, 1, 1, 2, nan])], lambda mesh, x: mtf.top_1(x, Dim("e", 3)))
    case("argmax_of_one", [real("a=3 e=1")], lambda mesh, x: mtf.argmax(x, Dim("e", 1)))
    for n in [0, 1, 4]:
        case(f"nth_largest_{n}", [real("a=3 e=5")], lambda mesh, x, n=n: mtf.nth_largest_element(x, n, e))
        case(f"nth_smallest_{n}", [ties], lambda mesh, x, n=n: mtf.nth_smallest_element(x, n, e))
    case("sample_with_temperature_0", [real("a=3 e=5")], lambda mesh, x: mtf.sample_with_temperature(x, e, temperature=0.0))


def dtypes():
    for dtype in [tf.bfloat16, tf.float16, tf.float64]:
        def of(f, dtype=dtype):
            return lambda mesh, *xs: mtf.to_float(f(*[mtf.cast(x, dtype) for x in xs]))
        end = "_" + dtype.name
        for name in ["add", "sub", "multiply", "divide", "minimum", "maximum"]:
            case(name + end, [real(AB), real("b=4", 0.5, 2)], of(getattr(mtf, name)), gradient=name not in ["minimum", "maximum"])
        for name in ["exp", "tanh", "sigmoid", "gelu", "softplus", "square"]:
            case(name + end, [real(AB)], of(getattr(mtf, name)))
        case("sqrt" + end, [real(AB, 0.5, 4)], of(mtf.sqrt))
        case("less" + end, [real(AB), real("b=4")], of(mtf.less), gradient=False)
        case("einsum" + end, [real(AB), real(BC)], of(lambda x, y: mtf.einsum([x, y])))
        case("reduce_sum" + end, [real(AB)], of(lambda x: mtf.reduce_sum(x, reduced_dim=b)))
        case("reduce_mean" + end, [real(AB)], of(lambda x: mtf.reduce_mean(x, reduced_dim=b)))
        case("softmax" + end, [real(AB)], of(lambda x: mtf.softmax(x, b)))
        case("cumsum" + end, [real(AB)], of(lambda x: mtf.cumsum(x, b)))
    case("int64_arithmetic", [given("a=3", [2**40, -2**40, 5], np.int64), given("c=2", [2**20 + 1, -3], np.int64)],
         lambda mesh, x, y: [x + y, x - y, x * y, mtf.maximum(x, y), mtf.less(x, y)])
    case("uint8_arithmetic", [given("a=3", [250, 3, 0], np.uint8), given("c=2", [10, 5], np.uint8)],
         lambda mesh, x, y: [x + y, mtf.maximum(x, y), mtf.less(x, y)])
    integer = given("a=6", [0, 255, 256, -1, 300, 100], np.int32)
    case("int_to_uint8", [integer], lambda mesh, x: mtf.cast(x, tf.uint8))
    case("int_to_int64", [integer], lambda mesh, x: mtf.cast(x, tf.int64))
    case("int_to_bfloat16", [given("a=4", [257, -259, 100000, 1], np.int32)], lambda mesh, x: mtf.to_float(mtf.to_bfloat16(x)))
    case("uint8_to_float", [given("a=3", [0, 128, 255], np.uint8)], lambda mesh, x: mtf.to_float(x))
    case("float_to_int64", [given("a=4", [1.9, -1.9, 1e15, -1e15])], lambda mesh, x: mtf.cast(x, tf.int64))
    case("float_to_uint8", [given("a=3", [1.9, 254.5, 0])], lambda mesh, x: mtf.cast(x, tf.uint8))
    case("float_to_float16", [given("a=6", [1.0004883, 65504, 65520, 1e-7, 6e-8, -3.14159])], lambda mesh, x: mtf.to_float(mtf.cast(x, tf.float16)))


def shapes():
    x6 = "a=3 e=6 c=2"
    e = Dim("e", 6)
    for offset in [-7, -6, -3, -1, 0, 2, 5, 6, 9]:
        for wrap in [False, True]:
            case(f"shift_{offset}{'_wrap' if wrap else ''}", [real(x6)],
                 lambda mesh, x, offset=offset, wrap=wrap: mtf.shift(x, offset, e, wrap))
    for wrap in [False, True]:
        end = "_wrap" if wrap else ""
        case("dynamic_shift" + end, [real("a=2 e=6"), given("", 2, np.int32)],
             lambda mesh, x, n, wrap=wrap: mtf.dynamic_shift(x, n, e, wrap))
        case("dynamic_shift_rows" + end, [real("e=6 a=6"), given("a=6", [-7, -2, 0, 3, 6, 8], np.int32)],
             lambda mesh, x, n, wrap=wrap: mtf.dynamic_shift(x, n, e, wrap))
        for halo in [1, 2, 3, 5]:
            case(f"halo_exchange_{halo}{end}", [real("b=4 c=2 a=2")],
                 lambda mesh, x, halo=halo, wrap=wrap: mtf.halo_exchange(x, b, c, halo, wrap))
            case(f"left_halo_exchange_{halo}{end}", [real("b=4 c=2")],
                 lambda mesh, x, halo=halo, wrap=wrap: mtf.left_halo_exchange(x, b, c, halo, wrap))
    case("slice", [real(x6)], lambda mesh, x: mtf.slice(x, 1, 4, "e"))
    case("slice_one", [real(x6)], lambda mesh, x: mtf.slice(x, 5, 1, "e"))
    case("slice_int", [integers(x6)], lambda mesh, x: mtf.slice(x, 0, 6, "e"))
    case("pad", [real(x6)], lambda mesh, x: mtf.pad(x, [1, 2], "e"))
    case("pad_int", [integers("e=6")], lambda mesh, x: mtf.pad(x, [0, 3], "e"))
    case("concat", [real("a=3 e=2"), real("a=3 e=1"), real("a=3 e=4")], lambda mesh, *xs: mtf.concat(list(xs), "e"))
    case("concat_with_itself", [real("e=3")], lambda mesh, x: mtf.concat([x, x * 2.0, x], "e"))
    case("split", [real(x6)], lambda mesh, x: mtf.split(x, e, [1, 3, 2]))
    case("split_equal", [real(x6)], lambda mesh, x: mtf.split(x, e, 3))
    case("split_unused", [real(x6)], lambda mesh, x: mtf.split(x, e, 3)[1])
    case("stack", [real(AB), real(AB)], lambda mesh, x, y: mtf.stack([x, y, x], "s"))
    case("stack_last", [real(AB), real(AB)], lambda mesh, x, y: mtf.stack([x, y], "s", axis=-1))
    case("unstack", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.unstack(x, b))
    case("reshape_merge", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.reshape(x, Shape([a, Dim("m", 8)])))
    case("reshape_split", [real("a=3 m=8")], lambda mesh, x: mtf.reshape(x, Shape([a, c, b])))
    case("reshape_crossing", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.reshape(x, Shape([Dim("p", 6), Dim("q", 2), c])))
    case("reshape_ones", [real("a=3 o=1 b=4")], lambda mesh, x: mtf.reshape(x, Shape([Dim("p", 1), a, b, Dim("q", 1)])))
    case("reshape_int", [integers(AB)], lambda mesh, x: mtf.reshape(x, Shape([Dim("m", 12)])))
    case("rename", [real(AB)], lambda mesh, x: mtf.rename_dimension(x, "a", "z"))
    case("rename_to_outer", [real("a=3")], lambda mesh, x: x * mtf.rename_dimension(x, "a", "z"))
    case("replace_dimensions", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.replace_dimensions(x, [b, c], [Dim("p", 2), Dim("q", 4)]))
    case("transpose", [real("a=3 b=4 c=2")], lambda mesh, x: mtf.transpose(x, Shape([c, a, b])))
    case("broadcast", [real(AB)], lambda mesh, x: mtf.broadcast(x, Shape([b, c, a])))
    case("broadcast_int", [integers("b=4")], lambda mesh, x: mtf.broadcast(x, Shape([a, b])))
    case("range", [], lambda mesh: [mtf.range(mesh, b, tf.int32), mtf.range(mesh, b, tf.float32)])
    case("constants", [real(AB)], lambda mesh, x: [mtf.constant(mesh, 2.5, Shape([a, b])), mtf.zeros(mesh, Shape([a]), tf.int32),
                                                   mtf.ones(mesh, Shape([b])), mtf.zeros_like(x), mtf.ones_like(x)], gradient=False)
    case("dropout_of_nothing", [real(AB)], lambda mesh, x: mtf.dropout(x, True, rate=0.0))
    case("pool_tensor_1d", [real(x6)], lambda mesh, x: mtf.pool_tensor_1d(x, e))
    case("pool_tensor_1d_max", [real(x6)], lambda mesh, x: mtf.pool_tensor_1d(x, e, reduce_fn=mtf.reduce_max, pool_size=3))
    case("stride_tensor_1d", [real(x6)], lambda mesh, x: mtf.stride_tensor_1d(x, e, pool_size=3))


def windows():
    def conv2d(strides, padding):
        return lambda mesh, x, f: mtf.Conv2dOperation(x, f, [1, *strides, 1], padding).outputs[0]
    image = lambda h, w: real(f"n=2 h={h} w={w} i=2", -1, 1)
    filters = lambda h, w, size="i=2 o=3": real(f"fh={h} fw={w} {size}", -1, 1)
    for padding in ["SAME", "VALID"]:
        end = padding.lower()
        case("conv2d_" + end, [image(4, 3), filters(3, 2)], conv2d([1, 1], padding))
        case(f"conv2d_even_{end}", [image(4, 4), filters(2, 4)], conv2d([1, 1], padding))
        case(f"conv2d_two_batches_{end}", [real("m=2 n=2 h=3 w=3 i=2", -1, 1), filters(3, 3, "i=2 o=2")], conv2d([1, 1], padding))
    case("conv2d_same_2", [image(4, 6), filters(3, 2)], conv2d([2, 3], "SAME"))
    case("conv2d_valid_2", [image(6, 5), filters(3, 2)], conv2d([2, 2], "VALID"))
    case("conv2d_pixel", [image(3, 3), filters(1, 1)], conv2d([1, 1], "SAME"))
    case("conv2d_layer_of_blocks", [real("n=1 hb=2 wb=2 h=2 w=2 i=2", -1, 1), filters(3, 3, "i=2 o=2")], blocks_conv2d)
    case("conv1d", [real("n=2 w=6 i=2", -1, 1), real("fw=3 i=2 o=3", -1, 1)],
         lambda mesh, x, f: mtf.reshape(mtf.Conv2dOperation(
             mtf.reshape(x, Shape([Dim("n", 2), Dim("h", 1), Dim("w", 6), Dim("i", 2)])),
             mtf.reshape(f, Shape([Dim("fh", 1), *f.shape.dims])), [1, 1, 2, 1], "SAME").outputs[0],
             Shape([Dim("n", 2), Dim("w", 3), Dim("o", 3)])))
    for padding in ["SAME", "VALID"]:
        case("conv3d_" + padding.lower(), [real("n=1 d=3 h=3 w=4 i=2", -1, 1), real("fd=2 fh=3 fw=2 i=2 o=2", -1, 1)],
             lambda mesh, x, f, padding=padding: mtf.Conv3dOperation(x, f, [1] * 5, padding).outputs[0])
    case("conv3d_same_2", [real("n=1 d=2 h=4 w=4 i=1", -1, 1), real("fd=2 fh=3 fw=3 i=1 o=2", -1, 1)],
         lambda mesh, x, f: mtf.Conv3dOperation(x, f, [1, 1, 2, 2, 1], "SAME").outputs[0])
    for name, size, stride in [("2", 2, 2), ("of_3_by_2", 3, 2), ("of_3_by_1", 3, 1), ("of_2_by_3", 2, 3)]:
        case("conv2d_transpose_" + name, [image(2, 3), filters(size, size, "o=3 i=2")],
             lambda mesh, x, f, stride=stride: mtf.Conv2dTransposeOperation(x, f, [1, stride, stride, 1], "SAME").outputs[0])
    case("conv2d_transpose_valid", [image(2, 3), filters(2, 2, "o=3 i=2")],
         lambda mesh, x, f: mtf.Conv2dTransposeOperation(x, f, [1, 2, 2, 1], "VALID").outputs[0])
    case("conv3d_transpose", [real("n=1 d=2 h=2 w=2 i=2", -1, 1), real("fd=2 fh=2 fw=2 o=1 i=2", -1, 1)],
         lambda mesh, x, f: mtf.Conv3dTransposeOperation(x, f, [1, 2, 2, 2, 1], "SAME").outputs[0])
    ties = given("h=4 w=4 i=1", [1, 1, 2, 3, 1, 1, 3, 0, -1, -2, -3, -4, -1, -1, -5, -4])
    for name in ["max", "avg"]:
        pool2, pool3 = getattr(mtf.layers, name + "_pool2d"), getattr(mtf.layers, name + "_pool3d")
        case(name + "_pool2d", [image(4, 6)], lambda mesh, x, f=pool2: f(x, [2, 3]))
        case(name + "_pool2d_ties", [ties], lambda mesh, x, f=pool2: f(x, [2, 2]))
        case(name + "_pool3d", [real("n=1 d=2 h=4 w=2 i=2", -1, 1)], lambda mesh, x, f=pool3: f(x, [2, 2, 2]))


def blocks_conv2d(mesh, x, f):
    """The layer, with a filter of the case's instead of a variable."""
    get_variable, mtf.layers.mtf.get_variable = mtf.get_variable, lambda *args, **kwargs: f
    try:
        return mtf.layers.conv2d_with_blocks(x, Dim("o", 2), (3, 3), h_blocks_dim=Dim("hb", 2), w_blocks_dim=Dim("wb", 2))
    finally:
        mtf.layers.mtf.get_variable = get_variable


def control():
    def count(mesh, x, n):
        return mtf.while_loop(lambda y, i: mtf.less(i, 5), lambda y, i: [y * 2.0 + 1.0, i + 1], [x, n])
    case("while_loop", [real(AB), given("", 2, np.int32)], count, gradient=False)
    case("while_loop_no_trip", [real(AB), given("", 7, np.int32)], count, gradient=False)
    case("while_loop_of_data", [given("a=3", [1, 2, 3])],
         lambda mesh, x: mtf.while_loop(lambda y, z: mtf.less(mtf.reduce_sum(y), 50.0), lambda y, z: [y * 1.5, y], [x, x]), gradient=False)
    case("while_loop_accumulators", [real(AB), given("", 0, np.int32)],
         lambda mesh, x, n: mtf.while_loop(lambda i: mtf.less(i, 3), lambda i: [i + 1, mtf.reduce_sum(x * mtf.to_float(i), reduced_dim=a)],
                                           [n], has_accumulators=True), gradient=False)
    case("recompute_grad", [real(AB), real(BC)],
         lambda mesh, x, w: mtf.recompute_grad(lambda t: mtf.tanh(mtf.einsum([mtf.exp(t), w])), [x]))
    case("custom_gradient", [real(AB)], lambda mesh, x: mtf.custom_gradient(
        lambda t: mtf.square(t), lambda explicit_inputs, all_inputs, forward_operations, outputs, output_grads:
        [output_grads[0] * explicit_inputs[0] * 10.0], [x]))
    case("not_connected", [real(AB), real(AB)], lambda mesh, x, y: mtf.sin(x))
    case("second_order", [real(AB, 0.5, 2)], lambda mesh, x: mtf.gradients([mtf.reduce_sum(mtf.log(x) * x * x)], [x]))


if __name__ == "__main__":
    for family in [pointwise, binary, logic, reductions, products, indexed, ordered, dtypes, shapes, windows, control]:
        family()
    write(os.path.join(os.path.dirname(os.path.abspath(__file__)), "ops.json"))
