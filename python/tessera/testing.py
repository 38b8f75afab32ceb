"""Tests an op as Tessera tests its own: values, gradients, and that neither depends on the layout."""
from __future__ import annotations

from typing import Any, Callable, Sequence

import numpy as np

from . import _tessera
from ._tessera import OpInput, OpReport
from .build import building


def test_op(
    build: Callable[..., Any],
    *inputs: OpInput,
    expect: Callable[..., Any] | None = None,
    types: Sequence[str] = ("float32", "float64"),
    tolerance32: float = 1e-5,
    tolerance64: float = 1e-11,
    meshes: Sequence[str] = (),
) -> OpReport:
    """Runs build(*tensors) under every legal layout of several meshes, against one rank and finite differences.

    ts.testing.test_op(huber, ts.testing.OpInput([ts.Dim("batch", 5), ts.Dim("hidden", 7)], -3, 3), expect=lambda x: ...)

    expect: the results in float64 from NumPy arrays. Uneven sizes (5, 7) test padding. The report's `ok` and str() say what came
    out; assert report.ok, report.
    """

    def build_in(graph, tensors):
        with building(graph):
            made = build(*tensors)
        return list(made) if isinstance(made, (tuple, list)) else [made]

    def expected(values):
        made = expect(*(np.asarray(v).reshape(i.sizes) for v, i in zip(values, inputs)))
        return [np.asarray(x, np.float64).ravel().tolist() for x in (made if isinstance(made, tuple) else (made,))]

    name = getattr(build, "__name__", "op")
    return _tessera.test_op(name, list(inputs), build_in, None if expect is None else expected, list(types), tolerance32, tolerance64, list(meshes))


test_op.__test__ = False  # type: ignore[attr-defined]  # no test of pytest's
