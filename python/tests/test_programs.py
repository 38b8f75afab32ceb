"""The same model in Python and in C++ is the same Program, to the letter."""
import math
import os
import pathlib
import shlex
import subprocess

import numpy as np
import pytest
import tessera as ts


@ts.program
def gpt():
    return ts.minimize(ts.nn.gpt(layers=2, length=64, batch=16).loss, ts.optim.adam(2e-3, weight_decay=0.01))


batch, length, D, F = ts.dims(batch=4, length=16, d_model=32, ff=64)


@ts.program
def llama(x: ts.f32[batch, length, D]):
    h = x + ts.nn.self_attention(ts.nn.rms_norm(x, D, "norm1"), D, heads=4, memory_heads=2, causal=True, rotary=True)
    h = h + ts.nn.feed_forward(ts.nn.rms_norm(h, D, "norm2"), D, F, activations=("silu", "linear"), bias=False)
    return ts.minimize(ts.mean(ts.square(h)), ts.optim.sgd(0.1))


x, y, new_x, new_y = ts.dims(x=64, y=64, new_x=64, new_y=64)


def second_difference(source, to):
    distance = ts.abs(ts.cast(ts.iota(source) - ts.iota(to), ts.f64))
    zero, one = ts.constant(0, dtype=ts.f64), ts.constant(1, dtype=ts.f64)
    return ts.where(distance < 0.5, one * -2.0, ts.where(distance < 1.5, one, zero))


def hot_plate(dims, dtype):
    result = ts.constant(1, dims, dtype)
    for d in dims:
        result = result * ts.sin((ts.cast(ts.iota(d), dtype) + 1.0) * (math.pi / 65))
    return result


@ts.program
def heat():
    u = ts.state("u", [x, y], hot_plate, ts.f64)
    along_x = ts.rename(ts.einsum(u, second_difference(x, new_x), [new_x, y]), new_x, x)
    along_y = ts.rename(ts.einsum(u, second_difference(y, new_y), [x, new_y]), new_y, y)
    following = u + (along_x + along_y) * 0.2
    ts.update(u, following)
    return {"hottest": ts.max(following).named("hottest")}


@pytest.mark.skipif("TESSERA_PROGRAMS" not in os.environ, reason="no C++ program")
@pytest.mark.parametrize(
    "model, mesh, layout",
    [
        (gpt, "data:2;model:2", "batch:data;heads,ff,vocab:model"),
        (llama, "data:2;model:2", "batch:data; heads,ff:model"),
        (heat, "rows:2;cols:2", "x:rows; y:cols"),
    ],
)
def test_the_program_is_that_of_cpp(model, mesh, layout):
    cpp = subprocess.run([os.environ["TESSERA_PROGRAMS"], model.__name__], capture_output=True, text=True, timeout=60, check=True)
    with model.compile(mesh=mesh, layout=layout) as run:
        assert run.program_text == cpp.stdout


@pytest.mark.parametrize("model, mesh, layouts", [(llama, "a:2", 8), (llama, "data:2;model:2", 30), (heat, "a:2", 3), (heat, "rows:2;cols:2", 7)])
def test_every_layout_gives_what_one_rank_gives(model, mesh, layouts):
    arrays = {"x": np.random.default_rng(0).normal(size=(4, 16, 32)).astype(np.float32)} if model is llama else {}
    assert len(model.layouts(mesh)) >= layouts
    assert model.verify(mesh, **arrays) < 1e-5


def test_the_heat_equation_is_solved_on_four_tiles():
    with heat.compile(mesh="rows:2;cols:2", layout="x:rows; y:cols") as run:
        for _ in range(100):
            hottest = run().hottest
    start, factor = math.sin(math.pi * 32 / 65) ** 2, 1 - 8 * 0.2 * math.sin(math.pi / 130) ** 2
    assert hottest == pytest.approx(start * factor**100, rel=1e-10)


def test_every_layout_of_the_ease_table_trains_the_same_model():
    folder = pathlib.Path(__file__).resolve().parents[2] / "benchmarks/peers/ease/tessera_python"
    names = {}
    exec((folder / "1_one_rank/model.py").read_text(), names)
    step = names["gpt"](batch=8, vocab=32, length=16, width=32, heads=4, layers=1)
    tokens = np.random.default_rng(0).integers(0, 32, (8, 16)).astype(np.int32)
    losses = []
    for path in sorted(folder.glob("*/run.sh")):
        words = shlex.split(path.read_text())
        options = {words[i][2:]: words[i + 1] for i in range(len(words)) if words[i] in ("--mesh", "--layout")}
        with step.compile(threads_per_rank=1, **options) as run:
            losses.append([run(inputs=tokens, targets=tokens).loss for _ in range(3)])
    assert len(losses) == 5 and losses[0][2] < losses[0][0]
    for other in losses[1:]:
        np.testing.assert_allclose(other, losses[0], rtol=1e-5)


def test_strict_numerics_have_one_hash():
    def hash_of(mesh, layout):
        with llama.compile(mesh=mesh, layout=layout, numerics="strict:8") as run:
            for step in range(2):
                run(x=np.sin(np.arange(4 * 16 * 32, dtype=np.float32).reshape(4, 16, 32) + step))
            return run.state_hash()

    one = hash_of("a:1", "")
    assert len(one) == 64
    assert hash_of("a:2", "batch:a") == one
    assert hash_of("a:3", "length:a") == one
    assert hash_of("a:2;b:2", "heads,ff:a; d_model:b") == one
    with pytest.raises(ts.Error, match="numerics='strickt': it is 'default', 'strict', or 'strict:C'"):
        llama.compile(numerics="strickt")
    with pytest.raises(ts.Error, match="12 chunks; their number is a power of two"):
        llama.compile(numerics="strict:12")
