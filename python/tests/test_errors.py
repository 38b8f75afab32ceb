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
