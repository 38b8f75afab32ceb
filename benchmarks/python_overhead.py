"""What a step costs in Python beside the same step in C++: python_overhead.py BENCH_PYTHON_STEPS [ROUNDS].

A round is both sides, one right after the other, in turn the one or the other first. Figures are medians over rounds, also that of
the differences within a round, so that other work on the machine and its clock rate weigh little.
"""
import statistics
import subprocess
import sys
import time

import numpy as np
import tessera as ts

rounds = int(sys.argv[2]) if len(sys.argv) > 2 else 15
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


def make_round(number, name, steps):
    if number % 2:
        return in_cpp(name, steps), in_python(name, steps)
    return (in_python(name, steps), in_cpp(name, steps))[::-1]


for name, steps in ("gpt", 20), ("empty", 5000):
    make_round(0, name, steps)
    pairs = [make_round(i, name, steps) for i in range(rounds)]
    for i, clock in enumerate(("clock", "processors")):
        a, b = (statistics.median(side[i] for side in sides) for sides in zip(*pairs))
        more = statistics.median(q[i] - p[i] for p, q in pairs)
        ratios = sorted(q[i] / p[i] for p, q in pairs)
        quarter = len(ratios) // 4
        print(
            f"{name}, {clock}: C++ {a:.1f} us, Python {b:.1f} us a step: {more:+.1f} us, {statistics.median(ratios):.3f} times"
            f" (half of the rounds {ratios[quarter]:.3f} to {ratios[-1 - quarter]:.3f}); {rounds} rounds of {steps} steps"
        )
cpp.stdin.close()
cpp.wait()
