#!/usr/bin/env python3
"""Writes tests/tokenizer/fixtures/side_files.json: folders that have a tokenizer of tests/tokenizer/fixtures and files beside
it, with the ids and the special tokens that transformers makes of them."""
import json
import pathlib
import shutil
import tempfile

from transformers import AutoTokenizer

FIXTURES = pathlib.Path(__file__).resolve().parents[3] / "tests/tokenizer/fixtures"
TEXTS = ["Call me Ishmael.", " two  spaces\n", "<|im_start|>user\nCall me<|im_end|> now", "</s>a<s> b", "a <tool> b<tool>c", "", "<tool>",
         "x<|im_end|><|im_end|> y", "<|end_of_text|> a", "é▁東 ½"]


def token(text, special=True, **more):
    return {"content": text, "lstrip": False, "rstrip": False, "normalized": False, "single_word": False, "special": special, **more}


MODEL, JSON = "sentencepiece.model", "byte_level.json"
LLAMA = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
FAST = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|begin_of_text|>", "eos_token": "<|end_of_text|>"}
CASES = [
    (MODEL, {"tokenizer_config.json": LLAMA}),
    (MODEL, {"tokenizer_config.json": {**LLAMA, "add_bos_token": False, "add_eos_token": True, "pad_token": "</s>"}}),
    (MODEL, {"tokenizer_config.json": {**LLAMA, "add_prefix_space": False, "add_bos_token": True}}),
    (MODEL, {"tokenizer_config.json": {**LLAMA, "eos_token": "<|im_end|>", "add_bos_token": True, "add_eos_token": False},
             "added_tokens.json": {"<|im_start|>": "SIZE", "<|im_end|>": "SIZE + 1", "<tool>": "SIZE + 2"}}),
    (MODEL, {"tokenizer_config.json": {**LLAMA, "legacy": True, "add_bos_token": True},
             "added_tokens.json": {"<|im_start|>": "SIZE", "<|im_end|>": "SIZE + 1"},
             "special_tokens_map.json": {"eos_token": token("<|im_end|>"), "additional_special_tokens": ["<|im_start|>"]}}),
    (MODEL, {"tokenizer_config.json": {**LLAMA, "add_bos_token": True, "added_tokens_decoder": {
        "0": token("<unk>"), "1": token("<s>"), "2": token("</s>"), "SIZE": token("<|im_start|>", rstrip=True),
        "SIZE + 1": token("<|im_end|>", lstrip=True), "SIZE + 2": token("<tool>", False)}},
        "added_tokens.json": {"<unread>": 5}}),
    (JSON, {"tokenizer_config.json": FAST}),
    (JSON, {"tokenizer_config.json": {**FAST, "add_bos_token": True, "add_eos_token": True}}),
    (JSON, {"tokenizer_config.json": {**FAST, "add_bos_token": False, "eos_token": None}}),
    (JSON, {"tokenizer_config.json": {**FAST, "additional_special_tokens": ["<|end_of_text|>"], "added_tokens_decoder": {
        "SIZE": token("<|im_start|>", rstrip=True), "SIZE + 1": token("<|im_end|>", lstrip=True), "SIZE + 2": token("<tool>", False)}}}),
    (JSON, {"tokenizer_config.json": FAST, "special_tokens_map.json": {"eos_token": token("<|begin_of_text|>")},
            "added_tokens.json": {"<tool>": "SIZE"}}),
]


def main():
    rows = []
    for base, files in CASES:
        with tempfile.TemporaryDirectory() as folder:
            name = "tokenizer.model" if base == MODEL else "tokenizer.json"
            shutil.copy(FIXTURES / base, f"{folder}/{name}")
            pathlib.Path(f"{folder}/config.json").write_text('{"model_type": "llama"}')
            size = len(AutoTokenizer.from_pretrained(folder))
            text = json.dumps(files)
            for i in (2, 1, 0):
                place = "SIZE + " + str(i) if i else "SIZE"
                text = text.replace(f'"{place}": {{', f'"{size + i}": {{').replace(f'"{place}"', str(size + i))
            files = json.loads(text)
            for file, content in files.items():
                pathlib.Path(f"{folder}/{file}").write_text(json.dumps(content))
            t = AutoTokenizer.from_pretrained(folder)
            rows.append({"base": base, "files": files, "bos": t.bos_token_id, "eos": t.eos_token_id, "pad": t.pad_token_id,
                         "ids": [t.encode(x, add_special_tokens=False) for x in TEXTS],
                         "whole": t.encode(TEXTS[0])})
    lines = ",\n".join(json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in rows)
    (FIXTURES / "side_files.json").write_text('{"texts":' + json.dumps(TEXTS, ensure_ascii=False) + ',"rows":[\n' + lines + "\n]}\n")


main()
