#!/usr/bin/env python3
"""A type has one definition: two types of one name in one namespace, in different headers or sources, would share the
functions that the compiler makes for them, and the linker takes either (the one-definition rule). No compiler sees it."""
import collections
import pathlib
import re
import sys

TYPE = re.compile(r"(?:template <[^>]*>\s*)?(?:struct|class|union|enum class|enum)\s+(?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^;]*)? ?\{")
OPENS = re.compile(r"(?:inline )?namespace ?(?:TESSERA_FILE )?([\w:]*) ?\{")  # TESSERA_FILE: a namespace of the file's own

places = collections.defaultdict(list)
for folder in ("src", "kernels", "collectives", "include", "tests", "benchmarks"):
    for path in sorted(pathlib.Path(folder).rglob("*")):
        if path.suffix not in (".h", ".cpp"):
            continue
        spaces = []
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if opens := OPENS.match(line):
                spaces.append(opens.group(1))
            elif line.startswith("}  // namespace") and spaces:
                spaces.pop()
            elif (found := TYPE.match(line)) and "" not in spaces:
                places["::".join([*spaces, found.group(1)])].append(f"{path}:{number}")

twice = {name: where for name, where in places.items() if len(where) > 1}
for name, where in sorted(twice.items()):
    print(f"names: {name} is defined in {' and '.join(where)}; rename one, or put what only one file uses into an anonymous namespace")
if not twice:
    print(f"names: ok ({len(places)} types)")
sys.exit(bool(twice))
