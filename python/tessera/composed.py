"""Functions that are made of the operations of ts.ops."""
from __future__ import annotations

import math
from typing import Any

from . import _tessera
from .build import iota, is_number, random_uniform
from .errors import UsageError
from .ops import argmax, argsort, cast, exp, floor, gather, log, log_softmax, mean, rename, sqrt, square, sum, tanh, transpose, where


def _root(x: _tessera.Tensor) -> _tessera.Tensor:
    """The square root of x, whose gradient is 0 where x is 0."""
    return where(x > 0, sqrt(where(x > 0, x, 1)), x)


def expm1(x: _tessera.Tensor) -> _tessera.Tensor:
    """exp(x) - 1, precise for small x, elementwise."""
    return tanh(x / 2.0) * (exp(x) + 1)


def var(x: _tessera.Tensor, dims: Any = None, correction: float = 0) -> _tessera.Tensor:
    """The variance over `dims`, each a Dim or a name; over all of them without. correction: 1 divides by n - 1 in place of n, as PyTorch does."""
    squares = square(x - mean(x, dims))
    if correction == 0:
        return mean(squares, dims)
    total = sum(squares, dims)
    n = math.prod(int(d) for d in x.dims if d.name not in {kept.name for kept in total.dims})
    if n <= correction:
        raise UsageError(_tessera.with_line(f"[var] {n} elements with a correction of {correction}; there are more elements than that"))
    return total / (n - correction)


def std(x: _tessera.Tensor, dims: Any = None, correction: float = 0) -> _tessera.Tensor:
    """The standard deviation over `dims`: see var(). Its gradient is 0 where all elements are equal."""
    return _root(var(x, dims, correction))


def norm(x: _tessera.Tensor, dims: Any = None) -> _tessera.Tensor:
    """The root of the sum of squares over `dims`, each a Dim or a name; over all of them without. Its gradient is 0 where it is 0."""
    return _root(sum(square(x), dims))


def flip(x: _tessera.Tensor, dim: Any) -> _tessera.Tensor:
    """The elements of x along `dim` in reverse order."""
    marked = rename(x, dim, "_flipped")
    along = x.dim(getattr(dim, "name", dim))
    return transpose(gather(marked, int(along) - 1 - iota(along), "_flipped"), x.dims)


def segment_max(x: _tessera.Tensor, segments: _tessera.Tensor, dim: Any, out: _tessera.Dim, empty: float = 0.0) -> _tessera.Tensor:
    """The largest element of each segment: x [dim, ...] and the numbers of segments [dim] give [out, ...]. `empty`: of those without elements.

    It compares each element with each segment: memory for x as many times as there are segments.
    """
    is_of = segments == iota(out, segments.dtype)
    lowest = float("-inf")
    largest = _tessera.reduce_max(where(is_of, x, lowest), dim)
    return where(largest == lowest, empty, largest)


def cross_entropy(
    logits: _tessera.Tensor, labels: _tessera.Tensor, classes: Any, z_loss: float = 0.0, label_smoothing: float = 0.0, ignore_index: int | None = None
) -> _tessera.Tensor:
    """-log softmax(logits)[label] of each label, over the dim `classes`. z_loss: adds z_loss * logsumexp(logits)^2.

    label_smoothing: the share of a label that all classes get alike. ignore_index: the loss of such a label is 0; divide the sum by
    the number of the others: ts.sum(loss) / ts.sum(ts.cast(labels != ignore_index, ts.f32)).
    """
    if not 0 <= label_smoothing < 1:
        raise UsageError(_tessera.with_line(f"[cross_entropy] label_smoothing {label_smoothing} is not in [0, 1)"))
    known = labels if ignore_index is None else where(labels == ignore_index, 0, labels)
    loss = _tessera.cross_entropy(logits, known, classes, z_loss)
    if label_smoothing > 0:
        loss = loss * (1 - label_smoothing) - cast(mean(log_softmax(logits, classes), classes), loss.dtype) * label_smoothing
    return loss if ignore_index is None else where(labels == ignore_index, 0, loss)


def bernoulli(p: Any, dims: Any = None) -> _tessera.Tensor:
    """True with the probability p: a tensor, or a number for the dims `dims`. Others in each run: see random_uniform()."""
    if is_number(p) and dims is None:
        raise TypeError(_tessera.with_line("bernoulli() of a number takes the dims of the result: ts.bernoulli(0.5, [batch])"))
    return random_uniform(p.dims if dims is None else dims) < p


def categorical(logits: _tessera.Tensor, dim: Any) -> _tessera.Tensor:
    """An index (int32) along `dim`, drawn with the probabilities softmax(logits, dim). Others in each run: see random_uniform()."""
    return argmax(cast(logits, "float32") - log(-log(random_uniform(logits.dims))), dim)


def permutation(dim: _tessera.Dim) -> _tessera.Tensor:
    """0 .. size-1 in a random order: int32 [dim]. Others in each run: see random_uniform()."""
    return argsort(random_uniform([dim]), dim)


def randint(dims: Any, lo: int, hi: int, dtype: Any = "int32") -> _tessera.Tensor:
    """Whole numbers in [lo, hi), each as often; hi - lo is 2^23 at most. Others in each run: see random_uniform()."""
    if not 0 < hi - lo <= 2**23:
        raise UsageError(_tessera.with_line(f"[randint] the range {lo} .. {hi}; it has 1 to 2^23 numbers"))
    return cast(floor(random_uniform(dims, 0.0, float(hi - lo))), dtype) + lo
