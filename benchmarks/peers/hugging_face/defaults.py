#!/usr/bin/env python3
"""Writes tests/io/fixtures/config_defaults.json: for each model of tests/models and each key of its family's configuration
class in transformers, what a config.json without the key means, and what null means. "refused": transformers refuses it."""
import json
import pathlib

import transformers

ROOT = pathlib.Path(__file__).resolve().parents[3]


def value(config, key):
    try:
        made = transformers.CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k != "model_type"})
        found = made.to_dict().get(key, "absent")
        json.dumps(found)
        return found
    except Exception:  # whatever it is: transformers does not read such a file
        return "refused"


def main():
    common = set(transformers.PretrainedConfig().to_dict()) - {"tie_word_embeddings"}
    result = {}
    for path in sorted(ROOT.glob("tests/models/*/config.json")):
        config = json.loads(path.read_text())
        made = transformers.CONFIG_MAPPING[config["model_type"]](**{k: v for k, v in config.items() if k != "model_type"})
        rows = {}
        for key in sorted(set(config) | set(made.to_dict())):
            if key in common or key.endswith("_token_id") or key == "model_type" or "layer_types" in key:
                continue
            rest = {k: v for k, v in config.items() if k != key}
            rows[key] = {"missing": value(rest, key), "null": value({**rest, key: None}, key)}
        result[path.parent.name] = rows
    lines = ",\n".join(f"{json.dumps(name)}:{json.dumps(rows, separators=(',', ':'))}" for name, rows in result.items())
    (ROOT / "tests/io/fixtures/config_defaults.json").write_text("{\n" + lines + "\n}\n")


main()
