"""Memory of a process in Python over many steps and many compiled programs: python_soak.py [STEPS] [PROGRAMS]."""
import gc
import sys
import time

import numpy as np
import tessera as ts

steps, programs = (int(sys.argv[i]) if len(sys.argv) > i else n for i, n in ((1, 100_000), (2, 1000)))
batch, hidden = ts.dims(batch=8, hidden=16)


def make():
    @ts.program
    def step(x: ts.f32[batch, hidden]):
        return ts.minimize(ts.mean(ts.square(ts.einsum(x, ts.param("w", [hidden])) - 1.0)), ts.optim.adam(1e-3))

    return step


def resident():
    gc.collect()
    return int(open("/proc/self/statm").read().split()[1]) * 4


x = np.ones((8, 16), np.float32)
with make().compile(mesh="a:2", layout="batch:a") as run:
    begin = time.perf_counter()
    for i in range(steps + 1):
        run(x=x).loss
        if i in (steps // 100, steps // 10, steps // 2, steps):
            print(f"step {i}: {resident()} KiB, {time.perf_counter() - begin:.1f} s", flush=True)
for i in range(programs + 1):
    with make().compile(mesh="a:2", layout="batch:a") as run:
        run(x=x).loss
    if i in (programs // 10, programs // 2, programs):
        print(f"program {i}: {resident()} KiB", flush=True)
