"""Runs functions of Mesh TensorFlow on small inputs and keeps inputs, outputs and gradients.

A case is a function of imported tensors. Its gradients are those of the sum of its floating outputs times weight(n), which the
tests that read the files make again.
"""
import json
import logging
import os
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
logging.disable(logging.WARNING)

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

cases = {}


class Input:
    """An operand: "a=3 b=4" and its values, drawn when the case has a name or given."""

    def __init__(self, shape, make, dtype):
        self.dims = [(name, int(size)) for name, size in (part.split("=") for part in shape.split())]
        self.make, self.dtype = make, dtype

    def values(self, random):
        return np.asarray(self.make(random, [size for _, size in self.dims]), self.dtype).reshape([size for _, size in self.dims])


def real(shape, lo=-2.0, hi=2.0):
    return Input(shape, lambda random, sizes: np.round(random.uniform(lo, hi, sizes), 3), np.float32)


def integers(shape, lo=-9, hi=9, dtype=np.int32):
    return Input(shape, lambda random, sizes: random.integers(lo, hi, sizes, endpoint=True), dtype)


def flags(shape):
    return Input(shape, lambda random, sizes: random.integers(0, 2, sizes), np.bool_)


def given(shape, values, dtype=np.float32):
    return Input(shape, lambda random, sizes: values, dtype)


def case(name, inputs, build, gradient=True):
    assert name not in cases, name
    cases[name] = (inputs, build, gradient)


def weight(n):
    """Of n outputs: multiples of 1/16 of either sign, none of them zero."""
    return (np.arange(n) * 7 % 11 / 8 - 0.5625).astype(np.float32)


def number(x):
    if isinstance(x, (bool, np.bool_)) or isinstance(x, (int, np.integer)):
        return int(x)
    return repr(float(x)) if not np.isfinite(x) else float(np.format_float_positional(np.float32(x), unique=True, trim="-")) \
        if 1e-4 < abs(x) < 1e6 else float(np.format_float_scientific(np.float32(x), unique=True, trim="-"))


def tensor(dtype, dims, values):
    data = [number(x) for x in np.asarray(values).reshape(-1).tolist()]
    data = [int(x) if isinstance(x, float) and x == int(x) and abs(x) < 1e6 and np.copysign(1, x) * x >= 0 and str(x) != "-0.0" else x
            for x in data]
    return {"dtype": dtype, "dims": dims, "data": data}


def dims_of(t):
    return [[d.name, d.size] for d in t.shape.dims]


def run(name):
    inputs, build, has_gradient = cases[name]
    random = np.random.default_rng(zlib.crc32(name.encode()))
    arrays = [x.values(random) for x in inputs]
    with tf.Graph().as_default():
        graph = mtf.Graph()
        mesh = mtf.Mesh(graph, "mesh")
        xs = [mtf.import_tf_tensor(mesh, tf.constant(a), mtf.Shape([mtf.Dimension(*d) for d in x.dims]))
              for a, x in zip(arrays, inputs)]
        ys = build(mesh, *xs)
        ys = list(ys) if isinstance(ys, (list, tuple)) else [ys]
        floats = [y for y in ys if y.dtype.is_floating]
        wrt = [x for x in xs if x.dtype.is_floating] if has_gradient and floats else []
        grads = []
        if wrt:
            loss = mtf.add_n([mtf.reduce_sum(mtf.cast(y, tf.float32) * mtf.import_tf_tensor(
                mesh, tf.constant(weight(y.shape.size).reshape(y.shape.to_integer_list)), y.shape)) for y in floats])
            grads = mtf.gradients([loss], wrt)
        # Results of one device are what they are named by: a layout of nothing.
        placed = mtf.placement_mesh_impl.PlacementMeshImpl(mtf.Shape([mtf.Dimension("all", 1)]), mtf.LayoutRules([]), ["/cpu:0"])
        lowering = mtf.Lowering(graph, {mesh: placed})
        fetched = [lowering.export_to_tf_tensor(t) for t in ys + [g for g in grads if g is not None]]
        with tf.Session() as session:
            fetched = session.run(fetched)
    record = {"in": [tensor(a.dtype.name, [list(d) for d in x.dims], a) for a, x in zip(arrays, inputs)],
              "out": [tensor(y.dtype.name, dims_of(y), v) for y, v in zip(ys, fetched)]}
    if wrt:
        values = iter(fetched[len(ys):])
        record["grad"] = [None if g is None else tensor(g.dtype.name, dims_of(g), next(values)) for g in grads]
    return record


def write(path):
    """All cases, one a line."""
    lines, failed = [], []
    for name in cases:
        try:
            lines.append(json.dumps(name) + ": " + json.dumps(run(name), separators=(",", ":")))
        except Exception as error:
            failed.append(f"case {name}: {type(error).__name__}: {str(error)[:300]}")
    if failed:
        raise SystemExit("\n".join(failed))
    with open(path, "w") as file:
        file.write("{\n" + ",\n".join(lines) + "\n}\n")
    print(f"{path}: {len(lines)} cases, {os.path.getsize(path)} bytes")
