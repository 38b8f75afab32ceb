#!/usr/bin/env python3
"""A type has one definition: two types of one name in one namespace, in different headers or sources, would share the
functions that the compiler makes for them, and the linker takes either (the one-definition rule). No compiler sees it.
Nor does one see that a file's own function in an inner namespace hides one that a header of `base` declares in an outer
namespace: in a unity build it does so for the files behind it, too."""
import collections
import pathlib
import re
import sys

TYPE = re.compile(r"(?:template <[^>]*>\s*)?(?:struct|class|union|enum class|enum)\s+(?:\[\[\w+\]\] )?(\w+)(?: final)?(?: : [^;]*)? ?\{")
OPENS = re.compile(r"(?:inline )?namespace ?(?:TESSERA_FILE )?([\w:]*) ?\{")  # TESSERA_FILE: a namespace of the file's own

FUNCTION = re.compile(r"(?=\w|\[)(?!return|else|using|typedef|friend|#|//|}|TEST_CASE|TESSERA_)[\w:<>,&*\[\] ]*[\w>&*] [&*]?(\w+)\(")

places = collections.defaultdict(list)
declared, own = {}, []
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
            elif found := FUNCTION.match(line):
                where = f"{path}:{number}"
                if path.suffix == ".h" and path.parts[:2] == ("src", "base"):
                    declared[found.group(1)] = ("::".join(spaces), where)
                elif "" in spaces and path.parts[0] != "tests":
                    own.append((found.group(1), "::".join(spaces[:spaces.index("")]), where))

twice = {name: where for name, where in places.items() if len(where) > 1}
for name, where in sorted(twice.items()):
    print(f"names: {name} is defined in {' and '.join(where)}; rename one, or put what only one file uses into an anonymous namespace")
hides = [(name, where, declared[name][1]) for name, inside, where in own
         if name in declared and inside.startswith(declared[name][0] + "::")]
for name, where, outer in hides:
    print(f"names: {name}() in {where} hides that of {outer}; rename it")
if not twice and not hides:
    print(f"names: ok ({len(places)} types, {len(declared)} functions of base)")
sys.exit(bool(twice or hides))
