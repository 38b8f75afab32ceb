"""Tessera's layout strings as JAX shardings: dim names -> mesh axes, with purposes and scopes."""
import fnmatch
import re

import jax
from jax.sharding import Mesh, NamedSharding, PartitionSpec

PURPOSES = ["none", "params", "grads", "state"]


def parse_mesh(text):
    pairs = [part.split(":") for part in text.split(";")]
    return [name for name, _ in pairs], [int(size) for _, size in pairs]


def parse_rules(text):
    """[(purpose, glob, dim, axes)], in order."""
    rules = []
    for clause in filter(None, (c.strip() for c in text.split(";"))):
        purpose, glob = "none", None
        scoped = re.match(r"@(?P<purpose>\w*)(/(?P<glob>[^/]*)/)?\s+(?P<rest>.*)", clause)
        if scoped:
            purpose, glob, clause = scoped["purpose"] or "none", scoped["glob"], scoped["rest"]
        for names, axes in re.findall(r"([\w?,. ]+):([\w+-]+)", clause):
            for name in filter(None, re.split(r"[,. ]", names)):
                rules.append((purpose, glob, name.rstrip("?"), [] if axes == "-" else axes.split("+")))
    return rules


class Layout:
    def __init__(self, mesh, layout):
        self.axes, self.sizes = parse_mesh(mesh)
        self.rules = parse_rules(layout)
        self.mesh = Mesh(jax.devices()[: self.ranks()], ("ranks",)) if not self.axes else jax.make_mesh(
            self.sizes, self.axes, axis_types=(jax.sharding.AxisType.Auto,) * len(self.axes))

    def ranks(self):
        n = 1
        for size in self.sizes:
            n *= size
        return n

    def has(self, *purposes):
        return any(rule[0] in purposes for rule in self.rules)

    def follows_from(self, dims):
        """Tensors with these dims show every rule."""
        return all(glob is None and dim in dims for _, glob, dim, _ in self.rules)

    def spec(self, dims, name="", purpose="none", prefer=()):
        """The axes of each dim. Of two dims on one axis the one that comes first in `prefer` gets it."""
        held = {d: [] for d in dims}
        decided = set()

        def apply(dim, axes):
            if dim not in held or dim in decided:
                return
            decided.add(dim)
            for axis in axes:
                other = next((d for d in held if axis in held[d]), None)
                order = lambda d: prefer.index(d) if d in prefer else len(prefer)
                if other is None:
                    held[dim].append(axis)
                elif order(dim) < order(other):
                    held[other].remove(axis)
                    held[dim].append(axis)

        for own in (True, False):
            for rule_purpose, glob, dim, axes in self.rules:
                if rule_purpose == "none" and (glob is not None) == own and (not own or fnmatch.fnmatch(name, glob)):
                    apply(dim, axes)
        for p in PURPOSES[1 : 1 + PURPOSES.index(purpose)]:
            for rule_purpose, _, dim, axes in self.rules:
                if rule_purpose == p and dim in held:
                    used = {a for d in held for a in held[d]}
                    held[dim] += [a for a in axes if a not in used]
        return PartitionSpec(*(tuple(held[d]) or None for d in dims))

    def sharding(self, dims, name="", purpose="none", prefer=()):
        return NamedSharding(self.mesh, self.spec(dims, name, purpose, prefer))
