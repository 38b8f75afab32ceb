"""Layers. Each adds its parameters to the current scope under `name`, and returns its result."""
from __future__ import annotations

from typing import Any, Sequence

from . import _tessera
from .build import current_graph
from .composed import cross_entropy
from .ops import _spatial, dropout


def dense(x: _tessera.Tensor, in_dims: Any, out_dims: Any, name: str = "dense", bias: bool = True, activation: str | None = None, gain: float = 1.0) -> _tessera.Tensor:
    """x . w + b: contracts `in_dims` to `out_dims`. `activation` is a function by name: "relu", "gelu", "silu", ..."""
    if not (activation is None or isinstance(activation, str)):
        raise TypeError(f"activation is the name of a function, such as 'relu', not {activation!r}")
    return _tessera.dense(x, name, in_dims, out_dims, bias, [] if activation is None else [activation], gain)


def feed_forward(x: _tessera.Tensor, dim: Any, hidden: _tessera.Dim, name: str = "mlp", activations: Sequence[str] = ("gelu",), dropout: float = 0.0, bias: bool = True) -> _tessera.Tensor:
    """dense to `hidden`, activation, dense back to `dim`. activations=("silu", "linear") is SwiGLU."""
    return _tessera.feed_forward(x, name, dim, hidden, list(activations), dropout, bias)


def embedding(indices: _tessera.Tensor, vocab: _tessera.Dim, out_dims: Any, name: str = "embedding", stddev: float = 0.02, dtype: Any = "float32") -> _tessera.Tensor:
    """The rows of a table [vocab, out_dims] at `indices`."""
    return _tessera.embedding(indices, name, vocab, out_dims, stddev, dtype)


def layer_norm(x: _tessera.Tensor, dim: Any, name: str = "norm", eps: float = 1e-5) -> _tessera.Tensor:
    """(x - mean) / sqrt(var + eps) * scale + bias over `dim`."""
    return _tessera.layer_norm(x, name, dim, eps)


def rms_norm(x: _tessera.Tensor, dim: Any, name: str = "norm", eps: float = 1e-6) -> _tessera.Tensor:
    """x / sqrt(mean(x^2) + eps) * scale over `dim`."""
    return _tessera.rms_norm(x, name, dim, eps)


def conv(
    x: _tessera.Tensor, window: Any, in_dim: Any, out_dim: _tessera.Dim, name: str = "conv", stride: Any = 1, dilation: Any = 1, padding: Any = "same", bias: bool = True
) -> _tessera.Tensor:
    """ts.conv() with a filter of its own, whose spatial sizes are those of `window`: nn.conv(x, ts.dims(height=3, width=3), c, d)."""
    window = list(window) if isinstance(window, (list, tuple)) else [window]
    _, numbers = _spatial(window, stride=stride, dilation=dilation, padding=padding)
    return _tessera.conv_layer(x, name, window, in_dim, out_dim, bias=bias, **numbers)


def batch_norm(x: _tessera.Tensor, channels: Any, training: bool = True, name: str = "norm", momentum: float = 0.99, eps: float = 1e-3) -> _tessera.Tensor:
    """(x - mean) / sqrt(var + eps) * scale + bias for each of the dims `channels`, over all others (Ioffe & Szegedy 2015).

    training: statistics of this batch, which update the running ones; else the running ones.
    """
    return _tessera.batch_norm(x, name, channels, training, momentum, eps)


def self_attention(
    x: _tessera.Tensor,
    dim: Any,
    heads: int,
    memory_heads: int = 0,
    head_dim: int = 0,
    causal: bool = False,
    rotary: bool = False,
    bias: bool = False,
    dropout: float = 0.0,
    name: str = "attention",
) -> _tessera.Tensor:
    """Multi-head attention of x [..., length, dim] to itself, with the dims "heads" and "d_head"; memory_heads: grouped-query."""
    return _tessera.self_attention(x, name, dim, heads, memory_heads, head_dim, causal, rotary, bias, dropout)


def gpt(**sizes: Any) -> Any:
    """The gpt of the command line: its loss, logits and inputs. `ts.nn.gpt(layers=2, d_model=128, batch=8)`."""
    return _tessera.gpt(current_graph(), **sizes)
