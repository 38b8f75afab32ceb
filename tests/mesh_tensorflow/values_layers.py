#!/usr/bin/env python3
"""Writes layers.safetensors: what Mesh TensorFlow makes of the cases of layers_test.cpp.

    python values_layers.py      with the mesh_tensorflow of benchmarks/peers/mesh_tensorflow/setup
"""
import pathlib

from values_layers_case import CASES, Case, Dim, case, mtf, np, run_all, tf, write
import values_layers_attention
import values_layers_experts
import values_layers_training
import values_layers_variants

batch, length, model, ff = Dim("batch", 3), Dim("length", 4), Dim("model", 6), Dim("ff", 8)
heads, memory, d_head = Dim("heads", 2), Dim("memory_length", 4), Dim("d_head", 3)


def x_of(c):
    return c.input("x", [batch, length, model])


@case
def dense(c):
    c.names = {"layer/kernel": "layer.w", "layer/bias": "layer.b"}
    c.output("y", mtf.layers.dense(x_of(c), [ff, heads], reduced_dims=[length, model], activation=mtf.tanh, name="layer"))


@case
def dense_to_its_own_dim(c):
    c.names = {"layer/kernel": "layer.w", "layer/bias": "layer.b"}
    c.dims_of_variables = {"layer.w": ["model", "_model"]}  # the "_" is before the other one
    c.output("y", mtf.layers.dense(x_of(c), [model], reduced_dims=[model], use_bias=False, name="layer"))


@case
def dense_of_experts(c):
    c.names = {"layer/kernel": "layer.w", "layer/bias": "layer.b"}
    x = c.input("x", [heads, batch, model])
    c.output("y", mtf.layers.dense(x, [ff], reduced_dims=[model], expert_dims=[heads], name="layer"))


def product(functions):
    def build(c):
        c.names = {f"layer_{i}/kernel": f"layer{i}.w" for i in range(len(functions))}
        c.names.update({f"layer_{i}/bias": f"layer{i}.b" for i in range(len(functions))})
        c.output("y", mtf.layers.dense_product(x_of(c), [model], [ff], functions, name="layer"))
    return build


for name, functions in {"glu": ["sigmoid", "linear"], "geglu": ["gelu", "linear"], "swiglu": ["swish", "linear"],
                        "reglu": ["relu", "linear"], "product_of_three": ["tanh", "softplus", "elu"]}.items():
    CASES[name] = product(functions)


@case
def dense_relu_dense(c):
    c.names = {"layer/wi/kernel": "layer.up.w", "layer/wo/kernel": "layer.down.w"}
    c.output("y", mtf.layers.dense_relu_dense(x_of(c), ff, False, name="layer"))


@case
def layer_norm(c):
    c.names = {"layer_norm_scale": "layer.scale", "layer_norm_bias": "layer.bias"}
    x = c.input("x", [batch, length, model], -0.003, 0.003)  # so small that the epsilon counts
    c.output("y", mtf.layers.layer_norm(x, model, name="layer"))


def batch_norm(training, last=-1):
    def build(c):
        c.names = {"batch_norm_scale": "layer.scale", "batch_norm_bias": "layer.bias",
                   "bn_moving_mean": "layer.mean", "bn_moving_variance": "layer.variance"}
        y, updates = mtf.layers.batch_norm(x_of(c), training, 0.7, epsilon=1e-3, dims_idx_end=last, name="layer")
        c.runs = updates
        c.output("y", y)
    return build


CASES["batch_norm_training"], CASES["batch_norm_inference"] = batch_norm(True), batch_norm(False)
CASES["batch_norm_of_two_dims_training"], CASES["batch_norm_of_two_dims_inference"] = batch_norm(True, 1), batch_norm(False, 1)


def cross_entropy(soft, z_loss):
    def build(c):
        logits = c.input("logits", [batch, length, ff], -4, 4.)
        if soft:
            shares = c.draw([3, 4, 8], 0.1, 1)
            labels = c.input("labels", [batch, length, ff], values=shares / shares.sum(-1, keepdims=True))
        else:
            labels = c.input("labels", [batch, length], 0, 8)
        c.output("y", mtf.layers.softmax_cross_entropy_with_logits(logits, labels, ff, z_loss))
    return build


CASES["cross_entropy"], CASES["cross_entropy_z"] = cross_entropy(False, 0.0), cross_entropy(False, 1e-2)
CASES["cross_entropy_soft"], CASES["cross_entropy_soft_z"] = cross_entropy(True, 0.0), cross_entropy(True, 1e-2)


@case
def sigmoid_cross_entropy(c):
    logits, labels = c.input("logits", [batch, ff], -30., 30.), c.input("labels", [batch, ff], 0., 1.)
    c.output("y", mtf.layers.sigmoid_cross_entropy_with_logits(logits, labels))


@case
def weights_nonzero(c):
    c.output("y", mtf.layers.weights_nonzero(c.input("labels", [batch, length], 0, 3)), weight=False)


# Images are [batch, (depth,) height, width, model]: Mesh TensorFlow counts dims from the end.
def image(c, sizes, channels=3):
    spatial = [Dim(n, s) for n, s in zip(["depth", "height", "width"][-len(sizes):], sizes)]
    return c.input("x", [Dim("batch", 2), *spatial, Dim("model", channels)])


FILTER = {"fd": "filter_depth", "fh": "filter_height", "fw": "filter_width"}


def conv(sizes, window, stride, padding):
    def build(c):
        c.names, c.dims = {"layer/kernel": "layer.w"}, FILTER
        function = mtf.layers.conv2d if len(sizes) == 2 else mtf.layers.conv3d
        c.output("y", function(image(c, sizes), Dim("ff", 2), window, [stride] * len(window), padding, name="layer"))
    return build


CASES["conv2d"] = conv([4, 5], (3, 2), 1, "SAME")
CASES["conv2d_stride_2"] = conv([6, 4], (3, 3), 2, "SAME")
CASES["conv2d_even_stride_2"] = conv([6, 4], (2, 4), 2, "SAME")
CASES["conv2d_valid"] = conv([5, 6], (3, 2), 1, "VALID")
CASES["conv3d"] = conv([3, 4, 2], (3, 2, 1), 1, "SAME")
CASES["conv3d_stride_2"] = conv([4, 2, 4], (3, 3, 3), 2, "SAME")


def conv1d(size, window, stride, padding):
    def build(c):
        c.names, c.dims = {"layer/kernel": "layer.w"}, {"fw": "filter_width", "fh": None}
        c.output("y", mtf.layers.conv1d(image(c, [size]), Dim("ff", 2), window, stride, padding=padding, name="layer"))
    return build


CASES["conv1d"], CASES["conv1d_stride_2"] = conv1d(5, 3, 1, "SAME"), conv1d(6, 4, 2, "SAME")
CASES["conv1d_valid"] = conv1d(7, 3, 1, "VALID")


def conv_transpose(sizes, window):
    def build(c):
        c.names, c.dims = {"layer/kernel": "layer.w"}, FILTER
        function = mtf.layers.conv2d_transpose if len(sizes) == 2 else mtf.layers.conv3d_transpose
        c.output("y", function(image(c, sizes), Dim("ff", 2), window, [2] * len(window), "SAME", name="layer"))
    return build


CASES["conv2d_transpose"], CASES["conv2d_transpose_3"] = conv_transpose([3, 2], (2, 2)), conv_transpose([2, 3], (3, 3))
CASES["conv3d_transpose"] = conv_transpose([2, 2, 3], (2, 2, 2))


@case
def conv2d_with_blocks(c):
    """Its blocks are stitched together: a convolution of the whole image."""
    rows, columns, h, w = Dim("rows", 2), Dim("columns", 2), Dim("height", 3), Dim("width", 4)
    c.names, c.dims = {"layer/kernel": "layer.w"}, FILTER
    x = c.input("x", [Dim("batch", 2), rows, columns, h, w, Dim("model", 2)])
    c.output("y", mtf.layers.conv2d_with_blocks(x, Dim("ff", 2), (3, 3), (1, 1), "SAME", rows, columns, name="layer"))


@case
def separable_conv1d(c):
    c.names = {f"depthwise_dense_{i}/kernel": f"tap{i}" for i in range(3)}
    c.names.update({"depthwise_dense_0/bias": "tap_bias", "pointwise_dense/kernel": "out.w", "pointwise_dense/bias": "out.b"})
    c.output("y", mtf.layers.separable_conv1d(x_of(c), ff, -2, 0, name="layer"))


def pool(sizes, window, kind):
    def build(c):
        function = getattr(mtf.layers, f"{kind}_pool{len(sizes)}d")
        c.output("y", function(image(c, sizes), ksize=window))
    return build


CASES["max_pool2d"], CASES["avg_pool2d"] = pool([4, 6], (2, 3), "max"), pool([4, 6], (2, 3), "avg")
CASES["max_pool3d"], CASES["avg_pool3d"] = pool([2, 4, 2], (2, 2, 1), "max"), pool([2, 4, 2], (2, 2, 1), "avg")


@case
def embedding(c):
    c.names = {"layer": "layer.w"}
    tokens = c.input("tokens", [batch, length], 0, 7)
    c.output("y", mtf.layers.embedding(tokens, Dim("vocab", 7), model, mtf.VariableDType(), name="layer"))


def clip_gradient(limit):
    def build(c):
        c.output("y", mtf.layers.clip_activation_gradient(x_of(c), limit))
    return build


CASES["clip_gradient"], CASES["clip_gradient_far"] = clip_gradient(0.05), clip_gradient(50.0)


@case
def corr(c):
    x = c.input("x", [Dim("batch", 7), Dim("model", 4)])
    c.output("y", mtf.layers.corr(x, x.shape[1]))


@case
def compress_mean(c):
    c.output("y", mtf.layers.compress_mean(c.input("x", [batch, Dim("length", 6), model]), Dim("length", 6), 3))


@case
def reversible_half_residual(c):
    c.names = {"f/kernel": "f.w"}
    c.dims_of_variables = {"f.w": ["model", "_model"]}
    x1, x2 = c.input("x1", [batch, model]), c.input("x2", [batch, model])
    f = lambda x: mtf.layers.dense(x, [model], reduced_dims=[model], use_bias=False, activation=mtf.tanh, name="f")
    y2, _, y1, _ = mtf.layers.reversible_half_residual_and_swap(x1, None, x2, None, f)
    c.output("same", y2)
    c.output("changed", y1)


if __name__ == "__main__":
    run_all()
    values_layers_training.run_all()
    write(pathlib.Path(__file__).parent / "layers.safetensors")
