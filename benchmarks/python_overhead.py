"""What a step costs in Python beside the same step in C++, by turns in one run: python_overhead.py BENCH_PYTHON_STEPS [ROUNDS]."""
import statistics
import subprocess
import sys
import time

import numpy as np
import tessera as ts

rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 9
tokens = (np.arange(16 * 64 + 1, dtype=np.int32) * 7 % 256).astype(np.int32)
arrays = {"inputs": tokens[:-1].reshape(16, 64), "targets": tokens[1:].reshape(16, 64)}


@ts.program
def gpt():
    return ts.minimize(ts.nn.gpt(layers=2, length=64, batch=16).loss, ts.optim.adamw(2e-3))


@ts.program
def empty(x: ts.f32[()]):
    return x + 1


training = gpt.compile(mesh="data:2", layout="batch:data")
nothing = empty.compile()
x = np.float32(0).reshape(())
made = {"gpt": lambda: training(**arrays).loss, "empty": lambda: nothing(x=x).result}
cpp = subprocess.Popen([sys.argv[1]], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def in_python(name, steps):
    step = made[name]
    begin, used = time.perf_counter(), time.process_time()
    for _ in range(steps):
        step()
    return (time.perf_counter() - begin) / steps * 1e6, (time.process_time() - used) / steps * 1e6


def in_cpp(name, steps):
    print(name, steps, file=cpp.stdin, flush=True)
    return tuple(map(float, cpp.stdout.readline().split()))


for name, steps in ("gpt", 40), ("empty", 5000):
    in_cpp(name, steps), in_python(name, steps)
    pairs = [(in_cpp(name, steps), in_python(name, steps)) for _ in range(rounds)]
    for i, clock in enumerate(("clock", "processors")):
        a, b = (statistics.median(side[i] for side in sides) for sides in zip(*pairs))
        least, most = min(q[i] / p[i] for p, q in pairs), max(q[i] / p[i] for p, q in pairs)
        print(f"{name}, {clock}: C++ {a:.1f} us, Python {b:.1f} us a step: {b - a:+.1f} us, {b / a:.3f} times ({least:.3f} to {most:.3f}); {rounds} rounds of {steps} steps")
cpp.stdin.close()
cpp.wait()
