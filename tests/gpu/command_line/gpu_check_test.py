"""scripts/gpu_check on emulated GPUs: slices that go on where the last one ended, and the switch with which a check passes.

    gpu_check_test.py BUILD
"""
import json, os, pathlib, subprocess, sys, tempfile

ROOT = pathlib.Path(__file__).resolve().parents[3]


def gpu_check(folder, *words, **env):
    command = [sys.executable, ROOT / "scripts/gpu_check", "--dry-run", "--build", sys.argv[1], "--out", folder, *words]
    done = subprocess.run(list(map(str, command)), env={**os.environ, **env}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          text=True, timeout=900)
    return done.returncode, done.stdout


def expect(holds, what, output):
    if not holds:
        sys.exit(f"gpu_check_test: {what}\n{output}")


with tempfile.TemporaryDirectory() as folder:
    rows = lambda: json.loads((pathlib.Path(folder) / "results.json").read_text())
    few = ["--only", "info", "--only", "GPT-2*roofline", "--only", "2 GPUs, NCCL, batch*", "--only", "*jax"]
    code, output = gpu_check(folder, *few, "--seconds", "6")
    expect(code == 0 and list(rows()) == ["info"] and "3 checks are left: repeat the command" in output,
           "a slice of six seconds ends behind the first check", output)
    code, output = gpu_check(folder, *few, "--seconds", "800")
    expect(code == 0 and len(rows()) == 4, "the second slice does the rest", output)
    expect({name: row["outcome"] for name, row in rows().items() if "jax" in name} ==
           {"GPT-2 124M bfloat16, jax": "absent"}, "what cannot run is named", output)
    figure = rows()["GPT-2 124M bfloat16, kernels against the roofline"]["figure"]
    expect("roofline" in figure and "lost:" in figure, "the worst kernels are in the table", output)
    expect("loss" in rows()["2 GPUs, NCCL, batch:data"]["figure"], "two GPUs are compared", output)
    code, output = gpu_check(folder, "--only", "verify float32", "--seconds", "800", TESSERA_EMULATED_FAULT="TESSERA_EPILOGUES")
    expect(code == 1 and "passes with TESSERA_EPILOGUES=off, all switches off" in rows()["verify float32"]["figure"],
           "a failure names the switch with which it passes", output)
    listed = gpu_check(folder, "--list")[1]
    page = (ROOT / "docs/explanation/on-a-gpu.md").read_text()
    for name in ("twelve steps, float32", "GPT-2 124M bfloat16, kernels against the roofline", "ranks share a GPU, 2x2",
                 "2 processes on one GPU, through the host", "compute-sanitizer racecheck, bfloat16", "op cases, bfloat16"):
        expect(name in listed and f"`{name}`" in page, f"the manual's check '{name}' is one", listed)
print("gpu_check: ok")
