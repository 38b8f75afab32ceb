#!/usr/bin/env python3
"""published_plans.py TESSERA [--time S] [--only NAME]: what others chose for a model and a machine, beside what `plan` chooses.

Prices the plans that Alpa's authors published for GPT on 2 to 64 V100 (alpa-projects/alpa, benchmark/alpa/suite_auto_gpt.py: 1,024
sequences of 1,024 tokens, recomputation, 1F1B), and the layout of GSPMD's dense Transformer (Xu et al. 2021, section 5.1: batch
over x, heads and hidden units over y, the other dim of each weight over x), this one on 128 devices of a profile that is built in
and with keys of 64 instead of 256.
Each is lowered and simulated like the plan beside it. A plan of Alpa with stages of different sizes is left out: a mesh has none.
Prints a table in Markdown.
"""

import argparse
import json
import os
import subprocess
import tempfile

V100 = """# NVIDIA V100 SXM2 16GB, 8 a node, as in p3.16xlarge. Nothing is measured; the comments say what the figures are.
format = 2
name = "v100-16gb"
device = "NVIDIA V100 SXM2 16GB, 8 a node"
date = "2026-11-28"
source = "data sheet; see the comments"
memory = 17179869184
launch = 3e-6

[[overlap]]
compute = 1.1
transfer = 1.2

[[memory_rate]]  # 900 GB/s by the data sheet, 88 % of it as on A100
bandwidth = 7.9e+11

[[matmul]]  # float16 there: 125 TFLOP/s by the data sheet, 0.79 of it as on A100
dtype = "bfloat16"
flops = 9.9e+13
tile_rows = 128
tile_columns = 128
units = 80
depth = 256
misaligned = 2

[[matmul]]  # 15.7 TFLOP/s by the data sheet
dtype = "float32"
flops = 1.4e+13
tile_rows = 128
tile_columns = 128
units = 80
depth = 64

[[kernel]]  # a third of the rate of products, as on A100 forward
kernel = "attention"
flops = 3.3e+13

[[kernel]]
kernel = "attention_grad"
flops = 2.8e+13

[[link]]  # NVLink 2, six links of 25 GB/s each way
name = "node"
devices = 8
latency = 3e-06
bandwidth = 1.2e+11
start = 2.2e-05

[[link]]  # 25 Gbit/s a node, which its eight devices share
name = "network"
devices = 0
latency = 3e-05
bandwidth = 3.5e+08
start = 5e-05
"""

# Name: sequence length, model width, layers, heads (suite_manual_gpt.py); the vocabulary is 51,200.
GPT = {
    "760M": (1024, 1536, 24, 16),
    "1.3B": (1024, 2048, 24, 32),
    "6.7B": (1024, 4096, 32, 32),
    "15B": (1024, 5120, 48, 40),
    "39B": (1024, 8192, 48, 64),
}
TENSOR = "heads,ff,vocab:model"
ALPA = [
    ("760M", 2, 128, "pipe:2", "layers:pipe"),
    ("1.3B", 4, 128, "pipe:2;data:2", "layers:pipe;batch:data"),
    ("6.7B", 16, 64, "pipe:2;data:2;model:4", f"layers:pipe;batch:data;{TENSOR}"),
    ("15B", 32, 128, "pipe:4;data:2;model:4", f"layers:pipe;batch:data;{TENSOR}"),
    ("39B", 64, 1024, "pipe:16;model:4", f"layers:pipe;{TENSOR}"),
]
def ask(tessera, *words):
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "answer.json")
        result = subprocess.run([tessera, *words, "--json", path], capture_output=True, text=True)
        if result.returncode:
            return {"error": result.stderr.strip().splitlines()[-1]}
        with open(path) as answer:
            return json.load(answer)


def row(tessera, name, devices, machine, model, batch, theirs, search):
    """A line of the table: the plan of `theirs` (mesh, layout, other keys) beside one that is searched for `search` seconds."""
    given = ask(tessera, "explain", "gpt", "--machine", machine, "--mesh", theirs[0], "--layout", theirs[1], "--set", *model,
                f"batch={batch}", *theirs[2])
    ours = ask(tessera, "plan", "gpt", "--machine", machine, "--devices", str(devices), "--batch", str(batch), "--time", str(search),
               "--set", *model)
    for answer in (given, ours):
        if "error" in answer:
            return f"| {name} | {devices} | {answer['error']} |"
    train = next(f for f in given["functions"] if f["name"] == "train")
    memory = sum(given["memory"][part] for part in ("params", "state", "inputs", "transient"))
    best = ours["best"]
    flags = f'`{best["mesh"]}`, `{best["rules"]}`, microbatches={best["microbatches"]} recompute={best["recompute"]}'
    if best["zero"]:
        flags += f', ZeRO-{best["zero"]} over {best["over"]}'
    gap = "proof" if ours["optimal"] else f'gap {100 * ours["gap"]:.1f} %'
    return (f'| {name} | {devices} | `{theirs[0]}`, `{theirs[1]}`, {" ".join(theirs[2])} | {train["predicted"]["seconds"]:.2f} | '
            f'{memory / 1e9:.1f} | {flags} | {best["seconds"]:.2f} | {best["memory"]["total"] / 1e9:.1f} | {gap} |')


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tessera")
    parser.add_argument("--time", type=int, default=20, help="seconds of each search")
    parser.add_argument("--only", default="", help="models whose names begin so")
    args = parser.parse_args()
    print("| model | devices | published | s a step | GB | plan | s a step | GB | |\n|---|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder:
        v100 = os.path.join(folder, "v100.toml")
        with open(v100, "w") as profile:
            profile.write(V100)
        for name, devices, microbatches, mesh, layout in ALPA:
            if not name.startswith(args.only):
                continue
            length, width, layers, heads = GPT[name]
            model = [f"length={length}", f"d_model={width}", f"ff={4 * width}", f"layers={layers}", f"heads={heads}", "vocab=51200",
                     "dtype=bfloat16", "scan=true"]
            how = [f"microbatches={microbatches}", "recompute=block"]
            print(row(args.tessera, f"GPT {name}", devices, v100, model, 1024, (mesh, layout, how), args.time), flush=True)
    if "dense".startswith(args.only):
        model = ["length=1024", "d_model=8192", "ff=65536", "layers=32", "heads=128", "vocab=32000", "dtype=bfloat16",
                 "scan=true"]
        layout = "batch:x;heads,ff,vocab:y;@params d_model:x"
        print(row(args.tessera, "dense Transformer", 128, "h100", model, 256, ("x:16;y:8", layout, ["recompute=block"]), args.time))


if __name__ == "__main__":
    main()
