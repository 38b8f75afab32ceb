#!/usr/bin/env python3
"""Applies the code of a page of the manual to copies of the files that it names.

    apply_page.py PAGE SOURCE --list       prints "add FILE" or "new FILE" for each file
    apply_page.py PAGE SOURCE OUT          writes the files below OUT

A block whose first line says ```cpp title="FILE" new is FILE. A block with `add` is put into the FILE of SOURCE: in a table,
before its first #undef; among test cases, before the last "return rows;"; else before the end of the namespace.
"""
import pathlib
import re
import sys

FENCE = re.compile(r'^```cpp .*?title="([^"]+)".* (add|new)$')


def blocks_of(page):
    """[(file, kind, line of the page, text)]"""
    found, lines, i = [], page.read_text().split("\n"), 0
    while i < len(lines):
        start = FENCE.match(lines[i])
        i += 1
        if not start:
            continue
        end = lines.index("```", i)
        found.append((start.group(1), start.group(2), i + 1, "\n".join(lines[i:end]) + "\n"))
        i = end + 1
    return found


def put(text, block, file):
    if file.endswith(".inc"):
        at = re.search(r"^#undef", text, re.M)
    elif "op_cases" in file:
        at = ([None] + list(re.finditer(r"^  return rows;$", text, re.M)))[-1]
    else:
        at = re.search(r"^}  // namespace tessera$", text, re.M)
    if at is None:
        sys.exit(f"apply_page.py: {file} has no place for what the page adds")
    return text[:at.start()] + block + text[at.start():]


def main():
    page, source, out = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2]), sys.argv[3]
    blocks = blocks_of(page)
    if out == "--list":
        for file, kind in dict.fromkeys((file, kind) for file, kind, *_ in blocks):
            print(kind, file)
        return
    texts = {}
    for file, kind, line, code in blocks:
        marked = f'#line {line} "{page}"\n{code}' if file.endswith(".cpp") else code
        if kind == "new":
            texts[file] = marked
        else:
            texts[file] = put(texts.get(file) or (source / file).read_text(), marked, file)
    for file, text in texts.items():
        path = pathlib.Path(out) / file
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text() != text:
            path.write_text(text)


main()
