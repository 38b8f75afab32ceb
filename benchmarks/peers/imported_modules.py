#!/usr/bin/env python3
"""A step of an imported Llama and GPT-2 beside the native model and beside PyTorch, eager and compiled, by turns.

Needs torch and transformers. Usage: imported_modules.py TESSERA DATA [ROUNDS]"""
import json
import os
import pathlib
import re
import statistics
import subprocess
import sys
import tempfile
import time
import warnings

import torch
import transformers

warnings.filterwarnings("ignore")
BATCH, LENGTH, STEPS = 8, 128, 12


def models():
    torch.manual_seed(0)
    yield "llama", transformers.LlamaForCausalLM(transformers.LlamaConfig(
        hidden_size=256, intermediate_size=688, num_hidden_layers=4, num_attention_heads=8, num_key_value_heads=4, vocab_size=256, max_position_embeddings=256,
        tie_word_embeddings=False, use_cache=False))
    yield "gpt2", transformers.GPT2LMHeadModel(transformers.GPT2Config(
        n_embd=256, n_layer=4, n_head=8, vocab_size=256, n_positions=256, resid_pdrop=0, embd_pdrop=0, attn_pdrop=0, use_cache=False))


def of_tessera(tessera, data, *model):
    done = subprocess.run([tessera, "train", *model, "--data", data, "--steps", str(STEPS)], capture_output=True, text=True, timeout=600)
    ms = [float(m) for m in re.findall(r"^step .*?  ([0-9.]+) ms", done.stdout + done.stderr, re.M)]
    if len(ms) != STEPS:
        sys.exit(done.stdout + done.stderr)
    return ms[2:]


def of_pytorch(module, is_compiled):
    run = torch.compile(module) if is_compiled else module
    optimizer = torch.optim.AdamW(module.parameters(), 1e-4, weight_decay=0.1, fused=True)
    tokens = torch.randint(0, 256, (BATCH, LENGTH + 1))
    ms = []
    for _ in range(STEPS + 2):
        begin = time.perf_counter()
        loss = torch.nn.functional.cross_entropy(run(input_ids=tokens[:, :-1]).logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        torch.nn.utils.clip_grad_norm_(module.parameters(), 1.0)
        optimizer.step(), optimizer.zero_grad()
        ms.append((time.perf_counter() - begin) * 1e3)
    return ms[4:]


def main():
    tessera, data, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 5
    rows, loads = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, module in models():
            path = pathlib.Path(folder) / name
            module.save_pretrained(path)
            module.train()
            torch.export.save(torch.export.export(module, (), kwargs=dict(input_ids=torch.zeros(BATCH, LENGTH, dtype=torch.int64)), strict=False), f"{path}.pt2")
            kinds = {
                "imported": lambda: of_tessera(tessera, data, f"{path}.pt2", "--loss", "cross_entropy(logits, labels)", "--batch", str(BATCH)),
                "native": lambda: of_tessera(tessera, data, str(path), "--set", f"length={LENGTH}", f"batch={BATCH}"),
                "eager": lambda: of_pytorch(module, False),
                "compiled": lambda: of_pytorch(module, True),
            }
            medians = {kind: [] for kind in kinds}
            for _ in range(rounds):
                loads.append(round(os.getloadavg()[0], 1))
                for kind, run in kinds.items():
                    medians[kind].append(statistics.median(run()))
            best = {kind: min(ms) for kind, ms in medians.items()}
            peer = min(best["eager"], best["compiled"])
            rows.append({"model": name, "ms": {k: [round(x, 1) for x in v] for k, v in medians.items()}, "imported_over_native": round(best["imported"] / best["native"], 3),
                         "times_as_fast_as_pytorch": round(peer / best["imported"], 2)})
            print(json.dumps(rows[-1]), flush=True)
    print(json.dumps({"benchmark": "imported_modules", "rows": rows, "loads": loads, "versions": {"torch": torch.__version__, "transformers": transformers.__version__},
                      "what": f"batch {BATCH} of {LENGTH} tokens, 4 layers of 256, float32, AdamW with clipping; medians of the steps of each round, and quotients of the best rounds"}, indent=1))


if __name__ == "__main__":
    main()
