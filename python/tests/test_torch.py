"""Modules of PyTorch in a program. Most of it needs no PyTorch: fixtures hold what it computed."""
import copy
import pathlib

import numpy as np
import pytest

import tessera as ts

DATA = pathlib.Path(__file__).parents[2] / "tests" / "pytorch" / "data"


def arrays(name):
    import json

    raw = (DATA / f"{name}.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    kinds = {"F32": np.float32, "I32": np.int32}
    found = {}
    for key, entry in json.loads(raw[8 : 8 + size]).items():
        if key != "__metadata__" and entry["dtype"] in kinds:
            begin, end = entry["data_offsets"]
            found[key] = np.frombuffer(raw[8 + size + begin : 8 + size + end], kinds[entry["dtype"]]).reshape(entry["shape"])
    return found


def test_a_module_of_a_file_is_called_in_a_program():
    net, values = ts.from_torch(DATA / "gpt.pt2", dims={"tokens": "batch time"}), arrays("gpt")
    assert [d.name for d in net.inputs["tokens"]] == ["batch", "time"] and net.dims["heads"] == 4
    rows, columns = ts.dims(rows=2, columns=8)

    @ts.program
    def logits(given: ts.i32[rows, columns]):
        return net(given)

    with logits.compile(mesh="data:2;model:2", layout="batch:data; heads,ff,vocab:model") as run:
        made = run(given=values["in.tokens"])
        np.testing.assert_allclose(np.asarray(made.result).reshape(values["out.0"].shape), values["out.0"], rtol=1e-4, atol=1e-5)


def test_a_module_says_what_it_cannot_take():
    net = ts.from_torch(DATA / "gpt.pt2")
    rows, columns = ts.dims(rows=2, columns=9)

    def program_of(call):
        @ts.program
        def step(given: ts.i32[rows, columns]):
            return call(given)

        return step

    with pytest.raises(ts.UsageError, match=r"input 'tokens' has the sizes \[2, 8\]"):
        program_of(net).compile()
    with pytest.raises(TypeError, match="inputs tokens, and is given 2 tensors"):
        program_of(lambda x: net(x, x)).compile()
    with pytest.raises(TypeError, match="no state_dict"):
        net.state_dict(None)


def test_a_custom_op_is_mapped_by_its_name():
    with pytest.raises(ts.UnsupportedError, match="tessera_tests.own.default .* has no rule"):
        ts.from_torch(DATA / "bad" / "own_op.pt2")

    @ts.torch.op("tessera_tests::own")
    def own(x):
        return x * 2.0

    try:
        net = ts.from_torch(DATA / "bad" / "own_op.pt2")
        a, b = ts.dims(a=3, b=4)

        @ts.program
        def step(x: ts.f32[a, b]):
            return net(x)

        with step.compile() as run:
            np.testing.assert_allclose(run(x=np.ones((3, 4), np.float32)).result, np.full((3, 4), 2.0))
    finally:
        ts.torch._ops.clear()


@pytest.mark.parametrize("scan", [False, True])
def test_losses_are_those_of_pytorch_and_the_weights_come_back(scan):
    torch = pytest.importorskip("torch")
    import sys

    sys.path.insert(0, str(DATA.parent))
    from make_fixtures import Gpt  # type: ignore[import-not-found]

    torch.manual_seed(0)
    module, steps = Gpt(), 200
    net = ts.from_torch(module, (torch.zeros(4, 8, dtype=torch.int64),), scan=scan)
    batch, length = ts.dims(batch=4, length=8)

    @ts.program
    def step(tokens: ts.i32[batch, length], labels: ts.i32[batch, length]):
        return ts.minimize(ts.mean(ts.cross_entropy(net(tokens), labels, "vocab")), ts.optim.sgd(0.3))

    other = copy.deepcopy(module)
    optimizer = torch.optim.SGD(other.parameters(), 0.3)
    generator = np.random.default_rng(0)
    with step.compile(mesh="data:2;model:2", layout="batch:data; heads,ff,vocab:model") as run:
        for _ in range(steps):
            text = generator.integers(0, 30, (4, 9)).astype(np.int32)
            text[:, 1:] = (text[:, :1] + np.arange(1, 9)) % 30
            ours = run(tokens=text[:, :-1], labels=text[:, 1:]).loss
            loss = torch.nn.functional.cross_entropy(other(torch.from_numpy(text[:, :-1]).long()).transpose(1, 2), torch.from_numpy(text[:, 1:]).long())
            optimizer.zero_grad(), loss.backward(), optimizer.step()
            assert abs(ours - loss.item()) < 1e-5 * max(1.0, loss.item())
        module.load_state_dict(run.state_dict())
    tokens = torch.from_numpy(text[:, :-1]).long()
    torch.testing.assert_close(module(tokens), other(tokens), rtol=1e-4, atol=1e-4)
