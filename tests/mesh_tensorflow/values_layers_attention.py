"""Cases of attention, of layers.py and of transformer/."""
from values_layers_case import CASES, Dim, case, mtf, np, tf
import mesh_tensorflow.transformer.attention
import mesh_tensorflow.transformer.transformer
import mesh_tensorflow.transformer.transformer_layers

modern = mesh_tensorflow.transformer.attention
layers = mesh_tensorflow.transformer.transformer_layers
transformer = mesh_tensorflow.transformer.transformer

batch, heads, length, memory = Dim("batch", 2), Dim("heads", 2), Dim("length", 5), Dim("memory_length", 5)
model, d_head = Dim("model", 6), Dim("d_head", 4)
QKVO = {"qkvo": ["layer.query.w", "layer.key.w", "layer.value.w", "layer.out.w"]}


def qkv(c, keys=memory):
    q = c.input("q", [batch, heads, length, d_head], -2, 2.)
    return q, c.input("k", [batch, heads, keys, d_head], -2, 2.), c.input("v", [batch, heads, keys, d_head])


def dot_product(mask=None, extra_logit=None):
    def build(c):
        q, k, v = qkv(c)
        seen = mask(c) if mask else None
        c.output("y", mtf.layers.dot_product_attention(q, k, v, seen, False, extra_logit=extra_logit))
    return build


def positions(c):
    return mtf.range(c.mesh, length, tf.int32)


def same_segment(c):
    return mtf.layers.attention_mask_same_segment(c.input("segments", [batch, length], values=np.int32([[1, 1, 2, 2, 2], [3, 3, 3, 1, 1]])))


def ignore_padding(c):
    """Each query sees something: of logits that are all about -1e9 the sum of the weights is lost in rounding, and is not 1."""
    tokens = c.input("tokens", [batch, length], values=np.int32([[4, 3, 5, 0, 0], [1, 2, 3, 4, 0]]))
    return mtf.layers.attention_mask_ignore_padding(tokens)


CASES["dot_product_attention"] = dot_product()
CASES["attention_extra_logit"] = dot_product(extra_logit=0.3)
CASES["attention_causal"] = dot_product(lambda c: mtf.layers.attention_mask_autoregressive(positions(c)))
CASES["attention_same_segment"] = dot_product(same_segment)
CASES["attention_ignore_padding"] = dot_product(ignore_padding)


def multihead(self_attention, causal):
    def build(c):
        c.names = QKVO
        x = c.input("x", [batch, length, model])
        keys = None if self_attention else c.input("memory", [batch, Dim("memory_length", 3), model])
        mask = mtf.layers.attention_mask_autoregressive(positions(c)) if causal else None
        c.output("y", mtf.layers.multihead_attention(x, keys, mask, d_head, heads, False, name="layer"))
    return build


CASES["multihead_attention"] = multihead(True, False)
CASES["multihead_attention_causal"] = multihead(True, True)
CASES["multihead_attention_of_memory"] = multihead(False, False)


def compressed(mask_right):
    def build(c):
        c.names = QKVO
        x = c.input("x", [batch, Dim("length", 6), model])
        c.output("y", mtf.layers.multihead_self_attention_memory_compressed(x, mask_right, 2, d_head, heads, False, name="layer"))
    return build


CASES["memory_compressed_attention"], CASES["memory_compressed_causal"] = compressed(False), compressed(True)


@case
def masked_local_attention(c):
    """Where the window is inside the sequence: before that, Mesh TensorFlow attends to zeros that are not there."""
    c.names = {"layer/qkvo": QKVO["qkvo"]}
    one, two, long = Dim("heads", 1), Dim("model", 2), Dim("length", 256)
    x = c.input("x", [Dim("batch", 1), long, two])
    y = mtf.layers.masked_local_attention_1d(x, Dim("d_head", 2), one, False, window_size=128, name="layer")
    c.output("y", mtf.slice(y, 127, 129, "length"))


class Context:
    train = False


def local(causal, radius, size, ids=None):
    def build(c):
        long, wide = Dim("length", size), Dim("d_head", 2)
        q, k, v = (c.input(n, [Dim("batch", 1), long, wide], -2, 2.) for n in "qkv")
        segments = c.input("segments", [long], values=np.int32(ids)) if ids else None
        y = modern.local_attention_1d(q, k, v, long, wide, wide, causal, 1, radius, segments, attention_kwargs={"context": context(c)})
        c.output("y", y)
    return build


def context(c, train=False, causal=False):
    """What layers ask of the model that they are part of."""
    whole = type("Model", (), {"model_dim": model, "ensemble_dim": None, "ensemble_dims": [], "layout": None, "mesh_shape": None,
                               "max_length": 16, "fully_autoregressive": causal})()
    position = mtf.range(c.mesh, length, tf.int32)
    return transformer.Context(whole, c.mesh, [batch], length, mtf.VariableDType(), mode="train" if train else "eval",
                               position=position, position_is_default=True, sequence_id=1,
                               write_priority=position if causal else None, read_priority=position if causal else None)


CASES["local_attention_causal"] = local(True, 3, 12)
CASES["local_attention_both_sides"] = local(False, 3, 12)
CASES["local_attention_segments"] = local(True, 4, 8, [1, 1, 1, 2, 2, 2, 2, 2])
CASES["local_attention_blocks"] = local(True, 3, 129)


@case
def attention_bias(c):
    q, k, v = qkv(c)
    bias = c.input("bias", [heads, length, memory])
    c.output("y", modern.attention(q, k, v, memory, d_head, d_head, bias, extra_logit=0.2, context=context(c)))


def self_attention(causal=False, **options):
    def build(c):
        c.dims = {"query_heads": "heads_per_key", "d_kv": "d_head", "buckets": "relative_buckets"}
        c.names = {"q": "layer.query.w", "k": "layer.key.w", "v": "layer.value.w", "kv": "layer.key.w", "o": "layer.out.w",
                   "relative_attention_bias": "bias.w"}
        layer = layers.SelfAttention(key_value_size=4, combine_dims=False, **options)
        c.output("y", layer.call(context(c, causal=causal), c.input("x", [batch, length, model])))
    return build


def relative_bias(size, causal, buckets):
    """The first and the last row of the biases of all pairs."""
    def build(c):
        c.dims, c.names = {"buckets": "relative_buckets"}, {"relative_attention_bias": "bias.w"}
        layer = layers.SelfAttention(num_heads=1, relative_attention_type="bias", relative_attention_num_buckets=buckets)
        long, memory = Dim("length", size), Dim("memory_length", size)
        there = context(c, causal=causal)
        there.read_priority = there.write_priority = None
        there.length_dim, there.position = long, mtf.range(c.mesh, long, tf.int32)
        bias = layer.compute_bias(there, mtf.range(c.mesh, memory, tf.int32), None, [], None)
        for name, row in ("first", 0), ("last", size - 1):
            c.output(name, mtf.slice(bias, row, 1, "length"))
    return build


CASES["relative_bias"], CASES["relative_bias_causal"] = relative_bias(150, False, 32), relative_bias(150, True, 32)
CASES["relative_bias_few"] = relative_bias(150, False, 10)
CASES["self_attention"] = self_attention(num_heads=2)
CASES["self_attention_multi_query"] = self_attention(num_heads=2, num_memory_heads=1)
CASES["self_attention_grouped"] = self_attention(num_heads=4, num_memory_heads=2)
CASES["self_attention_shared_kv"] = self_attention(num_heads=2, shared_kv=True)
CASES["self_attention_relative"] = self_attention(num_heads=2, relative_attention_type="bias", relative_attention_num_buckets=8)
CASES["self_attention_relative_causal"] = self_attention(True, num_heads=2, relative_attention_type="bias", relative_attention_num_buckets=8)


@case
def talking_heads(c):
    c.dims = {"d_k": "d_head", "d_v": "d_head"}
    c.names = {"q/kernel": "query.w", "k/kernel": "key.w", "v/kernel": "value.w", "logits/kernel": "logits.w", "weights/kernel": "weights.w",
               "y/kernel": "out.w"}
    layer = layers.TalkingHeadsSelfAttention([("key_heads", 2)], [("heads", 3)], [("value_heads", 4)], key_size=4, value_size=4)
    c.output("y", layer.call(context(c, causal=True), c.input("x", [batch, length, model])))


@case
def gated_feed_forward(c):
    c.names = {"wi_0/kernel": "layer.up0.w", "wi_1/kernel": "layer.up1.w", "wo/kernel": "layer.down.w"}
    layer = layers.DenseReluDense(hidden_size=8, activation=["gelu", "linear"])
    c.dims = {"d_ff": "ff"}
    c.output("y", layer.call(context(c), c.input("x", [batch, length, model])))


def sublayer(function, names, scale=0.003):
    def build(c):
        c.names = names
        c.output("y", function(c.input("x", [batch, length, model], -scale, scale), None, context(c)))
    return build


CASES["rms_norm"] = sublayer(transformer.sublayer_rms_norm, {"scale": "layer.scale"})
CASES["true_layer_norm"] = sublayer(transformer.sublayer_true_layer_norm, {"layer_norm_scale": "layer.scale", "layer_norm_bias": "layer.bias"})


@case
def sinusoids(c):
    c.output("y", transformer.sinusoid_positional_embedding_weights(c.mesh, Dim("length", 9), Dim("model", 8), tf.float32), weight=False)
