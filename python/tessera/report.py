"""Reports: text everywhere, tables in a notebook."""
from __future__ import annotations

import html
from typing import Any

from . import _tessera

_UNITS = ["B", "kB", "MB", "GB", "TB"]


def _bytes(n):
    unit = 0
    while n >= 1000 and unit + 1 < len(_UNITS):
        n, unit = n / 1000, unit + 1
    return f"{n:.0f} B" if unit == 0 else f"{n:.1f} {_UNITS[unit]}"


def _seconds(s):
    return f"{s * 1e6:.1f} us" if s < 1e-3 else f"{s * 1e3:.2f} ms" if s < 1 else f"{s:.2f} s"


def _table(caption, head, rows):
    cells = lambda row, tag: "<tr>" + "".join(f"<{tag} style='text-align:left'>{html.escape(str(x))}</{tag}>" for x in row) + "</tr>"
    return f"<table><caption>{html.escape(caption)}</caption>{cells(head, 'th')}{''.join(cells(r, 'td') for r in rows)}</table>"


class _Report:
    """A report of the engine: str() is its text."""

    def __init__(self, report: Any):
        self._report = report

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self._report, name)

    def __str__(self) -> str:
        return str(self._report)

    def __repr__(self) -> str:
        return str(self._report)


class Explanation(_Report):
    """How a layout runs a model: .collectives, .memory, .notes."""

    def _repr_html_(self) -> str:
        rows = [(c["kind"], c["axes"], c["tensor"], _bytes(c["bytes"]), c["rule"], c["source"]) for c in self.collectives]
        sent = sum(c["bytes"] for c in self.collectives)
        caption = f"{len(rows)} collectives; a rank sends {_bytes(sent)} in a step"
        memory = [(name, _bytes(n)) for name, n in self.memory.items()]
        return _table(caption, ("collective", "axes", "tensor", "sent", "rule", "line"), rows) + _table("memory of a rank", ("of", "bytes"), memory)


class Plan(_Report):
    """What the planner found: .mesh and .layout for compile(), .seconds, .memory, .plans."""

    def _repr_html_(self) -> str:
        rows = [(p["mesh"], p["layout"], _seconds(p["seconds"]), _seconds(p["compute"]), _seconds(p["exposed"]), _bytes(p["memory"])) for p in self.plans]
        caption = "the best plan" + (" (proved)" if self.optimal else "") + " and its runners-up"
        return _table(caption, ("mesh", "layout", "step", "compute", "exposed", "memory"), rows)
