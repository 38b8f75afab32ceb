"""Ops of your own: functions of NumPy arrays that run under every layout."""
from __future__ import annotations

from typing import Any, Callable, Sequence

from . import _tessera


class Op:
    """An op whose function computes each rank's part: see ts.op."""

    def __init__(self, function: Callable[..., Any], result: Any, dtype: Any, whole: Sequence[Any], combine: str, positions: bool):
        self.__name__, self.__doc__ = function.__name__, function.__doc__
        names = [getattr(dim, "name", dim) for dim in whole]

        def results(operands):
            dims, dtypes = [d for d, _ in operands], [t for _, t in operands]
            made = _union(dims) if result is None else result(*dims)
            outs = list(made) if isinstance(made, tuple) else [made]
            kinds = list(dtype) if isinstance(dtype, (tuple, list)) else [dtypes[0] if dtype is None else dtype] * len(outs)
            return list(zip(outs, kinds))

        self._op = _tessera.make_op(function.__name__, function, results, names, combine, positions)

    def gradient(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Decorates the gradient: function(inputs, outputs, gradients of outputs) returns one tensor, or None, for each input."""
        self._op.set_gradient(function)
        return function

    def __call__(self, *operands: _tessera.Tensor) -> Any:
        made = _tessera.call_op(self._op, list(operands))
        return made[0] if len(made) == 1 else tuple(made)


def _union(shapes: Sequence[Sequence[_tessera.Dim]]) -> list[_tessera.Dim]:
    united: list[_tessera.Dim] = []
    for dims in shapes:
        united += [d for d in dims if d.name not in {u.name for u in united}]
    return united


def op(function: Any = None, *, result: Any = None, dtype: Any = None, whole: Sequence[Any] = (), combine: str = "sum", positions: bool = False) -> Any:
    """Makes an op of a function of NumPy arrays.

    @ts.op
    def huber(x):
        a = np.abs(x)
        return np.where(a <= 1, x * x / 2, a - 0.5)

    @huber.gradient
    def _(inputs, outputs, gradients):
        return [gradients[0] * ts.clip(inputs[0], -1.0, 1.0)]

    The function gets each rank's part of the operands, without padding, and returns its part of the results. It runs on several
    threads at once, and must not keep its operands.

    result: result(*dims of each operand) gives the dims of the result, or a tuple of them; by default all dims of the operands.
    dtype: of the results; by default that of the first operand. What the function returns has it already: nothing is converted. A dim that results lack is reduced: parts are combined by
    `combine` ("sum", "max", "min", "prod"). whole: dims that the function has to see whole. positions: the function also gets
    positions={"batch": (index of the first element of the part, size of the whole)}.
    """

    def make(function):
        return Op(function, result, dtype, whole, combine, positions)

    return make if function is None else make(function)
