"""Random numbers and traces by run, loops and what they share and print, gradients that are missing, Ctrl-C, exit codes."""
import os
import re
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessera as ts

A, B, T = ts.dims(a=4, b=6, t=5)
X = np.random.default_rng(0).normal(size=(4, 5)).astype(np.float32)


# ------------------------------------------------------------------------------------ random numbers

SOURCES = {
    "uniform": lambda x: ts.random_uniform([A, B]),
    "normal": lambda x: ts.random_normal([A, B]),
    "truncated": lambda x: ts.truncated_normal([A, B]),
    "dropout": lambda x: ts.dropout(ts.constant(1.0, [A, B]), 0.5),
    "in a scan": lambda x: ts.scan(T, lambda c, s, i: ([c[0] + ts.random_uniform([A, B])], []), [ts.constant(0.0, [A, B])])[0][0],
}


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("stores", [False, True])
def test_random_numbers_are_others_in_each_run_and_the_same_for_a_step(source, stores):
    @ts.program
    def sample(x: ts.f32[()] = 0.0):
        if stores:
            ts.update(ts.state("count", []), ts.state("other", []) + 1.0)
        return SOURCES[source](x)

    def draws(run):
        return [run().result for _ in range(4)]

    with sample.compile(seed=1) as run, sample.compile(mesh="m:2", layout="a:m", seed=1) as split, sample.compile(seed=2) as other:
        first = draws(run)
        assert run.step_count == 4
        for i in range(4):
            for j in range(i):
                assert (first[i] != first[j]).any(), (i, j)
        np.testing.assert_array_equal(run(step=2).result, first[2])
        np.testing.assert_array_equal(run().result, first[3])  # it goes on from there
        assert run.step_count == 4
        np.testing.assert_array_equal(draws(split), first)
        assert (np.array(draws(other)) != first).any()
        with pytest.raises(ts.UsageError, match=r"step -1; steps are counted from 0 \(test_loops"):
            run(step=-1)


def test_each_iteration_draws_its_own_numbers():
    one = ts.constant

    def scanned():
        return ts.scan(T, lambda c, s, i: ([], [ts.random_uniform([])]))[1][0]

    def repeated():
        return ts.repeat(T, one(0.0, [T]), lambda h: h * 1.0 + ts.where(ts.iota(T) == 0, ts.random_uniform([]), 0.0) * 0.0 + ts.random_uniform([T]))

    def looped():
        return ts.while_loop(lambda c: c[0] < 5, lambda c, s, i: ([c[0] + 1], [ts.random_uniform([])]), [one(0, dtype=ts.i32)], 5)[1][0]

    def both():
        return {"scanned": scanned(), "looped": looped(), "repeated": repeated()}

    with ts.program(both).compile() as run:
        made = run()
        for name in ("scanned", "looped"):
            assert len(set(made[name])) == 5, (name, made[name])
    with ts.eager() as g:
        for loop in (scanned, looped):
            assert len(set(g.fetch(loop()))) == 5


def test_an_input_cannot_be_called_step():
    @ts.program
    def p(step: ts.f32[()]):
        return step

    with pytest.raises(ts.UsageError, match=r"the input 'step' .*has the name of the step counter.*\(test_loops"):
        p.compile()


# ------------------------------------------------------------------------------------------- traces

scale = 1.0


def test_compile_reads_what_the_function_reads_now():
    global scale
    cell = {"bias": 0.0}
    layers = [lambda x: x * 2.0]

    @ts.program
    def p(x: ts.f32[A]):
        x = x * scale + cell["bias"]
        for layer in layers:
            x = layer(x)
        return x

    x = np.ones(4, np.float32)
    first = p.compile()
    for change, expected in [(lambda: None, 2), (lambda: globals().update(scale=3.0), 6), (lambda: cell.update(bias=1.0), 8), (lambda: layers.append(lambda x: x + 1.0), 9)]:
        change()
        assert p.compile()(x=x).result[0] == expected
        assert first(x=x).result[0] == 2, "a Run is what was compiled"
    assert len(str(p.graph).splitlines()) == len(str(p.graph).splitlines())
    before = p.explain().collectives
    layers.append(lambda x: x - ts.max(x))
    assert len(p.explain("m:2", "a:m").collectives) > len(before)
    scale = 1.0


# -------------------------------------------------------------------------------------------- loops


def cell(h):
    return ts.tanh(ts.nn.dense(ts.rename(h, B, "in"), "in", B, name="cell"))


def test_parameters_of_a_scan_are_shared_and_own_if_asked():
    """An iteration written out uses the same parameters; a layer of repeat() has its own."""

    def loss(build):
        @ts.program
        def p():
            h = build(ts.constant(0.5, [A, B]))
            return {"step": ts.minimize(ts.mean(ts.square(h - 0.25)), ts.optim.sgd(0.5)), "h": h}

        run = p.compile()
        shapes = {name: run.fetch(name).shape for name in run.parameters if not name.startswith("optimizer")}
        for name, shape in shapes.items():
            run.assign(name, np.linspace(-1, 1, 36 if name.endswith("w") else 6, dtype=np.float32).reshape(shape[-2:] if name.endswith("w") else shape[-1:]) * np.ones(shape, np.float32))
        return shapes, [run().loss for _ in range(3)]

    def body(c, s, i):
        return [cell(c[0])], []

    def written_out(h):
        ws = None
        for _ in range(T):
            if ws is None:
                ws = ts.param("cell.w", [ts.Dim("in", 6), B]), ts.param("cell.b", [B])
            h = ts.tanh(ts.einsum(ts.rename(h, B, "in"), ws[0], [A, B]) + ws[1])
        return h

    shapes, expected = loss(written_out)
    for build in (
        lambda h: ts.scan(T, body, [h])[0][0],
        lambda h: ts.while_loop(lambda c: c[1] < int(T), lambda c, s, i: ([cell(c[0]), c[1] + 1], []), [h, ts.constant(0, dtype=ts.i32)], int(T))[0][0],
    ):
        made, losses = loss(build)
        assert made == shapes == {"cell.w": (6, 6), "cell.b": (6,)}
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for build in (lambda h: ts.scan(T, body, [h], own_parameters=True)[0][0], lambda h: ts.repeat(T, h, cell)):
        made, losses = loss(build)
        assert made == {"cell.w": (5, 6, 6), "cell.b": (5, 6)}
        assert losses[0] == pytest.approx(expected[0], rel=1e-5) and abs(losses[2] - expected[2]) > 1e-4  # each moves on its own
    with ts.eager() as g:
        g.fetch(ts.scan(T, body, [ts.constant(0.5, [A, B])])[0][0])
        assert {x.name: [int(d) for d in x.dims] for x in g.parameters} == {"cell.w": [6, 6], "cell.b": [6]}


def lines_of(build, caplog, **compiled):
    @ts.program
    def p(x: ts.f32[A, T]):
        return build(x)

    caplog.clear()
    with caplog.at_level("INFO", logger="tessera"), p.compile(**compiled) as run:
        run(x=X)
    return [r.getMessage() for r in caplog.records if not r.getMessage().startswith("compiled")]


def numbers(line):
    return [float(x) for x in re.search(r"= \[(.*?)(, \.\.\.)?\]$", line).group(1).split(", ")]


def test_print_in_a_loop_has_a_line_for_each_iteration_that_ran(caplog):
    def scanned(x):
        return ts.scan(T, lambda c, s, i: ([ts.print(c[0] + s[0], "carry")], []), [ts.constant(0.0, [A])], [x])[0][0]

    sums = np.cumsum(X, 1)
    for mesh, layout in [("m:1", ""), ("m:2", "a:m")]:
        lines = lines_of(scanned, caplog, mesh=mesh, layout=layout)
        assert [line.split(" float32")[0] for line in lines] == [f"carry: add [t {i}]" for i in range(5)]
        for i, line in enumerate(lines):
            np.testing.assert_allclose(numbers(line), sums[:, i], rtol=1e-4)
    # A loop that ends early, a branch, loops in a loop, layers, a value from outside, its gradient's loop.
    early = lines_of(lambda x: ts.while_loop(lambda c: c[0] < 3, lambda c, s, i: ([ts.print(c[0], "n") + 1], []), [ts.constant(0, dtype=ts.i32)], 9)[0][0], caplog)
    assert [line.split(" int32")[0] for line in early] == [f"n: loop_carry [iteration {i}]" for i in range(3)]
    assert [numbers(line) for line in early] == [[0], [1], [2]]
    branch = lines_of(lambda x: ts.cond(ts.sum(x) > 1e9, lambda: ts.print(x, "then"), lambda: ts.print(x * 2.0, "otherwise")), caplog)
    assert len(branch) == 1 and branch[0].startswith("otherwise: mul")
    nested = lines_of(lambda x: ts.scan(T, lambda c, s, i: ([ts.scan(A, lambda d, r, j: ([d[0] + ts.print(r[0], "x")], []), [c[0]], [s[0]])[0][0]], []), [ts.constant(0.0)], [x])[0][0], caplog)
    assert [re.search(r"\[t \d, a \d\]", line).group() for line in nested] == [f"[t {i}, a {j}]" for i in range(5) for j in range(4)]
    np.testing.assert_allclose([numbers(line)[0] for line in nested], X.T.ravel(), rtol=1e-4)
    outside = lines_of(lambda x: ts.scan(T, lambda c, s, i: ([c[0] + ts.sum(ts.print(x, "x"))], []), [ts.constant(0.0)])[0][0], caplog)
    assert len(outside) == 5 and outside[4].startswith("x: x [t 4]")

    def trained(x):
        h = ts.repeat(ts.Dim("layers", 3), x, lambda h: ts.print(h * ts.param("s", [A], ts.init.ones()), "h"))
        return ts.minimize(ts.mean(ts.square(h)), ts.optim.sgd(0.1))

    assert [line.split(" float32")[0] for line in lines_of(trained, caplog)] == [f"h: mul [layers {i}]" for i in range(3)]


def test_print_in_an_eager_block_gives_its_line_at_once(caplog):
    with caplog.at_level("INFO", logger="tessera"), ts.eager():
        x = ts.constant(X, [A, T])
        ts.print(x, "x")
        assert len(caplog.records) == 1 and caplog.records[0].getMessage().startswith("x: constant")
        ts.scan(T, lambda c, s, i: ([ts.print(c[0] + s[0], "sum")], []), [ts.constant(0.0, [A])], [x])
    lines = [r.getMessage() for r in caplog.records[1:]]
    np.testing.assert_allclose([numbers(line) for line in lines], np.cumsum(X, 1).T, rtol=1e-4)


def test_check_finite_in_a_loop_names_the_iteration():
    def check(build, said, **compiled):
        @ts.program
        def p(x: ts.f32[A, T]):
            return build(x)

        x = np.ones((4, 5), np.float32)
        with p.compile(**compiled) as run:
            run(x=x)
            x[2, 3] = -1
            with pytest.raises(ts.UsageError, match=said + r".*test_loops_and_randomness.py:\d+"):
                run(x=x)

    def scanned(x):
        return ts.scan(T, lambda c, s, i: ([c[0] + ts.check_finite(ts.log(s[0]), "logs")], []), [ts.constant(0.0, [A])], [x])[0][0]

    check(scanned, r"logs: element \[t 3, a 2\] of 'log' is the first")
    check(scanned, r"logs: element \[t 3, a 2\] of 'log' is the first", mesh="m:2", layout="a:m")
    check(lambda x: ts.while_loop(lambda c: ts.min(c[0]) < 3.0, lambda c, s, i: ([ts.check_finite(ts.sqrt(c[0] + 0.5))+ 1.0], []), [x], 6)[0][0], r"element \[iteration 0, a 2, t 3\] of 'sqrt'")
    check(lambda x: ts.repeat(ts.Dim("layers", 2), x, lambda h: ts.check_finite(ts.sqrt(h))), r"element \[layers 0, a 2, t 3\] of 'sqrt'")


# ---------------------------------------------------------------------------------------- gradients


@ts.op
def double(x):
    return x * 2


WAYS = {
    "plain": lambda x: double(x),
    "repeat": lambda x: ts.repeat(ts.Dim("layers", 2), x, double),
    "scan": lambda x: ts.scan(T, lambda c, s, i: ([double(c[0])], []), [x])[0][0],
    "while_loop": lambda x: ts.while_loop(lambda c: c[1] < 2, lambda c, s, i: ([double(c[0]), c[1] + 1], []), [x, ts.constant(0, dtype=ts.i32)], 3)[0][0],
    "cond": lambda x: ts.cond(ts.sum(x) > 0, lambda: double(x), lambda: x),
    "recompute": lambda x: ts.recompute(lambda: double(x)),
    "behind others": lambda x: ts.softmax(ts.tanh(double(ts.exp(x))), A),
}


@pytest.mark.parametrize("way", WAYS)
def test_an_op_without_a_gradient_on_the_way_to_a_parameter_is_an_error(way):
    """Another path to the parameter does not hide it, and none to it is no error."""

    def build(take, detach=False):
        @ts.program
        def p(x: ts.f32[A, T]):
            w = ts.param("w", [T], ts.init.ones())
            with ts.scope("part"):
                y = WAYS[way](ts.stop_gradient(x * w) if detach else x * w)
            return take(ts.sum(y) + ts.sum(w), w)

        return p

    minimized = lambda loss, w: ts.minimize(loss, ts.optim.sgd(0.1))
    for take in (minimized, lambda loss, w: ts.gradients(loss, [w])[0], lambda loss, w: ts.minimize(loss, ts.optim.sgd(0.1), recompute=["part"])):
        with pytest.raises(ts.UsageError, match=r"the op 'double\w*' has no gradient.*@double\w*\.gradient in Python.*stop_gradient.*\(test_loops_and_randomness.py:\d+"):
            build(take).compile()
    if way not in ("cond", "behind others"):
        assert build(lambda loss, w: ts.gradients(loss, [w])[0], detach=True).compile()(x=X).result.tolist() == [1.0] * 5

    @ts.program
    def in_parts():
        return ts.minimize(lambda: ts.sum(WAYS[way](ts.input("x", [A, T]) * ts.param("w", [T], ts.init.ones()))), ts.optim.sgd(0.1), microbatches=2, dim="a")

    with pytest.raises(ts.UsageError, match="the op 'double"):
        in_parts.compile()


def test_ops_that_are_constant_in_pieces_have_gradient_zero():
    @ts.program
    def p(x: ts.f32[A, T]):
        return ts.gradients(ts.sum(ts.floor(x) + ts.sign(x) + ts.round(x) + x), [x])[0]

    assert (p.compile()(x=X).result == 1).all()


PENALIZED = {
    "batch_norm": lambda x: ts.nn.batch_norm(x, T),
    "batch_norm over places": lambda x: ts.nn.batch_norm(ts.reshape(x, [A, T, ts.Dim("p", 1)]), T),
    "layer_norm": lambda x: ts.nn.layer_norm(x, T),
    "rms_norm": lambda x: ts.nn.rms_norm(x, T),
    "softmax": lambda x: ts.softmax(x, T) * x,
    "log_softmax": lambda x: ts.log_softmax(x, T),
    "cross_entropy": lambda x: ts.nn.cross_entropy(x, ts.constant(1, [A], ts.i32), T),
    "logsumexp": lambda x: ts.logsumexp(x, T),
    "gelu": ts.gelu,
    "silu": ts.silu,
    "elu": ts.elu,
    "selu": ts.selu,
    "softplus": ts.softplus,
    "conv": lambda x: ts.conv(x, ts.sin(ts.cast(ts.iota(ts.Dim("filter_t", 3)), ts.f64)), T),
    "avg_pool": lambda x: ts.avg_pool(x, T),
    "max_pool": lambda x: ts.max_pool(x, T),
    "cumsum": lambda x: ts.cumsum(x, T),
    "mean": lambda x: ts.mean(x, T),
    "prod": lambda x: ts.prod(x, T),
    "sort": lambda x: ts.sort(x, T),
    "scan": lambda x: ts.scan(T, lambda c, s, i: ([ts.tanh(c[0] + s[0])], []), [ts.constant(0.0, [A], ts.f64)], [x])[0][0],
    "repeat": lambda x: ts.repeat(ts.Dim("layers", 2), x, lambda h: ts.tanh(h) * h),
    "attention": lambda x: ts.attention(*(ts.rename(ts.rename(x, T, "d_head"), A, d) for d in ("length", "memory_length", "memory_length"))),
}


@pytest.mark.parametrize("name", PENALIZED)
def test_a_gradient_penalty_goes_through_every_layer(name):
    """The gradient of the norm of a gradient is that of finite differences."""

    def cubed(x):
        y = ts.cast(PENALIZED[name](x), ts.f64)
        return ts.sum(y * y * y)

    @ts.program
    def p(x: ts.f64[A, T]):
        penalty = ts.sum(ts.square(ts.gradients(cubed(x), [x])[0]))
        return {"penalty": penalty, "gradient": ts.gradients(penalty, [x])[0]}

    rng = np.random.default_rng(1)
    x, along = rng.normal(size=(4, 5)), rng.normal(size=(4, 5))
    with p.compile() as run:
        slope, eps = float((run(x=x).gradient * along).sum()), 1e-5
        difference = (run(x=x + eps * along).penalty - run(x=x - eps * along).penalty) / (2 * eps)
    assert abs(slope - difference) < 2e-4 * max(1, abs(difference)), (slope, difference)


# ---------------------------------------------------------------------------- interrupts, exit codes


def script(text):
    return subprocess.run([sys.executable, "-c", "import os, signal, threading, time\nimport numpy as np\nimport tessera as ts\n" + text], capture_output=True, text=True, timeout=120)


LONG = """
n = ts.Dim("n", 8)
@ts.program
def long(x: ts.f32[n]):
    w = ts.param("w", [n], ts.init.ones())
    total = ts.scan(ts.Dim("t", 2**30), lambda c, s, i: ([ts.tanh(c[0]) * 1.01], []), [x])[0][0]
    return {"total": ts.sum(total), "step": ts.minimize(ts.sum(w), ts.optim.sgd(0.1))}
run = long.compile(%s)
def later():
    time.sleep(0.5)
    global begin
    begin = time.time()
    os.kill(os.getpid(), signal.%s)
threading.Thread(target=later).start()
try:
    run(x=np.ones(8, np.float32))
except %s:
    print("within a second", time.time() - begin < 1.5)
print(run.step_count, run.fetch("w")[0])
"""


@pytest.mark.parametrize("ranks", ['', '"a:2", "n:a"'])
def test_control_c_ends_a_long_step_within_a_second_and_nothing_is_stored(ranks):
    done = script(LONG % (ranks, "SIGINT", "KeyboardInterrupt"))
    assert done.stdout == "within a second True\n0 1.0\n", done.stdout + done.stderr


def test_a_handler_of_ones_own_ends_a_long_step_with_its_exception():
    handler = "class Late(Exception): pass\ndef late(*_): raise Late()\nsignal.signal(signal.SIGUSR1, late)\n"
    done = script(handler + LONG % ("", "SIGUSR1", "Late"))
    assert done.stdout == "within a second True\n0 1.0\n", done.stdout + done.stderr
    ignored = script("seen = []\nsignal.signal(signal.SIGUSR1, lambda *_: seen.append(1))\n" + (LONG % ("", "SIGUSR1", "ValueError")).replace("2**30", "2**23") + "print(len(seen))\n")
    assert ignored.stdout == "1 0.9\n1\n", ignored.stdout + ignored.stderr


@pytest.mark.parametrize("error, code", [("CommError", 76), ("DeviceError", 76), ("UsageError", 1), ("IoError", 1), ("InternalError", 1)])
def test_the_exit_code_says_whether_a_restart_helps(error, code):
    done = script(f"import atexit\natexit.register(lambda: print('closed'))\nraise ts.{error}('rank 1 died')")
    assert done.returncode == code, done.stderr
    assert done.stderr.rstrip().endswith(f"{error}: rank 1 died") and done.stdout == "closed\n"


def test_a_rank_that_hangs_ends_the_process_with_the_code_that_restarts():
    done = script("""
n = ts.Dim("n", 2)
@ts.op(positions=True)
def hangs(x, positions):
    if positions["n"][0] > 0: time.sleep(30)
    return x
@ts.program
def p(x: ts.f32[n]): return ts.sum(hangs(x))
run = p.compile("a:2", "n:a")
run.cluster.set_timeout(0.5)
run(x=np.ones(2, np.float32))
""")
    assert done.returncode == 76 and "CommError" in done.stderr, done.stderr


# ------------------------------------------------------------------------------------------ threads


def test_threads_are_as_omp_num_threads_says_and_only_if_there_is_work():
    text = """
import sys
size = int(sys.argv[1])
m, k, n = ts.dims(m=size, k=size, n=size)
@ts.program
def p(x: ts.f32[m, k], w: ts.f32[k, n]): return ts.einsum(x, w)
before = len(os.listdir("/proc/self/task"))
run = p.compile(threads_per_rank=int(sys.argv[2]))
one = np.full((size, size), 0.1, np.float32)
run(x=one, w=one)
print(len(os.listdir("/proc/self/task")) - before)
"""

    def started(size, threads, **environment):
        code = "import os\nimport numpy as np\nimport tessera as ts\n" + text
        done = subprocess.run([sys.executable, "-c", code, str(size), str(threads)], capture_output=True, text=True, env={**os.environ, **environment}, timeout=120)
        assert done.returncode == 0, done.stderr
        return int(done.stdout)

    assert started(512, 3) == 2
    assert started(8, 3) == 0, "a step of microseconds starts none"
    assert started(512, 0, OMP_NUM_THREADS="1") == 0
    assert started(512, 3, OMP_NUM_THREADS="1") == 2, "what is asked for counts"
    assert started(512, 0) == min(len(os.sched_getaffinity(0)), int(os.environ.get("OMP_NUM_THREADS", "0").split(",")[0]) or 10**6) - 1


# ------------------------------------------------------------------------------------- what decays


def test_the_rule_of_weight_decay_holds_however_a_parameter_begins():
    names = {"w": True, "gate.zeros": True, "lora_b": True, "key.b": False, "norm.scale": False, "norm.bias": False, "vector": False, "kept": False}

    @ts.program
    def p(x: ts.f32[A, T]):
        total = ts.constant(0.0)
        for name in names:
            init = ts.init.ones() if name == "w" else ts.init.filled_with(1.0)
            total = total + 0.0 * ts.sum(ts.param(name, [A] if name == "vector" else [A, T], init))
        layers = ts.repeat(ts.Dim("layers", 2), x, lambda h: h * ts.param("vectors", [T], ts.init.ones()) * ts.param("matrices", [A, T], ts.init.ones()))
        ts.param("frozen", [A, T])
        return ts.minimize(total + 0.0 * ts.sum(layers), ts.optim.adamw(0.1, weight_decay=0.5, no_decay=["kept"]), trainable=[n for n in [*names, "vectors", "matrices"]])

    run = p.compile()
    run(x=X)
    table = {line.split()[0]: line.split() for line in p.summary().splitlines()[1:-1]}
    for name, decays in {**names, "vectors": False, "matrices": True}.items():
        np.testing.assert_allclose(run.fetch(name).ravel()[0], 0.95 if decays else 1.0, rtol=1e-6, err_msg=name)
        assert table[name][-2:] == ["yes", "0.5" if decays else "0"], table[name]
    assert table["frozen"][-2:] == ["no", "0"]
    assert p.summary().splitlines()[-1] == "214 elements, 194 trained, 100 with weight decay"


def test_a_selective_state_space_is_a_linear_scan():
    """Its states and gradients are those of a loop over time, with documents that begin anew, under split lengths."""
    channels, states = ts.dims(channels=3, states=2)
    rng = np.random.default_rng(0)
    given = {"u": rng.standard_normal((4, 5, 3)), "b": rng.standard_normal((4, 5, 2)), "first": (np.arange(5) == 3) * np.ones((4, 1))}
    given = {name: value.astype(np.float32) for name, value in given.items()}

    def space(scan):
        @ts.program
        def p(u: ts.f32[A, T, channels], b: ts.f32[A, T, states], first: ts.f32[A, T]):
            decay = ts.where(first > 0, 0.0, ts.exp(-ts.softplus(u * ts.param("step", [channels], ts.init.ones()))))
            state = scan((1 - decay) * u * b, decay)
            grad = ts.gradients(ts.sum(ts.tanh(state)), [u])[0]
            return {"state": ts.transpose(state, [A, T, channels, states]), "grad": ts.transpose(grad, [A, T, channels])}

        return p

    def by_steps(x, decay):
        begin = ts.constant(0.0, [A, channels, states])
        return ts.scan(T, lambda c, s, i: ([c[0] * s[1] + s[0]], [c[0] * s[1] + s[0]]), [begin], [x, decay])[1][0]

    def values_of(scan, **compiled):
        with space(scan).compile(**compiled) as run:
            result = run(**given)
            return result.state, result.grad

    want = values_of(by_steps)
    for mesh, layout in [("m:1", ""), ("m:2", "t:m"), ("m:2", "channels:m"), ("m:2;n:2", "t:m;a:n")]:
        got = values_of(lambda x, decay: ts.linear_scan(x, decay, T), mesh=mesh, layout=layout)
        for a, b in zip(got, want):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=1e-6)
