"""Handwritten digits, as in hello.cpp: a two-layer network, trained on a 2x2 mesh of ranks. By default the ranks are four
threads; under `mpirun -n 4` they are four processes. Run it in the root of the repository."""
import tessera as ts

batch, rows, cols, hidden, classes = ts.dims(batch=64, rows=28, cols=28, hidden=256, classes=10)


@ts.program
def step(images: ts.f32[batch, rows, cols], labels: ts.i32[batch]):
    w1 = ts.param("w1", [rows, cols, hidden], ts.init.scaled_normal([rows, cols]))
    w2 = ts.param("w2", [hidden, classes], ts.init.scaled_normal([hidden]))
    h = ts.relu(ts.einsum(images, w1, [batch, hidden]))
    logits = ts.einsum(h, w2, [batch, classes])
    loss = ts.mean(ts.cross_entropy(logits, labels, classes))
    return ts.minimize(loss, ts.optim.sgd(0.1))


digits = ts.batches("data/digits/train-images-idx3-ubyte.gz", 64, labels="data/digits/train-labels-idx1-ubyte.gz")
run = step.compile(mesh="data:2;model:2", layout="batch:data; hidden:model")
for i in range(1, 501):
    result = run.step(digits)
    if i % 100 == 0:
        loss = result.loss
        if run.cluster.is_root:
            print(f"step {i}: loss {loss:.4f}")
