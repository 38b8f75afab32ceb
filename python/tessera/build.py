"""What a model is built of: dims, dtypes, inputs, parameters, scopes, and the graph they go into."""
import contextlib
import threading

import numpy as np

from . import _tessera


class DType:
    """An element type. `ts.i32[batch, length]` is the annotation of an input with these dims."""

    def __init__(self, name):
        self.name = name

    def __getitem__(self, dims):
        return InputSpec(self, list(dims) if isinstance(dims, (tuple, list)) else [dims])

    def __repr__(self):
        return self.name


class InputSpec:
    """The dtype and dims of an input."""

    def __init__(self, dtype, dims):
        for dim in dims:
            if not isinstance(dim, _tessera.Dim):
                raise TypeError(f"an input's dims are Dims, not {dim!r}; ts.dims(batch=32) makes one")
        self.dtype, self.dims = dtype, dims

    def __repr__(self):
        return f"{self.dtype}{self.dims}"


f32, f64, f16, bf16 = DType("float32"), DType("float64"), DType("float16"), DType("bfloat16")
i32, i64, u8, bool_ = DType("int32"), DType("int64"), DType("uint8"), DType("bool")


def dims(**sizes):
    """`batch, length = ts.dims(batch=32, length=128)`; a single one comes alone."""
    made = [_tessera.Dim(name, size) for name, size in sizes.items()]
    return made[0] if len(made) == 1 else tuple(made)


_building = threading.local()


def current_graph():
    """The graph that is built: that of the @ts.program being traced, or of `with ts.eager()`."""
    graphs = getattr(_building, "graphs", [])
    if not graphs:
        raise _tessera.UsageError(
            "no graph is being built: parameters and constants are made in a function under @ts.program, or in a `with ts.eager()` block"
        )
    return graphs[-1]


@contextlib.contextmanager
def building(graph):
    _building.graphs = getattr(_building, "graphs", []) + [graph]
    try:
        yield graph
    finally:
        _building.graphs = _building.graphs[:-1]


@contextlib.contextmanager
def eager(check_finite=False, seed=0):
    """Computes every tensor at once, whole and on one rank, so that an error has the line that made it:

    with ts.eager() as g:
        x = ts.constant(np.ones((2, 3), np.float32), ts.dims(rows=2, cols=3))
        print(g.fetch(ts.sum(x)))
    """
    with building(_tessera.make_graph(eager=True, check_finite=check_finite, seed=seed)) as graph:
        yield graph


@contextlib.contextmanager
def scope(name, index=None):
    """Names what is built: `with ts.scope("block", 3):` gives names as "block3.w"."""
    opened = _tessera.OpenScope(current_graph(), name if index is None else f"{name}{index}")
    try:
        yield
    finally:
        opened.close()


def input(name, dims, dtype=f32):
    """A tensor that each run is given under `name`."""
    return current_graph().input(name, dims, dtype)


def param(name, dims, init=None, dtype=f32):
    """A trained parameter. Its first values are normal with a standard deviation of 0.02, if `init` says nothing else."""
    return current_graph().parameter(name, dims, _tessera.normal(0.02) if init is None else init, dtype)


def state(name, dims, init=None, dtype=f32):
    """A stored tensor that is not trained; see update(). It begins with zeros, if `init` says nothing else."""
    return current_graph().state(name, dims, _tessera.zeros() if init is None else init, dtype)


def update(stored, value):
    """Assigns `value` to a state or parameter at the end of each run."""
    current_graph().update(stored, value)


def constant(value, dims=(), dtype=None):
    """A number in every element, or the values of an array that has the sizes of `dims`."""
    if isinstance(value, (int, float)):
        return _tessera.constant(current_graph(), value, f32 if dtype is None else dtype, dims)
    array = np.asarray(value)
    made = _tessera.constant_array(current_graph(), array, dims)
    return made if dtype is None else _tessera.cast(made, dtype)


def iota(dim, dtype=i32):
    """0 .. size-1 along `dim`."""
    return _tessera.iota(current_graph(), dim, dtype)


def random_uniform(dims, lo=0.0, hi=1.0, dtype=f32):
    """Uniform in [lo, hi); the same under every layout."""
    return _tessera.random_uniform(current_graph(), dims, lo, hi, dtype)


def random_normal(dims, mean=0.0, stddev=1.0, dtype=f32):
    """Normal; the same under every layout."""
    return _tessera.random_normal(current_graph(), dims, mean, stddev, dtype)


def scan(over, body, carries=(), slices=()):
    """Runs `body(carries, slices, index)`, which returns (carries, stacked), for each index of the dim `over`.

    Returns the last carries and what was stacked, each a list.
    """
    return _tessera.scan(current_graph(), over, list(carries), list(slices), body)
