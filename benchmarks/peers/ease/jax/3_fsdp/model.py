import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def attention(x, p):
    q, k, v = (jnp.einsum("bld,dhk->blhk", x, p[name]) for name in ("query", "key", "value"))
    return jnp.einsum("blhk,hkd->bld", jax.nn.dot_product_attention(q, k, v, is_causal=True), p["out"])


def mlp(x, p):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def forward(params, tokens):
    x = params["embedding"][tokens] + params["position"]
    for p in params["blocks"]:
        x = x + attention(norm(x, p["norm1"]), p["attention"])
        x = x + mlp(norm(x, p["norm2"]), p["mlp"])
    return norm(x, params["norm"]) @ params["head"]


def shardings(params, mesh):
    largest = lambda w: P(*("data" if d == w.shape.index(max(w.shape)) else None for d in range(w.ndim)))
    return jax.tree.map(lambda w: NamedSharding(mesh, largest(w)), params), NamedSharding(mesh, P("data"))
