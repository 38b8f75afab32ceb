#!/usr/bin/env python3
"""Writes the table of src/tokenizer/unicode.cpp: characters whose category is not the same in all versions of Unicode from 14 on,
each with an older one that has the category of Unicode 16 and as many bytes. Its arguments are folders with versions of
unicodedata2, of which one is 16.0.0: pip install --target DIR unicodedata2==16.0.0. Also writes
tests/tokenizer/fixtures/unicode.json: the categories that tokenizers sees of such characters, as ids."""
import json
import pathlib
import re
import subprocess
import sys
import unicodedata

from tokenizers import Tokenizer

FILE = pathlib.Path(__file__).resolve().parents[3] / "src/tokenizer/unicode.cpp"
SHOW = "import sys; sys.path.insert(0, sys.argv[1]); import unicodedata2 as u; print(u.unidata_version, *map(u.category, map(chr, range(0x110000))))"
CATEGORIES = {r"\p{Han}": "h", r"\p{Lu}": "u", r"\p{Ll}": "l", r"\p{Lt}": "t", r"\p{Lm}": "m", r"\p{L}": "o", r"\p{Mn}": "n", r"\p{M}": "c",
              r"\p{Nd}": "d", r"\p{N}": "r", r"\p{Pd}": "p", r"\p{P}": "q", r"\p{Sm}": "x", r"\p{S}": "s", r"\p{Z}": "z",
              r"\p{Cf}": "f", r"\p{C}": "g", r"[^\w]": "w"}
HAN = (range(0x2B739, 0x2B73A), range(0x2EBF0, 0x2EE5E), range(0x31350, 0x323B0))  # the ideographs of Unicode 15 and 15.1


def write_fixture(points):
    """Each category becomes a letter of its own, which is a token of its own."""
    letters = "".join(CATEGORIES.values())
    # What is a letter already has a mark in front, a control character, and neither is looked at again.
    rules = [{"type": "Replace", "pattern": {"Regex": rf"(?<!\x01)(?!\x01){pattern}"}, "content": "\x01" + letter}
             for pattern, letter in CATEGORIES.items()]
    vocab = {"[UNK]": 0}
    for c in letters + "\x01":
        for token in (c, "##" + c):
            vocab[token] = len(vocab)
    file = {"version": "1.0", "truncation": None, "padding": None, "added_tokens": [], "post_processor": None, "decoder": None,
            "normalizer": {"type": "Sequence", "normalizers": rules}, "pre_tokenizer": None,
            "model": {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 9, "vocab": vocab}}
    t = Tokenizer.from_str(json.dumps(file))
    ids = [t.encode(chr(p)).ids for p in points]
    out = FILE.parents[2] / "tests/tokenizer/fixtures/unicode.json"
    out.write_text(json.dumps({"tokenizer": file, "points": points, "ids": ids}, separators=(",", ":")) + "\n")


def main():
    versions = {unicodedata.unidata_version: [unicodedata.category(chr(c)) for c in range(0x110000)]}
    for folder in sys.argv[1:]:
        version, *categories = subprocess.run([sys.executable, "-c", SHOW, folder], capture_output=True, text=True, check=True).stdout.split()
        versions[version] = categories
    assert min(versions) == "14.0.0", "run it with Python 3.11 or 3.10, whose unicodedata is that of Unicode 14"
    right, all_versions = versions["16.0.0"], list(versions.values())
    same = [all(v[c] == right[c] for v in all_versions) for c in range(0x110000)]
    ranges, stand_ins = [], {}
    for c in range(0x110000):
        if same[c]:
            continue
        key = (right[c], any(c in h for h in HAN), len(chr(c).encode()))
        if key not in stand_ins:
            stand_ins[key] = 0x20000 if key[1] else next(
                x for x in range(0x80, 0x110000) if same[x] and right[x] == key[0] and not 0xD800 <= x < 0xE000 and len(chr(x).encode()) == key[2])
        if ranges and ranges[-1][1] == c - 1 and ranges[-1][2] == stand_ins[key]:
            ranges[-1][1] = c
        else:
            ranges.append([c, c, stand_ins[key]])
    rows = ", ".join(f"{{0x{a:X}, 0x{b:X}, 0x{s:X}}}" for a, b, s in ranges)
    write_fixture(sorted({p for a, b, _ in ranges for p in (a - 1, a, b, b + 1) if not 0xD800 <= p < 0xE000 and p < 0x110000} | {0x41, 0x61, 0x37, 0x20, 0x3001, 0x3005, 0x3007, 0x4E00, 0x30FC, 0x31E3}))
    text = FILE.read_text()
    FILE.write_text(re.sub(r"(kNewer\[\] = \{).*?(\};)", lambda m: m[1] + rows + m[2], text, count=1, flags=re.S))


main()
