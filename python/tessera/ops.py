"""The operations: those of the engine, and Python's names for the reductions."""
from __future__ import annotations

import builtins
from typing import Any, Callable

from . import _tessera
from .build import current_graph
from .errors import UsageError
from ._tessera import (
    abs, add, argmax, argmin, argsort, attention, broadcast, cast, ceil, check_finite, clip, concat, cos, cumsum, div,
    dropout, dynamic_shift, dynamic_slice, dynamic_update, elu, equal, erf, erf_inv, exp, floor, floor_div,
    gather, gelu, gradients, greater, greater_equal, identity, is_finite, is_inf, is_nan, leaky_relu, less, less_equal,
    linear_scan, log, log1p, log_softmax, logical_and, logical_not, logical_or, logical_xor, maximum, minimum, mod, mul, neg,
    not_equal, one_hot, ones_like, pad, pow, print, reciprocal, reduce_logsumexp, relu, rename, repeat, reshape, round,
    rsqrt, scatter, scatter_add, selu, shift, sigmoid, sign, silu, sin, slice, softmax, softplus, sort, split, sqrt,
    square, stack, stop_gradient, sub, take_along, tanh, top_k, transpose, unstack, where, while_loop, windows,
    zeros_like,
)

__all__ = [
    "add", "all", "any", "argmax", "argmin", "argsort", "attention", "avg_pool", "broadcast", "cast", "ceil",
    "check_finite", "clip", "concat", "cond", "conv", "conv_transpose", "cos", "cumsum", "div",
    "dropout", "dynamic_shift", "dynamic_slice", "dynamic_update", "einsum", "elu", "equal", "erf", "erf_inv", "exp",
    "floor", "floor_div", "gather", "gelu", "gradients", "greater", "greater_equal", "identity", "is_finite", "is_inf",
    "is_nan", "leaky_relu", "less", "less_equal", "linear_scan", "log", "log1p", "log_softmax", "logical_and", "logical_not",
    "logical_or", "logical_xor", "logsumexp", "max_pool", "maximum", "mean", "minimum", "mod", "mul", "neg",
    "not_equal", "one_hot", "ones_like", "pad", "prod", "reciprocal", "recompute", "reduce_logsumexp", "relu", "rename",
    "repeat", "reshape", "rsqrt", "scatter", "scatter_add", "selu", "shift", "sigmoid", "sign", "silu", "sin", "slice",
    "softmax", "softplus", "sort", "split", "sqrt", "square", "stack", "stop_gradient", "sub", "take_along", "tanh",
    "top_k", "transpose", "unstack", "where", "while_loop", "windows", "zeros_like",
]


_FUNCTIONS = {*__all__, "abs", "max", "min", "pow", "print", "round", "sum", "cross_entropy", "expm1", "flip", "norm", "std", "var"}


def _no_attribute(self: _tessera.Tensor, name: str) -> Any:
    """Functions are of the package, not of tensors."""
    raise AttributeError(f"a tensor has no '{name}'" + (f"; ts.{name}(x, ...) is a function" if name in _FUNCTIONS else ""))


_tessera.Tensor.__getattr__ = _no_attribute  # type: ignore[attr-defined]


def einsum(*operands: Any) -> _tessera.Tensor:
    """The sum of products. `einsum(x, w)` sums over the dims that both have; `einsum(x, w, [batch, out])` over all but these."""
    if operands and not isinstance(operands[-1], _tessera.Tensor):
        return _tessera.einsum_to(list(operands[:-1]), operands[-1])
    return _tessera.einsum(list(operands))


def _reduction(name: str, function: Callable[..., _tessera.Tensor]) -> Callable[..., _tessera.Tensor]:
    def reduce(x: _tessera.Tensor, dims: Any = None) -> _tessera.Tensor:
        return function(x, x.dims if dims is None else dims)

    reduce.__name__ = name
    reduce.__doc__ = f"The {name} over `dims`, each a Dim or a name; over all of them without."
    return reduce


sum = _reduction("sum", _tessera.reduce_sum)
mean = _reduction("mean", _tessera.reduce_mean)
max = _reduction("max", _tessera.reduce_max)
min = _reduction("min", _tessera.reduce_min)
prod = _reduction("prod", _tessera.reduce_prod)
any = _reduction("any", _tessera.reduce_any)
all = _reduction("all", _tessera.reduce_all)
logsumexp = _reduction("logsumexp", _tessera.reduce_logsumexp)


def _as_built(made: list[_tessera.Tensor], returned: Any) -> Any:
    """A tensor, where the function that built it returned one; else a list."""
    return made[0] if isinstance(returned, _tessera.Tensor) else made


def cond(predicate: _tessera.Tensor, then: Callable[[], Any], otherwise: Callable[[], Any]) -> Any:
    """The results of then() if `predicate`, a bool scalar, is true, else those of otherwise(). Only one of them runs.

    Each returns a tensor or a list of tensors, of the same dims and dtypes.
    """
    returned = []

    def build():
        returned.append(then())
        return returned[-1]

    made = _tessera.cond(predicate, build, otherwise)
    return _as_built(made, returned[-1])


def recompute(build: Callable[[], Any]) -> Any:
    """What build() returns, a tensor or a list of them. Backward computes what lies within again instead of keeping it."""
    returned = []

    def keep():
        returned.append(build())
        return returned[-1]

    made = _tessera.recompute(current_graph(), keep)
    return _as_built(made, returned[-1])


def _each(what: str, value: Any, count: int) -> list[int]:
    """One number for each of `count` dims, of a number for all of them or of a list."""
    values = list(value) if isinstance(value, (list, tuple)) else [value] * count
    if len(values) != count:
        raise UsageError(_tessera.with_line(f"{what} has {len(values)} numbers for {count} dims; give one for each, or one for all"))
    return values


def _spatial(dims: Any, **numbers: Any) -> tuple[list[Any], dict[str, Any]]:
    """The dims as a list, and one number of each kind for each; of `padding` the numbers before and after, and its kind."""
    dims = list(dims) if isinstance(dims, (list, tuple)) else [dims]
    padding = numbers.pop("padding")
    given = [(0, 0)] * len(dims) if isinstance(padding, str) else list(padding)
    if len(given) != len(dims) or not builtins.all(isinstance(pair, (list, tuple)) and len(pair) == 2 for pair in given):
        raise UsageError(_tessera.with_line(f"padding is {padding!r}; known: same, valid, or a list of (before, after), one for each dim"))
    made: dict[str, Any] = {name: _each(name, value, len(dims)) for name, value in numbers.items()}
    made.update(before=[before for before, _ in given], after=[after for _, after in given], padding=padding if isinstance(padding, str) else "given")
    return dims, made


def conv(x: _tessera.Tensor, filter: _tessera.Tensor, dims: Any, stride: Any = 1, dilation: Any = 1, padding: Any = "same", groups: Any = ()) -> _tessera.Tensor:
    """Convolution (cross-correlation) over the spatial `dims` of x, one or more. The filter has the dim "filter_height" for "height".

    Contracts the filter's spatial dims and each dim that both have, which are input channels, except the `groups`. The result has
    the other dims of x, then those of the filter. stride, dilation: a number for all dims, or a list. padding: "same", which gives
    ceil(n / stride) places, "valid", or a list of (before, after).
    """
    dims, numbers = _spatial(dims, stride=stride, dilation=dilation, size=0, padding=padding)
    return _tessera.conv(x, filter, dims, groups=list(groups), transposed=False, **numbers)


def conv_transpose(
    x: _tessera.Tensor, filter: _tessera.Tensor, dims: Any, stride: Any = 1, dilation: Any = 1, padding: Any = "same", groups: Any = (), size: Any = 0
) -> _tessera.Tensor:
    """The transpose of conv(): its gradient with respect to x. size: of the result's spatial dims, where several are possible."""
    dims, numbers = _spatial(dims, stride=stride, dilation=dilation, size=size, padding=padding)
    return _tessera.conv(x, filter, dims, groups=list(groups), transposed=True, **numbers)


def max_pool(x: _tessera.Tensor, dims: Any, window: Any = 2, stride: Any = 0, dilation: Any = 1, padding: Any = "valid") -> _tessera.Tensor:
    """The largest element of each window over `dims`, one or more. stride: 0 is the window's size. padding: as of conv()."""
    dims, numbers = _spatial(dims, window=window, stride=stride, dilation=dilation, padding=padding)
    return _tessera.pool(x, True, dims, count_padding=False, **numbers)


def avg_pool(
    x: _tessera.Tensor, dims: Any, window: Any = 2, stride: Any = 0, dilation: Any = 1, padding: Any = "valid", count_padding: bool = False
) -> _tessera.Tensor:
    """The mean of each window over `dims`: see max_pool(). count_padding: padding counts as zeros, else it does not count."""
    dims, numbers = _spatial(dims, window=window, stride=stride, dilation=dilation, padding=padding)
    return _tessera.pool(x, False, dims, count_padding=count_padding, **numbers)
