"""Functions that are made of others: values of NumPy, gradients, every layout, and draws with their probabilities."""
import numpy as np
import pytest
import tessera as ts
from tessera.testing import OpInput, test_op as check

A, B, S = ts.dims(a=5, b=7, s=3)
X = OpInput([A, B], -3, 3)
SEGMENTS = np.array([0, 2, 2, 0, 0, 2, 2], np.int32)
LABELS = np.array([0, 6, -1, 3, -1], np.int32)


def smoothed(x, share=0.1):
    logs = x - np.log(np.exp(x).sum(1, keepdims=True))
    own = logs[np.arange(5), np.maximum(LABELS, 0)]
    return np.where(LABELS == -1, 0, -(1 - share) * own - share * logs.mean(1))


def labels():
    return ts.constant(LABELS, [A])


@pytest.mark.parametrize("build, expect", [
    (ts.expm1, np.expm1),
    (lambda x: ts.var(x, B), lambda x: x.var(1)),
    (lambda x: ts.var(x, [A, "b"], correction=1), lambda x: x.var(ddof=1)),
    (lambda x: ts.var(x), lambda x: x.var()),
    (lambda x: ts.std(x, "a"), lambda x: x.std(0)),
    (lambda x: ts.norm(x, B), lambda x: np.linalg.norm(x, axis=1)),
    (lambda x: ts.norm(x), lambda x: np.linalg.norm(x)),
    (lambda x: ts.flip(x, B), lambda x: x[:, ::-1]),
    (lambda x: ts.flip(x, "a"), lambda x: x[::-1]),
    (lambda x: ts.segment_max(x, ts.constant(SEGMENTS, [B]), B, S, empty=-9.0), lambda x: np.stack([x[:, SEGMENTS == 0].max(1), np.full(5, -9.0), x[:, SEGMENTS == 2].max(1)])),
    (lambda x: ts.cross_entropy(x, labels(), B, label_smoothing=0.1, ignore_index=-1), smoothed),
    (lambda x: ts.nn.cross_entropy(x, labels(), "b", ignore_index=-1), lambda x: smoothed(x, 0.0)),
])
def test_values_gradients_and_layouts(build, expect):
    def order(x):  # as segment_max() gives it
        made = build(x)
        return ts.transpose(made, [S, A]) if [d.name for d in made.dims] == ["a", "s"] else made

    report = check(order, X, expect=expect)
    assert report.ok, report


def test_gradients_are_zero_where_a_root_is_and_small_numbers_keep_their_digits():
    with ts.eager() as g:
        x = ts.constant(0.0, [A, B])
        for root in (lambda x: ts.norm(x, B), lambda x: ts.std(x, B)):
            assert (g.fetch(ts.gradients(ts.sum(root(x)), [x])[0]) == 0).all()
        tiny = np.array([1e-7, -1e-6, 1e-4, 20.0, -80.0], np.float32)
        np.testing.assert_allclose(g.fetch(ts.expm1(ts.constant(tiny, [A]))), np.expm1(tiny), rtol=1e-6)
        for wrong, said in [
            (lambda: ts.var(x, A, correction=5), r"\[var\] 5 elements with a correction of 5"),
            (lambda: ts.randint([A], 3, 3), r"\[randint\] the range 3 .. 3"),
            (lambda: ts.cross_entropy(x, labels(), B, label_smoothing=1), r"\[cross_entropy\] label_smoothing 1 is not in"),
        ]:
            with pytest.raises(ts.UsageError, match=said + r".*\(test_composed.py:\d+\)"):
                wrong()
        with pytest.raises(TypeError, match=r"takes the dims of the result.*\(test_composed.py"):
            ts.bernoulli(0.5)


def test_draws_have_their_probabilities_and_no_layout_changes_them():
    n, k = ts.dims(n=20000, k=4)
    weights = np.array([0.1, 0.2, 0.3, 0.4])

    @ts.program
    def draw():
        logits = ts.broadcast(ts.constant(np.log(weights).astype(np.float32), [k]), [n, k])
        return {
            "categorical": ts.categorical(logits, k), "bernoulli": ts.bernoulli(0.25, [n]), "permutation": ts.permutation(n),
            "randint": ts.randint([n], -2, 3), "of_tensor": ts.bernoulli(ts.broadcast(ts.constant(weights.astype(np.float32), [k]), [n, k])),
        }

    with draw.compile() as run, draw.compile(mesh="m:2", layout="n:m") as split:
        made, again, other = run(), None, split()
        values = {name: made[name] for name in dir(made)}
        for name, value in values.items():
            np.testing.assert_array_equal(value, other[name])
        again = run()
        assert all((again[name] != value).any() for name, value in values.items())
    np.testing.assert_allclose(np.bincount(values["categorical"], minlength=4) / 20000, weights, atol=0.02)
    np.testing.assert_allclose(values["of_tensor"].mean(0), weights, atol=0.02)
    assert abs(values["bernoulli"].mean() - 0.25) < 0.02
    assert sorted(values["permutation"]) == list(range(20000))
    np.testing.assert_allclose(np.bincount(values["randint"] + 2) / 20000, np.full(5, 0.2), atol=0.02)
