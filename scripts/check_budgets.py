#!/usr/bin/env python3
"""Names what is large: files of more than 400 lines and functions of more than 60 (bodies under kernels/ excepted). That
is advice: code is cut by responsibility, not to meet a number. Exits 1 only if something is left as a note to do later.
Functions are found by counting braces in text without comments, strings and preprocessor lines: a heuristic that needs
no compiler."""

import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
MAX_FILE, MAX_FUNCTION = 400, 60
LATER = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
CODE = re.compile(r'''//[^\n]*|/\*.*?\*/|R"(?P<tag>[^()\s"]*)\(.*?\)(?P=tag)"|"(?:\\.|[^"\\\n])*"|(?<![0-9A-Za-z_])'(?:\\.|[^'\\\n])+' ''',
                  re.S | re.X)
PREPROCESSOR = re.compile(r"^[ \t]*#(?:[^\n\\]|\\\n|\\.)*", re.M)


def files():
    """All text files under version control, or below the root where there is none."""
    if (ROOT / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "ls-files", "-co", "--exclude-standard"]
        names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    else:
        names = [p.relative_to(ROOT).as_posix() for p in ROOT.rglob("*") if not p.relative_to(ROOT).parts[0].startswith("build")]
    return sorted(n for n in set(names) if n and (ROOT / n).is_file() and not n.startswith((".git/", "data/")))


def plain(text):
    """The code with everything that may hold a stray brace blanked out, line by line."""
    blank = lambda m: re.sub(r"[^\n]", " ", m.group(0))
    return PREPROCESSOR.sub(blank, CODE.sub(blank, text))


def kind_of(header):
    """What the brace after `header` opens: scope (namespace, class), function, or other."""
    header = re.sub(r"^\s*(public|private|protected)\s*:(?!:)", "", header).strip()
    if re.search(r"\bnamespace\b", header) or re.fullmatch(r'extern\s*', header):
        return "scope"
    if re.match(r"(template\s*<.*>\s*)?(typedef\s+)?(class|struct|union|enum)\b", header, re.S) and not header.endswith(")"):
        return "scope"
    if "(" not in header or re.search(r"[=,(\[{]\s*[\w:<>]*\s*$", header):
        return "other"
    return "function"


def functions(text):
    """(name, first line, lines) of every function that is not inside another."""
    code, stack, start = plain(text), [], 0
    for match in re.finditer(r"[{};]", code):
        at = match.start()
        if match.group() == "{":
            inside = any(kind == "function" for kind, _, _ in stack)
            header = code[start:at]
            first = start + len(header) - len(header.lstrip())
            stack.append(("nested" if inside else kind_of(header), header.strip(), first))
        elif match.group() == "}" and stack:
            kind, header, first = stack.pop()
            if kind == "function":
                line = text.count("\n", 0, first) + 1
                names = re.findall(r"([~\w:]+(?:operator\S+)?)\s*\(", header)
                yield (names[0] if names else "?"), line, text.count("\n", 0, at) + 2 - line
        start = at + 1


def check(name, problems, advice):
    try:
        text = (ROOT / name).read_text()
    except UnicodeDecodeError:
        return
    is_code = name.endswith((".h", ".cpp", ".cu", ".cuh", ".inc"))
    is_script = name.startswith(("scripts/", ".ci/")) or name.endswith((".py", ".cmake", "CMakeLists.txt"))
    lines = text.count("\n")
    if (is_code or is_script) and lines > MAX_FILE:
        advice.append(f"{name}: {lines} lines")
    for found in LATER.finditer(text):
        problems.append(f"{name}:{text.count(chr(10), 0, found.start()) + 1}: {found.group()}: do it or open an issue")
    if is_code and not name.startswith("kernels/"):
        for function, line, length in functions(text):
            if length > MAX_FUNCTION:
                advice.append(f"{name}:{line}: {function}() has {length} lines")


def main():
    problems, advice, names = [], [], files()
    for name in names:
        check(name, problems, advice)
    for large in advice:
        print(f"advice: {large}")
    for problem in problems:
        print(problem)
    print(f"sizes: {len(advice)} large in {len(names)} files (advice), {len(problems)} notes left")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
