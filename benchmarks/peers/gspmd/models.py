"""The models of `bench_communication` in JAX: the same ops, losses and parameters, by dim names.

A model is parameters {name: (dims, sizes, kind)}, inputs {name: (dims, sizes, dtype)} and loss(p, x, put), where
put(value, dims, level, name, prefer) is a sharding constraint: level 1 for what a model's author would surely
write (streams between blocks, hidden activations), 2 for everything that has a name in Tessera's model.
"""
import jax
import jax.numpy as jnp
import numpy as np


def weight(**dims):
    return tuple(dims), tuple(dims.values()), "weight"


def vector(value, **dims):
    return tuple(dims), tuple(dims.values()), value


def layer_norm(x, scale, bias):
    mean = x.mean(-1, keepdims=True)
    centered = x - mean
    variance = jnp.square(centered).mean(-1, keepdims=True)
    return centered * jax.lax.rsqrt(variance + 1e-5) * scale + bias


def causal_attention(q, k, v, put):
    """q, k, v [batch, length, heads, d_head]."""
    n = q.shape[1]
    logits = jnp.einsum("blhd,bmhd->bhlm", q, k) / np.sqrt(q.shape[-1])
    logits = put(logits, ("batch", "heads", "length", "memory_length"), 2)
    seen = jax.lax.broadcasted_iota(jnp.int32, (n, n), 0) >= jax.lax.broadcasted_iota(jnp.int32, (n, n), 1)
    weights = jax.nn.softmax(jnp.where(seen, logits, -1e30), -1)
    return jnp.einsum("bhlm,bmhd->blhd", weights, v)


STREAM = ("batch", "length", "d_model")
MEMORY = ("batch", "memory_length", "d_model")
HEADS = ("batch", "length", "heads", "d_head")
MEMORY_HEADS = ("batch", "memory_length", "heads", "d_head")


def self_attention(p, scope, x, put, bias):
    b = (lambda what: p[f"{scope}.{what}.b"]) if bias else (lambda what: 0.0)
    memory = put(x, MEMORY, 2)
    q = put(jnp.einsum("bld,dhk->blhk", x, p[f"{scope}.query.w"]) + b("query"), HEADS, 1)
    k = put(jnp.einsum("bld,dhk->blhk", memory, p[f"{scope}.key.w"]), MEMORY_HEADS, 1)
    v = put(jnp.einsum("bld,dhk->blhk", memory, p[f"{scope}.value.w"]) + b("value"), MEMORY_HEADS, 1)
    seen = put(causal_attention(q, k, v, put), HEADS, 1)
    return jnp.einsum("blhk,hkd->bld", seen, p[f"{scope}.out.w"]) + b("out")


class Gpt:
    sizes = dict(layers=2, d_model=256, heads=8, ff=1024, length=128, vocab=512, batch=16, scan=False)

    def __init__(self, **sizes):
        s = self.s = {**Gpt.sizes, **sizes}
        d, h, k = s["d_model"], s["heads"], s["d_model"] // s["heads"]
        self.parameters = {"embedding": weight(vocab=s["vocab"], d_model=d),
                           "position": weight(length=s["length"], d_model=d)}
        block = {"norm1.scale": vector(1.0, d_model=d), "norm1.bias": vector(0.0, d_model=d)}
        for part in ("query", "key", "value"):
            block[f"attention.{part}.w"] = weight(d_model=d, heads=h, d_head=k)
            if part != "key":
                block[f"attention.{part}.b"] = vector(0.0, heads=h, d_head=k)
        block |= {"attention.out.w": weight(heads=h, d_head=k, d_model=d), "attention.out.b": vector(0.0, d_model=d),
                  "norm2.scale": vector(1.0, d_model=d), "norm2.bias": vector(0.0, d_model=d),
                  "mlp.up.w": weight(d_model=d, ff=s["ff"]), "mlp.up.b": vector(0.0, ff=s["ff"]),
                  "mlp.down.w": weight(ff=s["ff"], d_model=d), "mlp.down.b": vector(0.0, d_model=d)}
        if s["scan"]:
            for name, (dims, size, kind) in block.items():
                self.parameters[f"block.{name}"] = (("layers", *dims), (s["layers"], *size), kind)
        else:
            for i in range(s["layers"]):
                self.parameters |= {f"block{i}.{name}": value for name, value in block.items()}
        self.block = list(block)
        self.parameters |= {"norm.scale": vector(1.0, d_model=d), "norm.bias": vector(0.0, d_model=d),
                            "head.w": weight(d_model=d, vocab=s["vocab"])}
        tokens = (("batch", "length"), (s["batch"], s["length"]), jnp.int32)
        self.inputs = {"inputs": tokens, "targets": tokens}

    def loss(self, p, x, put):
        s = self.s
        hot = lambda t: jax.nn.one_hot(t, s["vocab"], dtype=jnp.float32)
        h = put(p["embedding"][x["inputs"]], STREAM, 1) + p["position"]
        h = put(h, STREAM, 1)

        def block(h, p):
            norm = lambda name: put(layer_norm(h, p[f"{name}.scale"], p[f"{name}.bias"]), STREAM, 1, name)
            h = put(h + put(self_attention(p, "attention", norm("norm1"), put, True), STREAM, 2), STREAM, 1)
            up = put(jax.nn.gelu(norm("norm2") @ p["mlp.up.w"] + p["mlp.up.b"]), ("batch", "length", "ff"), 1)
            return put(h + put(up @ p["mlp.down.w"] + p["mlp.down.b"], STREAM, 2), STREAM, 1)

        if s["scan"]:
            h, _ = jax.lax.scan(lambda h, p: (block(h, p), None), h, {n: p[f"block.{n}"] for n in self.block})
        else:
            for i in range(s["layers"]):
                h = block(h, {n: p[f"block{i}.{n}"] for n in self.block})
        h = put(layer_norm(h, p["norm.scale"], p["norm.bias"]), STREAM, 1, "norm")
        logits = put(h @ p["head.w"], ("batch", "length", "vocab"), 1)
        lse = jax.nn.logsumexp(logits, -1)
        return (lse - (logits * hot(x["targets"])).sum(-1)).mean()


class MoeLayer:
    sizes = dict(d_model=128, length=64, heads=4, experts=8, ff=256, choices=2, batch=16)

    def __init__(self, **sizes):
        s = self.s = {**MoeLayer.sizes, **sizes}
        d, h, k = s["d_model"], s["heads"], s["d_model"] // s["heads"]
        self.parameters = {"norm1.scale": vector(1.0, d_model=d), "norm1.bias": vector(0.0, d_model=d)}
        for part in ("query", "key", "value"):
            self.parameters[f"attention.{part}.w"] = weight(d_model=d, heads=h, d_head=k)
        self.parameters |= {
            "attention.out.w": weight(heads=h, d_head=k, d_model=d),
            "norm2.scale": vector(1.0, d_model=d), "norm2.bias": vector(0.0, d_model=d),
            "moe.router.w": weight(d_model=d, experts=s["experts"]),
            "moe.expert.up.w": weight(experts=s["experts"], d_model=d, ff=s["ff"]),
            "moe.expert.down.w": weight(experts=s["experts"], ff=s["ff"], d_model=d)}
        stream = (("batch", "length", "d_model"), (s["batch"], s["length"], d), jnp.float32)
        self.inputs = {"x": stream, "target": stream}

    def route(self, logits, put):
        """Each token its best experts, later choices behind all earlier; one_hot of a place too many is zero."""
        s = self.s
        experts, tokens = s["experts"], s["length"]
        capacity = max(min(tokens, int(tokens * 1.25 / experts)), 4)
        gates = jax.nn.softmax(logits, -1)
        left, masks, values = gates, [], []
        for _ in range(s["choices"]):
            mask = jax.nn.one_hot(jnp.argmax(left, -1), experts, dtype=gates.dtype)
            left = jnp.where(mask > 0, -1.0, left)
            masks.append(mask)
            values.append((gates * mask).sum(-1))
        if s["choices"] > 1:
            total = sum(values) + 1e-9
            values = [v / total for v in values]
        balance = (masks[0].mean(1) * gates.mean(1)).mean() * experts * experts
        dispatch = combine = before = 0.0
        for mask, gate in zip(masks, values):
            place = jnp.cumsum(mask, 1) - mask + before
            index = (place * mask).sum(-1).astype(jnp.int32)
            slot = jax.nn.one_hot(index, capacity, dtype=gates.dtype)
            kept = slot.sum(-1)
            placed = mask[..., None] * slot[..., None, :]
            before = before + (mask * kept[..., None]).sum(1, keepdims=True)
            dispatch, combine = dispatch + placed, combine + placed * gate[..., None, None]
        groups = ("batch", "length")
        dims = ("batch", "length", "experts", "capacity")
        return put(dispatch, dims, 2, prefer=groups), put(combine, dims, 2, prefer=groups), balance

    def loss(self, p, x, put):
        norm = lambda v, n: put(layer_norm(v, p[f"{n}.scale"], p[f"{n}.bias"]), STREAM, 1, n)
        h = put(x["x"] + put(self_attention(p, "attention", norm(x["x"], "norm1"), put, False), STREAM, 2), STREAM, 1)
        seen = norm(h, "norm2")
        logits = put(seen @ p["moe.router.w"], ("batch", "length", "experts"), 1, prefer=("batch", "length"))
        dispatch, combine, balance = self.route(logits, put)
        place = ("experts", "batch", "capacity", "d_model")
        inputs = put(jnp.einsum("bld,blec->ebcd", seen, dispatch), place, 1, prefer=("batch",))
        inputs = put(inputs, place, 1, prefer=("experts",))
        up = jax.nn.relu(jnp.einsum("ebcd,edf->ebcf", inputs, p["moe.expert.up.w"]))
        up = put(up, ("experts", "batch", "capacity", "ff"), 1, prefer=("experts",))
        outputs = put(jnp.einsum("ebcf,efd->ebcd", up, p["moe.expert.down.w"]), place, 1, prefer=("experts",))
        outputs = put(outputs, place, 1, prefer=("batch",))
        y = h + jnp.einsum("ebcd,blec->bld", outputs, combine)
        return jnp.square(put(y, STREAM, 1) - x["target"]).mean() + 1e-2 * balance


def doubled(x, filter):
    """The transposed convolution of x [batch, spatial..., in] with filter [2, 2, ..., in, out] and stride 2, as a product:
    XLA would gather x for the gradient by the filter of lax.conv_transpose."""
    n = x.ndim - 2
    spatial, window = "HWD"[:n], "hwd"[:n]
    placed = "".join(a + b for a, b in zip(spatial, window))
    y = jnp.einsum(f"N{spatial}I,{window}IO->N{placed}O", x, filter)
    return y.reshape(x.shape[0], *(2 * s for s in x.shape[1:-1]), filter.shape[-1])


class Unet:
    sizes = dict(height=64, width=64, depth=0, channels=4, filters=16, levels=3, convolutions=2, classes=3, batch=8)

    def __init__(self, **sizes):
        s = self.s = {**Unet.sizes, **sizes}
        self.spatial = {d: s[d] for d in ("height", "width", "depth") if s[d] > 0}
        self.image = ("batch", *self.spatial)
        self.parameters, self.steps = {}, []
        channel, size = "channels", s["channels"]

        def convolution(name, window, filters, transposed=False):
            nonlocal channel, size
            out = "filters2" if channel == "filters" else "filters"
            dims = {**{f"filter_{d}": window for d in self.spatial}, channel: size, out: filters}
            self.parameters[f"{name}.filter"] = weight(**dims)
            if not transposed:
                self.parameters[f"{name}.norm.scale"] = vector(1.0, **{out: filters})
                self.parameters[f"{name}.norm.bias"] = vector(0.0, **{out: filters})
            channel, size = out, filters
            return name, out

        def block(name, filters):
            return [convolution(f"{name}.conv{c}", 3, filters) for c in range(s["convolutions"])]

        self.down, self.up, kept = [], [], []
        for level in range(s["levels"]):
            self.down.append(block(f"down{level}", s["filters"] << level))
            kept.append(size)
        for level in reversed(range(s["levels"] - 1)):
            first = convolution(f"up{level}", 2, s["filters"] << level, True)
            size = 2 * size
            self.up.append((first, block(f"up{level}_block", s["filters"] << level), level))
        self.parameters["head.w"] = weight(**{channel: size, "classes": s["classes"]})
        self.parameters["head.b"] = vector(0.0, classes=s["classes"])
        self.last = channel
        shape = (s["batch"], *self.spatial.values())
        self.inputs = {"images": ((*self.image, "channels"), (*shape, s["channels"]), jnp.float32),
                       "labels": (self.image, shape, jnp.int32)}

    def loss(self, p, x, put):
        letters = "HWD"[: len(self.spatial)]
        numbers = (f"N{letters}C", f"{letters}IO", f"N{letters}C")
        axes = tuple(range(1 + len(self.spatial)))

        def block(h, convolutions):
            for name, out in convolutions:
                dims = (*self.image, out)
                h = jax.lax.conv_general_dilated(h, p[f"{name}.filter"], [1] * len(letters), "SAME",
                                                 dimension_numbers=numbers)
                h = put(h, dims, 1)
                mean = h.mean(axes)
                variance = jnp.square(h - mean).mean(axes)
                h = (h - mean) * (jax.lax.rsqrt(variance + 1e-3) * p[f"{name}.norm.scale"]) + p[f"{name}.norm.bias"]
                h = put(jnp.where(h >= 0, h, 0.1 * h), dims, 1)
            return h

        h, aside = x["images"], []
        for level, convolutions in enumerate(self.down):
            h = block(h, convolutions)
            if level + 1 < len(self.down):
                aside.append(h)
                window = (1, *[2] * len(letters), 1)
                h = jax.lax.reduce_window(h, -jnp.inf, jax.lax.max, window, window, "VALID")
                h = put(h, (*self.image, convolutions[-1][1]), 1)
        for (name, out), convolutions, level in self.up:
            h = put(doubled(h, p[f"{name}.filter"]), (*self.image, out), 1)
            h = put(jnp.concatenate([h, aside[level]], -1), (*self.image, out), 1)
            h = block(h, convolutions)
        logits = put(h @ p["head.w"] + p["head.b"], (*self.image, "classes"), 1)
        hot = jax.nn.one_hot(x["labels"], self.s["classes"], dtype=jnp.float32)
        weights = hot @ jnp.asarray([1.0, 8.0, 16.0])
        lse = jax.nn.logsumexp(logits, -1)
        loss = (weights * (lse - (logits * hot).sum(-1))).mean()
        share = jax.nn.softmax(logits, -1)
        both, every = (share * hot).sum(axes), share.sum(axes) + hot.sum(axes)
        return loss + 0.2 * (1 - ((both * 2 + 0.1) / (every + 0.1)).mean())


MODELS = {"gpt": Gpt, "moe_layer": MoeLayer, "unet": Unet}
