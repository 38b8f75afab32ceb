"""What a model is built of: dims, dtypes, inputs, parameters, scopes, and the graph they go into."""
from __future__ import annotations

import contextlib
import logging
import numbers
import operator
import threading
from typing import Any, Callable, Iterator, Sequence

import numpy as np

from . import _tessera
from .errors import UsageError


class DType:
    """An element type. `ts.i32[batch, length]` is the annotation of an input with these dims."""

    def __init__(self, name: str):
        self.name = name

    def __getitem__(self, dims: Any) -> Any:
        return InputSpec(self, list(dims) if isinstance(dims, (tuple, list)) else [dims])

    def __repr__(self):
        return self.name


class InputSpec:
    """The dtype and dims of an input."""

    def __init__(self, dtype: DType, dims: Sequence[_tessera.Dim]):
        for dim in dims:
            if not isinstance(dim, _tessera.Dim):
                raise TypeError(f"an input's dims are Dims, not {dim!r}; ts.dims(batch=32) makes one")
        self.dtype, self.dims = dtype, dims

    def __repr__(self):
        return f"{self.dtype}{self.dims}"


f32, f64, f16, bf16 = DType("float32"), DType("float64"), DType("float16"), DType("bfloat16")
i32, i64, u8, bool_ = DType("int32"), DType("int64"), DType("uint8"), DType("bool")


def dims(**sizes: int) -> Any:
    """`batch, length = ts.dims(batch=32, length=128)`; a single one comes alone."""
    for name, size in sizes.items():
        if not hasattr(size, "__index__"):
            raise TypeError(f"ts.dims({name}={size!r}): the size of a dim is a whole number")
    made = [_tessera.Dim(name, operator.index(size)) for name, size in sizes.items()]
    return made[0] if len(made) == 1 else tuple(made)


_building = threading.local()


def building_now() -> bool:
    return bool(getattr(_building, "graphs", []))


def current_graph() -> _tessera.Graph:
    """The graph that is built: that of the @ts.program being traced, or of `with ts.eager()`."""
    graphs = getattr(_building, "graphs", [])
    if not graphs:
        raise UsageError(
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
def eager(check_finite: bool = False, seed: int = 0) -> Iterator[_tessera.Graph]:
    """Computes every tensor at once, whole and on one rank, so that an error has the line that made it:

    with ts.eager() as g:
        x = ts.constant(np.ones((2, 3), np.float32), ts.dims(rows=2, cols=3))
        print(g.fetch(ts.sum(x)))
    """
    with building(_tessera.make_graph(eager=True, check_finite=check_finite, seed=seed, print=logging.getLogger("tessera").info)) as graph:
        yield graph


@contextlib.contextmanager
def scope(name: str, index: int | None = None) -> Iterator[None]:
    """Names what is built: `with ts.scope("block", 3):` gives names as "block3.w"."""
    opened = _tessera.OpenScope(current_graph(), name if index is None else f"{name}{index}")
    try:
        yield
    finally:
        opened.close()


def _initializer(init, default):
    """An initializer; init(dims, dtype) may be a function that builds the first value."""
    if init is None or isinstance(init, _tessera.Initializer):
        return default if init is None else init
    if not callable(init):
        raise TypeError(f"init is one of ts.init, such as ts.init.zeros(), or a function of dims and dtype, not {init!r}")

    def build(graph, dims, dtype):
        with building(graph):
            return init(dims, dtype)

    return _tessera.custom(build)


def input(name: str, dims: Sequence[_tessera.Dim], dtype: Any = f32) -> _tessera.Tensor:
    """A tensor that each run is given under `name`."""
    return current_graph().input(name, dims, dtype)


def param(name: str, dims: Sequence[_tessera.Dim], init: Any = None, dtype: Any = f32) -> _tessera.Tensor:
    """A trained parameter. Its first values are normal with a standard deviation of 0.02, if `init` says nothing else.

    init: one of ts.init, or a function of dims and dtype that builds the first value.
    """
    return current_graph().parameter(name, dims, _initializer(init, _tessera.normal(0.02)), dtype)


def state(name: str, dims: Sequence[_tessera.Dim], init: Any = None, dtype: Any = f32) -> _tessera.Tensor:
    """A stored tensor that is not trained; see update(). It begins with zeros, if `init` says nothing else."""
    return current_graph().state(name, dims, _initializer(init, _tessera.zeros()), dtype)


def update(stored: _tessera.Tensor, value: _tessera.Tensor) -> None:
    """Assigns `value` to a state or parameter at the end of each run."""
    current_graph().update(stored, value)


def is_number(x: Any) -> bool:
    """Whether x is a number of Python or NumPy; an array without dims is one too."""
    return isinstance(x, (bool, numbers.Real, np.generic)) or (hasattr(x, "__float__") and getattr(x, "shape", None) == () and not isinstance(x, _tessera.Tensor))


def constant(value: Any, dims: Any = (), dtype: Any = None) -> _tessera.Tensor:
    """A number in every element, float32 if `dtype` says nothing else; or the values of an array that has the sizes of `dims`, in its dtype."""
    if is_number(value):
        return _tessera.constant(current_graph(), value, f32 if dtype is None else dtype, dims)
    array = np.asarray(value)
    made = _tessera.constant_array(current_graph(), array, dims)
    return made if dtype is None else _tessera.cast(made, dtype)


def iota(dim: _tessera.Dim, dtype: Any = i32) -> _tessera.Tensor:
    """0 .. size-1 along `dim`."""
    return _tessera.iota(current_graph(), dim, dtype)


def random_uniform(dims: Any, lo: float = 0.0, hi: float = 1.0, dtype: Any = f32) -> _tessera.Tensor:
    """Uniform in [lo, hi); the same under every layout, and others in each run and in each iteration of a loop: see Run."""
    return _tessera.random_uniform(current_graph(), dims, lo, hi, dtype)


def truncated_normal(dims: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = f32) -> _tessera.Tensor:
    """Normal, cut off at two standard deviations; otherwise as random_uniform()."""
    return _tessera.truncated_normal(current_graph(), dims, mean, stddev, dtype)


def random_normal(dims: Any, mean: float = 0.0, stddev: float = 1.0, dtype: Any = f32) -> _tessera.Tensor:
    """Normal; otherwise as random_uniform()."""
    return _tessera.random_normal(current_graph(), dims, mean, stddev, dtype)


def scan(
    over: _tessera.Dim, body: Callable[..., Any], carries: Sequence[_tessera.Tensor] = (), slices: Sequence[_tessera.Tensor] = (), own_parameters: bool = False
) -> Any:
    """Runs `body(carries, slices, index)`, which returns (carries, stacked), for each index of the dim `over`.

    Returns the last carries and what was stacked, each a list. Parameters that the body makes are the same in all iterations, as in
    the cell of a recurrent network; with own_parameters each iteration has its own, as a layer of repeat() has, stored with the dim
    `over` in front. Random numbers are others in each iteration.
    """
    return _tessera.scan(current_graph(), over, list(carries), list(slices), body, own_parameters)


_OPERATORS = {
    "add": operator.add, "subtract": operator.sub, "multiply": operator.mul, "divide": operator.truediv, "true_divide": operator.truediv,
    "floor_divide": operator.floordiv, "remainder": operator.mod, "power": operator.pow, "less": operator.lt, "less_equal": operator.le,
    "greater": operator.gt, "greater_equal": operator.ge, "equal": operator.eq, "not_equal": operator.ne, "matmul": operator.matmul,
}


def _array_ufunc(self, ufunc, method, *inputs, **options):
    """What NumPy makes of tensors: an operator with a number is that of Python, and all else is none of NumPy's."""
    name = ufunc.__name__
    values = [float(x) if is_number(x) else x for x in inputs]
    if method == "__call__" and not options and name in _OPERATORS and len(values) == 2:
        array = next((x for x in values if isinstance(x, np.ndarray)), None)
        if array is None:
            return _OPERATORS[name](*values)
        raise TypeError(_tessera.with_line(f"{name} of a tensor and an array of shape {array.shape}: ts.constant(array, dims) makes a tensor of an array"))
    raise TypeError(_tessera.with_line(f"numpy.{name}() takes arrays, not '{self.name}', which has no value while the model is built; ts has the functions of tensors, such as ts.exp()"))


_tessera.Tensor.__array_ufunc__ = _array_ufunc  # type: ignore[attr-defined]
