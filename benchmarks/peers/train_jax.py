"""The training step of train_step.cpp in JAX: same shapes, AdamW, random tokens. One line of JSON."""
import argparse, json, os, statistics, time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--device", default="cpu")
parser.add_argument("--shape", type=json.loads, default={}, help="JSON of layers, d_model, heads, length, batch, vocab")
args = parser.parse_args()
if args.device == "cpu":
    cores = sorted(os.sched_getaffinity(0))[: args.threads]
    os.sched_setaffinity(0, cores)  # XLA makes one thread for each core it may use
os.environ["JAX_PLATFORMS"] = args.device

import jax
import jax.numpy as jnp
import numpy as np

shape = {"layers": 4, "d_model": 256, "heads": 8, "length": 128, "batch": 8, "vocab": 256, **args.shape}
LAYERS, D, HEADS, T, B, V = (shape[k] for k in ("layers", "d_model", "heads", "length", "batch", "vocab"))
ACT = jnp.bfloat16 if args.dtype == "bfloat16" else jnp.float32
ATTENTION = "cudnn" if args.device == "cuda" and ACT == jnp.bfloat16 else "xla"
rng = np.random.default_rng(1)


def weight(*shape, scale=0.02):
    return jnp.asarray(rng.normal(0, scale, shape), jnp.float32)


def block():
    return {"n1": (jnp.ones(D), jnp.zeros(D)), "n2": (jnp.ones(D), jnp.zeros(D)),
            "qkv": (weight(D, 3 * D), jnp.zeros(3 * D)), "out": (weight(D, D), jnp.zeros(D)),
            "up": (weight(D, 4 * D), jnp.zeros(4 * D)), "down": (weight(4 * D, D), jnp.zeros(D))}


params = {"tok": weight(V, D), "pos": weight(T, D), "norm": (jnp.ones(D), jnp.zeros(D)), "head": weight(D, V),
          "blocks": [block() for _ in range(LAYERS)]}


def norm(x, p):
    mean = x.mean(-1, keepdims=True)
    var = ((x - mean) ** 2).mean(-1, keepdims=True)
    return ((x - mean) * jax.lax.rsqrt(var + 1e-5) * p[0] + p[1]).astype(ACT)


def dense(x, p):
    return x @ p[0].astype(ACT) + p[1].astype(ACT)


def loss_of(params, x, y):
    h = (params["tok"][x] + params["pos"]).astype(ACT)
    for p in params["blocks"]:
        q, k, v = jnp.split(dense(norm(h, p["n1"]), p["qkv"]), 3, -1)
        q, k, v = (t.reshape(B, T, HEADS, D // HEADS) for t in (q, k, v))
        seen = jax.nn.dot_product_attention(q, k, v, is_causal=True, implementation=ATTENTION).reshape(B, T, D)
        h = h + dense(seen, p["out"])
        h = h + dense(jax.nn.gelu(dense(norm(h, p["n2"]), p["up"])), p["down"])
    logits = (norm(h, params["norm"]) @ params["head"].astype(ACT)).astype(jnp.float32)
    picked = jnp.take_along_axis(jax.nn.log_softmax(logits), y[..., None], -1)
    return -picked.mean()


def adamw(p, g, m, v, t, lr=3e-4, b1=0.9, b2=0.95, eps=1e-8):
    m, v = b1 * m + (1 - b1) * g, b2 * v + (1 - b2) * g * g
    return p - lr * (m / (1 - b1**t)) / (jnp.sqrt(v / (1 - b2**t)) + eps), m, v


@jax.jit
def step(params, m, v, t, x, y):
    loss, grads = jax.value_and_grad(loss_of)(params, x, y)
    new = jax.tree.map(lambda p, g, m, v: adamw(p, g, m, v, t), params, grads, m, v)
    pick = lambda i: jax.tree.map(lambda o: o[i], new, is_leaf=lambda o: isinstance(o, tuple) and len(o) == 3)
    return pick(0), pick(1), pick(2), loss


zeros = lambda: jax.tree.map(jnp.zeros_like, params)
m, v = zeros(), zeros()
x, y = jnp.asarray(rng.integers(0, V, (B, T))), jnp.asarray(rng.integers(0, V, (B, T)))
ms = []
for i in range(args.steps + 3):
    start = time.perf_counter()
    params, m, v, loss = step(params, m, v, jnp.float32(i + 1), x, y)
    loss.block_until_ready()
    if i >= 3:
        ms.append(1e3 * (time.perf_counter() - start))
median = statistics.median(ms)
print(json.dumps({"peer": "jax", "version": jax.__version__, "dtype": args.dtype, "threads": args.threads,
                  "ms": round(median, 2), "least_ms": round(min(ms), 2),
                  "tokens_per_s": round(B * T / median * 1e3), "steps": args.steps}))
