"""Numbers of Python and NumPy wherever a number is taken, and dims by name, as Dim and as "..." wherever dims are taken."""
import inspect
import operator
import re

import numpy as np
import pytest
import tessera as ts

A, B, C = ts.dims(a=4, b=6, c=3)
X = np.arange(24, dtype=np.float32).reshape(4, 6) / 8 + 0.25
NUMBERS = [2, 1.5, True, np.float32(1.5), np.float64(1.5), np.int32(2), np.int64(2), np.array(2.0), np.bool_(True)]


def value(build, *arrays):
    with ts.eager() as g:
        return g.fetch(build(*(ts.constant(x, [A, B]) for x in arrays)))


@pytest.mark.parametrize("number", NUMBERS, ids=lambda x: f"{type(x).__name__}-{x}")
def test_operators_take_numbers_on_both_sides(number):
    plain = float(number)
    for name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "lt", "le", "gt", "ge", "eq", "ne"):
        act = getattr(operator, name)
        np.testing.assert_allclose(value(lambda x: act(x, number), X), act(X, np.float32(plain)), rtol=1e-6)
        np.testing.assert_allclose(value(lambda x: act(number, x), X), act(np.float32(plain), X), rtol=1e-6)
    for function, expected in [(ts.maximum, np.maximum), (ts.minimum, np.minimum), (ts.add, np.add), (ts.pow, np.power)]:
        np.testing.assert_allclose(value(lambda x: function(x, number), X), expected(X, np.float32(plain)), rtol=1e-6)
        np.testing.assert_allclose(value(lambda x: function(number, x), X), expected(np.float32(plain), X), rtol=1e-6)


def test_arguments_take_numbers_of_numpy():
    one, two, half = np.int64(1), np.int64(2), np.float32(0.5)
    for build, expected in [
        (lambda x: ts.clip(x, half, np.float64(2)), np.clip(X, 0.5, 2)),
        (lambda x: ts.leaky_relu(x - 1.0, half), np.where(X > 1, X - 1, (X - 1) / 2)),
        (lambda x: ts.where(x > 1, half, x), np.where(X > 1, 0.5, X)),
        (lambda x: ts.where(x > 1, 1.0, 0.0), np.where(X > 1, 1.0, 0.0)),
        (lambda x: ts.where(x > 1, half, 0), np.where(X > 1, 0.5, 0)),
        (lambda x: ts.slice(x, B, one, two), X[:, 1:3]),
        (lambda x: ts.pad(x, B, one, two, half), np.pad(X, ((0, 0), (1, 2)), constant_values=0.5)),
        (lambda x: ts.shift(x, B, two, wrap=True), np.roll(X, 2, 1)),
        (lambda x: ts.split(x, B, [two, np.int32(4)])[1], X[:, 2:]),
        (lambda x: ts.constant(half, [A, B]), np.full((4, 6), 0.5)),
        (lambda x: ts.constant(np.array(half), [A, B]), np.full((4, 6), 0.5)),
        (lambda x: ts.sum(x, ts.Dim("b", np.int64(6))), X.sum(1)),
    ]:
        np.testing.assert_allclose(value(build, X), expected, rtol=1e-6)
    for rate in (0.1, np.float32(0.1), np.array(0.1)):

        @ts.program
        def step():
            return ts.minimize(ts.sum(ts.param("w", [A], ts.init.filled_with(np.float32(2)))), ts.optim.sgd(rate))

        with step.compile(threads_per_rank=np.int64(1)) as run:
            run()
            np.testing.assert_allclose(run.fetch("w"), np.full(4, 1.9), rtol=1e-6)


def test_what_is_no_number_and_no_tensor_is_a_type_error_with_a_remedy():
    for build, said in [
        (lambda x: ts.maximum(1.0, 2.0), r"maximum takes a tensor, not 2\.0; ts\.constant\(\)"),
        (lambda x: ts.add(1, 2), "add takes a tensor"),
        (lambda x: x * np.ones((4, 6), np.float32), r"ts\.constant\(array, dims\)"),
        (lambda x: np.ones((4, 6), np.float32) * x, r"multiply of a tensor and an array of shape \(4, 6\): ts\.constant\(array, dims\)"),
        (lambda x: np.ones(6) < x, r"less of a tensor and an array.*ts\.constant"),
        (lambda x: np.exp(x), r"numpy\.exp\(\) takes arrays, not '.*'.*ts\.exp\(\)"),
        (lambda x: np.sum(x), r"numpy\.add|ts has the functions|ts\.sum"),
        (lambda x: ts.attention(x, x, x, mask=3), "attention takes a tensor, not 3"),
        (lambda x: x.sum("b"), r"a tensor has no 'sum'; ts\.sum\(x, \.\.\.\) is a function"),
        (lambda x: ts.cond(ts.sum(x) > 0, lambda: 3, lambda: x), "another type"),
    ]:
        with pytest.raises((TypeError, AttributeError), match=said) as raised:
            value(build, X)
        assert "test_numbers_and_dims.py:" in str(raised.value) or "has no 'sum'" in str(raised.value) or "takes" in str(raised.value)


def test_inputs_and_stored_tensors_take_numbers_and_lists():
    @ts.program
    def p(x: ts.f32[A], k: ts.i32[()] = 3, rate: ts.f32[()] = np.float64(0.5), flags: ts.bool_[A] = False):
        w = ts.param("w", [A], ts.init.zeros())
        return ts.where(flags, x, x * ts.cast(k, ts.f32) * rate + w)

    run = p.compile()
    x = [1, 2, 3, 4]
    np.testing.assert_allclose(run(x=x).result, np.array(x) * 1.5)
    for two in (2, 2.0, np.int64(2), np.array(2), True + True, np.float32(2)):
        np.testing.assert_allclose(run(x=x, k=two).result, x)
    np.testing.assert_allclose(run(x=x, rate=1).result, np.array(x) * 3)
    np.testing.assert_allclose(run(x=x, flags=[True, False, True, False]).result, [1, 3, 3, 6])
    run.assign("w", [1, 1, 1, 1])
    np.testing.assert_allclose(run(x=x).result, np.array(x) * 1.5 + 1)
    for wrong in (2.5, 2**40, [2, 3], "two", None):
        with pytest.raises((ts.UsageError, TypeError), match="'k'.*test_numbers_and_dims.py:"):
            run(x=x, k=wrong)

    for default in (0.5, 2**40, "x"):

        @ts.program
        def wrong(k: ts.i32[()] = default):
            return k

        with pytest.raises(TypeError, match="the default of argument 'k' is"):
            wrong.compile()


# Each function that takes a dim of a tensor, with a dim of a size that the tensor does not have.
WRONG = ts.Dim("b", 7)
I32 = np.zeros((4, 6), np.int32)
OTHER_SIZES = {
    "argmax": lambda x: ts.argmax(x, WRONG),
    "argmin": lambda x: ts.argmin(x, WRONG),
    "argsort": lambda x: ts.argsort(x, WRONG),
    "cumsum": lambda x: ts.cumsum(x, WRONG),
    "dynamic_shift": lambda x: ts.dynamic_shift(x, ts.constant(1, dtype=ts.i32), WRONG),
    "dynamic_slice": lambda x: ts.dynamic_slice(x, ts.constant(1, dtype=ts.i32), WRONG, 2),
    "dynamic_update": lambda x: ts.dynamic_update(x, x, ts.constant(0, dtype=ts.i32), WRONG),
    "gather": lambda x: ts.gather(x, ts.constant(0, [C], ts.i32), WRONG),
    "linear_scan": lambda x: ts.linear_scan(x, x, WRONG),
    "log_softmax": lambda x: ts.log_softmax(x, WRONG),
    "reduce_logsumexp": lambda x: ts.reduce_logsumexp(x, WRONG),
    "pad": lambda x: ts.pad(x, WRONG, 1),
    "rename": lambda x: ts.rename(x, WRONG, "other"),
    "scatter": lambda x: ts.scatter(x, ts.constant(0, [C], ts.i32), ts.constant(0.0, [A, C]), WRONG),
    "shift": lambda x: ts.shift(x, WRONG, 1),
    "slice": lambda x: ts.slice(x, WRONG, 0, 2),
    "softmax": lambda x: ts.softmax(x, WRONG),
    "sort": lambda x: ts.sort(x, WRONG),
    "split": lambda x: ts.split(x, WRONG, [2, 4]),
    "stack": lambda x: ts.stack([x, x], ts.Dim("new", 3)),
    "take_along": lambda x: ts.take_along(x, ts.constant(0, [A, C], ts.i32), WRONG),
    "top_k": lambda x: ts.top_k(x, WRONG, ts.Dim("k", 2)),
    "unstack": lambda x: ts.unstack(x, WRONG),
    "windows": lambda x: ts.windows(x, WRONG, ts.Dim("w", 2)),
    "broadcast": lambda x: ts.broadcast(x, [A, WRONG]),
    "reshape": lambda x: ts.reshape(x, [A, WRONG]),
    "transpose": lambda x: ts.transpose(x, [WRONG, A]),
    "conv": lambda x: ts.conv(x, ts.constant(1.0, [ts.Dim("filter_b", 3)]), WRONG),
    "conv_transpose": lambda x: ts.conv_transpose(x, ts.constant(1.0, [ts.Dim("filter_b", 3)]), WRONG),
    "max_pool": lambda x: ts.max_pool(x, WRONG),
    "avg_pool": lambda x: ts.avg_pool(x, WRONG),
    **{name: lambda x, name=name: getattr(ts, name)(x, WRONG) for name in ("sum", "mean", "max", "min", "prod", "logsumexp")},
    **{name: lambda x, name=name: getattr(ts, name)(x > 0, WRONG) for name in ("any", "all")},
    "rename to": lambda x: ts.rename(x, B, ts.Dim("other", 7)),
    "x[dim: i]": lambda x: x[WRONG : ts.constant(0, [C], ts.i32)],
    "prefer": lambda x: x.prefer(WRONG),
    "cross_entropy": lambda x: ts.cross_entropy(x, ts.constant(0, [A], ts.i32), WRONG),
    "categorical": lambda x: ts.categorical(x, WRONG),
    "flip": lambda x: ts.flip(x, WRONG),
    "norm": lambda x: ts.norm(x, WRONG),
    "segment_max": lambda x: ts.segment_max(x, ts.constant(0, [B], ts.i32), WRONG, C),
    "std": lambda x: ts.std(x, WRONG),
    "var": lambda x: ts.var(x, WRONG, 1),
    "nn.dense": lambda x: ts.nn.dense(x, WRONG, C),
    "nn.feed_forward": lambda x: ts.nn.feed_forward(x, WRONG, C),
    "nn.layer_norm": lambda x: ts.nn.layer_norm(x, WRONG),
    "nn.rms_norm": lambda x: ts.nn.rms_norm(x, WRONG),
    "nn.batch_norm": lambda x: ts.nn.batch_norm(x, WRONG),
    "nn.self_attention": lambda x: ts.nn.self_attention(ts.rename(x, A, "length"), WRONG, heads=2),
}
# The dim is new, of several tensors of other sizes, or of the result, which says its size itself.
NOT_OF_ONE_TENSOR = {"bernoulli", "concat", "one_hot", "permutation", "randint", "scatter_add"}


def parameters_of(function):
    try:
        return set(inspect.signature(function).parameters)
    except ValueError:  # of the extension: the first line of its documentation
        return set(re.findall(r"(\w+): ", (function.__doc__ or "").splitlines()[0]))


def test_a_dim_of_another_size_is_an_error_wherever_a_dim_is_taken():
    composed = [name for name, f in vars(ts.composed).items() if getattr(f, "__module__", "") == "tessera.composed" and not name.startswith("_")]
    takes = {name for name in [*ts.ops.__all__, *composed] if parameters_of(getattr(ts, name)) & {"dim", "dims", "classes"}}
    takes |= {"nn." + name for name, f in vars(ts.nn).items() if inspect.isfunction(f) and f.__module__ == "tessera.nn" and not name.startswith("_") and parameters_of(f) & {"dim", "in_dims", "channels"}}
    assert not takes - OTHER_SIZES.keys() - NOT_OF_ONE_TENSOR, "functions without a row here"
    for name, wrong in OTHER_SIZES.items():
        with pytest.raises(ts.UsageError, match=r"test_numbers_and_dims.py:\d+") as raised:
            with ts.build.building(ts._tessera.make_graph()):
                wrong(ts.input("x", [A, B]))
        assert re.search(r"\b7\b.*\b6\b|\b6\b.*\b7\b|2 tensors for the dim new=3", str(raised.value)), (name, str(raised.value))


def test_names_and_the_rest_stand_for_dims():
    wide = np.arange(18, dtype=np.float32).reshape(6, 3)
    with ts.eager() as g:
        x, w = ts.constant(X, [A, B]), ts.constant(wide, [B, C])
        for made, expected in [
            (ts.transpose(x, ["b", "a"]), X.T),
            (ts.transpose(x, ["b", ...]), X.T),
            (ts.transpose(x, [..., "a"]), X.T),
            (ts.einsum(x, w, ["c", "a"]), (X @ wide).T),
            (ts.einsum(x, w, [..., "c"]), X @ wide),
            (ts.einsum(x, w, [C, ...]), (X @ wide).T),
            (ts.einsum(x, ["b"]), X.sum(0)),
            (x @ w, X @ wide),
            (ts.broadcast(x, ["a", "b", C]), np.repeat(X[:, :, None], 3, 2)),
            (ts.broadcast(x, [C, ...]), np.repeat(X[None], 3, 0)),
            (ts.reshape(x, ["a", ts.Dim("p", 2), ts.Dim("q", 3)]), X.reshape(4, 2, 3)),
            (ts.sum(x, "b"), X.sum(1)),
            (ts.sum(x, ["a", ...]), X.sum()),
            (ts.sum(x, ...), X.sum()),
            (ts.softmax(x, ...), np.exp(X - X.max()) / np.exp(X - X.max()).sum()),
        ]:
            np.testing.assert_allclose(g.fetch(made), expected, rtol=1e-5)
        for wrong, said in [(lambda: ts.transpose(x, ["b", "q"]), "no dim 'q'"), (lambda: ts.einsum(x, w, ["bb"]), "'bb'")]:
            with pytest.raises(ts.UsageError, match=said):
                wrong()
        with pytest.raises(TypeError, match="a Dim is wanted, not 'a'"):  # there is no tensor that has it
            ts.param("v", ["a"])


def test_arithmetic_of_dims_is_that_of_their_sizes():
    assert (int(B), list(range(C)), B * 2, 2 * B, B + C, B - 1, 7 - B, B // 4, B / 4, 12 / B, B % 4) == (6, [0, 1, 2], 12, 12, 9, 5, 1, 1, 1.5, 2.0, 2)
    assert ts.Dim("more", B * 2) == ts.Dim("more", 12) and ts.dims(like=B) == ts.Dim("like", 6)
    np.testing.assert_allclose(value(lambda x: ts.sum(x, B) / B, X), X.mean(1), rtol=1e-6)
    bounded = ts.Dim.bounded("n", 5)
    for act in (int, range, lambda d: d * 2, lambda d: 2 * d):
        with pytest.raises(TypeError, match="'n' is bounded: each run has a size of its own"):
            act(bounded)
