import tessera as ts


def gpt(batch, vocab, length, width, heads, layers):
    batch, length, D, F, V = ts.dims(batch=batch, length=length, d_model=width, ff=4 * width, vocab=vocab)

    @ts.program
    def step(inputs: ts.i32[batch, length], targets: ts.i32[batch, length]):
        x = ts.nn.embedding(inputs, V, [D]) + ts.param("position", [length, D])
        for i in range(layers):
            with ts.scope("block", i):
                x = x + ts.nn.self_attention(ts.nn.layer_norm(x, D, "norm1"), D, heads, causal=True, bias=True)
                x = x + ts.nn.feed_forward(ts.nn.layer_norm(x, D, "norm2"), D, F)
        logits = ts.nn.dense(ts.nn.layer_norm(x, D), D, [V], "head", bias=False)
        return ts.minimize(ts.mean(ts.cross_entropy(logits, targets, V)), ts.optim.adamw(3e-4))

    return step
