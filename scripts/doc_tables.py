#!/usr/bin/env python3
"""Checks the tables of the manual that repeat facts of the code, or writes them:

    scripts/doc_tables.py            prints each table that differs from the code, and exits 1 if one does
    scripts/doc_tables.py --write    writes them again

A table stands between two marker comments. The purpose of a room is written by hand and kept; all else comes from the code:
rooms and their rules from scripts/check_includes.py, passes from the table of src/lower/lower.cpp. Each pass also needs a
section of its page, in the same order."""

import itertools
import pathlib
import re
import sys

import check_includes as includes

ROOT = includes.ROOT
ROOMS = ROOT / "docs/explanation/rooms.md"
PASSES = ROOT / "docs/explanation/how-a-model-becomes-a-program.md"

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
    """(name, device or "", purpose) of each row of the table in lower.cpp."""
    text = (ROOT / "src/lower/lower.cpp").read_text()
    rows = re.findall(r'\{"(\w+)", Target::(\w+), Needs::\w+,\s*"([^"]*)",', text)
    return [(name, {"any": "", "cpu": "CPU", "gpu": "GPU"}[target], does) for name, target, does in rows]


def passes_table(_):
    rows = [f"`lower` runs these {len(passes())} passes in this order:", "", "| pass | does | runs for |", "|---|---|---|"]
    rows += [f"| [{name}](#{name}) | {does} | {device or 'all'} |" for name, device, does in passes()]
    return "\n" + "\n".join(rows) + "\n\n"


def sections_that_differ():
    text = PASSES.read_text()
    sections = re.findall(r"^## (\w+)\n\n(?:\*(\w+) only\.\*)?", text, re.M)
    names = {heading for heading, _ in sections if "_" in heading} | {row[0] for row in passes()}
    written = [s for s in sections if s[0] in names]
    for want, have in itertools.zip_longest((row[:2] for row in passes()), written):
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
