"""One computation in Mesh TensorFlow, with what goes in and what comes out, on one CPU device.

A tensor of the file is called CASE/KIND/NAME, KIND one of
    in      fed                          param   of a parameter, by Tessera's name for it
    state   what is stored but not trained, before the first run
    out     a result                     weight  of the result in the loss, which is sum(out * weight)
    grad    of the loss, by an input or a parameter
    after   state after RUNS runs
"""
import logging
import os
import sys
import types
import zlib

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
logging.disable(logging.WARNING)
sys.modules["tensorflow_datasets"] = types.ModuleType("tensorflow_datasets")  # which nothing here calls

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
Dim = mtf.Dimension
RUNS = 3

CASES = {}
FILE = {}  # name -> (dims, elements)


def case(build):
    CASES[build.__name__] = build
    return build


def put(name, dims, elements):
    elements = np.asarray(elements)
    assert name not in FILE and len(dims) == elements.ndim, (name, dims, elements.shape)
    FILE[name] = (list(dims), elements)


class Case:
    def __init__(self, name):
        self.name, self.random = name, np.random.default_rng(zlib.crc32(name.encode()))
        self.graph = mtf.Graph()
        self.mesh = mtf.Mesh(self.graph, "mesh")
        self.dims, self.dims_of_variables, self.names = {}, {}, {}
        self.inputs, self.outputs, self.runs = [], [], []

    def put(self, kind, name, dims, elements):
        """Under Tessera's names of the dims; a dim of one element that has none there is left out."""
        known = [self.dims.get(d, d) for d in dims]
        elements = np.asarray(elements).reshape([n for n, d in zip(np.shape(elements), known) if d])
        put(f"{self.name}/{kind}/{name}", [d for d in known if d], elements)

    def draw(self, sizes, low=-1, high=1):
        return self.random.uniform(low, high, sizes).astype(np.float32)

    def input(self, name, dims, low=-1, high=1, values=None):
        """Numbers from [low, high), or those given; whole numbers if both are whole and low is not negative."""
        sizes = [d.size for d in dims]
        whole = values is None and isinstance(high, int) and low >= 0 and high > 1
        if values is None:
            values = self.random.integers(low, high, sizes).astype(np.int32) if whole else self.draw(sizes, low, high)
        values = np.asarray(values)
        self.put("in", name, [d.name for d in dims], values)
        tensor = mtf.import_tf_tensor(self.mesh, tf.constant(values), mtf.Shape(dims))
        if values.dtype == np.float32:
            self.inputs.append((name, tensor))
        return tensor

    def output(self, name, tensor, weight=True):
        shape = tensor.shape
        numbers = self.draw(shape.to_integer_list) if weight else None
        if weight:
            self.put("weight", name, [d.name for d in shape], numbers)
        self.outputs.append((name, tensor, numbers))

    def loss(self):
        terms = [mtf.reduce_sum(t * mtf.import_tf_tensor(self.mesh, tf.constant(w), t.shape))
                 for _, t, w in self.outputs if w is not None]
        return mtf.add_n(terms) if terms else None

    def known_as(self, variable):
        """Tessera's names of a variable: several if it is a stack of parameters."""
        names = [self.names[n] for n in self.names if variable.name == n or variable.name.endswith("/" + n)]
        assert len(names) == 1, f"{self.name}: no name for {variable.name} {variable.shape}"
        return names[0] if isinstance(names[0], list) else [names[0]]

    def put_variable(self, kind, variable, value):
        names = self.known_as(variable)
        dims = self.dims_of_variables.get(names[0], [d.name for d in variable.shape])
        if len(names) == 1:
            return self.put(kind, names[0], dims, value)
        for i, name in enumerate(names):
            self.put(kind, name, dims[1:], value[i])

    def run(self):
        loss = self.loss()
        variables = list(self.graph.trainable_variables)
        states = [v for v in self.graph.all_variables if v not in variables]
        wanted = [t for _, t in self.inputs] + [v.outputs[0] for v in variables]
        grads = mtf.gradients([loss], wanted) if loss is not None else []
        placed = mtf.placement_mesh_impl.PlacementMeshImpl(mtf.convert_to_shape("x:1"), mtf.convert_to_layout_rules(""), ["/cpu:0"])
        lowering = mtf.Lowering(self.graph, {self.mesh: placed})
        export = lambda t: None if t is None else lowering.export_to_tf_tensor(t)
        results = [export(t) for _, t, _ in self.outputs], [export(g) for g in grads]
        results = [[t for t in ts if t is not None] for ts in results]
        after = [export(v.outputs[0]) for v in states]
        masters = {v.name.split(":")[0]: v for v in tf.global_variables()}
        with tf.Session() as session:
            session.run(tf.global_variables_initializer())
            for kind, group in (("param", variables), ("state", states)):
                for v in group:
                    value = self.draw(v.shape.to_integer_list, *((0.5, 1.5) if kind == "state" else ()))
                    self.put_variable(kind, v, value)
                    masters[v.name].load(value, session)
            session.run(lowering.copy_masters_to_slices())
            outs, grad_values = session.run(results)
            for (name, tensor, _), value in zip(self.outputs, outs):
                self.put("out", name, [d.name for d in tensor.shape], value)
            there = iter(grad_values)
            for i, g in enumerate(grads):
                if g is None:
                    continue
                value = next(there)
                if i < len(self.inputs):
                    self.put("grad", self.inputs[i][0], [d.name for d in self.inputs[i][1].shape], value)
                else:
                    self.put_variable("grad", variables[i - len(self.inputs)], value)
            if self.runs:
                updates = [lowering.lowered_operation(op) for op in self.runs]
                for _ in range(RUNS):
                    session.run(updates)
                for v, value in zip(states, session.run(after)):
                    self.put_variable("after", v, value)


def run_all():
    for name, build in CASES.items():
        with tf.Graph().as_default():
            c = Case(name)
            build(c)
            c.run()


def like(name):
    """What has the same dims: these are in the file once."""
    row, kind, rest = name.split("/", 2)
    first = {"grad": "in", "weight": "out", "after": "state"}.get(kind)
    return f"{row}/param/{rest}" if kind == "grad" and f"{row}/param/{rest}" in FILE else f"{row}/{first}/{rest}"


def write(path):
    """Safetensors: the names of the dims are in the metadata, as text."""
    import json
    dims_of = {n: ",".join(dims) for n, (dims, _) in FILE.items()}
    header, offset, parts = {"__metadata__": {n: d for n, d in dims_of.items() if d != dims_of.get(like(n))}}, 0, []
    for name, (_, elements) in FILE.items():
        elements = elements.astype(np.int32 if elements.dtype.kind in "ib" else np.float32)
        data = np.ascontiguousarray(elements).tobytes()
        header[name] = {"dtype": "I32" if elements.dtype == np.int32 else "F32", "shape": list(elements.shape),
                        "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
        parts.append(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text + b"".join(parts))
