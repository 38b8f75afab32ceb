"""The package: models, runs, arrays, errors, and what an interpreter may do to them."""
import gc
import importlib.util
import os
import pathlib
import re
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time

import numpy as np
import pytest
import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOBY = str(ROOT / "data/moby-dick.txt")

batch, length = ts.dims(batch=4, length=16)
D, F, V = ts.dims(d_model=32, ff=64, vocab=256)


@ts.program
def lm(inputs: ts.i32[batch, length], targets: ts.i32[batch, length]):
    table = ts.param("table", [V, D])
    x = table[V:inputs]
    for i in range(2):
        with ts.scope("block", i):
            x = x + ts.nn.self_attention(x, D, heads=4, causal=True)
            h = ts.silu(ts.einsum(ts.nn.rms_norm(x, D), ts.param("up", [F, D])))
            x = x + ts.einsum(h, ts.param("down", [D, F]), x.dims)
    loss = ts.mean(ts.nn.cross_entropy(ts.einsum(x, table), targets, V))
    return ts.minimize(loss, ts.optim.adamw(1e-2))


def line_of(text):
    """The number of this file's only line that ends in the comment `# text`."""
    lines = pathlib.Path(__file__).read_text().splitlines()
    found = [i + 1 for i, line in enumerate(lines) if line.endswith("  # " + text)]
    assert len(found) == 1
    return found[0]


def linear(size=8):
    n, m = ts.dims(n=size, m=3)

    @ts.program
    def step(x: ts.f32[n, m]):
        w = ts.param("w", [m], ts.init.ones())
        return ts.minimize(ts.mean(ts.square(ts.einsum(x, w) - 1.0)), ts.optim.sgd(0.1))

    return step


def losses_of(mesh, layout, steps=4):
    data = ts.batches(MOBY, batch, length=length)
    with lm.compile(mesh=mesh, layout=layout) as run:
        return [run.step(data).loss for _ in range(steps)]


def test_a_language_model_trains_alike_under_layouts():
    expected = losses_of("", "", 30)
    assert expected[-1] < expected[0] - 1
    for mesh, layout in [("data:2;model:2", "batch:data; heads,ff,vocab:model"), ("a:3", {"length": "a"}), ("a:2", "batch:a; @params d_model:a")]:
        np.testing.assert_allclose(losses_of(mesh, layout), expected[:4], rtol=1e-5)
    assert lm.verify("a:2", steps=1, **ts.batches(MOBY, batch, length=length).read(0)) < 1e-5


def test_arrays_of_a_loop_are_those_of_step():
    data = ts.batches(MOBY, batch, length=length)
    with lm.compile(mesh="data:2", layout="batch:data") as run:
        losses = []
        for arrays in data:
            losses.append(run(**arrays).loss)
            if len(losses) == 4:
                break
    assert losses == losses_of("data:2", "batch:data")
    assert len(list(ts.batches(MOBY, 4096, length=64, repeat=False))) == ts.batches(MOBY, 4096, length=64, repeat=False).steps


@pytest.mark.skipif("TESSERA_HELLO" not in os.environ, reason="no C++ example")
def test_hello_prints_what_the_cpp_example_prints():
    python = subprocess.run([sys.executable, "examples/hello.py"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    cpp = subprocess.run([os.environ["TESSERA_HELLO"]], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert python.stdout == cpp.stdout and python.stdout.count("\n") == 5, python.stderr


def test_the_readme_has_the_example():
    example = (ROOT / "examples/hello.py").read_text().split('"""', 2)[2].lstrip("\n")
    assert f"```python\n{example}```" in (ROOT / "README.md").read_text()


def test_the_first_example_of_the_manual_runs(monkeypatch, capsys):
    page = (ROOT / "docs/how-to/python.md").read_text()
    monkeypatch.chdir(ROOT)
    exec(page.split("```python\n")[1].split("```")[0].replace("range(100)", "range(2)"), {"__name__": "page"})
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 2 and float(lines[1].split()[1]) < float(lines[0].split()[1])


@pytest.mark.skipif("TESSERA_MPI_RUN" not in os.environ, reason="no MPI")
def test_processes_of_mpi_print_the_same():
    script = "import tessera as ts; exec(open('examples/hello.py').read().replace('501', '101'))"
    threads = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    processes = subprocess.run([os.environ["TESSERA_MPI_RUN"], "4", sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert processes.stdout == threads.stdout and "step 100" in threads.stdout, processes.stderr


class OnGpu:
    """What a tensor in the memory of a GPU says of itself."""

    def __dlpack_device__(self):
        return 2, 0

    def __dlpack__(self, **options):
        raise BufferError("not on the CPU")


def test_a_program_may_be_part_of_another():
    part = linear()

    @ts.program
    def whole(x: ts.f32[ts.Dim("n", 8), ts.Dim("m", 3)]):
        return {"half": part(x).loss * 0.5, "loss": ts.mean(x)}

    with whole.compile(mesh="a:2", layout="n:a") as run, part.compile() as alone:
        x = np.full((8, 3), 2, np.float32)
        assert run(x=x).half == alone(x=x).loss / 2


def test_errors_name_the_line_of_python():
    @ts.program
    def wrong(x: ts.f32[batch, D]):
        return ts.mean(ts.nn.layer_norm(x, "d_modle"))  # a misspelt dim

    with pytest.raises(ts.UsageError, match="did you mean 'd_model'") as e:
        wrong.compile()
    assert f"test_tessera.py:{line_of('a misspelt dim')}" in str(e.value)
    assert isinstance(e.value, ValueError) and isinstance(e.value, ts.Error)
    lines = [entry.lineno + 1 for entry in e.traceback if entry.path.name == "test_tessera.py"]
    assert lines[-1] == line_of("a misspelt dim")
    assert e.traceback[-1].path.name == "test_tessera.py"

    run = linear().compile()
    with pytest.raises(ts.UsageError) as e:
        run(x=np.zeros((8, 4), np.float32))  # too many elements
    assert f"test_tessera.py:{line_of('too many elements')}" in str(e.value) and "[feed]" in str(e.value)
    with pytest.raises(ts.UsageError, match="float64"):
        run(x=np.zeros((8, 3)))
    with pytest.raises(ts.UsageError, match="did you mean 'x'|known: x"):
        run(y=np.zeros((8, 3), np.float32))
    for wrong, text in [
        (np.zeros((8, 3), np.uint16), "has the dtype uint16; arrays are of float16, .* bool"),
        (np.zeros((8, 3), ">f4"), "has the dtype >f4: "),
        (np.array([[None] * 3] * 8), "has the dtype object: "),
        ("abc", "is str 'abc'"),
        (None, "is NoneType None"),
        (OnGpu(), "is not in host memory; copy it: x.cpu"),
    ]:
        with pytest.raises(TypeError, match=rf"\[feed\] what is given for 'x' {text}.*\(test_tessera.py:\d+\)"):
            run(x=wrong)
        with pytest.raises(TypeError, match=rf"\[assign\] what is given for 'w' {text}.*\(test_tessera.py:\d+\)"):
            run.assign("w", wrong)
    with pytest.raises(TypeError, match=r"ts.dims\(n=2.5\): the size of a dim is a whole number"):
        ts.dims(n=2.5)
    assert ts.dims(n=np.int64(3)).size == 3
    with pytest.raises(TypeError, match=r"step\(\) is a program: step.compile\("):
        linear()(x=np.zeros((8, 3), np.float32))
    with pytest.raises(ts.UsageError, match="'nn'"):
        linear().compile(mesh="a:2", layout={"nn": "a"})
    with pytest.raises(ts.IoError, match="no checkpoint"):
        run.load("/nowhere")


def test_reports_name_the_line_of_python():
    line = next(i for i, text in enumerate(pathlib.Path(__file__).read_text().splitlines(), 1) if "heads=4, causal=True" in text)
    report = lm.explain("model:2", "heads,ff:model")
    sources = {row["source"] for row in report.collectives if row["kind"] == "all_reduce"}
    assert f"test_tessera.py:{line}" in sources
    assert "all_reduce" in str(report) and report.memory["params"] > 0


def test_what_is_no_program_says_so():
    @ts.program
    def bare(x):
        return x

    with pytest.raises(TypeError, match=r"argument 'x' of bare\(\) needs dtype and dims"):
        bare.compile()

    @ts.program
    def nothing(x: ts.f32[batch]):
        return 3

    with pytest.raises(TypeError, match="a program returns a tensor"):
        nothing.compile()

    @ts.program
    def branches(x: ts.f32[batch]):
        return x if x > 0 else -x

    with pytest.raises(TypeError, match=r"has no value while the model is built; take where\(\)"):
        branches.compile()
    with pytest.raises(ts.UsageError, match="no graph is being built"):
        ts.param("w", [D])
    with pytest.raises(TypeError, match="a Dim is wanted"):
        with ts.eager():
            ts.constant(1.0, ["d_model"])


@pytest.mark.parametrize(
    "build, text",
    [
        (lambda x: x[0], r"a tensor is indexed as x\[dim: indices\].*; slice\(x, dim, begin, size\) is a part of it"),
        (lambda x: x[:, 1], r"a tensor is indexed as x\[dim: indices\]"),
        (lambda x: list(x), r"unstack\(x, dim\) its rows"),
        (lambda x: ts.mean(x, 1), "a Dim or the name of one is wanted, not 1"),
        (lambda x: ts.reshape(x, 32), "Dims are wanted, not 32; ts.dims"),
        (lambda x: x + np.ones(3, np.float32), r"add takes tensors and numbers, not array\(.*; ts.constant\(array, dims\) makes a tensor"),
        (lambda x: x + "a", "add takes tensors and numbers, not 'a'$"),
        (lambda x: ts.param("w", [D], "zeros"), r"init is one of ts.init, such as ts.init.zeros\(\), or a function of dims and dtype, not 'zeros'"),
        (lambda x: ts.nn.dense(x, D, F, activation=ts.relu), "activation is the name of a function, such as 'relu', not "),
    ],
)
def test_what_other_libraries_write_gets_a_remedy(build, text):
    @ts.program
    def step(x: ts.f32[batch, D]):
        return build(x)

    with pytest.raises(TypeError, match=text):
        step.compile()


def test_arguments_of_ops_have_names():
    rows, cols = ts.dims(rows=2, cols=3)
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with ts.eager() as g:
        turned = ts.transpose(x=ts.constant(x, [rows, cols]), dims=[cols, rows])
        np.testing.assert_array_equal(g.fetch(ts.cast(ts.rename(turned, dim=rows, to="lines"), dtype=ts.i32)), x.T)


def test_an_exception_in_a_body_is_that_of_python():
    layers = ts.dims(layers=3)

    @ts.program
    def fails(x: ts.f32[batch, D]):
        def layer(h):
            raise KeyError("mine")

        return ts.mean(ts.repeat(layers, x, layer))

    with pytest.raises(KeyError, match="mine"):
        fails.compile()


def test_loops_microbatches_and_schedules():
    layers, steps = ts.dims(layers=3, steps=5)

    @ts.program
    def loops(x: ts.f32[batch, D]):
        y = ts.repeat(layers, x, lambda h: ts.tanh(ts.nn.dense(h, D, ts.dims(d_model=32))))
        sums, rows = ts.scan(steps, lambda c, s, i: ([c[0] + s[0]], [c[0] * 2.0]), [ts.constant(0.0)], [ts.cast(ts.iota(steps), ts.f32)])
        return {"mean": ts.mean(y), "sum": sums[0], "rows": rows[0]}

    with loops.compile(mesh="a:2", layout="batch:a") as run:
        result = run(x=np.ones((4, 32), np.float32))
        assert result.sum == 10
        np.testing.assert_array_equal(result.rows, [0, 0, 2, 6, 12])
        assert np.isfinite(result["mean"])
        assert dir(result) == ["mean", "rows", "sum"]
        assert repr(result) == "Result(mean: float32[], sum: float32[], rows: float32[steps=5])"

    def trained(microbatches):
        rows = ts.dims(batch=8 // microbatches)

        def loss():
            x = ts.input("data", [rows, D])
            return ts.mean(ts.square(ts.nn.dense(x, D, F)))

        @ts.program
        def train():
            return ts.minimize(loss, ts.optim.sgd(ts.Schedule("linear", lr=0.5, steps=4)), microbatches=microbatches)

        data = np.random.default_rng(0).normal(size=(8, 32)).astype(np.float32)
        with train.compile() as run:
            return [run(data=data).loss for _ in range(4)]

    np.testing.assert_allclose(trained(4), trained(1), rtol=1e-5)


def test_arrays_go_in_with_any_strides_and_slices_are_the_memory():
    with linear().compile(mesh="a:2", layout="n:a") as run:
        x = np.arange(24, dtype=np.float32).reshape(3, 8).T / 10
        strided = run(x=x).loss
        run.assign("w", np.ones(3, np.float32))
        assert run(x=np.ascontiguousarray(x)).loss == strided
        run.assign("w", np.ones(3, np.float32))
        assert run(x=x[::-1]).loss == pytest.approx(strided, rel=1e-6)
        for _, offset, part in run.slices("w"):
            assert offset == [0] and part.shape == (3,)
            part[:] = 7
        np.testing.assert_array_equal(run.fetch("w"), [7, 7, 7])
        run.assign("w", memoryview(np.array([1, 2, 3], np.float32)))
        run.assign("w", run.slices("w")[0][2][::-1])  # its own memory
        np.testing.assert_array_equal(run.fetch("w"), [3, 2, 1])
        with pytest.raises(ts.UsageError, match=r"\[assign\] 'w' has the sizes \[3\] \(dims m\) but the array has \[4\]"):
            run.assign("w", np.ones(4, np.float32))
        if importlib.util.find_spec("torch"):
            import torch

            run(x=torch.zeros(8, 3))


def test_a_scalar_is_assigned_and_an_input_is_fed_from_its_own_memory():
    n, m = ts.dims(n=2, m=3)

    @ts.program
    def step(x: ts.f32[n, m]):
        count = ts.state("count", [])
        ts.update(count, count + 1.0)
        return {"x": x * 1.0, "count": count * 1.0}

    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    with step.compile() as run:
        run(x=x)
        np.testing.assert_array_equal(run(x=run.slices("x")[0][2]).x, x)
        for value in [np.float32(3), np.array(5, np.float32)]:
            run.assign("count", value)
            assert run(x=x).count == value


def grown(work):
    """What work() returns, and how many bytes the process had more at its peak than before."""

    def peak():
        return int(re.search(r"VmHWM:\s+(\d+) kB", pathlib.Path("/proc/self/status").read_text())[1]) * 1024

    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # from now on
    before = peak()
    result = work()
    return result, peak() - before


@pytest.mark.skipif(not os.access("/proc/self/clear_refs", os.W_OK), reason="the peak of memory cannot be set back")
def test_no_copy_is_made_of_contiguous_arrays():
    n, m = ts.dims(n=4096, m=4096)
    x = np.ones((4096, 4096), np.float32)
    size, seen = x.nbytes, set()

    @ts.op(result=lambda dims: [n])
    def rows(part):
        seen.add(part.__array_interface__["data"][0])
        return part.sum(axis=1)

    @ts.program
    def step(x: ts.f32[n, m]):
        ts.update(ts.state("kept", [n, m]), x)
        return {"double": x * 2, "rows": rows(x)}

    given = {"whole": x, "read-only": x.view(), "transposed": x.T, "reversed": x[::-1], "memory": memoryview(x)}
    given["read-only"].setflags(write=False)
    if importlib.util.find_spec("torch"):
        import torch

        given["torch"] = torch.from_numpy(x)
    with step.compile(mesh="a:2", layout="n:a") as run:
        run(x=x)  # touches all memory
        for name, array in given.items():
            assert grown(lambda: run(x=array))[1] < size / 8, name
        # The function of an op reads the input's memory, which slices() shows.
        assert seen == {part.__array_interface__["data"][0] for _, _, part in run.slices("x")} and len(seen) == 2
        for fetch in [lambda: run(x=x).double, lambda: run.fetch("kept")]:
            value, more = grown(fetch)
            assert 0.875 * size < more < 1.125 * size  # the array that is returned, and nothing else
            address = value.__array_interface__["data"][0]
            assert np.from_dlpack(value).__array_interface__["data"][0] == address
            if "torch" in given:
                assert torch.from_dlpack(value).data_ptr() == torch.from_numpy(value).data_ptr() == address
            del value
        parts, more = grown(lambda: run.slices("kept"))
        assert more < size / 8 and [p.shape for _, _, p in parts] == [(2048, 4096)] * 2
        assert [p.__array_interface__["data"][0] for _, _, p in parts] == [p.__array_interface__["data"][0] for _, _, p in run.slices("kept")]
        for name, array in given.items():
            assert grown(lambda: run.assign("kept", array))[1] < size / 8, name


def test_a_closed_run_says_so_whatever_it_is_asked(tmp_path):
    x = np.ones((8, 3), np.float32)
    run = linear().compile(mesh="a:2", layout="n:a")
    result, (_, _, part) = run(x=x), run.slices("w")[0]
    run.save(tmp_path)
    kept = run.fetch("w")
    run.close()
    run.close()
    asked = [
        lambda: run(x=x), lambda: run.step(ts.batches(MOBY, batch, length=length)), lambda: run.fetch("w"), lambda: run.assign("w", kept),
        lambda: run.slices("w"), lambda: run.set_size("n", 3), lambda: run.parameters, lambda: run.program_text, lambda: run.device,
        lambda: run.step_count, lambda: run.save(tmp_path / "new"), lambda: run.load(tmp_path), lambda: result.loss,
    ]
    for ask in asked:
        with pytest.raises(ts.UsageError, match=r"this run of step\(\) was closed; step.compile\(\) makes another \(test_tessera.py:\d+\)"):
            ask()
    assert not (tmp_path / "new").exists()
    np.testing.assert_array_equal(part, kept)  # a slice keeps its memory


def test_programs_of_other_sizes_are_others():
    small, large = linear(8), linear(12)
    with small.compile(mesh="a:2", layout="n:a") as run, large.compile(mesh="a:2", layout="n:a") as other:
        a, b = np.ones((8, 3), np.float32), np.full((12, 3), 2, np.float32)
        assert run(x=a).loss == 4 and other(x=b).loss == 25
        with pytest.raises(ts.UsageError, match=r"'x' has the sizes \[8, 3\] \(dims n, m\) but the array has \[12, 3\]"):
            run(x=b)
    with small.compile(mesh="a:3", layout="n:a") as run, small.compile() as alone:
        assert run(x=a).loss == alone(x=a).loss == 4  # twice, of one size

    n, m = ts.Dim.bounded("n", 8), ts.dims(m=3)

    @ts.program
    def total(x: ts.f32[n, m]):
        return {"sum": ts.sum(x), "double": x * 2}

    with total.compile(mesh="a:2", layout="n:a") as run:
        for size in (8, 3, 5):
            run.set_size(n, size)
            result = run(x=np.ones((size, 3), np.float32))
            assert result.sum == 3 * size and result.double.shape == (size, 3)
        run.set_size("n", 2)
        with pytest.raises(ts.UsageError, match=r"'x' has the sizes \[2, 3\].* but the array has \[5, 3\]"):
            run(x=np.ones((5, 3), np.float32))
        with pytest.raises(ts.UsageError, match="dim 'n' cannot have size 9; it is bounded to 1 .. 8"):
            run.set_size("n", 9)


def test_a_result_is_of_its_run():
    run = linear().compile()
    x = np.ones((8, 3), np.float32)
    first = run(x=x)
    run(x=x)
    with pytest.raises(ts.UsageError, match="asked of run 1, but run 2 has begun"):
        first.loss
    with pytest.raises(AttributeError, match="no output is called 'los'; there are: loss, gradient_norm"):
        run(x=x).los
    run.close()
    with pytest.raises(ts.UsageError, match="was closed"):
        run(x=x)


def test_each_call_gives_all_inputs_but_those_with_a_default():
    n, m = ts.dims(n=4, m=2)
    shift = np.arange(2, dtype=np.float32)

    @ts.program
    def scaled(x: ts.f32[n], y: ts.f32[n], rate: ts.f32[()] = 0.5, by: ts.f32[m] = shift, whole: ts.i32[n] = 3):
        table = ts.constant(np.ones(4, np.float32), [n])  # an input inside of the engine
        return ts.einsum((x + y * table) * rate * ts.cast(whole, ts.f32), by, [n, m])

    x, y = np.ones(4, np.float32), np.full(4, 2, np.float32)
    with scaled.compile(mesh="a:2", layout="n:a") as run:
        np.testing.assert_array_equal(run(x=x, y=y).result, np.outer(np.full(4, 4.5), shift))
        with pytest.raises(ts.UsageError, match=r"scaled\(\) reads the input 'y' \(test_tessera.py:\d+ declares float32 \[n=4\]\).* add y=\.\.\."):
            run(x=x)
        with pytest.raises(ts.UsageError, match=r"the inputs 'x' .* and 'y' .* add x=\.\.\., y=\.\.\."):
            run()
        assert run(x=x, y=y, rate=np.float32(1), by=shift + 1).result[0, 1] == 18
        assert run(x=x, y=y).result[0, 1] == 4.5  # a default is that of each call

    @ts.program
    def weighed(inputs: ts.i32[batch, length], targets: ts.i32[batch, length], weight: ts.f32[()]):
        return ts.mean(ts.cast(inputs + targets, ts.f32)) * weight

    with weighed.compile() as run:
        data = ts.batches(MOBY, batch, length=length)
        assert run.step(data, 0, weight=np.float32(2)).result == 2 * run.step(data, 0, weight=np.float32(1)).result
        with pytest.raises(ts.UsageError, match="the input 'weight'"):
            run.step(data, 0)

    for default, text in [(None, "not None"), ("x", "not 'x'")]:
        @ts.program
        def bad(x: ts.f32[n] = default):
            return x

        with pytest.raises(TypeError, match=f"the default of argument 'x' is an array of float32.*{text}"):
            bad.compile()


def test_a_mesh_and_a_layout_may_be_dicts():
    text = lm.compile(mesh="data:2;model:2", layout="batch:data; heads,ff:model; @params d_model:data").program_text
    assert lm.compile({"data": 2, "model": 2}, {batch: "data", ("heads", F): ["model"], "@params d_model": "data", "vocab": None}).program_text == text
    assert lm.explain({"data": 2}, {"batch": "data"}).memory == lm.explain("data:2", "batch:data").memory
    assert lm.layouts({"data": 2}) == lm.layouts("data:2")


def test_checkpoints_go_to_another_mesh(tmp_path):
    data = ts.batches(MOBY, batch, length=length)
    with lm.compile(mesh="data:2;model:2", layout="batch:data; heads,ff:model") as run:
        for _ in range(2):
            run.step(data)
        path = run.save(tmp_path)
        assert path.endswith("step-00000002")
        after = run.step(data).loss
    with lm.compile(mesh="a:3", layout="batch:a", seed=5) as run:
        assert run.load(tmp_path) == 2 and run.step_count == 2
        assert run.step(data).loss == pytest.approx(after, rel=1e-5)


def test_a_program_that_predicts_loads_what_another_trained(tmp_path):
    n, m = ts.dims(n=8, m=3)
    train = linear()

    @ts.program
    def predict(x: ts.f32[n, m]):
        return ts.einsum(x, ts.param("w", [m], ts.init.zeros()), [n])

    x = np.ones((8, 3), np.float32)
    with train.compile(mesh="a:2", layout="n:a") as run, predict.compile(mesh="a:4", layout="n:a") as other:
        run(x=x)
        run.save(tmp_path)
        assert other.load(tmp_path, other.parameters) == 1 and other.parameters == ["w"]
        np.testing.assert_allclose(other(x=x).result, np.full(8, run.fetch("w").sum()), rtol=1e-6)
        with pytest.raises(ts.UsageError, match=r"the file lacks v; .*\(test_tessera.py:\d+\)"):
            other.load(tmp_path, ["v"])


def test_the_page_predicts_with_what_was_trained(tmp_path, capsys):
    page = (ROOT / "docs/how-to/python.md").read_text()
    block = next(b.split("```")[0] for b in page.split("```python\n")[1:] if "def net(x)" in b)
    models, use = block.split("answer = ")
    rng = np.random.default_rng(0)
    points = rng.normal(size=(64, 2)).astype(np.float32)
    batch, xy, hidden, classes = ts.dims(batch=64, xy=2, hidden=16, classes=2)
    page = {"ts": ts, "batch": batch, "xy": xy, "hidden": hidden, "classes": classes, "points": points, "folder": tmp_path}
    exec(models, page)
    with page["train"].compile(mesh="data:2", layout={batch: "data"}) as run:
        for _ in range(300):
            result = run(x=points, y=(points[:, 0] > 0).astype(np.int32))
        run.save(tmp_path)
        assert result.loss < 0.6 and result.accuracy > 0.9
    exec("answer = " + use, page)
    printed = np.array(capsys.readouterr().out.strip("[]\n").split(), int)
    assert (printed == (points[:, 0] > 0)).mean() > 0.9


def test_operators_have_the_values_of_numpy():
    a = np.array([[1.5, -2.0, 3.0], [0.5, 4.0, -1.0]], np.float32)
    rows, cols = ts.dims(rows=2, cols=3)
    with ts.eager() as g:
        x = ts.constant(a, [rows, cols])
        for made, expected in [
            (x + 1, a + 1), (2 - x, 2 - a), (x * x, a * a), (1 / (x + 10), 1 / (a + 10)), (-x, -a), (abs(x), np.abs(a)), (x**2, a**2),
            (ts.where(x > 0, x, 0.0), np.where(a > 0, a, 0)), (ts.sum(x, rows), a.sum(0)), (ts.max(x, "cols"), a.max(1)), (ts.mean(x), a.mean()),
            (ts.einsum(x, x, [rows]), (a * a).sum(1)), (ts.cast(~(x >= 3), ts.f32), (~(a >= 3)).astype(np.float32)), (ts.cast(x == 3, "int32"), a == 3),
            (ts.sort(x, cols), np.sort(a, 1)), (x[cols : ts.constant(np.array([2, 0], np.int32), [ts.Dim("k", 2)])], a[:, [2, 0]].T),
        ]:
            np.testing.assert_allclose(g.fetch(made), expected, rtol=1e-6)
        with pytest.raises(ts.UsageError, match="truncated"):
            ts.cast(x, ts.i32) / 2.5
        assert repr(x.dims) == "[rows=2, cols=3]" and x.dtype == "float32" and hash(x) == hash(x)


def test_convolutions_pools_and_what_depends_on_data(caplog):
    n, out, k = ts.dims(n=12, out=3, filter_n=3)
    data = np.random.default_rng(0).normal(size=12).astype(np.float32)
    bank = np.random.default_rng(1).normal(size=(3, 3)).astype(np.float32)

    @ts.program
    def signal(x: ts.f32[n], steps: ts.i32[()]):
        filters = ts.constant(bank, [k, out])
        y = ts.conv(x, filters, n)
        last, grown = ts.while_loop(lambda c: c[0] < 100.0, lambda c, s, i: ([c[0] * 2.0], [c[0]]), [ts.sum(ts.square(x)) * 0 + 1.0], 9)
        return {
            "conv": y, "valid": ts.conv(x, filters, "n", stride=2, padding="valid"), "padded": ts.conv(x, filters, [n], padding=[(0, 2)]),
            "wide": ts.conv_transpose(y, filters, n), "most": ts.max_pool(x, n), "mean": ts.avg_pool(x, [n], window=[3], stride=1),
            "windows": ts.windows(x, n, ts.Dim("w", 4)), "branch": ts.cond(steps > 2, lambda: x * 2.0, lambda: -x),
            "both": ts.cond(steps > 2, lambda: [x, y], lambda: [-x, -y])[1], "part": ts.dynamic_slice(x, steps, n, 2),
            "put": ts.scatter(x, ts.broadcast(steps, [ts.Dim("k", 1)]), ts.constant(5.0, [ts.Dim("k", 1)]), n), "last": last[0], "grown": grown[0],
        }

    padded = np.pad(data, 1)
    windows = np.lib.stride_tricks.sliding_window_view
    conv = windows(padded, 3) @ bank
    put = data.copy()
    put[3] = 5
    wide = sum(np.pad(conv @ bank[i], (i, 2 - i)) for i in range(3))[1:-1]
    for mesh, layout in [("a:1", ""), ("a:3", "n:a"), ("a:3", "out:a")]:
        with signal.compile(mesh=mesh, layout=layout) as run:
            made = run(x=data, steps=np.int32(3))
            for name, expected in {
                "conv": conv, "valid": (windows(data, 3) @ bank)[::2], "padded": windows(np.pad(data, (0, 2)), 3) @ bank, "wide": wide,
                "most": data.reshape(6, 2).max(1), "mean": windows(data, 3).mean(1), "windows": windows(data, 4), "branch": 2 * data,
                "both": conv, "part": data[3:5], "put": put, "last": 128, "grown": [2.0**i for i in range(7)] + [0, 0],
            }.items():
                np.testing.assert_allclose(made[name], expected, rtol=1e-5, atol=1e-6, err_msg=name)
            np.testing.assert_array_equal(run(x=data, steps=np.int32(1)).branch, -data)

    images = ts.dims(batch=2, height=6, width=4, colour=3)

    @ts.program
    def net(x: ts.f32[images]):
        y = ts.print(ts.nn.conv(x, ts.dims(height=3, width=3), "colour", ts.Dim("channels", 5), stride=(2, 1)), "features")
        y = ts.recompute(lambda: ts.relu(ts.nn.batch_norm(y, "channels")))
        return {"step": ts.minimize(ts.mean(ts.check_finite(y, "seen")), ts.optim.sgd(0.1)), "y": y}

    pixels = np.random.default_rng(2).normal(size=(2, 6, 4, 3)).astype(np.float32)
    with net.compile(mesh="a:2", layout="batch:a") as run, caplog.at_level("INFO", logger="tessera"):
        made = run(x=pixels)
        assert made.y.shape == (2, 3, 4, 5) and np.isfinite(made.loss) and run.fetch("norm.mean").any()
        assert "features: " in caplog.text
        pixels[0, 0, 0, 0] = np.nan
        with pytest.raises(ts.UsageError, match=r"seen.*test_tessera.py:\d+"):
            run(x=pixels)
    pixels[0, 0, 0, 0] = 0
    assert net.verify("a:2", x=pixels) < 1e-5


def test_other_threads_run_meanwhile():
    counted = [0]
    done = threading.Event()

    def count():
        while not done.is_set():
            counted[0] += 1

    size = ts.dims(i=700, j=700)

    @ts.program
    def product(x: ts.f32[size]):
        return ts.sum(ts.einsum(x, ts.rename(x, "i", "k"), [size[0], ts.Dim("k", 700)]))

    with product.compile() as run:
        x = np.ones((700, 700), np.float32)
        thread = threading.Thread(target=count)
        thread.start()
        for _ in range(20):
            run(x=x).result
        done.set()
        thread.join()
    assert counted[0] > 1000


def test_threads_have_runs_of_their_own():
    x = np.ones((8, 3), np.float32)

    def losses():
        with linear().compile(mesh="a:2", layout="n:a") as run:
            return [run(x=x).loss for _ in range(50)]

    made, expected = [None] * 4, losses()

    def work(i):
        made[i] = losses()

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made == [expected] * 4


def test_a_run_belongs_to_one_thread_at_a_time():
    entered, leave = threading.Event(), threading.Event()

    @ts.op
    def waits(x):
        entered.set()
        assert leave.wait(60)
        return x

    @ts.program
    def step(x: ts.f32[ts.Dim("n", 8)]):
        return ts.sum(waits(x))

    with step.compile() as run:
        x = np.ones(8, np.float32)
        thread = threading.Thread(target=lambda: run(x=x))
        thread.start()
        assert entered.wait(60)
        with pytest.raises(ts.UsageError, match=r"another thread runs work on this Cluster.*\(test_tessera.py:\d+\)"):
            run(x=x)
        leave.set()
        thread.join()
        assert run(x=x).result == 8


def test_memory_of_many_programs_is_given_back():
    def make(times):
        for _ in range(times):
            with linear().compile(mesh="a:2", layout="n:a") as run:
                run(x=np.ones((8, 3), np.float32))
        gc.collect()
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    before = make(30)
    assert make(150) - before < 20000  # KB


def test_an_interpreter_ends_with_runs_alive():
    script = """
import numpy as np, tessera as ts
n = ts.dims(n=4)
@ts.program
def f(x: ts.f32[n]):
    return ts.minimize(ts.sum(ts.square(x * ts.param("w", []))), ts.optim.sgd(0.1))
runs = [f.compile(mesh="a:2") for _ in range(2)]
runs[0](x=np.ones(4, np.float32))
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and done.stderr == ""


def test_an_interpreter_ends_while_threads_work():
    script = TRAINING + """
import threading
run = step.compile(mesh="a:2", layout="n:a")
made = threading.Event()

def train():
    while True:
        run(x=x)
        made.set()

threading.Thread(target=train, daemon=True).start()
loader = ts.prefetch(iter(int, 1))
next(loader)
made.wait()
print("ready", flush=True)
"""
    for _ in range(5):  # wherever the thread may be
        done = run_script(script)
        assert (done.returncode, done.stdout, done.stderr) == (0, "ready\n", "")


def test_tokenizer_and_its_errors():
    folder = next((p.parent for p in sorted(ROOT.glob("data/**/tokenizer.json"))), None)
    if folder is not None:
        t = ts.Tokenizer.load(str(folder))
        assert t.decode(t.encode("Call me Ishmael.")) == "Call me Ishmael."
    with pytest.raises(ts.IoError, match="nowhere"):
        ts.Tokenizer.load("/nowhere/tokenizer.json")
    assert issubclass(ts.IoError, OSError)


def run_script(script):
    return subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120)


TRAINING = """
import os, signal, sys, time
import numpy as np
import tessera as ts
n, m = ts.dims(n=8, m=3)
x = np.ones((8, 3), np.float32)

@ts.program
def step(x: ts.f32[n, m]):
    return ts.minimize(ts.mean(ts.square(ts.einsum(x, ts.param("w", [m], ts.init.ones())) - 1.0)), ts.optim.sgd(0.1))
"""


def test_control_c_ends_a_loop_between_steps_and_the_run_goes_on():
    script = TRAINING + """
run = step.compile(mesh="a:2", layout="n:a")
print("ready", flush=True)
try:
    while True:
        run(x=x)
except KeyboardInterrupt:
    before = run.step_count
    run(x=x)
    print("interrupted", before > 0 and run.step_count - before)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n"
        time.sleep(0.2)
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=60)[0] == "interrupted 1\n" and process.returncode == 0


def test_control_c_in_a_function_of_an_op_is_no_error_of_the_engine():
    script = TRAINING + """
@ts.op
def slow(x):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(5)
    return x

@ts.program
def own(x: ts.f32[n, m]):
    return ts.mean(slow(x))

run = own.compile()
try:
    run(x=x)
except KeyboardInterrupt:
    print("interrupted")
"""
    done = run_script(script)
    assert done.stdout == "interrupted\n", done.stderr


def test_a_fork_has_runs_of_its_own():
    script = TRAINING + """
import warnings
warnings.simplefilter("ignore", DeprecationWarning)  # of Python, since the parent has threads
run = step.compile(mesh="a:2", layout="n:a")
expected = [run(x=x).loss for _ in range(3)]
child = os.fork()
if child == 0:
    try:
        run(x=x)
    except ts.UsageError as e:
        assert "is a fork of it" in str(e), e
    else:
        sys.exit(1)
    with step.compile(mesh="a:2", layout="n:a") as own:
        sys.exit(0 if [own(x=x).loss for _ in range(3)] == expected else 2)
signal.alarm(60)
assert os.waitpid(child, 0)[1] == 0
print("loss", run(x=x).loss < expected[-1])
"""
    done = run_script(script)
    assert done.stdout == "loss True\n" and done.stderr == "", done.stderr


def test_processes_that_are_spawned_train_alike(tmp_path):
    (tmp_path / "spawned.py").write_text(TRAINING + """
def losses(mesh):
    with step.compile(mesh=mesh, layout="n:a") as run:
        return [run(x=x).loss for _ in range(3)]

if __name__ == "__main__":
    import multiprocessing
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        first, second = pool.map(losses, ["a:2", "a:4"])
    print(np.allclose(first, second) and np.allclose(first, losses("a:1")))
""")
    done = subprocess.run([sys.executable, "spawned.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert done.stdout == "True\n", done.stderr


FAILING = TRAINING + """
def train(run, how):
    try:
        for i in range(1000):
            run(x=x)
            if i == 3 and how == "alike":
                raise RuntimeError("both")
            if i == 3 and not run.cluster.is_root:
                raise ValueError("no data")
    except ts.CommError as e:
        print("peer:", e, flush=True)
        raise

how = sys.argv[1]
run = step.compile(mesh="a:2", layout="n:a")
if how == "with":
    with run:
        train(run, how)
elif how == "thread":
    import threading
    thread = threading.Thread(target=train, args=(run, how))
    thread.start()
    thread.join()
    if not run.cluster.is_root:
        time.sleep(2)  # that the launcher does not end the peer before it writes
else:
    train(run, how)
"""


@pytest.mark.skipif("TESSERA_MPI_RUN" not in os.environ, reason="no MPI")
@pytest.mark.parametrize("how", ["main", "with", "thread", "alike"])
def test_an_exception_in_one_process_fails_the_others_at_once(how):
    command = [os.environ["TESSERA_MPI_RUN"], "2", sys.executable, "-c", FAILING, how]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)  # waits end after 120 s
    if how == "alike":
        assert done.returncode != 0 and "RuntimeError: both" in done.stderr
        return
    assert "ValueError: no data" in done.stderr
    assert how != "main" or done.returncode != 0
    # The launcher may end the peer before it has written.
    said = [line for line in done.stdout.splitlines() if line.startswith("peer:")]
    assert how != "thread" or said
    for line in said:
        assert "rank 0 stops because rank 1 failed: the program of that process ended with ValueError: no data (<string>:" in line


def test_an_exception_in_a_function_of_one_thread_rank_fails_the_others_at_once():
    @ts.op(positions=True)
    def picky(x, positions):
        if positions["n"][0] > 0:
            raise ValueError("not mine")
        return x

    @ts.program
    def step(x: ts.f32[ts.Dim("n", 8)]):
        return ts.sum(picky(x))

    with step.compile(mesh="a:4", layout="n:a") as run:
        run.cluster.set_timeout(1e6)
        with pytest.raises(ts.UsageError, match="ValueError: not mine in test_tessera.py"):
            run(x=np.ones(8, np.float32))


@pytest.mark.skipif("TESSERA_ANOTHER_MPI" not in os.environ, reason="no MPI")
def test_another_mpi_in_the_process_is_no_harm_until_ranks_need_it():
    script = TRAINING + """
with step.compile(mesh="a:2", layout="n:a") as run:
    print("threads", run(x=x).loss)
os.environ["OMPI_COMM_WORLD_SIZE"], os.environ["OMPI_COMM_WORLD_RANK"] = "2", "0"
try:
    step.compile(mesh="a:2", layout="n:a")
except ts.UsageError as e:
    print(e)
"""
    environment = {**os.environ, "LD_PRELOAD": os.environ["TESSERA_ANOTHER_MPI"]}
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("threads 4.0\n"), done.stderr
    assert re.search(r"this job has 2 ranks, but MPI cannot be used, so each process would train alone: libtessera_mpi.so was built with .*, but the MPI of this process is MPICH Version: 4; .*\(<string>:\d+\)", done.stdout), done.stdout


MPI4PY = TRAINING + """
from mpi4py import MPI
world = MPI.COMM_WORLD
half = world.Split(world.rank % 2, world.rank)
first = step.compile(mesh="a:2", layout="n:a", cluster=half)
ranks = ts.Cluster.adopt(world)
with step.compile(mesh="a:4", layout="n:a", cluster=ranks) as run:
    assert run.cluster.backend == "mpi" and run.cluster.size == 4
    losses = [run(x=x).loss for _ in range(3)]
assert np.allclose([first(x=x).loss for _ in range(3)], losses)
assert world.allreduce(1) == 4
for wrong, error in [(MPI.COMM_NULL, ts.UsageError), (3, TypeError)]:
    try:
        ts.Cluster.adopt(wrong)
        assert False, "no error"
    except error as e:
        text = str(e)
if world.rank == 0:
    print("losses", losses[2] < losses[0], text)
"""


@pytest.mark.skipif("TESSERA_MPI_RUN" not in os.environ or not importlib.util.find_spec("mpi4py"), reason="no MPI, or no mpi4py")
def test_a_communicator_of_mpi4py():
    done = subprocess.run([os.environ["TESSERA_MPI_RUN"], "4", sys.executable, "-c", MPI4PY], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout == "losses True Cluster.adopt() takes a communicator of mpi4py, not 3\n" and done.returncode == 0, done.stderr


@pytest.mark.skipif(not importlib.util.find_spec("torch"), reason="no PyTorch")
@pytest.mark.parametrize("first, second", [("torch", "tessera"), ("tessera", "torch")])
def test_beside_pytorch_in_one_process(first, second):
    script = f"import {first}, {second}\nimport torch\n" + TRAINING + """
a = torch.ones(300, 300, requires_grad=True)
run = step.compile(mesh="a:2", layout="n:a")
for _ in range(3):
    loss = run(x=torch.from_numpy(x)).loss
    (a @ a).sum().backward()
print(loss < 5, float(a.grad[0, 0]))
"""
    done = run_script(script)
    assert done.stdout == "True 1800.0\n", done.stderr


@pytest.mark.skipif(not shutil.which("readelf"), reason="no readelf")
def test_the_extension_links_no_mpi():
    libraries = subprocess.run(["readelf", "-d", ts._tessera.__file__], capture_output=True, text=True).stdout
    assert "NEEDED" in libraries and "libmpi" not in libraries
