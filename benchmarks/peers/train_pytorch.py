"""The training step of train_step.cpp in PyTorch: same shapes, AdamW, random tokens. One line of JSON.

Modes: eager with fused attention and fused AdamW; `--compile` runs it through torch.compile.
"""
import argparse, json, statistics, time

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--steps", type=int, default=20)
parser.add_argument("--dtype", default="float32")
parser.add_argument("--compile", action="store_true")
parser.add_argument("--device", default="cpu")
parser.add_argument("--shape", type=json.loads, default={}, help="JSON of layers, d_model, heads, length, batch, vocab")
args = parser.parse_args()

import torch
import torch.nn as nn
import torch.nn.functional as F

torch.set_num_threads(args.threads)
shape = {"layers": 4, "d_model": 256, "heads": 8, "length": 128, "batch": 8, "vocab": 256, **args.shape}
LAYERS, D, HEADS, T, B, V = (shape[k] for k in ("layers", "d_model", "heads", "length", "batch", "vocab"))


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.n1, self.n2 = nn.LayerNorm(D), nn.LayerNorm(D)
        self.qkv, self.out = nn.Linear(D, 3 * D), nn.Linear(D, D)
        self.up, self.down = nn.Linear(D, 4 * D), nn.Linear(4 * D, D)

    def forward(self, x):
        q, k, v = self.qkv(self.n1(x)).view(B, T, 3, HEADS, D // HEADS).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, D))
        return x + self.down(F.gelu(self.up(self.n2(x)), approximate="tanh"))


class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.tok, self.pos = nn.Embedding(V, D), nn.Parameter(0.02 * torch.randn(T, D))
        self.blocks = nn.Sequential(*[Block() for _ in range(LAYERS)])
        self.norm, self.head = nn.LayerNorm(D), nn.Linear(D, V, bias=False)

    def forward(self, x, y):
        h = self.norm(self.blocks(self.tok(x) + self.pos))
        return F.cross_entropy(self.head(h).float().view(-1, V), y.view(-1))


torch.manual_seed(1)
torch.set_default_device(args.device)
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0, fused=True)
x, y = torch.randint(0, V, (B, T)), torch.randint(0, V, (B, T))


def loss_of(x, y):
    with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
        return model(x, y)


if args.compile:
    loss_of = torch.compile(loss_of)


def step():
    optimizer.zero_grad(set_to_none=True)
    loss = loss_of(x, y)
    loss.backward()
    optimizer.step()
    return loss.item()


for _ in range(3):
    step()
ms = []
for _ in range(args.steps):
    start = time.perf_counter()
    step()
    ms.append(1e3 * (time.perf_counter() - start))
median = statistics.median(ms)
print(json.dumps({"peer": "pytorch" + ("_compile" if args.compile else ""), "version": torch.__version__,
                  "dtype": args.dtype, "threads": args.threads, "ms": round(median, 2),
                  "least_ms": round(min(ms), 2), "tokens_per_s": round(B * T / median * 1e3), "steps": args.steps}))
