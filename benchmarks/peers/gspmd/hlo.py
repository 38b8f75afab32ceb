"""Bytes that a rank sends in a compiled HLO module, by kind, counted as collectives/cost.h counts them.

Two things that XLA's compilers for other devices do and the one for CPUs leaves undone are counted as if it did them:
an all-reduce of which every reader takes the rank's own slice is a reduce-scatter, and of a sum of all-reduces over
the same groups that nothing else reads only one counts, as does one of several equal permutes of one operand.
Collectives in a while loop count once an iteration.
"""
import re
from collections import defaultdict

import numpy as np

SIZES = {"pred": 1, "s8": 1, "u8": 1, "bf16": 2, "f16": 2, "s32": 4, "u32": 4, "f32": 4, "s64": 8, "u64": 8, "f64": 8}
KINDS = ["all-reduce", "reduce-scatter", "all-gather", "all-to-all", "collective-permute"]


def shape_bytes(text):
    total = 0
    for dtype, dims in re.findall(r"\b(\w+)\[([\d,]*)\]", text):
        if dtype in SIZES:
            n = SIZES[dtype]
            for d in filter(None, dims.split(",")):
                n *= int(d)
            total += n
    return total


class Instruction:
    def __init__(self, line):
        name, rest = re.match(r"\s*(?:ROOT )?%?([\w.\-]+) = (.*)", line).groups()
        self.name, self.root = name, line.lstrip().startswith("ROOT")
        if rest.startswith("("):
            depth = 0
            for end, c in enumerate(rest):
                depth += (c == "(") - (c == ")")
                if depth == 0:
                    break
            self.shape, rest = rest[: end + 1], rest[end + 1 :].lstrip()
        else:
            self.shape, rest = rest.split(" ", 1)
        self.shape = re.sub(r"\{[^}]*\}|/\*.*?\*/", "", self.shape)
        self.op = re.match(r"[\w\-]+", rest)[0]
        depth, start = 0, rest.index("(")
        for end in range(start, len(rest)):
            depth += (rest[end] == "(") - (rest[end] == ")")
            if depth == 0:
                break
        self.operands = re.findall(r"%([\w.\-]+)", rest[start:end])
        self.literal, self.attrs = rest[start + 1 : end], rest[end + 1 :]

    def called(self):
        names = re.findall(r"(?:calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)", self.attrs)
        for group in re.findall(r"(?:branch_computations|called_computations)=\{([^}]*)\}", self.attrs):
            names += re.findall(r"%?([\w.\-]+)", group)
        return names


def parse(text):
    """{computation: {name: Instruction}}, name of the entry."""
    computations, entry, current = {}, None, None
    for line in text.splitlines():
        head = re.match(r"(ENTRY )?%?([\w.\-]+) (?:\(.*)?.*\{$", line)
        if head and not line.startswith(" ") and "=" not in line.split("(")[0]:
            current = computations.setdefault(head[2], {})
            entry = head[2] if head[1] else entry
        elif line.startswith("}"):
            current = None
        elif current is not None and " = " in line:
            instruction = Instruction(line)
            current[instruction.name] = instruction
    return computations, entry


def iota(text, ranks):
    """The devices of "[2,4]T(1,0)": 0, 1, ... in that shape, transposed, in a row."""
    shape, order = re.match(r"\[([\d,]*)\](?:T\(([\d,]*)\))?", text).groups()
    devices = np.arange(ranks).reshape([int(n) for n in shape.split(",")])
    return (devices.transpose([int(n) for n in order.split(",")]) if order else devices).reshape(-1)


def groups_of(instruction, ranks):
    """The groups of ranks of a collective, from lists, tiles of an iota or axes of a mesh."""
    attrs = instruction.attrs
    if listed := re.search(r"replica_groups=\{(\{.*?\})?\}", attrs):
        rows = re.findall(r"\{([\d,]+)\}", listed[1] or "")
        return {tuple(int(n) for n in row.split(",")) for row in rows} or {tuple(range(ranks))}
    if tiled := re.search(r"replica_groups=\[([\d,]+)\]<=(\[[\d,]+\](?:T\([\d,]+\))?)", attrs):
        return {tuple(row) for row in iota(tiled[2], ranks).reshape([int(n) for n in tiled[1].split(",")])}
    mesh = re.search(r"replica_groups=mesh\[(.*?)\](?:, device_ids=\((.*?\))\))? \{(.*?)\}", attrs)
    if not mesh or "(" in mesh[3]:
        raise ValueError(f"{instruction.name}: no replica_groups that are understood in {attrs}")
    names, sizes = zip(*re.findall(r"'(\w+)'=(\d+)", mesh[1]))
    devices = (iota(mesh[2], ranks) if mesh[2] else np.arange(ranks)).reshape([int(n) for n in sizes])
    over = [names.index(axis) for axis in re.findall(r"'(\w+)'", mesh[3])]
    n = int(np.prod([int(sizes[a]) for a in over]))
    return {tuple(sorted(row)) for row in np.moveaxis(devices, over, range(-len(over), 0)).reshape(-1, n).tolist()}


def group_size(instruction, ranks):
    return len(next(iter(groups_of(instruction, ranks))))


def others(size, n):
    """bytes * (n - 1) / n, rounded up."""
    return size - size // n


class Counter:
    def __init__(self, text, ranks):
        self.computations, self.entry = parse(text)
        self.ranks = ranks
        self.users = {}
        for name, body in self.computations.items():
            users = self.users[name] = defaultdict(list)
            for instruction in body.values():
                for i, operand in enumerate(instruction.operands):
                    users[operand].append((instruction, i))

    def only_sliced(self, computation, name, whole, factor):
        """Every reader takes at most whole / factor bytes of it by a dynamic-slice."""
        users = self.users[computation][name]
        if not users:
            return False
        for user, position in users:
            if user.op == "dynamic-slice" and position == 0:
                if shape_bytes(user.shape) * factor > whole:
                    return False
            elif user.op in ("bitcast", "copy", "reshape", "transpose"):
                if not self.only_sliced(computation, user.name, whole, factor):
                    return False
            elif user.op in ("fusion", "call") and user.called():
                inner = user.called()[0]
                parameter = next(p for p in self.computations[inner].values()
                                 if p.op == "parameter" and p.literal.strip() == str(position))
                if parameter.root or not self.only_sliced(inner, parameter.name, whole, factor):
                    return False
            else:
                return False
        return True

    def parts(self, computation, instruction):
        """(name, bytes) of the results of a collective that may have several."""
        if not instruction.shape.startswith("("):
            return [(instruction.name, shape_bytes(instruction.shape))]
        return [(u.name, shape_bytes(u.shape)) for u, _ in self.users[computation][instruction.name]]

    def source(self, computation, name):
        """(groups, all-reduce) of the all-reduce that `name` is a result of, if nothing else reads it."""
        body, users = self.computations[computation], self.users[computation]
        while len(users[name]) == 1:
            i = body[name]
            if i.op == "all-reduce":
                return tuple(sorted(groups_of(i, self.ranks))), i
            if i.op == "get-tuple-element" and body[i.operands[0]].op == "all-reduce":
                i = body[i.operands[0]]
                return tuple(sorted(groups_of(i, self.ranks))), i
            if i.op not in ("bitcast", "copy", "reshape"):
                return None
            name = i.operands[0]
        return None

    def summands(self, computation, name, above):
        """What an add adds up, through adds that nothing else reads, as (computation, name)."""
        i = self.computations[computation][name]
        if i.op == "add" and (above is None or len(self.users[computation][name]) == 1):
            return [s for operand in i.operands for s in self.summands(computation, operand, i)]
        return [(computation, name)]

    def added_up(self, computation):
        """Bytes of all-reduces that one on their sum would save."""
        saved, body = 0, self.computations[computation]
        for outer in body.values():
            inner = outer.called()[0] if outer.op == "fusion" else computation
            adds = [outer] if outer.op == "add" else self.computations[inner].values() if outer.op == "fusion" else []
            for add in adds:
                if add.op != "add" or any(u.op == "add" for u, _ in self.users[inner][add.name]):
                    continue
                groups = defaultdict(list)
                for where, name in self.summands(inner, add.name, None):
                    i = self.computations[where][name]
                    if outer.op == "fusion":
                        while i.op in ("bitcast", "copy", "reshape") and len(self.users[where][i.name]) == 1:
                            i = self.computations[where][i.operands[0]]
                        if i.op != "parameter" or len(self.users[where][i.name]) != 1:
                            continue
                        name = outer.operands[int(i.literal)]
                    found = self.source(computation, name)
                    if found:
                        groups[found[0]].append((name, found[1]))
                for members in groups.values():
                    for name, reduced in members[1:]:
                        n = group_size(reduced, self.ranks)
                        saved += 2 * others(shape_bytes(body[name].shape), n)
        return saved

    def count(self):
        sent = defaultdict(float)
        self.walk(self.entry, 1, sent)
        return {k: round(sent[k]) for k in KINDS if sent[k]}

    def walk(self, computation, times, sent):
        sent["all-reduce"] -= times * self.added_up(computation)
        permuted = set()
        for i in self.computations[computation].values():
            op = i.op.removesuffix("-start")
            n = group_size(i, self.ranks) if op in KINDS[:4] else 1
            if op == "all-reduce":
                for name, size in self.parts(computation, i):
                    scattered = self.only_sliced(computation, name, size, n)
                    sent["reduce-scatter" if scattered else "all-reduce"] += times * others(size, n) * (2 - scattered)
            elif op in ("all-gather", "reduce-scatter"):
                for _, size in self.parts(computation, i):
                    sent[op] += times * others(size * (n if op == "reduce-scatter" else 1), n)
            elif op == "all-to-all":
                sent[op] += times * others(shape_bytes(i.shape), n)
            elif op == "collective-permute":
                listed = re.search(r"source_target_pairs=\{((?:\{\d+,\d+\},?)*)\}", i.attrs)[1]
                pairs = re.findall(r"\{(\d+),(\d+)\}", listed)
                moving = sum(a != b for a, b in pairs)
                if (known := (*i.operands, *pairs)) in permuted:
                    continue
                permuted.add(known)
                sent["collective-permute"] += times * shape_bytes(i.shape) * moving / self.ranks
            elif i.op == "while":
                trips = re.search(r'known_trip_count"?:\s*\{"?n"?:"?(\d+)', i.attrs)
                if not trips:
                    raise ValueError(f"while loop {i.name} has no known trip count")
                body = re.search(r"body=%?([\w.\-]+)", i.attrs)[1]
                self.walk(body, times * int(trips[1]), sent)
            elif i.op in ("call", "conditional", "fusion"):
                for name in i.called():
                    self.walk(name, times, sent)


def bytes_sent(text, ranks):
    return Counter(text, ranks).count()
