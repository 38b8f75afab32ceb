"""Ops in NumPy: values, gradients, layouts, and what may be wrong with them."""
import numpy as np
import pytest
import tessera as ts
from tessera.testing import OpInput, test_op as check

batch, hidden = ts.dims(batch=5, hidden=7)


@ts.op
def huber(x):
    a = np.abs(x)
    return np.where(a <= 1, x * x / 2, a - 0.5)


@huber.gradient
def _(inputs, outputs, gradients):
    return [gradients[0] * ts.clip(inputs[0], -1.0, 1.0)]


def without(name):
    return lambda *shapes: [d for d in shapes[0] if d.name != name]


def test_ops_keep_their_values_under_every_layout():
    report = check(huber, OpInput([batch, hidden], -3, 3), expect=lambda x: np.where(abs(x) <= 1, x * x / 2, abs(x) - 0.5))
    assert report.ok and report.layouts > 20 and report.gradients == 1, report

    @ts.op(result=without("hidden"))
    def shifted_sum(x):  # padding does not count: every part is without it
        return (x + 1).sum(axis=1)

    @shifted_sum.gradient
    def _(inputs, outputs, gradients):
        return [ts.broadcast(gradients[0], inputs[0])]

    report = check(shifted_sum, OpInput([batch, hidden]), expect=lambda x: (x + 1).sum(axis=1))
    assert report.ok and report.gradients == 1, report

    @ts.op(result=without("hidden"), combine="max")
    def peak(x):
        return x.max(axis=1)

    report = check(peak, OpInput([batch, hidden], differentiable=False), expect=lambda x: x.max(axis=1))
    assert report.ok and report.layouts > 10, report

    @ts.op(whole=["hidden"])
    def middle(x):
        return x - np.median(x, axis=1, keepdims=True)

    report = check(middle, OpInput([batch, hidden], differentiable=False), expect=lambda x: x - np.median(x, axis=1, keepdims=True))
    assert report.ok, report

    @ts.op(result=lambda x, y: (x, y), dtype=("float32", "int32"), positions=True)
    def numbered(x, y, positions):
        first, size = positions["batch"]
        rows = first + np.arange(x.shape[0])
        assert size == 5
        return x * rows[:, None].astype(x.dtype), np.broadcast_to(rows[:, None].astype(np.int32), (x.shape[0], y.shape[1]))

    report = check(
        numbered, OpInput([batch, hidden], differentiable=False), OpInput([batch, hidden], differentiable=False), types=["float32"],
        expect=lambda x, y: (x * np.arange(5)[:, None], np.broadcast_to(np.arange(5)[:, None], (5, 7))),
    )
    assert report.ok, report


def test_an_op_trains_on_ranks():
    @ts.program
    def step(x: ts.f32[batch, hidden]):
        w = ts.param("w", [hidden], ts.init.ones())
        return ts.minimize(ts.mean(huber(ts.einsum(x, w))), ts.optim.sgd(0.1))

    x = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    with step.compile() as run:
        alone = [run(x=x).loss for _ in range(5)]
    assert alone[4] < alone[0]
    for mesh, layout in [("a:2", "batch:a"), ("a:3", "hidden:a"), ("a:2;b:2", "batch:a; hidden:b")]:
        with step.compile(mesh=mesh, layout=layout) as run:
            np.testing.assert_allclose([run(x=x).loss for _ in range(5)], alone, rtol=1e-5)
    assert step.verify("a:2", x=x) < 1e-5


def test_what_an_op_does_wrong_is_said():
    def value(op, *arrays):
        with ts.eager() as g:
            return g.fetch(op(*(ts.constant(a, [batch, hidden]) for a in arrays)))

    x = np.ones((5, 7), np.float32)

    @ts.op
    def short(x):
        return x[1:]

    with pytest.raises(ts.UsageError, match=r"host function of 'short': the function returned an array of shape \(4, 7\) for its result \[batch,hidden\], which is \(5, 7\)"):
        value(short, x)

    # What a function may return is an array of its result's shape and dtype; nothing is converted unasked.
    for function, said in [
        (lambda x: x.astype(np.float64), "float64 for its result [batch,hidden], which is float32; convert it with result.astype('float32'), or declare it with @ts.op(dtype=...)"),
        (lambda x: x + 1j, "complex64 for its result [batch,hidden], which is float32;"),
        (lambda x: x > 0, "bool for its result [batch,hidden], which is float32;"),
        (lambda x: x.astype(">f4"), ">f4 for its result [batch,hidden], which is float32;"),
        (lambda x: x.astype(object), "object for its result [batch,hidden], which is float32;"),
        (lambda x: x[:, :, None], "an array of shape (5, 7, 1) for its result [batch,hidden], which is (5, 7) on this rank"),
        (lambda x: x.sum(), "an array of shape () for its result [batch,hidden], which is (5, 7) on this rank"),
        (lambda x: x.tolist(), "list, which is no array, for its result [batch,hidden], which is float32; return an array of NumPy, such as np.asarray(result, 'float32')"),
        (lambda x: None, "NoneType, which is no array, for its result"),
        (lambda x: "text", "str, which is no array, for its result"),
    ]:
        with pytest.raises(ts.UsageError) as e:
            value(ts.op(function), x)
        assert "the function returned " + said in str(e.value) and "test_own_ops.py:" in str(e.value)
    for function in [lambda x: np.asfortranarray(x), lambda x: x[::-1], lambda x: np.broadcast_to(x[:1], x.shape), lambda x: x]:
        values = np.arange(35, dtype=np.float32).reshape(5, 7)
        np.testing.assert_array_equal(value(ts.op(function), values), function(values))

    @ts.op(dtype="bfloat16")
    def narrow(x):
        return x

    with pytest.raises(ts.UnsupportedError, match=r"\[narrow\] the result is declared bfloat16, which NumPy lacks; make it float32 and cast that"):
        value(narrow, x)

    @ts.op
    def two(x):
        return x, x

    with pytest.raises(ts.UsageError, match="returned 2 arrays; the op has 1 results"):
        value(two, x)

    @ts.op
    def raises(x):
        raise KeyError("mine")

    with pytest.raises(ts.UsageError, match=r"host function of 'raises': KeyError: 'mine' in test_own_ops.py:\d+"):
        value(raises, x)

    @ts.op
    def writes(x):
        x[:] = 0
        return x

    with pytest.raises(ts.UsageError, match="read-only"):
        value(writes, x)

    @ts.op(result=lambda dims: 3)
    def nothing(x):
        return x

    with pytest.raises(ts.UsageError, match=r"\[nothing\] Dims are wanted, not 3.*\(test_own_ops.py:\d+\)"):
        value(nothing, x)
    with pytest.raises(ValueError, match="combine is 'mean'; known: sum, max, min, prod"):
        ts.op(lambda x: x, combine="mean")
    with pytest.raises(ts.UnsupportedError, match="bfloat16, which NumPy lacks; cast it to float32"):
        with ts.eager():
            huber(ts.cast(ts.constant(x, [batch, hidden]), ts.bf16))

    @ts.op
    def constant_op(x):
        return x

    @ts.program
    def without_gradient(x: ts.f32[batch, hidden]):
        return ts.minimize(ts.mean(constant_op(x * ts.param("w", [hidden]))), ts.optim.sgd(0.1))

    with pytest.raises(ts.UsageError, match=r"the op 'constant_op' has no gradient, and one is asked for that goes through .*@constant_op.gradient.*\(test_own_ops.py:\d+"):
        without_gradient.compile()
    report = check(lambda x: x * x, OpInput([batch, hidden]), expect=lambda x: x)
    assert not report.ok and "'mul' is off by" in str(report)
