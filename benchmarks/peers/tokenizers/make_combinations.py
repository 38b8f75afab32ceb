#!/usr/bin/env python3
"""Writes tests/tokenizer/fixtures/combinations.json: normalizers, two pre-tokenizers behind one another and added tokens,
combined at random, with the ids that tokenizers gives some texts. The model is a WordPiece of single characters, which has
one id for a character at the front of a piece and another within it, so that ids show where a text was cut."""
import json
import pathlib
import random

from tokenizers import Tokenizer

OUT = pathlib.Path(__file__).resolve().parents[3] / "tests/tokenizer/fixtures/combinations.json"
CHARACTERS = "▁abcdé'<x>.,-123 一\n"
TEXTS = ["", "a", "ab cd", " ab", "  ab  c ", "a1 23b", " 1a", "a.b, c", ".a", "<x> ab", "a<x>b", " <x>a <x>", "ab<x> 1", "é一 a",
         "'a b'c", "a\nb", "\n a", "▁a b", " ", "12", "-a--b-", "<x>", "<x><x>a"]
METASPACES = [{"type": "Metaspace", "replacement": "▁", "prepend_scheme": scheme, "split": split}
              for scheme in ("first", "always", "never") for split in (True, False)]
SPLITS = [{"type": "Split", "pattern": pattern, "behavior": behavior, "invert": invert}
          for pattern in ({"Regex": "[0-9]"}, {"String": " "}, {"Regex": "[-.]+"})
          for behavior in ("Isolated", "Removed", "MergedWithPrevious", "MergedWithNext", "Contiguous") for invert in (False, True)]
OTHERS = [{"type": "WhitespaceSplit"}, {"type": "BertPreTokenizer"}, {"type": "Digits", "individual_digits": True},
          {"type": "Digits", "individual_digits": False}]
NORMALIZERS = [None, None, {"type": "Strip", "strip_left": True, "strip_right": True}, {"type": "Prepend", "prepend": "▁"},
               {"type": "Replace", "pattern": {"String": " "}, "content": "▁"}, {"type": "NFKC"}]
ADDED = [{"id": 1, "content": "<x>", "single_word": False, "lstrip": left, "rstrip": right, "normalized": normalized, "special": False}
         for left, right, normalized in ((False, False, False), (True, False, False), (False, True, False), (False, False, True))]


def main():
    choose = random.Random(7)
    vocab = {"[UNK]": 0, "<x>": 1}
    for c in CHARACTERS:
        for token in (c, "##" + c):
            vocab.setdefault(token, len(vocab))
    model = {"type": "WordPiece", "unk_token": "[UNK]", "continuing_subword_prefix": "##", "max_input_chars_per_word": 100, "vocab": vocab}
    rows = []
    for _ in range(160):
        first, second = choose.choice(METASPACES + OTHERS), choose.choice(METASPACES + SPLITS + OTHERS)
        stages = [first, second] if choose.random() < 0.5 else [second, first]
        row = {"normalizer": choose.choice(NORMALIZERS), "pre_tokenizer": {"type": "Sequence", "pretokenizers": stages},
               "added_tokens": choose.choice([[], [choose.choice(ADDED)]])}
        tokenizer = Tokenizer.from_str(json.dumps({"version": "1.0", "truncation": None, "padding": None, "post_processor": None,
                                                   "decoder": None, "model": model, **row}))
        rows.append({**row, "ids": [tokenizer.encode(text).ids for text in TEXTS]})
    text = json.dumps({"texts": TEXTS, "model": model}, ensure_ascii=False, separators=(",", ":"))
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    OUT.write_text(text[:-1] + ',"rows":[\n' + lines + "\n]}\n")


main()
