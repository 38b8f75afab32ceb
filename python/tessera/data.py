"""Batches of a file. What a step reads is a function of seed and step: the same on any mesh."""
from . import _tessera


class Batches:
    """Iterates over steps, each a dict of arrays. `run.step(batches, n)` feeds step n without them."""

    def __init__(self, source, batch, seed, shuffle, repeat):
        self._batches = _tessera.Batches(source, batch, seed, shuffle, repeat)

    @property
    def steps(self):
        """Steps of one epoch."""
        return self._batches.steps

    def read(self, step):
        """The arrays of a step, by the names of inputs."""
        return self._batches.read(step)

    def feed(self, session, step):
        self._batches.feed(session, step)

    def __iter__(self):
        step = 0
        while True:
            try:
                arrays = self.read(step)
            except _tessera.UsageError:
                if step < self.steps:
                    raise
                return
            yield arrays
            step += 1


def batches(path, batch, labels=None, length=64, token_bytes=1, part=(0.0, 1.0), seed=0, shuffle=True, repeat=True):
    """Batches of `batch` examples.

    path: text or a corpus of tokens (.idx of Megatron, .bin of llm.c, or tokens of `token_bytes` each): "inputs" and
    "targets", int32 [batch, length]. With `labels`, a pair of IDX files: "images" float32 [batch, rows, cols] and "labels".
    part: the fractions of the text between which it is used. repeat: without end, else one epoch.
    """
    batch = getattr(batch, "size", batch)
    length = getattr(length, "size", length)
    if labels is not None:
        source = _tessera.idx_data(str(path), str(labels))
    else:
        source = _tessera.text_data(str(path), length, token_bytes, part[0], part[1])
    return Batches(source, batch, seed, shuffle, repeat)
