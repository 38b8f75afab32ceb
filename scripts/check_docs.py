#!/usr/bin/env python3
"""Checks that the files and folders of this repository which the documents name are there. Prints each that is not and exits
1 if there is one. Checked is what stands in backquotes and begins with a top-level folder, such as `src/lower/lower.cpp`."""

import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDERS = "src|include|kernels|collectives|benchmarks|tests|scripts|examples|docs|data|python"
NAMED = re.compile(rf"`((?:{FOLDERS})/[\w./-]*)[` ]")  # not "mpi*" or "op_cases_<room>"


def main():
    missing = 0
    pages = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/**/*.md")])
    for page in pages:
        for number, line in enumerate(page.read_text().splitlines(), 1):
            for name in NAMED.findall(line):
                if not (ROOT / name.rstrip(".")).exists():
                    print(f"{page.relative_to(ROOT)}:{number}: there is no {name}")
                    missing += 1
    print(f"docs: {f'{missing} missing files' if missing else 'ok'} ({len(pages)} pages)")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
