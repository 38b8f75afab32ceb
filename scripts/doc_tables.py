#!/usr/bin/env python3
"""Checks the tables of the manual that repeat facts of the code, or writes them:

    scripts/doc_tables.py            prints each table that differs from the code, and exits 1 if one does
    scripts/doc_tables.py --write    writes them again

A table stands between two marker comments. One of its columns, the purpose of a row, is written by hand and kept; the others
come from the code. Rooms and their rules are those of scripts/check_includes.py, passes those that src/lower/lower.cpp runs,
in its order. Each pass also needs a section of its page, in the same order."""

import itertools
import pathlib
import re
import sys

import check_includes as includes

ROOT = includes.ROOT
ROOMS = ROOT / "docs/explanation/rooms.md"
PASSES = ROOT / "docs/explanation/how-a-model-becomes-a-program.md"
# Fields of LowerOptions that decide whether a pass runs, and the only kind of device for which lowering sets them, if one.
CONDITIONS = {"fuse": "", "overlap": "", "takes_epilogue": "", "reduces_rows_first": "CPU", "fuses_prologues": "GPU",
              "may_own_dot": "GPU", "groups_tensors": "GPU"}


def between(page, name):
    """(text before the table, table, text behind it)."""
    begin, end = f"<!-- {name}: scripts/doc_tables.py -->\n", f"<!-- end of {name} -->"
    before, found, rest = page.read_text().partition(begin)
    table, closed, after = rest.partition(end)
    if not found or not closed:
        sys.exit(f"{page.relative_to(ROOT)}: the markers of '{name}' are missing")
    return before + begin, table, end + after


def purposes(table):
    """By first cell of a row: the second one, which is written by hand."""
    rows = [[cell.strip() for cell in line.strip("| \n").split(" | ")] for line in table.splitlines() if line.startswith("|")]
    return {row[0]: row[1] for row in rows[2:] if len(row) > 1}


def public_headers(room):
    if room in includes.RUN_HALF | {"base"}:
        return "values"
    return "values, model" if room in includes.COMPILE_HALF else "all"


def rooms_table(by_hand):
    rows = ["| room | is for | public headers | rooms and headers that it may include |", "|---|---|---|---|"]
    for room in [*includes.ROOMS, *sorted(includes.SEES_ALL)]:
        folder = f"`{'src/' if (ROOT / 'src' / room).is_dir() else ''}{room}`"
        allowed = ", ".join(f"`{other}`" for other in sorted(includes.ROOMS.get(room, ()))) or "-"
        allowed, public = ("all", "all") if room in includes.SEES_ALL else (allowed, public_headers(room))
        rows.append(f"| {folder} | {by_hand.get(folder, '')} | {public} | {allowed} |")
    return "\n" + "\n".join(rows) + "\n\n"


def passes():
    """(name, device or "") of each pass of lower.cpp. A pass is a name that `after` is told. Its conditions are those of the
    blocks that it is in, and of the `if` right before its call."""
    text = (ROOT / "src/lower/lower.cpp").read_text()
    found, blocks = [], []
    for line in filter(str.strip, text.splitlines()):
        depth = len(line) - len(line.lstrip())
        blocks = [(d, c) for d, c in blocks if d < depth]
        if re.match(r" *if \(.*\{$", line):
            blocks.append((depth, line))
        for name in re.findall(r'after\("(\w+)"', line):
            own = re.findall(rf"if \(([^()]*)\)\s+{name}\w*\(", text)
            conditions = re.findall(r"options\.(\w+)", " ".join([*own, *(c for _, c in blocks)]))
            for c in conditions:
                if c not in CONDITIONS:
                    sys.exit(f"scripts/doc_tables.py: CONDITIONS does not say for which device options.{c} is set")
            found.append((name, "".join(sorted({CONDITIONS[c] for c in conditions}))))
    return found


def passes_table(by_hand):
    rows = [f"`lower` runs these {len(passes())} passes in this order:", "", "| pass | does | runs for |", "|---|---|---|"]
    for name, device in passes():
        cell = f"[{name}](#{name})"
        rows.append(f"| {cell} | {by_hand.get(cell, '')} | {device or 'all'} |")
    return "\n" + "\n".join(rows) + "\n\n"


def sections_that_differ():
    text = PASSES.read_text()
    sections = re.findall(r"^## (\w+)\n\n(?:\*(\w+) only\.\*)?", text, re.M)
    names = {heading for heading, _ in sections if "_" in heading} | {name for name, _ in passes()}
    written = [s for s in sections if s[0] in names]
    for want, have in itertools.zip_longest(passes(), written):
        if want != have:
            shown = ["nothing" if one is None else f"{one[0]} ({one[1] or 'all'})" for one in (have, want)]
            return [f"{PASSES.relative_to(ROOT)}: has a section of {shown[0]} where lower.cpp has {shown[1]}"]
    return []


def main():
    problems = []
    for page, name, table_of in ((ROOMS, "rooms", rooms_table), (PASSES, "passes", passes_table)):
        before, table, after = between(page, name)
        made = table_of(purposes(table))
        where = page.relative_to(ROOT)
        problems += [f"{where}: {row} needs its purpose" for row, text in purposes(made).items() if not text]
        if "--write" in sys.argv:
            page.write_text(before + made + after)
        elif made != table:
            problems.append(f"{where}: the table of {name} differs from the code: scripts/doc_tables.py --write")
    problems += sections_that_differ()
    for problem in problems:
        print(problem)
    print(f"tables: {len(problems)} problems" if problems else "tables: ok")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
