#!/usr/bin/env python3
"""paste_plans.py TESSERA [--time S] [--only NAME]: every plan that `plan --devices 64` prints, pasted back.

For a gpt of 7 billion parameters, Llama 2 70B and Mixtral 8x7B on 64 devices of `h100`, and for the gpt on links between nodes that are
a hundred times slower and with half of the memory, where layers are dealt to stages. The flags are taken from the page as they are printed, the best plan's and
the runners-up's, and the numbers from its JSON. For each plan:

1. `explain` and `simulate` with these flags at full size: the time of a step and the memory of a rank are those of the plan.
2. The same flags on a small model and a mesh of the same axes with at most two ranks each: `verify` in float64 against one rank
   (1e-10), and the price that `plan --why-not` gives is what `explain` says.

Prints a table in Markdown; exits with 1 if anything differs.
"""

import argparse
import json
import os
import re
import shlex
import subprocess
import sys
import tempfile

LLAMA_70B = {
    "model_type": "llama", "hidden_size": 8192, "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 32000, "max_position_embeddings": 4096, "rms_norm_eps": 1e-05, "torch_dtype": "bfloat16"}
MIXTRAL_8X7B = {
    "model_type": "mixtral", "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
    "num_key_value_heads": 8, "num_local_experts": 8, "num_experts_per_tok": 2, "vocab_size": 32000, "max_position_embeddings": 32768,
    "rms_norm_eps": 1e-05, "rope_theta": 1000000.0, "router_aux_loss_coef": 0.02, "torch_dtype": "bfloat16"}
SMALL = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 64,
         "max_position_embeddings": 64, "torch_dtype": "float32"}

GPT = {"layers": 32, "d_model": 4096, "heads": 32, "ff": 16384, "length": 2048, "vocab": 51200, "dtype": "bfloat16", "scan": "true"}
SMALL_GPT = {"d_model": 32, "heads": 4, "ff": 48, "length": 16, "vocab": 64, "scan": "true"}
DEVICES = 64


class Model:
    """A model at full size and a small one with the same dims; `layers` is that of the small one."""

    def __init__(self, name, full, small, batch, machine="h100", config=None):
        self.name, self.full, self.small, self.batch, self.machine, self.config = name, full, small, batch, machine, config

    def of(self, folder, layers):
        """The words that name the model and set its keys; layers: None for the full size."""
        keys = dict(self.full if layers is None else self.small)
        if self.config is None:
            if layers is not None:
                keys["layers"] = layers
            return ["gpt"], keys
        path = os.path.join(folder, f'{self.config["model_type"]}-{layers}')
        os.makedirs(path, exist_ok=True)
        with open(os.path.join(path, "config.json"), "w") as file:
            json.dump(self.config if layers is None else {**self.config, **SMALL, "num_hidden_layers": layers}, file)
        return [path], keys


def slow_network(tessera_root):
    """The profile of `h100` with links between nodes that are a hundred times slower, and half of the memory."""
    with open(os.path.join(tessera_root, "src/cost/machines/h100.toml")) as file:
        text = file.read()
    head, _, link = text.rpartition("[[link]]")
    link, links = re.subn(r"^bandwidth = (\S+)", lambda m: f"bandwidth = {float(m[1]) / 100:g}", link, flags=re.M)
    head, memories = re.subn(r"^memory = (\d+)", lambda m: f"memory = {int(m[1]) // 2}", head, count=1, flags=re.M)
    if links != 1 or memories != 1:
        sys.exit("the profile of h100 has another form than this script expects")
    return head + "[[link]]" + link


class Tessera:
    def __init__(self, program, folder):
        self.program, self.folder, self.calls = program, folder, 0

    def run(self, *words):
        """The text and the JSON that a command answers with, or what it says is wrong."""
        self.calls += 1
        path = os.path.join(self.folder, f"answer{self.calls}.json")
        result = subprocess.run([self.program, *words, "--json", path], capture_output=True, text=True)
        if result.returncode:
            lines = (result.stderr.strip() or result.stdout.strip() or "it ended without a word").splitlines()
            raise RuntimeError(f"{words[0]}: {lines[-1]}")
        with open(path) as answer:
            return result.stdout, json.load(answer)


def sets(keys):
    return ["--set", *(f"{key}={value}" for key, value in keys.items())]


def printed_flags(page):
    """The flags of the best plan and of the runners-up, as words, in the order in which the page has them."""
    lines, taken, listed = page.splitlines(), [], False
    for i, line in enumerate(lines):
        if line.startswith("best plan on"):
            taken.append(lines[i + 1].strip())
        listed = line == "runners-up" or (listed and line.startswith("  "))
        if listed and "--mesh" in line:
            taken.append(line[line.index("--mesh"):].removesuffix(", does not fit"))
    return [shlex.split(flags) for flags in taken]


def shrunk(flags):
    """The flags on a mesh with at most two ranks along each axis, and on few microbatches; and how many microbatches and chunks."""
    words, chunks = [], 1
    for i, word in enumerate(flags):
        before = flags[i - 1] if i else ""
        if before == "--mesh":
            word = re.sub(r":(\d+)", lambda m: f":{min(2, int(m[1]))}", word)
        if before == "--layout":
            chunks = max([1] + [int(n) for n in re.findall(r"\blayers:\w+\*(\d+)", word)])
        if word.startswith("microbatches="):
            word = f'microbatches={min(4, int(word.split("=")[1]))}'
        words.append(word)
    many = [int(word.split("=")[1]) for word in words if word.startswith("microbatches=")]
    return words, many[0] if many else 1, chunks


def apart(a, b):
    return abs(a - b) / max(abs(a), abs(b), 1e-30)


def train_of(explained):
    return next(f for f in explained["functions"] if f["name"] == "train")["predicted"]["seconds"]


def memory_of(explained):
    return sum(explained["memory"][part] for part in ("params", "state", "inputs", "transient"))


def paste(tessera, model, plan, flags, folder):
    """The largest differences of a plan: of its time, of its memory, of its small price, of its results."""
    name, keys = model.of(folder, None)
    whole = [*name, "--machine", model.machine, *sets(keys), f"batch={model.batch}", *flags]
    _, explained = tessera.run("explain", *whole)
    _, simulated = tessera.run("simulate", *whole)
    time = max(apart(plan["seconds"], train_of(explained)), apart(plan["seconds"], simulated["seconds"]))
    memory = apart(plan["memory"]["total"], memory_of(explained))

    words, microbatches, chunks = shrunk(flags)
    name, keys = model.of(folder, 4 if chunks == 1 else 2 * chunks)
    small = [*name, *sets(keys), f"batch={8 * microbatches}", *words]
    _, verified = tessera.run("verify", *small, "--dtype", "float64", "--steps", "2", *(["--init", "random"] if model.config else []))
    if not all(row["equal"] for row in verified["by_layout"]):
        raise RuntimeError("verify: not equal")
    results = max(max(row[part] for part in ("loss", "gradient", "parameter")) for row in verified["by_layout"])
    page, explained = tessera.run("explain", *small, "--machine", model.machine)
    # `--why-not` is asked about a layout with its rules of storage written out, and about no other keys than these.
    layout = page.splitlines()[0].partition(", layout ")[2]
    mesh = words[words.index("--mesh") + 1]
    kept = {"microbatches": 1, "recompute": "none", "reshard_after_forward": "none", "pipeline_schedule": "1f1b"}
    if "--recompute" in words:
        kept["recompute"] = words[words.index("--recompute") + 1]
    if "--set" in words:
        kept.update(word.split("=") for word in words[words.index("--set") + 1:])
    _, priced = tessera.run("plan", *name, "--machine", model.machine, *sets({**keys, **kept}), f"batch={8 * microbatches}", "--time", "1",
                            "--mesh", mesh, "--why-not", layout)
    price = apart(priced["why_not"]["seconds"], train_of(explained))
    return time, memory, price, results


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--time", type=int, default=10, help="seconds of each search")
    parser.add_argument("--only", default="", help="models whose names begin so")
    args = parser.parse_args()
    wrong = 0
    print("| model | plan | s a step | GB | time differs by | memory by | small: price by | results by |\n|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        slow = os.path.join(folder, "h100-slow.toml")
        with open(slow, "w") as file:
            file.write(slow_network(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))
        models = [
            Model("gpt 7B", GPT, SMALL_GPT, 512),
            Model("gpt 7B, slow links", GPT, SMALL_GPT, 512, slow),
            Model("Llama 70B", {"length": 4096, "dtype": "bfloat16"}, {"length": 16}, 256, config=LLAMA_70B),
            Model("Mixtral 8x7B", {"length": 4096, "dtype": "bfloat16"}, {"length": 16}, 256, config=MIXTRAL_8X7B),
        ]
        tessera = Tessera(os.path.abspath(args.tessera), folder)
        for model in (m for m in models if m.name.startswith(args.only)):
            name, keys = model.of(folder, None)
            page, plans = tessera.run("plan", *name, "--devices", str(DEVICES), "--machine", model.machine, "--batch", str(model.batch),
                                      "--time", str(args.time), *sets(keys))
            found, pasted = [plans["best"], *plans["runners_up"]], printed_flags(page)
            if len(found) != len(pasted):
                sys.exit(f"{model.name}: the page has the flags of {len(pasted)} plans, the JSON {len(found)} plans")
            for plan, flags in zip(found, pasted):
                row = f'| {model.name} | `{shlex.join(flags)}` | {plan["seconds"]:.3f} | {plan["memory"]["total"] / 1e9:.1f} | '
                try:
                    figures = paste(tessera, model, plan, flags, folder)
                    row += " | ".join(f"{figure:.1e}" for figure in figures) + " |"
                    bad = max(figures[:3]) > 1e-9 or figures[3] > 1e-10
                except RuntimeError as error:
                    row, bad = row + f"{error} |", True
                wrong += bad
                print(row + (" DIFFERS" if bad else ""), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
