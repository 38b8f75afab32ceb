"""The ops of bench_ops in PyTorch, one line of JSON each: {"op": ..., "ms": median of the runs after two}.

Convolution is measured with images in both of PyTorch's layouts of memory; the faster counts. So does the faster of
scaled_dot_product_attention and compiled flex_attention, where each can do it.
"""
import argparse
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

parser = argparse.ArgumentParser()
parser.add_argument("--threads", type=int, default=1)
parser.add_argument("--runs", type=int, default=15)
parser.add_argument("--only", default="")
parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"], help="cuda: with larger operands")
parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
args = parser.parse_args()
torch.set_num_threads(args.threads)
on_gpu = args.device == "cuda"


def values(*shape):
    i = torch.arange(torch.Size(shape).numel(), dtype=torch.float64, device=args.device)
    return torch.sin(0.37 * (i * i % 10007)).to(getattr(torch, args.dtype)).reshape(shape)


def median_ms(f, inputs, gradient):
    y = f(*inputs)
    if gradient:
        for x in inputs:
            x.requires_grad_()
        weights = values(*y.shape)
        run = lambda: torch.autograd.grad((f(*inputs) * weights).sum(), inputs)
    else:
        run = lambda: f(*inputs)
    ms = []
    if on_gpu:
        torch.cuda.synchronize()
    with torch.set_grad_enabled(gradient):
        first, warm = time.perf_counter(), 0
        while len(ms) < args.runs:
            start = time.perf_counter()
            run()
            if on_gpu:
                torch.cuda.synchronize()
            if warm >= 2 and start - first > 0.3:
                ms.append(1e3 * (time.perf_counter() - start))
            warm += 1
    return statistics.median(ms)


def product(x, w):
    return torch.einsum("bld,df->blf", x, w)


def attention(q, k, v):
    return F.scaled_dot_product_attention(q, k, v, is_causal=True)


def convolution(x, w):
    return F.conv2d(x, w, padding=1)


def large_filter(x, w):
    return F.conv2d(x, w, padding=4)


def layer_norm(x, scale, bias):
    return F.layer_norm(x, (1024,), scale, bias)


def softmax(x):
    return torch.softmax(x, -1)


def activated(x, bias):
    return F.gelu(x + bias, approximate="tanh")


# On a GPU as much work as fills one, and no convolution: the sizes of bench_ops.
batch, head_count, length, model, ff, rows = (16, 12, 1024, 768, 3072, 16384) if on_gpu else (8, 8, 256, 512, 2048, 2048)
heads = [values(batch, head_count, length, 64) for _ in range(3)]
factors, table = [values(batch, length, model), values(model, ff)], [values(rows, 1024)]
normed, biased = [values(rows, 1024), values(1024), values(1024)], [values(rows, 1024), values(1024)]
CASES = [("einsum", product, [factors], False), ("einsum, gradients", product, [factors], True),
         ("einsum in batches", lambda q, k: torch.einsum("bhld,bhmd->bhlm", q, k), [heads[:2]], False)]
if not on_gpu:
    image = [values(8, 64, 56, 56), values(64, 64, 3, 3)]
    small_image = [values(64, 16, 28, 28), values(16, 16, 9, 9)]
    last, small_last = [[t.contiguous(memory_format=torch.channels_last) for t in way] for way in (image, small_image)]
    CASES += [("conv", convolution, [image, last], False), ("conv, gradients", convolution, [image, last], True),
              ("conv 9x9", large_filter, [small_image, small_last], False),
              ("conv 9x9, gradients", large_filter, [small_image, small_last], True)]
CASES += [("softmax", softmax, [table], False), ("softmax, gradients", softmax, [table], True),
          ("layer_norm", layer_norm, [normed], False), ("layer_norm, gradients", layer_norm, [normed], True),
          ("attention", attention, [heads], False), ("attention, gradients", attention, [heads], True),
          ("top_k", lambda x: torch.topk(x, 8), [[values(rows, 4096)]], False)]


def causal(b, h, query, key):
    return query >= key


def of_four(b, h, query, key):
    return (query >= key) & (query // 1024 == key // 1024)


def in_window(b, h, query, key):
    return (query >= key) & (query - key < 512)


def cap(score, b, h, query, key):
    return 20 * torch.tanh(score / 20)


def structured(mask, length, is_causal=False, score=None):
    """The ways to attend with this structure."""
    blocks = create_block_mask(mask, None, None, length, length, device=args.device)
    flex = torch.compile(flex_attention)
    ways = [lambda q, k, v: flex(q, k, v, score_mod=score, block_mask=blocks)]
    if is_causal:
        ways.append(attention)
    elif score is None:
        i = torch.arange(length)
        seen = mask(0, 0, i[:, None], i[None, :])
        ways.append(lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=seen))
    else:
        i = torch.arange(length)
        seen = mask(0, 0, i[:, None], i[None, :])
        ways.append(lambda q, k, v: torch.softmax(
            (20 * torch.tanh(q @ k.transpose(-1, -2) / 160)).masked_fill(~seen, float("-inf")), -1) @ v)
    return ways


if not on_gpu:
    for name, length, how in [("structure: causal, 4096", 4096, (causal, 4096, True)),
                              ("structure: 4 documents, 4096", 4096, (of_four, 4096)),
                              ("structure: soft cap, 4096", 4096, (causal, 4096, False, cap)),
                              ("structure: causal, 8192", 8192, (causal, 8192, True)),
                              ("structure: window 512, 8192", 8192, (in_window, 8192))]:
        for gradient in (False, True):
            op, times = name + ", gradients" * gradient, []
            if args.only not in op:
                continue
            for f in structured(*how):
                try:
                    times.append(median_ms(f, [values(1, 4, length, 64) for _ in range(3)], gradient))
                except Exception as error:  # flex_attention of some versions has no gradient on a CPU
                    print(f"{op}: {str(error).splitlines()[0][:200]}", file=sys.stderr)
            print(json.dumps({"op": op, "ms": round(min(times), 4)}), flush=True)

if on_gpu:
    CASES += [("bias and gelu", torch.compile(activated), [biased], False)]
for name, f, ways, gradient in CASES:
    if args.only in name:
        ms = min(median_ms(f, [t.detach().clone(memory_format=torch.preserve_format) for t in way], gradient) for way in ways)
        print(json.dumps({"op": name, "ms": round(ms, 4)}), flush=True)
