#!/usr/bin/env python3
"""Writes tests/pytorch/data: tiny random modules, exported, with the values and gradients that PyTorch computes.

Needs torch, transformers and safetensors; CI reads only what it wrote. Usage: make_fixtures.py [NAME...]"""

import pathlib
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixtures

warnings.filterwarnings("ignore")
FOLDER = pathlib.Path(__file__).parent / "data"


class Block(nn.Module):
    def __init__(self, d, heads, ff):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.qkv, self.out = nn.Linear(d, 3 * d), nn.Linear(d, d)
        self.up, self.down = nn.Linear(d, ff), nn.Linear(ff, d)

    def forward(self, x):
        b, l, d = x.shape
        q, k, v = (t.view(b, l, self.heads, -1).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, -1))
        a = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(a.transpose(1, 2).reshape(b, l, d))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Gpt(nn.Module):
    """Fused queries, keys and values, learned positions."""

    def __init__(self, d=16, vocab=30, layers=2, length=8):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocab, d), nn.Embedding(length, d)
        self.blocks = nn.ModuleList([Block(d, 4, 24) for _ in range(layers)])
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, vocab, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tokens(*shape, vocab=30):
    return torch.randint(3, vocab, shape, generator=torch.Generator().manual_seed(2))


def transformer(kind, auto="AutoModelForCausalLM", **options):
    import transformers

    small = dict(hidden_size=16, intermediate_size=24, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, head_dim=4,
                 vocab_size=30, max_position_embeddings=16, n_embd=16, n_layer=1, n_head=4, n_positions=16, d_model=16, d_ff=24,
                 num_layers=1, num_heads=4, d_kv=4, image_size=16, patch_size=8, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    import inspect

    from transformers.models.auto.configuration_auto import CONFIG_MAPPING

    config = CONFIG_MAPPING[kind]
    known = set(getattr(config, "__dataclass_fields__", {})) or set(inspect.signature(config.__init__).parameters)
    return getattr(transformers, auto).from_config(config(**{k: v for k, v in {**small, **options}.items() if k in known})).eval()


def text(**more):
    return dict(input_ids=tokens(2, 8), **more)


CASES = {
    "gpt": lambda: (Gpt(), (tokens(2, 8),), {}),
    "gpt2": lambda: (transformer("gpt2"), (), text(use_cache=False)),
    "llama": lambda: (transformer("llama"), (), text(use_cache=False)),
    "qwen3": lambda: (transformer("qwen3"), (), text(use_cache=False)),
    "bert": lambda: (transformer("bert", "AutoModel"), (), text()),
    "t5": lambda: (transformer("t5", "AutoModelForSeq2SeqLM"), (), text(decoder_input_ids=tokens(2, 6), use_cache=False)),
    "vit": lambda: (transformer("vit", "AutoModel"), (), dict(pixel_values=torch.randn(2, 3, 16, 16))),
}


def main():
    FOLDER.mkdir(exist_ok=True)
    for name in sys.argv[1:] or CASES:
        torch.manual_seed(0)
        module, args, kwargs = CASES[name]()
        fixtures.write(module, args, kwargs, FOLDER / name)
        print(name, (FOLDER / f"{name}.pt2").stat().st_size, (FOLDER / f"{name}.safetensors").stat().st_size)


if __name__ == "__main__":
    main()
