"""The operations: those of the engine, and Python's names for the reductions."""
from __future__ import annotations

from typing import Any, Callable

from . import _tessera
from ._tessera import (
    abs, add, argmax, argmin, argsort, attention, broadcast, cast, ceil, clip, concat, cos, cross_entropy, cumsum, div,
    dropout, elu, equal, erf, erf_inv, exp, floor, floor_div, gather, gelu, gradients, greater, greater_equal, identity,
    is_finite, is_inf, is_nan, leaky_relu, less, less_equal, log, log1p, log_softmax, logical_and, logical_not, logical_or,
    logical_xor, maximum, minimum, mod, mul, neg, not_equal, one_hot, ones_like, pad, pow, reciprocal, reduce_logsumexp,
    relu, rename, repeat, reshape, round, rsqrt, scatter_add, selu, shift, sigmoid, sign, silu, sin, slice, softmax,
    softplus, sort, split, sqrt, square, stack, stop_gradient, sub, take_along, tanh, top_k, transpose, unstack, where,
    zeros_like,
)

__all__ = [
    "add", "all", "any", "argmax", "argmin", "argsort", "attention", "broadcast", "cast", "ceil", "clip", "concat",
    "cos", "cross_entropy", "cumsum", "div", "dropout", "einsum", "elu", "equal", "erf", "erf_inv", "exp", "floor",
    "floor_div", "gather", "gelu", "gradients", "greater", "greater_equal", "identity", "is_finite", "is_inf", "is_nan",
    "leaky_relu", "less", "less_equal", "log", "log1p", "log_softmax", "logical_and", "logical_not", "logical_or",
    "logical_xor", "logsumexp", "maximum", "mean", "minimum", "mod", "mul", "neg", "not_equal", "one_hot", "ones_like",
    "pad", "prod", "reciprocal", "reduce_logsumexp", "relu", "rename", "repeat", "reshape", "rsqrt", "scatter_add",
    "selu", "shift", "sigmoid", "sign", "silu", "sin", "slice", "softmax", "softplus", "sort", "split", "sqrt",
    "square", "stack", "stop_gradient", "sub", "take_along", "tanh", "top_k", "transpose", "unstack", "where",
    "zeros_like",
]


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
