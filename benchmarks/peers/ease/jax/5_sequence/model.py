import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec as P


def norm(x, p):
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p["scale"] + p["bias"]


def split(x):
    return jax.lax.with_sharding_constraint(x, P("data", "model"))


def attention(x, p):
    q, k, v = (jnp.einsum("bld,dhk->blhk", x, p[name]) for name in ("query", "key", "value"))
    return jnp.einsum("blhk,hkd->bld", jax.nn.dot_product_attention(q, k, v, is_causal=True), p["out"])


def mlp(x, p):
    return jax.nn.gelu(x @ p["up"]) @ p["down"]


def forward(params, tokens):
    x = split(params["embedding"][tokens] + params["position"])
    for p in params["blocks"]:
        x = split(x + attention(norm(x, p["norm1"]), p["attention"]))
        x = split(x + mlp(norm(x, p["norm2"]), p["mlp"]))
    return norm(x, params["norm"]) @ params["head"]


SPECS = {
    "query": P("data", "model"), "key": P("data", "model"), "value": P("data", "model"),
    "out": P("model", None, "data"), "up": P("data", "model"), "down": P("model", "data"),
    "embedding": P("model", "data"), "head": P("data", "model"), "position": P(None, "data")}


def shardings(params, mesh):
    spec = lambda path, w: SPECS.get(path[-1].key, P("data"))
    return (jax.tree_util.tree_map_with_path(lambda p, w: NamedSharding(mesh, spec(p, w)), params),
            NamedSharding(mesh, P("data")))
