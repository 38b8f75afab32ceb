"""Layers. Each adds its parameters to the current scope under `name`, and returns its result."""
from . import _tessera
from .build import current_graph
from .ops import cross_entropy, dropout


def dense(x, in_dims, out_dims, name="dense", bias=True, activation=None, gain=1.0):
    """x . w + b: contracts `in_dims` to `out_dims`. `activation` is a function by name: "relu", "gelu", "silu", ..."""
    return _tessera.dense(x, name, in_dims, out_dims, bias, [] if activation is None else [activation], gain)


def feed_forward(x, dim, hidden, name="mlp", activations=("gelu",), dropout=0.0, bias=True):
    """dense to `hidden`, activation, dense back to `dim`. activations=("silu", "linear") is SwiGLU."""
    return _tessera.feed_forward(x, name, dim, hidden, list(activations), dropout, bias)


def embedding(indices, vocab, out_dims, name="embedding", stddev=0.02, dtype="float32"):
    """The rows of a table [vocab, out_dims] at `indices`."""
    return _tessera.embedding(indices, name, vocab, out_dims, stddev, dtype)


def layer_norm(x, dim, name="norm", eps=1e-5):
    """(x - mean) / sqrt(var + eps) * scale + bias over `dim`."""
    return _tessera.layer_norm(x, name, dim, eps)


def rms_norm(x, dim, name="norm", eps=1e-6):
    """x / sqrt(mean(x^2) + eps) * scale over `dim`."""
    return _tessera.rms_norm(x, name, dim, eps)


def self_attention(x, dim, heads, memory_heads=0, head_dim=0, causal=False, rotary=False, bias=False, dropout=0.0, name="attention"):
    """Multi-head attention of x [..., length, dim] to itself, with the dims "heads" and "d_head"; memory_heads: grouped-query."""
    return _tessera.self_attention(x, name, dim, heads, memory_heads, head_dim, causal, rotary, bias, dropout)


def gpt(**sizes):
    """The gpt of the command line: its loss, logits and inputs. `ts.nn.gpt(layers=2, d_model=128, batch=8)`."""
    return _tessera.gpt(current_graph(), **sizes)
