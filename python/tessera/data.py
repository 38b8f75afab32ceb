"""Batches of a file. What a step reads is a function of seed and step: the same on any mesh."""
from __future__ import annotations

import queue
import threading
from typing import Any, Iterable, Iterator

from . import _tessera
from .errors import UsageError


class Batches:
    """Iterates over steps, each a dict of arrays. `run.step(batches, n)` feeds step n without them."""

    def __init__(self, source: _tessera.DataSource, batch: int, seed: int, shuffle: bool, repeat: bool):
        self.source = source
        self._batches = _tessera.Batches(source, batch, seed, shuffle, repeat)
        self.names = frozenset(self._batches.names)

    @property
    def steps(self) -> int:
        """Steps of one epoch."""
        return self._batches.steps

    def read(self, step: int) -> dict:
        """The arrays of a step, by the names of inputs."""
        return self._batches.read(step)

    def feed(self, session: _tessera.Session, step: int) -> None:
        """Gives the session of a run the arrays of a step; each rank reads its part. run.step() calls it."""
        self._batches.feed(session, step)

    def __iter__(self) -> Iterator[dict]:
        step = 0
        while True:
            try:
                arrays = self.read(step)
            except UsageError:
                if step < self.steps:
                    raise
                return
            yield arrays
            step += 1


def batches(
    path: Any,
    batch: Any,
    labels: Any = None,
    length: Any = 64,
    token_bytes: int = 1,
    part: tuple[float, float] = (0.0, 1.0),
    seed: int = 0,
    shuffle: bool = True,
    repeat: bool = True,
) -> Batches:
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


def prefetch(iterable: Iterable, depth: int = 2) -> Iterator:
    """Iterates over `iterable` in a thread, up to `depth` items ahead: `for arrays in ts.prefetch(loader): run(**arrays)`.

    What the iterable raises is raised here, in its turn. The thread ends with the iteration.
    """
    items: queue.Queue = queue.Queue(max(1, depth))
    stopped = threading.Event()

    def put(item):
        while not stopped.is_set():
            try:
                return items.put(item, timeout=0.1)
            except queue.Full:
                pass

    def work():
        try:
            for item in iterable:
                put((item, None))
                if stopped.is_set():
                    return
            put((None, StopIteration()))
        except BaseException as e:
            put((None, e))

    def results():
        thread = threading.Thread(target=work, name="tessera prefetch", daemon=True)
        thread.start()
        try:
            while True:
                item, error = items.get()
                if isinstance(error, StopIteration):
                    return
                if error is not None:
                    raise error
                yield item
        finally:
            stopped.set()
            thread.join()

    return results()


def write_corpus(prefix: Any, documents: Iterable[Any], tokenizer: _tessera.Tokenizer | None = None, vocabulary: int = 0) -> int:
    """Writes PREFIX.idx and PREFIX.bin, for ts.batches() and Megatron. Returns the number of tokens.

    documents: texts, with a tokenizer, whose end token follows each; else lists of token ids below `vocabulary`.
    """
    end = tokenizer.eos if tokenizer is not None else None
    size = tokenizer.vocab_size if tokenizer is not None else vocabulary
    writer = _tessera.CorpusWriter(str(prefix), size, "" if tokenizer is None else repr(tokenizer), end)
    for document in documents:
        ids = tokenizer.encode(document) if tokenizer is not None else list(document)
        writer.add(ids + [end] if end is not None else ids)
    writer.finish()
    return writer.tokens
