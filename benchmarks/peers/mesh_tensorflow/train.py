"""The training steps of bench_mesh_tensorflow in Mesh TensorFlow, over several CPU devices of one process.

    train.py mnist|tiny_lm|transformer [--mesh "b1:2;b2:2"] [--layout "row_blocks:b1;col_blocks:b2"] [--steps 20] [--width 256]

Prints one line of JSON: ms, the median of the steps after three.
"""
import argparse
import json
import logging
import os
import statistics
import time

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
logging.disable(logging.WARNING)

import mesh_tensorflow as mtf
import numpy as np
import tensorflow.compat.v1 as tf

tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)
Dim = mtf.Dimension


def mnist(mesh, images, labels):
    """The network of Mesh TensorFlow's own example: an image is 4 x 4 blocks of 7 x 7 pixels, so that blocks can be split."""
    batch, blocks, pixels = Dim("batch", 200), [Dim("row_blocks", 4), Dim("col_blocks", 4)], [Dim("rows", 7), Dim("cols", 7)]
    channel, classes = Dim("one_channel", 1), Dim("classes", 10)
    x = mtf.import_tf_tensor(mesh, tf.reshape(images, [200, 4, 7, 4, 7, 1]),
                             mtf.Shape([batch, blocks[0], pixels[0], blocks[1], pixels[1], channel]))
    x = mtf.transpose(x, [batch, *blocks, *pixels, channel])
    for i, filters in enumerate([Dim("filters1", 16), Dim("filters2", 16)]):
        x = mtf.relu(mtf.layers.conv2d_with_blocks(x, filters, filter_size=(9, 9), strides=(1, 1), padding="SAME",
                                                   h_blocks_dim=blocks[0], w_blocks_dim=blocks[1], name=f"conv{i}"))
    x = mtf.reduce_mean(x, reduced_dim=filters)
    h = mtf.layers.dense(x, Dim("hidden1", 512), reduced_dims=x.shape.dims[-4:], activation=mtf.relu, name="hidden1")
    h = mtf.layers.dense(h, Dim("hidden2", 512), reduced_dims=h.shape.dims[-1:], activation=mtf.relu, name="hidden2")
    logits = mtf.layers.dense(h, classes, reduced_dims=h.shape.dims[-1:], name="logits")
    labels = mtf.import_tf_tensor(mesh, labels, mtf.Shape([batch]))
    return cross_entropy(logits, labels, classes), mtf.optimize.AdafactorOptimizer(learning_rate=1e-3)


def cross_entropy(logits, labels, classes):
    hot = mtf.one_hot(labels, classes)
    return mtf.reduce_mean(mtf.layers.softmax_cross_entropy_with_logits(logits, hot, classes))


def tiny_lm(mesh, targets):
    """The transformer of 2 layers of Mesh TensorFlow's authors, of its layers, with the settings that they have in tensor2tensor
    under mtf_transformer_tiny_lm (models/mtf_transformer.py)."""
    batch, length, model, vocab = Dim("batch", 8), Dim("length", 256), Dim("d_model", 128), Dim("vocab", 256)
    heads, key, ff, rate = Dim("heads", 8), Dim("d_kv", 128), Dim("d_ff", 512), 0.1
    drop = lambda x: mtf.dropout(x, True, keep_prob=1 - rate, noise_shape=mtf.Shape([batch, model]))
    variable = lambda name, dims, init: mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=init)
    norms = mtf.unstack(variable("scales", [Dim("norms", 5), model], tf.ones_initializer()), Dim("norms", 5))
    norm = lambda x: x * mtf.rsqrt(mtf.reduce_mean(mtf.square(x), reduced_dim=model) + 1e-6) * norms.pop(0)
    targets = mtf.import_fully_replicated(mesh, targets, mtf.Shape([batch, length]), name="targets")
    positions = mtf.range(mesh, length, dtype=tf.int32)
    table = variable("embedding", [vocab, model], tf.random_normal_initializer())
    x = mtf.gather(table, mtf.shift(targets, offset=1, dim=length, wrap=False), vocab)
    places = Dim("max_length", 256)
    x = drop(x + mtf.gather(variable("position", [places, model], tf.random_normal_initializer()), positions, places))
    mask = mtf.layers.attention_mask_autoregressive(positions, dtype=tf.float32)
    for i in range(2):
        x += drop(mtf.layers.multihead_attention(norm(x), None, mask, key, heads, True, dropout=rate,
                                                 dropout_broadcast_dims=[length], name=f"attention{i}"))
        x += drop(mtf.layers.dense_relu_dense(norm(x), ff, True, dropout=rate, dropout_broadcast_dims=[length], name=f"ff{i}"))
    logits = mtf.matmul(drop(norm(x)), table * model.size**-0.5)
    hot = mtf.one_hot(targets, vocab)
    losses = mtf.layers.softmax_cross_entropy_with_logits(mtf.layers.multiplicative_jitter(logits, epsilon=1e-2), hot, vocab)
    loss = mtf.reduce_mean(losses * mtf.layers.weights_nonzero(targets))
    return loss, mtf.optimize.AdafactorOptimizer(learning_rate=1e-3)


def transformer(mesh, tokens, targets):
    """gpt: 2 pre-norm layers with learned positions."""
    positions, width = tokens.shape[1].value, 2 * tokens.shape[1].value
    batch, length, memory = Dim("batch", 8), Dim("length", positions), Dim("memory_length", positions)
    model, heads, key, ff, vocab = Dim("d_model", width), Dim("heads", width // 32), Dim("d_head", 32), Dim("ff", 4 * width), Dim("vocab", 256)
    variable = lambda name, *dims: mtf.get_variable(mesh, name, mtf.Shape(dims), initializer=tf.random_normal_initializer(stddev=0.02))
    tokens = mtf.import_tf_tensor(mesh, tokens, mtf.Shape([batch, length]))
    targets = mtf.import_tf_tensor(mesh, targets, mtf.Shape([batch, length]))
    x = mtf.gather(variable("embedding", vocab, model), tokens, vocab) + variable("position", length, model)
    unseen = mtf.cast(mtf.less(mtf.range(mesh, length, tf.int32), mtf.range(mesh, memory, tf.int32)), tf.float32) * -1e30
    for i in range(2):
        seen = mtf.layers.layer_norm(x, model, name=f"norm{i}")
        keys = mtf.rename_dimension(seen, "length", "memory_length")
        project = lambda t, n: mtf.einsum([t, variable(f"{n}{i}", model, heads, key)],
                                          mtf.Shape([batch, t.shape.dims[1], heads, key]))
        q, k, v = project(seen, "query"), project(keys, "key"), project(keys, "value")
        logits = mtf.einsum([q, k], mtf.Shape([batch, heads, length, memory])) * 32**-0.5
        weights = mtf.softmax(logits + unseen, memory)
        seen = mtf.einsum([weights, v], mtf.Shape([batch, length, heads, key]))
        x += mtf.einsum([seen, variable(f"out{i}", heads, key, model)], mtf.Shape([batch, length, model]))
        h = mtf.layers.layer_norm(x, model, name=f"norm_ff{i}")
        h = mtf.layers.dense(h, ff, reduced_dims=[model], activation=mtf.gelu, name=f"up{i}")
        x += mtf.layers.dense(h, model, reduced_dims=[ff], name=f"down{i}")
    x = mtf.layers.layer_norm(x, model, name="norm")
    logits = mtf.layers.dense(x, vocab, reduced_dims=[model], use_bias=False, name="head")
    return cross_entropy(logits, targets, vocab), mtf.optimize.AdamWeightDecayOptimizer(learning_rate=1e-3)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", choices=["mnist", "tiny_lm", "transformer"])
    parser.add_argument("--mesh", default="b1:1;b2:1")
    parser.add_argument("--layout", default="")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--width", type=int, default=256, help="d_model of the transformer")
    args = parser.parse_args()
    random = np.random.default_rng(1)
    if args.model == "mnist":
        examples = random.random((200, 784), np.float32), random.integers(0, 10, 200, np.int32)
    elif args.model == "tiny_lm":
        examples = (random.integers(0, 256, (8, 256), np.int32),)
    else:
        examples = tuple(random.integers(0, 256, (8, args.width // 2), np.int32) for _ in range(2))
    fed = [tf.placeholder(e.dtype, e.shape) for e in examples]
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    loss, optimizer = {"mnist": mnist, "tiny_lm": tiny_lm, "transformer": transformer}[args.model](mesh, *fed)
    gradients = mtf.gradients([loss], [v.outputs[0] for v in graph.trainable_variables])
    updates = optimizer.apply_grads(gradients, graph.trainable_variables)
    shape = mtf.convert_to_shape(args.mesh)
    devices = [f"/cpu:{i}" for i in range(shape.size)]
    placed = mtf.placement_mesh_impl.PlacementMeshImpl(shape, mtf.convert_to_layout_rules(args.layout), devices)
    lowering = mtf.Lowering(graph, {mesh: placed})
    result = lowering.export_to_tf_tensor(loss)
    train = tf.group([lowering.lowered_operation(u) for u in updates])
    with tf.Session(config=tf.ConfigProto(device_count={"CPU": shape.size})) as session:
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        step = session.make_callable([result, train], feed_list=fed)
        ms = []
        for i in range(args.steps + 3):
            start = time.perf_counter()
            value = step(*examples)[0]
            if i >= 3:
                ms.append(1e3 * (time.perf_counter() - start))
    print(json.dumps({"peer": "mesh_tensorflow", "version": tf.__version__, "model": args.model, "mesh": args.mesh,
                      "ms": round(statistics.median(ms), 2), "least_ms": round(min(ms), 2), "loss": round(float(value), 4),
                      "steps": args.steps}))


if __name__ == "__main__":
    main()
