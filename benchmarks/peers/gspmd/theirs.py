"""One training step in JAX under a layout: {"bytes": {kind: bytes}, "peak": bytes, "flops": n, ...} as JSON.

    theirs.py MODEL MESH LAYOUT [key=value ...]

The step is AdamW with clipping of the global norm, as in `tessera train`: parameters, gradients and state lie as the
layout's purposes say. Compiled for 8 devices of the host by XLA's partitioner in three variants, with constraints on
parameters, inputs and results only, on the main activations, and on all that has a name; the one that sends least counts.
The first does not count where a rule splits only activations, of which it knows nothing.
"""
import json
import os
import sys

# The code is never run: LLVM need not optimize it. That is behind all decisions about communication and memory.
os.environ["XLA_FLAGS"] = ("--xla_force_host_platform_device_count=8 --xla_backend_optimization_level=0 "
                           "--xla_llvm_disable_expensive_passes=true " + os.environ.get("XLA_FLAGS", ""))
os.environ["JAX_PLATFORMS"] = "cpu"

import jax
import jax.numpy as jnp

from hlo import bytes_sent
from layouts import Layout
from models import MODELS


def step_of(model, layout, level):
    dims = {name: d for name, (d, _, _) in model.parameters.items()}
    at = lambda name, purpose: layout.sharding(dims[name], name, purpose, prefer=("experts",))
    pin = jax.lax.with_sharding_constraint

    def put(value, names, wanted, name="", prefer=()):
        if wanted > level:
            return value
        return pin(value, layout.sharding(names, name, prefer=prefer))

    def loss_of(p, x):
        if level > 0:  # as ops read them: gathered from where they rest
            p = {n: pin(v, at(n, "none")) if n.split(".")[0] != "block" else v for n, v in p.items()}
        return model.loss(p, x, put)

    def adamw(p, g, m, v, t, lr, decays):
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * jnp.square(g)
        change = m / (1 - 0.9**t) / (jnp.sqrt(v / (1 - 0.95**t)) + 1e-8)
        return p - lr * (change + 0.1 * p if decays else change), m, v

    def step(p, m, v, t, lr, x):
        loss, g = jax.value_and_grad(loss_of)(p, x)
        if level > 0 or layout.has("grads", "params"):
            g = {n: pin(value, at(n, "grads")) for n, value in g.items()}
        norm = jnp.sqrt(sum(jnp.square(value).sum() for value in g.values()))
        factor = jnp.minimum(1.0, 1.0 / (norm + 1e-6))
        new = {}
        for n, value in g.items():
            value = pin(value * factor, at(n, "state"))
            mine = pin(p[n], at(n, "state"))
            layers = n.startswith("block.")
            new[n] = adamw(mine, value, m[n], v[n], t + 1, lr, len(dims[n]) - layers >= 2 and model.parameters[n][2] == "weight")
        return *({n: new[n][i] for n in new} for i in range(3)), t + 1, loss, norm

    whole = layout.sharding(())
    params, state = ({n: at(n, p) for n in dims} for p in ("params", "state"))
    inputs = {n: layout.sharding(d) for n, (d, _, _) in model.inputs.items()}
    return jax.jit(step, in_shardings=(params, state, state, whole, whole, inputs),
                   out_shardings=(params, state, state, whole, whole, whole), donate_argnums=(0, 1, 2, 3))


def compiled(model, layout, level):
    shape = lambda size, dtype=jnp.float32: jax.ShapeDtypeStruct(size, dtype)
    p = {n: shape(size) for n, (_, size, _) in model.parameters.items()}
    x = {n: shape(size, dtype) for n, (_, size, dtype) in model.inputs.items()}
    return step_of(model, layout, level).lower(p, p, p, shape(()), shape(()), x).compile()


def main(name, mesh, rules, *sizes):
    layout = Layout(mesh, rules)
    model = MODELS[name](**{k: json.loads(v) for k, v in (s.split("=") for s in sizes)})
    best, tried = None, []
    known = {d for dims, _, _ in [*model.parameters.values(), *model.inputs.values()] for d in dims}
    for level in range(0 if layout.follows_from(known) else 1, 3):
        program = compiled(model, layout, level)
        text = program.as_text()
        if os.environ.get("KEEP_HLO"):
            open(f"{os.environ['KEEP_HLO']}.{level}.txt", "w").write(text)
        memory = program.memory_analysis()
        result = {"level": level, "bytes": bytes_sent(text, layout.ranks()), "flops": program.cost_analysis()["flops"],
                  "peak": memory.argument_size_in_bytes + memory.output_size_in_bytes - memory.alias_size_in_bytes
                  + memory.temp_size_in_bytes}
        tried.append(sum(result["bytes"].values()))
        if best is None or tried[-1] < sum(best["bytes"].values()):
            best = result
    print(json.dumps({**best, "tried": tried, "version": jax.__version__}))


if __name__ == "__main__":
    main(*sys.argv[1:])
