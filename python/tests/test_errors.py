"""The error tests of C++ that a model in Python can reach: each error has the engine's message and the line of Python, and a
traceback ends there."""
import inspect
import pathlib
import traceback

import numpy as np
import tessera as ts

A, B, C = ts.dims(a=4, b=6, c=3)
V = ts.Dim("vocab", 9)
q_dims, k_dims = ts.dims(a=4, length=4, d_head=2), ts.dims(a=4, memory_length=5, d_head=2)


class Inputs:
    """What the wrong calls are given."""

    def __init__(self):
        self.x, self.y = ts.input("x", [A, B]), ts.input("y", [B, C])
        self.ids, self.n = ts.input("ids", [A], ts.i32), ts.input("n", [], ts.i32)
        self.w = ts.param("w", [A, B], ts.init.ones())
        self.loss = ts.sum(ts.square(self.w))
        self.table = ts.input("table", [V, C])
        self.updates = ts.input("updates", [A, C])
        self.q, self.k, self.made = ts.input("q", q_dims), ts.input("k", k_dims), 0

    def of(self, *dims, dtype=ts.f32):
        self.made += 1
        return ts.input(f"of{self.made}", list(dims), dtype)


NAN = float("nan")


def many(first, last):
    return [ts.Dim(f"d{d}", 1 + d % 2) for d in range(first, last)]


def leaked(loop):
    """What an iteration made, outside of its loop."""
    inside = []
    loop(lambda c, s, i: (inside.append(c[0] * 2.0) or [c[0] * 2.0], []))
    return inside[0]


def loop(body):
    return ts.scan(A, body, [ts.constant(0.0)], [])


# (part of the message, the wrong call), each in a line of its own.
BUILDING = [
    ("dim 'a' occurs twice", lambda m: ts.param("v", [A, A])),
    ("dim 'a' has size 0", lambda m: ts.input("v", [ts.Dim("a", 0)])),
    ("empty name", lambda m: ts.input("v", [ts.Dim("", 2)])),
    ("has no dim 'aa'", lambda m: m.x.dim("aa")),
    ("[input] 'x' is declared at", lambda m: ts.input("x", [A])),
    ("[input] 'x' is declared at", lambda m: ts.param("x", [A])),
    ("is declared at", lambda m: ts.state("w", [A])),
    ("[named] 'w' is the name of another tensor", lambda m: ts.relu(m.x).named("w")),
    ("[named] 'x' is an input, which is fed by its name", lambda m: m.x.named("z")),
    ("[input] the name is empty", lambda m: ts.input("", [A])),
    ("[parameter] the name is empty", lambda m: ts.param("", [A])),
    ("[state] the name is empty", lambda m: ts.state("", [A])),
    ("is given an empty name", lambda m: ts.exp(m.x).named("")),
    ("[einsum] dim 'b' is 6 in operand 0 but 7 in operand 1", lambda m: ts.einsum(m.x, m.of(ts.Dim("b", 7)), [A])),
    ("[einsum] dim 'a' is 4 in operand 0 but 5 in the result", lambda m: ts.einsum(m.x, m.y, [ts.Dim("a", 5), C])),
    ("[einsum] operand 1 is int32 but operand 0 is float32", lambda m: ts.einsum(m.x, m.ids, [B])),
    ("[einsum] dim 'a' is in operand 0 [a=4, b=6] alone", lambda m: ts.einsum(m.x, m.y, [C])),
    ("shares no dim with the others", lambda m: ts.einsum(m.x, m.of(ts.Dim("d", 3)))),
    ("[einsum] there are no operands", lambda m: ts.einsum([B])),
    ("dim 'a' occurs twice in shape [a=4, a=4]", lambda m: ts.einsum(m.x, [A, A])),
    ("another graph", lambda m: m.x + ANOTHER),
    ("[add] operand 1 is int32 but operand 0 is float32", lambda m: m.x + m.ids),
    ("[mul] dim 'a' is 4 in operand 0 but 5 in operand 1", lambda m: m.x * m.of(ts.Dim("a", 5))),
    ("[exp] the operand is int32; it must be floating", lambda m: ts.exp(m.ids)),
    ("[elu] the operand is int32", lambda m: ts.elu(m.ids)),
    ("[where] the condition is float32; it must be bool", lambda m: ts.where(m.x, m.x, m.x)),
    ("[where] the choices are float32 and int32", lambda m: ts.where(m.x > 0, m.x, m.ids)),
    ("[logical_not] the operand is float32; it must be bool", lambda m: ~m.x),
    ("[clip] lo 2 is above hi 1", lambda m: ts.clip(m.x, 2, 1)),
    ("[dropout] rate 1 is not in [0, 1)", lambda m: ts.dropout(m.x, 1)),
    ("[dropout] x is bool; it must be a number", lambda m: ts.dropout(m.x > 0, 0.5)),
    ("[random_uniform] hi 0 is below lo 1", lambda m: ts.random_uniform([A], 1, 0)),
    ("[random_uniform] bool numbers", lambda m: ts.random_uniform([A], dtype=ts.bool_)),
    ("[random_normal] int32 numbers", lambda m: ts.random_normal([A], dtype=ts.i32)),
    ("[random_normal] stddev -1 is negative", lambda m: ts.random_normal([A], 0, -1)),
    ("'q' is not in [a=4, b=6]", lambda m: ts.sum(m.x, "q")),
    ("'b' is given twice", lambda m: ts.max(m.x, ["b", "b"])),
    ("[reduce_any] the operand is float32; it must be bool", lambda m: ts.any(m.x, "b")),
    ("'q' is not in", lambda m: ts.softmax(m.x, "q")),
    ("[softmax] the operand is int32; it must be floating", lambda m: ts.softmax(m.ids, "a")),
    ("[reduce_logsumexp] the operand is int32; it must be floating", lambda m: ts.logsumexp(m.ids, "a")),
    ("'q' is not in", lambda m: ts.argmax(m.x, "q")),
    ("'q' is not in", lambda m: ts.cumsum(m.x, "q")),
    ("[top_k] k = 7 is larger than dim 'b' of size 6", lambda m: ts.top_k(m.x, "b", ts.Dim("k", 7))),
    ("dim 'a' occurs twice", lambda m: ts.top_k(m.x, "b", ts.Dim("a", 2))),
    ("no dim 'm'", lambda m: ts.sort(m.x, "m")),
    ("[gather] the indices are float32; they must be int32 or int64", lambda m: ts.gather(m.table, m.x, V)),
    ("did you mean 'vocab'?", lambda m: ts.gather(m.table, m.ids, "vocb")),
    ("[gather] the indexed dim 'vocab' is also in the indices", lambda m: ts.gather(m.table, m.of(V, dtype=ts.i32), V)),
    ("[scatter_add] indexed dim 'vocb' is not in", lambda m: ts.scatter_add(m.ids, m.updates, [V, C], "vocb")),
    ("[scatter_add] dim 'b' of the result is not in the updates", lambda m: ts.scatter_add(m.ids, m.updates, [V, B], V)),
    ("[scatter_add] dim 'a' of the indices is not in the updates", lambda m: ts.scatter_add(m.ids, m.y, [V, C], V)),
    ("dim 'c' must be the same in both", lambda m: ts.scatter_add(m.ids, m.updates, [V, ts.Dim("c", 10)], V)),
    ("out_of_range is 'wrap'; known: error, zero, drop, clamp", lambda m: ts.gather(m.table, m.ids, V, "wrap")),
    ("[one_hot] the indices are float32; they must be int32 or int64", lambda m: ts.one_hot(m.x, ts.Dim("n", 5))),
    ("[one_hot] the indices are bool", lambda m: ts.one_hot(m.x > 0, ts.Dim("n", 5))),
    ("[one_hot] dim 'a' is also in the indices [a=4]", lambda m: ts.one_hot(m.ids, A)),
    ("labels are [a=4]", lambda m: ts.cross_entropy(m.y, m.ids, "c")),
    ("[cross_entropy] the labels are bool", lambda m: ts.cross_entropy(m.x, m.x > m.x, "b")),
    ("'q' is not in", lambda m: ts.cross_entropy(m.x, m.ids, "q")),
    ("[cross_entropy] the logits are int32", lambda m: ts.cross_entropy(m.ids, m.ids, "a")),
    ("query dim 'length' is not in", lambda m: ts.attention(m.x, m.x, m.x)),
    ("[attention] the mask", lambda m: ts.attention(m.q, m.k, m.k, m.of(q_dims[1], k_dims[1], k_dims[2], dtype=ts.bool_))),
    ("[attention] dropout -1 is not in [0, 1)", lambda m: ts.attention(m.q, m.k, m.k, dropout=-1)),
    ("[attention] a window of 0 keys", lambda m: ts.attention(m.q, m.k, m.k, window=0)),
    ("[attention] a soft cap of -2", lambda m: ts.attention(m.q, m.k, m.k, soft_cap=-2)),
    ("[attention] the segments are float32; they must be int32", lambda m: ts.attention(m.q, m.k, m.k, segments=m.of(q_dims[1]), memory_segments=m.of(k_dims[1]))),
    ("[attention] there is a prefix [], but attention is not causal", lambda m: ts.attention(m.q, m.k, m.k, prefix=m.of(dtype=ts.i32))),
    ("[attention] the sinks are int32; they must be floating", lambda m: ts.attention(m.q, m.k, m.k, sinks=m.of(dtype=ts.i32))),
    ("[attention] the slopes are int32; they must be floating", lambda m: ts.attention(m.q, m.k, m.k, slopes=m.of(dtype=ts.i32))),
    ("[attention] the biases by distance are int32; they must be floating", lambda m: ts.attention(m.q, m.k, m.k, by_distance=m.of(dtype=ts.i32))),
    ("[slice] elements [3, 8) are not within dim 'b' of size 6", lambda m: ts.slice(m.x, "b", 3, 5)),
    ("no dim 'q'", lambda m: ts.slice(m.x, "q", 0, 1)),
    ("[slice] elements [1, 9223372036854775808) are not within", lambda m: ts.slice(m.x, "b", 1, 2**63 - 1)),
    ("[pad] -1 before and 0 after dim 'b'", lambda m: ts.pad(m.x, "b", -1, 0)),
    ("[pad] dim 'b' with its padding comes to", lambda m: ts.pad(m.x, "b", 2**63 - 1, 2**63 - 1)),
    ("no dim 'q'", lambda m: ts.shift(m.x, "q", 1)),
    ("[split] the sizes add up to 5 but dim 'b' has 6", lambda m: ts.split(m.x, "b", [2, 3])),
    ("[split] part 1 of dim 'b' would have 0 elements", lambda m: ts.split(m.x, "b", [6, 0])),
    ("[concat] there are no operands", lambda m: ts.concat([], "b")),
    ("[concat] operands [a=4, b=6] and [b=6, c=3] differ in more than dim 'b'", lambda m: ts.concat([m.x, m.y], "b")),
    ("no dim 'q'", lambda m: ts.concat([m.x, m.x], "q")),
    ("[concat] operands are float32 and int32", lambda m: ts.concat([ts.sum(m.x, "b"), m.ids], "a")),
    ("[stack] operands [a=4, b=6] and [b=6, c=3] differ", lambda m: ts.stack([m.x, m.y], "s")),
    ("[stack] dim 'a' occurs twice", lambda m: ts.stack([m.x, m.x], "a")),
    ("no dim 'q'", lambda m: ts.unstack(m.x, "q")),
    ("[reshape] [a=4, b=6] has 24 elements but [n=25] has 25", lambda m: ts.reshape(m.x, [ts.Dim("n", 25)])),
    ("[transpose] [a=4, b=6] and [a=4] do not have the same dims", lambda m: ts.transpose(m.x, [A])),
    ("[broadcast] dim 'b' of [a=4, b=6] is not in the result [a=4]", lambda m: ts.broadcast(m.x, [A])),
    ("no dim 'q'", lambda m: ts.rename(m.x, "q", "r")),
    ("[rename] dim 'b' occurs twice", lambda m: ts.rename(m.x, "a", "b")),
    ("no dim 'q'", lambda m: m.x.prefer("q")),
    ("have dims 'length' and 'lenght'", lambda m: m.of(ts.Dim("length", 16)) + m.of(ts.Dim("lenght", 16))),
    ("'batch' and 'bacth'", lambda m: ts.minimum(m.of(ts.Dim("batch", 4)), m.of(ts.Dim("bacth", 4)))),
    ("which no operand has", lambda m: ts.einsum(m.of(ts.Dim("batch", 4)), m.of(ts.Dim("batch", 4)), [ts.Dim("bacth", 4)])),
    ("[mul] 1000000000 is no float16, whose largest number is 65504", lambda m: ts.cast(m.x, ts.f16) * 1e9),
    ("[add] -65520 is no float16", lambda m: ts.cast(m.x, ts.f16) + -65520.0),
    ("[where] -1e+30 is no float16", lambda m: ts.where(m.x > 0, ts.cast(m.x, ts.f16), -1e30)),
    ("[constant] 70000 is no float16", lambda m: ts.constant(70000, [], ts.f16)),
    ("[constant] 1e+39 is no float32", lambda m: ts.constant(1e39)),
    ("[clip] -1000000000 is no float16", lambda m: ts.clip(ts.cast(m.x, ts.f16), -1e9, 1e9)),
    ("[pad] -1e+30 is no float16", lambda m: ts.pad(ts.cast(m.x, ts.f16), "b", 1, 0, -1e30)),
    ("[iota] an index along dim 'n' of bool; take int32", lambda m: ts.iota(ts.Dim("n", 2), ts.bool_)),
    ("[iota] the indices along dim 'n' go to 256", lambda m: ts.iota(ts.Dim("n", 257), ts.u8)),
    ("unknown dtype 'float31'; did you mean 'float32'?", lambda m: ts.cast(m.x, "float31")),
    ("a tensor of 25 dims; at most 24 are supported", lambda m: ts.input("v", [ts.Dim(f"d{i}", 1) for i in range(25)])),
    ("elements or more", lambda m: ts.input("v", [ts.Dim("p", 2**40), ts.Dim("q", 2**40)])),
    ("[dense] shape [a=4, b=6] has no dim 'q'", lambda m: ts.nn.dense(m.x, "q", [C])),
    ("[dense] x is int32; it must be floating, use cast()", lambda m: ts.nn.dense(m.ids, A, [C])),
    ("[embedding] the indices are float32", lambda m: ts.nn.embedding(m.x, V, [C])),
    ("[embedding] dim 'a' of a row is also one of the indices [a=4]", lambda m: ts.nn.embedding(m.ids, V, [A])),
    ("[embedding] dim 'vocab' of a row is also that of the table's rows", lambda m: ts.nn.embedding(m.ids, V, [V])),
    ("no dim 'q'", lambda m: ts.nn.feed_forward(m.x, "q", ts.Dim("h", 8))),
    ("[feed_forward] x is int32; it must be floating", lambda m: ts.nn.feed_forward(m.ids, A, ts.Dim("h", 8))),
    ("[feed_forward] rate -1 is not in [0, 1)", lambda m: ts.nn.feed_forward(m.x, B, ts.Dim("h", 8), dropout=-1)),
    ("glu", lambda m: ts.nn.feed_forward(m.x, B, ts.Dim("h", 8), activations=["glu"])),
    ("no dim 'length'", lambda m: ts.nn.self_attention(m.x, B, heads=2)),
    ("no dim 'q'", lambda m: ts.nn.layer_norm(m.x, "q")),
    ("[norm] eps -1 is negative", lambda m: ts.nn.layer_norm(m.x, B, eps=-1)),
    ("[rms_norm] eps -1 is negative", lambda m: ts.nn.rms_norm(m.x, B, eps=-1)),
    ("[normal] stddev -1 is negative", lambda m: ts.init.normal(-1)),
    ("[truncated] stddev -1 is negative", lambda m: ts.init.truncated(-1)),
    ("[uniform] hi 0 is below lo 1", lambda m: ts.init.uniform(1, 0)),
    ("have no dim 'q'", lambda m: ts.param("v", [A, B], ts.init.he_normal("q"))),
    ("update() of 'x', which is not a parameter or state", lambda m: ts.update(m.x, m.x)),
    ("update() of 'w' float32 [a=4, b=6] with float32 [b=6, c=3]", lambda m: ts.update(m.w, m.y)),
    ("'alone' belongs to another graph", lambda m: ts.update(m.w, ANOTHER)),
    ("only floating tensors", lambda m: ts.gradients(m.loss, [m.ids])),
    ("is int32", lambda m: ts.gradients(ts.sum(m.ids), [m.x])),
    ("'alone' belongs to another graph", lambda m: ts.gradients(m.loss, [ANOTHER])),
    ("is int32, which has neither a mean nor a gradient", lambda m: ts.minimize(ts.cast(m.loss, ts.i32), ts.optim.sgd(0.1))),
    ("depends on none of the 1 parameters", lambda m: ts.minimize(ts.mean(m.x), ts.optim.sgd(0.1))),
    ("[minimize] clip -1 is negative; 0 is no clipping", lambda m: ts.minimize(m.loss, ts.optim.sgd(0.1), clip=-1)),
    ("the learning rate is float32 [a=4]", lambda m: ts.minimize(m.loss, ts.optim.sgd(ts.constant(1.0, [A])))),
    ("the learning rate is int32 []", lambda m: ts.minimize(m.loss, ts.optim.sgd(m.n))),
    ("no_decay: no parameter is named like 'v'", lambda m: ts.minimize(m.loss, ts.optim.adam(0.1, weight_decay=0.1, no_decay=["v"]))),
    ("[sgd] weight_decay is -1; it must be at least 0", lambda m: ts.optim.sgd(0.1, weight_decay=-1)),
    ("[momentum] mu is 2; it must be in [0, 1)", lambda m: ts.optim.momentum(0.1, mu=2)),
    ("[adam] beta1 is 1.5; it must be in [0, 1)", lambda m: ts.optim.adam(0.1, beta1=1.5)),
    ("[adam] eps is -1; it must be at least 0", lambda m: ts.optim.adam(0.1, eps=-1)),
    ("[lamb] beta2 is 1;", lambda m: ts.optim.lamb(0.1, beta2=1)),
    ("[lion] beta1 is -1;", lambda m: ts.optim.lion(0.1, beta1=-1)),
    ("no input that a microbatch reads has the dim 'bathc'", lambda m: ts.minimize(lambda: ts.mean(m.w * ts.input("z", [ts.Dim("batch", 4)])), ts.optim.sgd(0.1), microbatches=2, dim="bathc")),
    ("[loop] carry 0 is float32 [a=4, b=6] at the beginning of an iteration and float32 []", lambda m: ts.repeat(ts.Dim("layers", 2), m.x, lambda h: ts.sum(h))),
    ("[scan]", lambda m: loop(lambda c, s, i: ([c[0], c[0]], []))),
    ("[loop] carry 0 is float32 [] at the beginning of an iteration and float64 []", lambda m: loop(lambda c, s, i: ([ts.cast(c[0], ts.f64)], []))),
    ("unknown schedule 'cosin'; did you mean 'cosine'?", lambda m: ts.Schedule("cosin", lr=1, steps=10).at(3)),
    ("[Schedule] lr nan; it is finite and not negative", lambda m: ts.Schedule(lr=NAN)),
    ("[Schedule] lr -1;", lambda m: ts.Schedule(lr=-1)),
    ("[Schedule] floor nan; it is a share", lambda m: ts.Schedule(floor=NAN)),
    ("[Schedule] cooldown 1.5; it is a share", lambda m: ts.Schedule("linear", cooldown=1.5)),
    ("[Schedule] step -1; steps are counted from 0", lambda m: ts.Schedule().at(-1)),
    ("'rows' and 'row'", lambda m: m.of(ts.Dim("rows", 4)) > m.of(ts.Dim("row", 4))),
    ("[mul] a tensor of 25 dims", lambda m: m.of(*many(0, 24)) * m.of(ts.Dim("f", 2))),
    ("[einsum] a contraction over 36 dims; at most 24", lambda m: ts.einsum(m.of(*many(0, 24)), m.of(*many(12, 36)), many(0, 12) + many(24, 36))),
    ("[iota] shape [i=9223372036854775807]", lambda m: ts.iota(ts.Dim("i", 2**63 - 1))),
    ("[constant] 3.4e+38 is no bfloat16", lambda m: ts.constant(3.4e38, [], ts.bf16)),
    ("[constant] the array has the sizes [2, 3], but [a=4, b=6] is what it is given as", lambda m: ts.constant(np.ones((2, 3)), [A, B])),
    ("[self_attention] 3 heads do not divide 'b' of size 4; give head_dim, the size of each", lambda m: ts.nn.self_attention(m.of(ts.Dim("length", 2), ts.Dim("b", 4)), "b", heads=3)),
    ("gpt: d_model 30 is not a multiple of heads 4", lambda m: ts.nn.gpt(d_model=30, heads=4)),
    ("[norm] eps nan", lambda m: ts.nn.layer_norm(m.x, B, eps=NAN)),
    ("[rms_norm] eps nan", lambda m: ts.nn.rms_norm(m.x, B, eps=NAN)),
    ("[momentum] weight_decay is -1; it must be at least 0", lambda m: ts.optim.momentum(0.1, weight_decay=-1)),
    ("[adam] weight_decay is nan;", lambda m: ts.optim.adam(0.1, weight_decay=NAN)),
    ("[adam] beta2 is 1; it must be in [0, 1)", lambda m: ts.optim.adam(0.1, beta2=1)),
    ("[lamb] weight_decay is -1;", lambda m: ts.optim.lamb(0.1, weight_decay=-1)),
    ("[lion] weight_decay is -1;", lambda m: ts.optim.lion(0.1, weight_decay=-1)),
    ("[muon] mu is 1; it must be in [0, 1)", lambda m: ts.optim.muon(0.1, mu=1)),
    ("[muon] matrices: no parameter is named like '*block*'", lambda m: ts.minimize(m.loss, ts.optim.muon(0.1))),
    ("[muon] no parameter named like 'w' is a matrix with the rows 'd_model'", lambda m: ts.minimize(m.loss, ts.optim.muon(0.1, matrices=["w"]))),
    ("[with_average] decay is 1; it must be in [0, 1)", lambda m: ts.optim.with_average(ts.optim.sgd(0.1), 1)),
    ("'w' is updated twice", lambda m: (ts.update(m.w, m.w), ts.update(m.w, m.w))),
    ("the initializer of 'u' made float32 [] where float32 [a=4] is needed", lambda m: ts.param("u", [A], lambda dims, dtype: ts.constant(0.0))),
    ("[minimize] trainable: no parameter is named like 'v*'", lambda m: ts.minimize(m.loss, ts.optim.sgd(0.1), trainable=["v*"])),
    ("[minimize] 0 microbatches; there is at least 1", lambda m: ts.minimize(lambda: m.loss, ts.optim.sgd(0.1), microbatches=0)),
    ("leave nothing", lambda m: ts.scan(A, lambda c, s, i: ([], []))),
    ("has the dim 'a' already", lambda m: ts.scan(A, lambda c, s, i: ([], [m.x]))),
    ("[loop] carry 0 is float32 [] at the beginning of an iteration and float32 [a=4, b=6]", lambda m: loop(lambda c, s, i: ([m.x], []))),
    ("makes 0 carries of 1", lambda m: loop(lambda c, s, i: ([], []))),
    ("a loop over 'a' that has ended", lambda m: leaked(loop) + m.x),
    ("[windows] a window of 5 does not fit into dim 'a' of size 4", lambda m: ts.windows(m.x, A, ts.Dim("w", 5))),
    ("[windows] padding of -1 and 0 around dim 'a'", lambda m: ts.windows(m.x, A, ts.Dim("w", 2), before=-1)),
    ("no dim 'filter_b'", lambda m: ts.conv(m.x, m.y, "b")),
    ("[conv] there is no spatial dim", lambda m: ts.conv(m.x, m.y, [])),
    ("[conv] dim 'a' is 4 in x but 5 in the filter", lambda m: ts.conv(m.x, m.of(ts.Dim("filter_b", 3), ts.Dim("a", 5)), "b")),
    ("[conv_transpose] the result would have -1 elements along dim 'b'", lambda m: ts.conv_transpose(m.x, m.of(ts.Dim("filter_b", 1)), "b", padding=[(4, 3)])),
    ("padding is 'sam'; known: same, valid, or a list of (before, after)", lambda m: ts.conv(m.x, m.of(ts.Dim("filter_b", 3)), "b", padding="sam")),
    ("padding is [1]; known: same, valid, or a list of (before, after), one for each dim", lambda m: ts.max_pool(m.x, "b", padding=[1])),
    ("stride has 2 numbers for 1 dims; give one for each, or one for all", lambda m: ts.max_pool(m.x, "b", stride=[1, 2])),
    ("[max_pool] a window of 0 with stride 0", lambda m: ts.max_pool(m.x, "b", window=0)),
    ("[avg_pool] dim 'b' is given twice", lambda m: ts.avg_pool(m.x, ["b", "b"])),
    ("[avg_pool] there is no dim to pool", lambda m: ts.avg_pool(m.x, [])),
    ("[dynamic_slice] 7 elements of dim 'b' of size 6", lambda m: ts.dynamic_slice(m.x, m.n, "b", 7)),
    ("[dynamic_update] an update of 6 elements along dim 'a' of size 4", lambda m: ts.dynamic_update(m.x, m.of(ts.Dim("a", 6), B), m.n, "a")),
    ("[dynamic_shift] dim 'a' of the position is not one of x's others", lambda m: ts.dynamic_shift(m.x, m.ids, "a")),
    ("[scatter] the updates are int32 and x is float32; they must agree", lambda m: ts.scatter(m.x, m.ids, m.of(A, dtype=ts.i32), "b")),
    ("[cond] the predicate is float32 [a=4, b=6]", lambda m: ts.cond(m.x, lambda: m.x, lambda: m.x)),
    ("[cond] result 0 is float32 [a=4, b=6] in one branch and float32 [b=6, c=3] in the other", lambda m: ts.cond(m.n > 0, lambda: m.x, lambda: m.y)),
    ("[cond] one branch makes 1 tensors and the other 2", lambda m: ts.cond(m.n > 0, lambda: m.x, lambda: [m.x, m.y])),
    ("[while_loop] the condition is float32 [a=4, b=6]", lambda m: ts.while_loop(lambda c: c[0], lambda c, s, i: (c, []), [m.x], 3)),
    ("[while_loop] 1 carries and at most 0 iterations", lambda m: ts.while_loop(lambda c: m.n > 0, lambda c, s, i: (c, []), [m.x], 0)),
    ("[batch_norm] all dims of x [a=4, b=6] are channels", lambda m: ts.nn.batch_norm(m.x, [A, B])),
    ("[batch_norm] eps 0.001 and momentum 2:", lambda m: ts.nn.batch_norm(m.x, B, momentum=2)),
    ("update() of 'w'", lambda m: loop(lambda c, s, i: ts.update(m.w, m.w) or (c, []))),
]

with ts.eager():
    ANOTHER = ts.constant(1.0, [A, B]).named("alone")


@ts.program
def small(x: ts.f32[A, B]):
    w = ts.param("w", [B, C], ts.init.ones())
    y = ts.relu(ts.einsum(x, w, [A, C])).named("y")
    return ts.minimize(ts.mean(y).named("loss"), ts.optim.sgd(0.1))


ones = np.ones((4, 6), np.float32)

# The same of compiled programs; `run` is one.
RUNNING = [
    ("mesh 'data:2' has no axis 'dta'; did you mean 'data'?", lambda run: small.compile("data:2", "a:dta")),
    ("no tensor has a dim 'aa'", lambda run: small.compile("data:2", "aa:data")),
    ("no tensor has a dim 'aa'", lambda run: small.compile("data:2", {"aa": "data"})),
    ("mesh 'data:2' has no axis 'dta'; did you mean 'data'?", lambda run: small.compile({"data": 2}, {A: "dta"})),
    ("mesh {2: 'data'}: a key is the name of one axis, such as 'data', not 2", lambda run: small.compile({2: "data"})),
    ("a key is the name of one axis, such as 'data', not 'data:2'", lambda run: small.compile({"data:2": 2})),
    ("the size of axis 'data' is a whole number, not 2.0", lambda run: small.compile({"data": 2.0})),
    ("mesh axis 'data' has size 0", lambda run: small.explain({"data": 0})),
    ("a mesh is a text such as 'data:2;model:2' or a dict", lambda run: small.compile(["data", 2])),
    ("a key is a dim or a tuple of dims, also with a purpose or scope before them as in '@params d_model', not 2", lambda run: small.compile("data:2", {2: "data"})),
    ("a key is a dim or a tuple of dims, also with a purpose or scope before them as in '@params d_model', not 'a:data'", lambda run: small.compile("data:2", {"a:data": "data"})),
    ("the value of 'a,b' is a mesh axis, a list of them from major to minor, or None for no axis, not 2", lambda run: small.compile("data:2", {(A, "b"): 2})),
    ("the value of 'a' is a mesh axis", lambda run: small.compile("data:2", {"a": []})),
    ("unknown purpose '@parms'; did you mean 'params'?", lambda run: small.compile("data:2", {"@parms a": "data"})),
    ("a layout is a text such as 'batch:data; heads,ff:model' or a dict", lambda run: small.compile("data:2", ["a", "data"])),
    ("no tensor named like 'nothing*' has a dim 'a'", lambda run: small.compile("data:2", "@/nothing*/ a:data")),
    ("dims 'a' and 'b' both claim mesh axis 'm'", lambda run: small.compile("m:2", "a,b:m")),
    ("'a:m' and 'a:n' disagree about dim 'a'", lambda run: small.compile("m:2;n:2", "a:m;a:n")),
    ("names axis 'm' twice", lambda run: small.compile("m:2", "a:m+m")),
    ("'a:auto'", lambda run: small.compile("m:2", "a:auto")),
    ("dim 'a' has no axes", lambda run: small.compile("m:2", "a")),
    ("expected a dim name at ':m'", lambda run: small.compile("m:2", ":m")),
    ("is not a list of axes joined by '+'", lambda run: small.explain("m:2", "a:m+")),
    ("scope glob has no closing '/'", lambda run: small.explain("m:2", "@/x a:m")),
    ("unknown purpose '@parms'; did you mean 'params'?", lambda run: small.explain("m:2", "@parms a:m")),
    ("'data' is not 'axis:size'", lambda run: small.compile("data")),
    ("size of axis 'data' is 'two'", lambda run: small.explain("data:two")),
    ("mesh axis 'data' has size 0", lambda run: small.explain("data:0")),
    ("mesh axis 'data' is named twice", lambda run: small.explain("data:2;data:2")),
    ("size of axis 'data' is '2x'", lambda run: small.compile("data:2x")),
    ("size of axis 'data' is '99999999999', which is too large", lambda run: small.compile({"data": 99999999999})),
    ("mesh axis 'data' has size -2", lambda run: small.explain({"data": -2})),
    ("mesh axis 'auto': in a layout that stands for the planner's choice", lambda run: small.compile("auto:2")),
    ("no layout can name it, for '+' has a meaning of its own", lambda run: small.compile({"a+b": 2})),
    ("'@' begins a clause, but stands in '@state'", lambda run: small.compile("m:2", "a:m @state b:m")),
    ("layout clause 'a:m*x': 'm*x' is not a split", lambda run: small.compile("m:2", "a:m*x")),
    ("'m*2' deals the work of ops", lambda run: small.compile("m:2", "@params b:m*2")),
    ("layout rule '*:auto': a Session is given axes", lambda run: small.compile("m:2", "auto")),
    ("too many ranks", lambda run: small.explain("a:65536;b:65536")),
    ("has 4 ranks but there are 2", lambda run: small.compile("m:4", cluster=ts.Cluster.threads(2))),
    ("a cluster of 0 ranks", lambda run: ts.Cluster.threads(0)),
    ("[set_timeout] a time-out of -1", lambda run: run.cluster.set_timeout(-1)),
    ("no input 'xs'; did you mean 'x'?", lambda run: run(xs=ones)),
    ("[run] small() reads the input 'x' (test_errors.py:", lambda run: run()),
    ("declares float32 [a=4, b=6]), which this call does not give", lambda run: (run(x=ones), run())),
    ("'x' has the sizes [4, 6] (dims a, b)", lambda run: run(x=np.ones((4, 5), np.float32))),
    ("'x' is float32 but the array is int32", lambda run: run(x=np.ones((4, 6), np.int32))),
    ("did you mean 'loss'?", lambda run: (run(x=ones), run.fetch("los"))),
    ("no output of the last run, parameter, state or input 'los'", lambda run: run.fetch("los")),
    ("no parameter or state 'v'", lambda run: run.assign("v", ones)),
    ("'w' has the sizes [6, 3]", lambda run: run.assign("w", np.ones((3, 6), np.float32))),
    ("'los'", lambda run: run.slices("los")),
    ("[set_size] the program has no bounded dim 'a'", lambda run: run.set_size(A, 3)),
    ("unknown machine 'h1000'", lambda run: small.explain("m:2", machine="h1000")),
    ("lookups.gather", lambda run: lookup.compile()(ids=np.array([0, 1, 9, 0], np.int32))),
]


@ts.program
def lookup(ids: ts.i32[A]):
    with ts.scope("lookups"):
        return ts.sum(ts.param("table", [V, C])[V:ids])


def problem(text, wrong, subject):
    """What is wrong with the error of a wrong call, or None."""
    here, line = pathlib.Path(__file__).name, wrong.__code__.co_firstlineno
    try:
        wrong(subject)
    except (ts.Error, TypeError, ValueError) as e:
        frames = [f.lineno for f in traceback.extract_tb(e.__traceback__) if pathlib.Path(f.filename).name == here]
        if text not in str(e):
            return f"line {line}: '{text}' is not in: {e}"
        if isinstance(e, ts.Error) and not any(f"{here}:{n}" in str(e) for n in lines_of(wrong)):
            return f"line {line}: not named in: {e}"
        if frames[-1] not in lines_of(wrong):
            return f"line {line}: the traceback ends in line {frames[-1]}"
        return None
    return f"line {line}: no error"


def lines_of(wrong):
    """The lines that may be meant: that of the call, and those of what it calls here."""
    lines = [wrong.__code__.co_firstlineno]
    for helper in (loop, small.function, lookup.function):
        source, first = inspect.getsourcelines(helper)
        lines += range(first, first + len(source))
    return lines


def test_errors_of_building_name_the_line():
    problems = []
    for text, wrong in BUILDING:
        with ts.build.building(ts._tessera.make_graph()):
            problems.append(problem(text, wrong, Inputs()))
    assert not [p for p in problems if p], "\n".join(filter(None, problems))


def test_errors_of_runs_name_the_line():
    problems = []
    for text, wrong in RUNNING:
        with small.compile("m:2", "a:m") as run:
            problems.append(problem(text, wrong, run))
    assert not [p for p in problems if p], "\n".join(filter(None, problems))
