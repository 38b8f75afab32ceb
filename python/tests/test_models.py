"""Model folders, texts, corpora, the command line, plans, logging, prefetching."""
import json
import logging
import pathlib
import subprocess
import sys
import threading

import numpy as np
import pytest
import tessera as ts

ROOT = pathlib.Path(__file__).resolve().parents[2]
MOBY = str(ROOT / "data/moby-dick.txt")
LLAMA = ROOT / "data/tiny-llama"
n, m = ts.dims(n=8, m=4)


@ts.program
def linear(x: ts.f32[n, m]):
    w = ts.param("w", [m], ts.init.ones())
    return ts.minimize(ts.mean(ts.square(ts.einsum(x, w) - 1.0)), ts.optim.sgd(0.1))


def test_a_folder_generates_alike_under_layouts_and_after_training(tmp_path):
    model = ts.load_model(LLAMA, batch=2, length=16)
    prompt = [1, 5, 9]
    alone = model.generator()(prompt, max_tokens=6, temperature=0.0)
    assert len(alone) == 6
    split = model.generator(mesh="a:2", layout="heads,ff,vocab:a", rows=2)
    assert split([prompt, [7, 8]], max_tokens=6, temperature=0.0)[0] == alone
    seen = []
    assert split(prompt, max_tokens=6, temperature=0.0, on_token=lambda text, token: seen.append(token) or len(seen) < 3) == alone[:3]
    assert seen == alone[:3]
    with pytest.raises(ts.UsageError, match="prompt"):
        split([[]], max_tokens=2)

    @ts.program
    def tune():
        return ts.minimize(model.build().loss, ts.optim.adamw(1e-3))

    tokens = np.arange(32, dtype=np.int32).reshape(2, 16) % 50
    with tune.compile(mesh="a:2", layout="batch:a") as run:
        model.load(run)
        losses = [run(inputs=tokens, targets=tokens).loss for _ in range(3)]
        run.save(tmp_path)
    assert losses[2] < losses[0]
    assert len(model.generator(checkpoint=tmp_path)(prompt, max_tokens=4)) == 4
    with pytest.raises(ts.IoError, match="no checkpoint"):
        model.generator(checkpoint=tmp_path / "none")
    with pytest.raises(ts.IoError, match="config.json"):
        ts.load_model("/nowhere")


def test_what_was_tuned_with_lora_is_exported_from_python(tmp_path):
    """Merged: the exported folder has the loss that training ended with. As an adapter: with what was trained beside LoRA."""
    model = ts.load_model(LLAMA, batch=2, length=16, lora_rank=4, lora_alpha=3.0, lora_targets=["query", "value"])
    tokens = np.arange(32, dtype=np.int32).reshape(2, 16) % 50

    @ts.program
    def tune():
        return ts.minimize(model.build().loss, ts.optim.adamw(1e-2), trainable=["*.lora_a", "*.lora_b", "*embedding*"])

    @ts.program
    def score():
        return {"loss": model.build().loss}

    with tune.compile() as run, score.compile() as scored:
        model.load(run)
        before = run(inputs=tokens, targets=tokens).loss
        for _ in range(3):
            run(inputs=tokens, targets=tokens)
        saved = run.save(tmp_path / "run")
        scored.load(saved, scored.parameters)
        expected = scored(inputs=tokens, targets=tokens).loss
    assert expected < before - 0.1

    def loss_of(folder, checkpoint=None):
        plain = ts.load_model(folder, batch=2, length=16)

        @ts.program
        def whole():
            return {"loss": plain.build().loss}

        with whole.compile() as run:
            plain.load(run)
            return run(inputs=tokens, targets=tokens).loss

    model.export(tmp_path / "run", tmp_path / "merged")
    assert loss_of(tmp_path / "merged") == pytest.approx(expected, abs=2e-2) and abs(loss_of(LLAMA) - before) < 2e-2
    # The command needs no options: the checkpoint says them.
    assert ts.run_cli([], ["tessera", "export", "--checkpoint", str(tmp_path / "run"), "--like", str(LLAMA), str(tmp_path / "by-command")]) == 0
    assert (tmp_path / "by-command/model.safetensors").read_bytes() == (tmp_path / "merged/model.safetensors").read_bytes()
    model.export(saved, tmp_path / "adapter", adapter=True)
    config = json.loads((tmp_path / "adapter/adapter_config.json").read_text())
    assert (config["r"], config["lora_alpha"], config["target_modules"]) == (4, 3.0, ["q_proj", "v_proj"])
    header = (tmp_path / "adapter/adapter_model.safetensors").read_bytes()
    names = json.loads(header[8 : 8 + int.from_bytes(header[:8], "little")])
    # The head is tied to the embedding, so it goes along.
    assert config["modules_to_save"] == ["lm_head", "model.embed_tokens"], config
    assert "base_model.model.model.embed_tokens.weight" in names, list(names)
    with pytest.raises(ts.UsageError, match="exists"):
        model.export(saved, tmp_path / "adapter", adapter=True)
    with pytest.raises(ts.UsageError, match="alpha 0"):
        other = ts.load_model(LLAMA, lora_rank=4, lora_alpha=0.0)
        with ts.build.building(ts._tessera.make_graph()):
            other.build()


def test_a_corpus_is_written_and_read(tmp_path):
    rows = [[1, 2, 3, 4], [5, 6, 7], list(range(20))]
    assert ts.write_corpus(tmp_path / "c", rows, vocabulary=100) == 27
    arrays = ts.batches(tmp_path / "c.idx", 2, length=8, shuffle=False).read(0)
    assert arrays["inputs"][0].tolist() == [1, 2, 3, 4, 5, 6, 7, 0]
    with pytest.raises(ts.UsageError, match="vocabulary"):
        ts.write_corpus(tmp_path / "d", [[100]], vocabulary=100)


CLI = '''
import sys
import tessera as ts

class Net(ts.CliModel):
    name = "net"
    help = "A bag of words in Python."
    keys = {"hidden": 16, "bias": True}
    tiny = {"hidden": 8, "train.batch": 4}
    layout = "batch:data; hidden:model"

    def build(self, keys, batch):
        length, vocab, hidden = ts.dims(length=16, vocab=256, hidden=keys.hidden)
        inputs, targets = ts.input("inputs", [batch, length], ts.i32), ts.input("targets", [batch, length], ts.i32)
        x = ts.param("table", [vocab, hidden])[vocab: inputs]
        logits = ts.nn.dense(ts.tanh(x), [hidden], [vocab], bias=keys.bias)
        return {"loss": ts.mean(ts.cross_entropy(logits, targets, vocab)), "logits": logits, "inputs": [inputs, targets], "tokens": inputs}

    def data(self, keys, held_out):
        return None if held_out else ts.batches(keys.data_path, 1, length=16)

sys.exit(ts.run_cli([Net()]))
'''


def test_the_command_line_takes_a_model_in_python(tmp_path):
    (tmp_path / "net.py").write_text(CLI)

    def run(*arguments):
        return subprocess.run([sys.executable, "net.py", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=300)

    log = tmp_path / "log.jsonl"
    trained = run("train", "net", "--data", MOBY, "--steps", "30", "--mesh", "data:2;model:2", "--set", "lr=0.03", "hidden=32", "--log", str(log))
    assert trained.returncode == 0, trained.stderr
    losses = [row["loss"] for row in map(json.loads, log.read_text().splitlines()) if "loss" in row]
    assert losses[-1] < losses[0] - 1
    verified = run("verify", "net", "--mesh", "a:2")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    explained = run("explain", "net", "--mesh", "data:2;model:2")
    assert "net.py:" in explained.stdout and "all_reduce" in explained.stdout
    wrong = run("train", "nett")
    assert wrong.returncode == 1 and "did you mean 'net'" in wrong.stderr
    (tmp_path / "net.py").write_text(CLI.replace("hidden=keys.hidden", "hidden=keys.hiden"))
    failed = run("verify", "net", "--mesh", "a:2")
    assert failed.returncode == 1 and "has no attribute 'hiden'" in failed.stderr


def test_plans_and_simulations_need_no_ranks():
    batch, length = ts.dims(batch=32, length=64)

    @ts.program
    def lm():
        return ts.minimize(ts.nn.gpt(layers=2, batch=32, length=64).loss, ts.optim.adamw(1e-3))

    plan = lm.plan("a:4", machine="h100", seconds=5)
    assert plan.seconds > 0 and plan.mesh == "a:4" and f'--layout "{plan.layout}"' in str(plan)
    assert "<table>" in plan._repr_html_() and "runners-up" in plan._repr_html_()
    assert lm.plan(4, machine="h100", seconds=5).seconds <= plan.seconds * 1.001
    simulation = lm.simulate("a:4", "batch:a", machine="h100")
    assert simulation.seconds == pytest.approx(simulation.compute + simulation.slowed + simulation.exposed)
    assert any(step["axes"] == "a" for step in simulation.steps) and json.loads(simulation.trace())
    report = lm.explain("a:4", "batch:a", machine="h100")
    page = report._repr_html_()
    assert page.count("<tr>") > len(report.collectives) and "test_models.py" in page and "ms" in str(report)
    with pytest.raises(ts.UsageError, match="h100"):
        lm.plan("a:4", machine="h1000")
    with pytest.raises(ts.UsageError, match="memory"):
        lm.plan("a:4", machine="h100", memory=1000, seconds=2)


def test_what_happens_is_logged(caplog):
    with caplog.at_level(logging.INFO, logger="tessera"):
        with linear.compile(mesh="a:2", layout="n:a"):
            pass
    assert "compiled linear" in caplog.text and "2 ranks (threads) on cpu" in caplog.text


def test_an_iterator_is_read_ahead_in_a_thread():
    threads = []

    def numbers():
        for i in range(5):
            threads.append(threading.current_thread())
            yield i
        raise KeyError("behind the last")

    seen = []
    with pytest.raises(KeyError, match="behind the last"):
        for i in ts.prefetch(numbers()):
            seen.append(i)
    assert seen == list(range(5)) and threads[0] is not threading.current_thread()

    def endless():
        while True:
            yield 1

    for _ in ts.prefetch(endless()):
        break
    assert not [t for t in threading.enumerate() if t.name == "tessera prefetch"]
    data = ts.prefetch(ts.batches(MOBY, 2, length=8))
    assert next(data)["inputs"].shape == (2, 8)
    data.close()
