import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput,
    RowwiseParallel, SequenceParallel, parallelize_module)
import torch.nn as nn
import torch.nn.functional as F


class Attention(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.depth = width // heads
        self.query, self.key, self.value, self.out = (nn.Linear(width, width) for _ in range(4))

    def forward(self, x):
        split = lambda t: t.unflatten(-1, (-1, self.depth)).transpose(1, 2)
        y = F.scaled_dot_product_attention(*(split(f(x)) for f in (self.query, self.key, self.value)), is_causal=True)
        return self.out(y.transpose(1, 2).flatten(-2))


class MLP(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        return self.down(F.gelu(self.up(x)))


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.mlp = Attention(width, heads), MLP(width)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, vocab, length, width, heads, layers):
        super().__init__()
        self.embedding, self.position = nn.Embedding(vocab, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocab, bias=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + distribute_tensor(self.position, self.embedding.weight.device_mesh, [Shard(0)])
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def parallelize(model, mesh):
    column, row = ColwiseParallel(), RowwiseParallel(output_layouts=Shard(1))
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    for block in model.blocks:
        parallelize_module(block, mesh["model"], {
            "norm1": SequenceParallel(), "attention": gather, "norm2": SequenceParallel(), "mlp": gather,
            "attention.query": column, "attention.key": column, "attention.value": column,
            "attention.out": row, "mlp.up": column, "mlp.down": row})
    parallelize_module(model, mesh["model"], {
        "embedding": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)),
        "norm": SequenceParallel(),
        "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())})
    for block in model.blocks:
        fully_shard(block, mesh=mesh["data"])
    return fully_shard(model, mesh=mesh["data"])
