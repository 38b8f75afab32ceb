"""Cases of the rarer attention layers, of convolutions in their place, and of experts in two levels."""
from values_layers_case import CASES, Dim, case, mtf, tf
from values_layers_attention import batch, context, d_head, heads, layers, length, memory, model, modern, qkv
import mesh_tensorflow.transformer.moe as moe

wide = Dim("d_model", 6)


def x_of(c, dims=(batch, length, wide)):
    return c.input("x", list(dims))


def convolution(kind, name):
    def build(c):
        c.names = {f"{name}_{i}/kernel": f"tap{i}.w" for i in range(3)}
        c.names.update({f"{name}_{i}/bias": f"tap{i}.b" for i in range(3)})
        c.names.update({"pointwise_dense/kernel": "out.w", "pointwise_dense/bias": "out.b", "depthwise_dense_0/bias": "bias"})
        c.dims = {"repeated_kernel_dim": "once"}
        c.dims_of_variables = {"out.w": ["d_model", "out"], "out.b": ["out"]}
        there = context(c)
        there.model.model_dim = wide
        there.inputs = c.input("tokens", [batch, length], 0, 4)  # 0 is padding
        y = kind(-2, 0, 8, activation="tanh", num_unique_depth_filters=2).call(there, x_of(c))
        c.output("y", mtf.rename_dimension(y, "d_model", "out"))
    return build


CASES["lightweight_conv"] = convolution(layers.LightweightConv1DLocalAttn, "lightwt_depthwise_dense")
CASES["dynamic_conv"] = convolution(layers.DynamicConv1DLocalAttn, "dyn_conv_depthwise_dense")


@case
def hybrid_attention(c):
    q, k, v = qkv(c)
    c.names = {"doubly_coeff": "share"}
    c.output("y", modern.hybrid_attention(q, k, v, context(c), memory, d_head, d_head))


@case
def synthesizer_random(c):
    """Of its queries only the dims are used."""
    x, v = mtf.zeros(c.mesh, [batch, length, model]), c.input("v", [batch, heads, memory, d_head])
    c.names = {"R": "logits"}
    c.output("y", modern.synthetic_attention(x, None, v, memory, d_head, d_head, synthesize_mode="random", max_length=5, context=context(c)))


@case
def synthesizer_dense(c):
    q, v = c.input("q", [batch, heads, length, d_head]), c.input("v", [batch, heads, memory, d_head])
    c.names = {"pi/kernel": "pi.w"}
    c.output("y", modern.synthetic_attention(q, None, v, memory, d_head, d_head, synthesize_mode="dense_minus", max_length=5, context=context(c)))


@case
def bilinear_attention(c):
    c.names = {"q/kernel": "query.w", "y/kernel": "out.w"}
    c.dims_of_variables = {"query.w": ["model", "heads", "_model"], "out.w": ["heads", "model", "_model"]}
    layer = layers.GeneralBilinearSelfAttention([("heads", 3)])
    c.output("y", layer.call(context(c, causal=True), x_of(c, [batch, length, model])))


@case
def branched_attention(c):
    c.names = {"q": "layer.query.w", "k": "layer.key.w", "v": "layer.value.w", "o": "out", "kappa": "kappa", "alpha": "alpha",
               "wi/kernel": "mlp.up.w", "wo/kernel": "mlp.down.w"}
    c.dims = {"d_kv": "d_head", "d_ff": "ff"}
    layer = layers.BranchedSelfAttention(num_heads=2, key_value_size=4)
    layer.dense_layer = layers.DenseReluDense(hidden_size=8)
    c.output("y", layer.call(context(c), x_of(c, [batch, length, model])))


def of_encoder(layer_of, **names):
    def build(c):
        c.dims = {"d_kv": "d_head", "encoder_module_outputs": "modules", "decoder_module_inputs": "decoders"}
        c.names = {"q": "layer.query.w", "k": "layer.key.w", "v": "layer.value.w", "o": "layer.out.w", **names}
        there, seen = context(c), Dim("memory_length", 3)
        there.encoder_output = c.input("memory", [batch, seen, model]) if not names else None
        if names:
            there.encoder_layer_outputs = [c.input(f"module{i}", [batch, Dim("length", 3), model]) for i in range(3)]
            there.layer_index = 1
        c.output("y", layer_of().call(there, x_of(c, [batch, length, model])))
    return build


CASES["encdec_attention"] = of_encoder(lambda: layers.EncDecAttention(num_heads=2, key_value_size=4, combine_dims=False))
CASES["transparent_attention"] = of_encoder(
    lambda: layers.TransparentEncDecAttention(1, 1, 2, 2, num_heads=2, key_value_size=4, combine_dims=False), w="mix")


@case
def contextual_bias(c):
    c.dims = {"d_kv": "d_head", "buckets": "relative_buckets"}
    c.names = {"relative_attention_ak/kernel": "values"}
    layer = layers.SelfAttention(key_value_size=4, relative_attention_type="contextual", relative_attention_num_buckets=8)
    q = c.input("q", [batch, heads, length, Dim("d_kv", 4)])
    there = context(c)
    c.output("y", layer.compute_bias(there, mtf.range(c.mesh, memory, tf.int32), None, [heads], q))


@case
def moe_in_two_levels(c):
    batch, length, model = Dim("batch", 2), Dim("length", 8), Dim("model", 5)
    c.dims = {"expert_x_unsplit": "outer", "expert_y_unsplit": "inner", "expert_x": "outer", "expert_y": "inner", "expert_hidden": "ff"}
    c.names = {"outer_gating/kernel": "outer_router.w", "inner_gating/kernel": "inner_router.w", "wi/kernel": "up.w", "wo/kernel": "down.w"}
    settings = dict(gating="top_2", num_experts=[3, 2], loss_coef=1.0, hidden_size=6, group_size=8, min_expert_capacity=2,
                    capacity_factor_train=1.0, capacity_factor_eval=1.0, capacity_factor_second_level=1.0, use_second_place_loss=0,
                    second_policy_train="all", second_policy_eval="all", second_threshold_train=.2, second_threshold_eval=.2,
                    dropout_rate=0.0, word_embed_mode=None, z_loss=None)
    x = c.input("x", [batch, length, model], -3, 3.)
    y, loss = moe.transformer_moe_layer_v2(x, model, moe.HParams(**{f"moe_{k}": v for k, v in settings.items()}), False,
                                           mtf.VariableDType(), "", "x:1", num_microbatches=1)
    c.output("y", y)
    c.output("loss", loss)
