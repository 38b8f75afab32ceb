"""Optimizers over several steps, learning rates, and training steps in parts."""
import zlib

from values_layers_case import Dim, case, mtf, np, put, tf
import mesh_tensorflow.bert.optimization as bert
import mesh_tensorflow.transformer.learning_rate_schedules as schedules

STEPS = 5
OPTIMIZERS = {}
SLOTS = {"_slot_vr": "adafactor_row", "_slot_vc": "adafactor_column", "_slot_v": "adafactor_v", "_slot_m": "adafactor_m",
         "/adam_m": "adam_m", "/adam_v": "adam_v", "_momentum_v": "velocity"}
a, b, layers = Dim("a", 5), Dim("b", 3), Dim("layers", 2)


RATES = [0.1, 0.05, 0.2, 0.1, 0.02]


def optimizer(name, make, dims=(a, b), in_turn=False, rates=RATES):
    """`make` gets the learning rate. `in_turn`: its updates run one after the other. Where that of a momentum and that of its
    parameter run at once, the second reads the momentum before or after the first has stored it, as it happens."""
    OPTIMIZERS[name] = make, list(dims), in_turn, rates


optimizer("sgd", mtf.optimize.SgdOptimizer)
class Clipped(mtf.optimize.SgdOptimizer):
    """Gradients of a greatest global norm, as in its BERT."""

    def apply_grads(self, grads, variables):
        return super().apply_grads(bert.clip_by_global_norm(grads, 0.8)[0], variables)


optimizer("sgd_clipped", Clipped)
optimizer("momentum", lambda rate: mtf.optimize.MomentumOptimizer(0.1, 0.9), in_turn=True, rates=[0.1] * STEPS)
optimizer("momentum_scheduled", lambda rate: mtf.optimize.MomentumOptimizer(rate, 0.9), in_turn=True)
optimizer("adam", mtf.optimize.AdamWeightDecayOptimizer)
optimizer("adam_decay", lambda rate: mtf.optimize.AdamWeightDecayOptimizer(rate, 0.05, 0.8, 0.95, 1e-3))
optimizer("adam_no_decay", lambda rate: mtf.optimize.AdamWeightDecayOptimizer(rate, 0.05, exclude_from_weight_decay=["p"]))


def adafactor(name, dims=(a, b), rate=True, **options):
    make = lambda lr: mtf.optimize.AdafactorOptimizer(learning_rate=lr if rate else None, **options)
    optimizer("adafactor" + name, make, dims, rates=RATES if rate else [1] * STEPS)


adafactor("")
adafactor("_factored", min_dim_size_to_factor=3)
adafactor("_square", (Dim("a", 4), Dim("b", 4)), min_dim_size_to_factor=3)
adafactor("_never_factored", min_dim_size_to_factor=1, factored=False)
adafactor("_beta1", min_dim_size_to_factor=3, beta1=0.9)
adafactor("_clip", min_dim_size_to_factor=3, clipping_threshold=0.3)
adafactor("_no_clip", min_dim_size_to_factor=3, clipping_threshold=None)
adafactor("_no_scale", min_dim_size_to_factor=3, multiply_by_parameter_scale=False)
adafactor("_unscaled", exclude_from_parameter_scale=["p"])
adafactor("_relative", rate=False)
adafactor("_relative_no_scale", rate=False, multiply_by_parameter_scale=False)
adafactor("_relative_unscaled", rate=False, exclude_from_parameter_scale=["p"])
adafactor("_three_dims", (Dim("a", 3), Dim("b", 4), Dim("c", 2)), min_dim_size_to_factor=2)
# The clipping of updates averages over stacked dims, too, which by their description nothing does.
adafactor("_stacked", (layers, a, b), min_dim_size_to_factor=2, stacked_dim_names=["layers"], clipping_threshold=None)
adafactor("_stacked_vector", (layers, a), min_dim_size_to_factor=2, stacked_dim_names=["layers"], clipping_threshold=None)
adafactor("_epsilons", min_dim_size_to_factor=3, epsilon1=1e-2, epsilon2=2.0)
adafactor("_constant_decay", min_dim_size_to_factor=3, decay_rate=0.7)
for name, decay in {"_decay_as_adam": lambda: mtf.optimize.adafactor_decay_rate_adam(0.9),
                    "_decay_by_power": lambda: mtf.optimize.adafactor_decay_rate_pow(0.5, -3)}.items():
    optimizer("adafactor" + name, lambda lr, d=decay: mtf.optimize.AdafactorOptimizer(learning_rate=lr, decay_rate=d()))


def run_optimizer(name, make, dims, in_turn, rates):
    random = np.random.default_rng(zlib.crc32(name.encode()))
    sizes, names = [d.size for d in dims], [d.name for d in dims]
    first = random.uniform(-1, 1, sizes).astype(np.float32)
    gradients = random.normal(0, 0.5, [STEPS, *sizes]).astype(np.float32)
    graph = mtf.Graph()
    mesh = mtf.Mesh(graph, "mesh")
    gradient, rate = tf.placeholder(tf.float32, sizes), tf.placeholder(tf.float32, [])
    count = tf.train.get_or_create_global_step()
    mtf.get_variable(mesh, "p", mtf.Shape(dims), initializer=tf.constant_initializer(first))
    p = graph.trainable_variables[0]
    updates = make(rate).apply_grads([mtf.import_tf_tensor(mesh, gradient, p.shape)], [p])
    placed = mtf.placement_mesh_impl.PlacementMeshImpl(mtf.convert_to_shape("x:1"), mtf.convert_to_layout_rules(""), ["/cpu:0"])
    lowering = mtf.Lowering(graph, {mesh: placed})
    updates = [lowering.lowered_operation(u) for u in updates]
    export = {v.name: (v.shape, lowering.export_to_tf_tensor(v.outputs[0])) for v in graph.all_variables}
    made = []
    with tf.Session() as session:
        session.run(tf.global_variables_initializer())
        session.run(lowering.copy_masters_to_slices())
        for step in range(STEPS):
            count.load(step, session)
            for some in updates if in_turn else [updates]:
                session.run(some, {gradient: gradients[step], rate: rates[step]})
            made.append(session.run(export["p"][1]))
        slots = {n: session.run(t) for n, (_, t) in export.items()}
    put(f"optimizer.{name}/in/first", names, first)
    put(f"optimizer.{name}/in/gradients", ["step", *names], gradients)
    put(f"optimizer.{name}/in/rates", ["step"], np.float32(rates))
    put(f"optimizer.{name}/out/p", ["step", *names], np.stack(made))
    for n, value in slots.items():
        if n != "p":
            known, = [SLOTS[s] for s in SLOTS if n == "p" + s]
            put(f"optimizer.{name}/after/{known}", [d.name for d in export[n][0]], value)


TOTAL = 20
SCHEDULES = {
    "constant": [0.3, schedules.constant],
    "linear_to_zero": [0.3, lambda s, n: schedules.linear_decay(s, n, 1.0)],
    "rsqrt": [0.3, lambda s, n: schedules.truncated_rsqrt(s, n, 6)],
    "warmup": [0.3, lambda s, n: schedules.linear_warmup(s, n, 6)],
    "linear_decay": [0.3, lambda s, n: schedules.linear_decay(s, n, 0.3)],
    "noam": [0.3, lambda s, n: schedules.learning_rate_schedule_noam(s, n, 6, 0.25)],
    "slanted_triangular": [lambda s, n: schedules.slanted_triangular(s, n, 0.25, 32, 0.3)],
}


def run_schedules():
    for name, factors in SCHEDULES.items():
        rates = [schedules.product_learning_rate(tf.constant(s), TOTAL, factors) for s in range(TOTAL + 1)]
        with tf.Session() as session:
            put(f"schedule.{name}/out/rates", ["step"], np.float32([session.run(r) if isinstance(r, tf.Tensor) else r for r in rates]))


@case
def microbatches(c):
    """Sums over four parts of a batch: example i of part m is example 4 i + m."""
    batch, model, out = Dim("batch", 8), Dim("model", 3), Dim("out", 2)
    c.names = {"layer/kernel": "layer.w", "layer/bias": "layer.b"}
    x, weight = c.input("x", [batch, model]), c.input("weight", [batch])

    def step(features):
        y = mtf.layers.dense(features["x"], [out], reduced_dims=[model], activation=mtf.tanh, name="layer")
        return {"loss": mtf.reduce_mean(mtf.square(y) * features["weight"]), "y": y}

    grads, outputs = mtf.serialize_training_step({"x": x, "weight": weight}, step, batch, 4)
    c.output("loss", outputs["loss"], weight=False)
    for v, g in zip(c.graph.trainable_variables, grads):
        c.output(v.name.split("/")[-1] + "_gradient", g, weight=False)


def run_all():
    for name, options in OPTIMIZERS.items():
        with tf.Graph().as_default():
            run_optimizer(name, *options)
    with tf.Graph().as_default():
        run_schedules()
