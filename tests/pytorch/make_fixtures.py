#!/usr/bin/env python3
"""Writes tests/pytorch/data: tiny random modules, exported, with the values and gradients that PyTorch computes.

Needs torch, transformers and safetensors; CI reads only what it wrote. Usage: make_fixtures.py [NAME...]"""

import json
import math
import pathlib
import sys
import warnings
import zipfile

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


class Periods(nn.Module):
    """A dense layer, then layers of two kinds in turn, one of which sees a window and one all that stands in front; experts look their matrices up."""

    def __init__(self, d=8, layers=4, experts=3):
        super().__init__()
        self.tokens, self.first = nn.Embedding(12, d), nn.Linear(d, d, bias=False)
        self.layers = nn.ModuleList(nn.ModuleDict(dict(qkv=nn.Linear(d, 3 * d, bias=False), out=nn.Linear(d, d, bias=False), gate=nn.Linear(d, experts, bias=False))) for _ in range(layers))
        for layer in self.layers:
            layer.register_parameter("up", nn.Parameter(torch.randn(experts, 12, d) * 0.3))
            layer.register_parameter("down", nn.Parameter(torch.randn(experts, d, 6) * 0.3))

    def experts(self, layer, x):
        flat = x.reshape(-1, x.shape[-1])
        gates, chosen = torch.topk(torch.softmax(layer["gate"](flat), -1), 2, -1)
        gates /= gates.sum(-1, keepdim=True)
        rows, token = chosen.reshape(-1), torch.arange(flat.shape[0]).repeat_interleave(2)
        gate, up = torch.bmm(layer.up[rows], flat[token].unsqueeze(-1)).squeeze(-1).chunk(2, -1)
        out = torch.bmm(layer.down[rows], (F.silu(gate) * up).unsqueeze(-1)).squeeze(-1) * gates.reshape(-1, 1)
        return torch.zeros_like(flat).index_add_(0, token, out).view_as(x)

    def forward(self, tokens):
        x = self.tokens(tokens)
        x = x + torch.tanh(self.first(x))
        at = torch.arange(tokens.shape[1])
        for i, layer in enumerate(self.layers):
            q, k, v = layer["qkv"](x).view(*x.shape[:2], 3, 2, 4).permute(2, 0, 3, 1, 4)
            seen = (at[:, None] >= at) & (at[:, None] - at < (3 if i % 2 == 0 else 99))
            x = x + layer["out"](F.scaled_dot_product_attention(q, k, v, attn_mask=seen).transpose(1, 2).reshape(x.shape))
            x = x + self.experts(layer, x)
        return x


class Rows(nn.Module):
    """Experts with biases that a loop takes rows for, in two spellings; a complex constant, distances, and a parameter without elements."""

    def __init__(self, d=4, experts=3):
        super().__init__()
        self.gate = nn.Linear(d, experts)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(d, 6), nn.GELU(), nn.Linear(6, d)) for _ in range(experts))
        self.none = nn.Parameter(torch.zeros(0, d))
        self.register_buffer("turns", torch.polar(torch.ones(3, 2), torch.arange(6.0).view(3, 2)), persistent=False)

    def forward(self, x):
        flat = torch.cat([self.none, x.reshape(-1, 4)])
        gates, chosen = torch.topk(torch.softmax(self.gate(flat), -1), 2, -1)
        one, two = torch.zeros_like(flat), torch.zeros_like(flat)
        mask = F.one_hot(chosen, 3).permute(2, 1, 0)
        for e, expert in enumerate(self.experts):
            choice, token = torch.where(mask[e])
            one.index_add_(0, token, expert(flat[None, token].reshape(-1, 4)) * gates[token, choice, None])
            token, choice = torch.where(chosen == e)
            two[token] += gates[token, choice].unsqueeze(-1) * torch.tanh(expert(flat[token]))
        turned = torch.view_as_real(torch.view_as_complex(x.reshape(2, 3, 2, 2)) * self.turns).flatten(2)
        return one.view_as(x), two.view_as(x), torch.cdist(torch.select_scatter(turned, x[:, 0], 1, 2), x).mT


def writes():
    def views(m, x, i):
        y = x * m.a
        y[:, 1] = y[:, 0] * 2
        y[..., 1:3] += 1
        return torch.negative(y).multiply(y)

    return [views, lambda m, x, i: F.bilinear(x, x.flip(1), m.w)]


class ScaledGpt(Gpt):
    """With a buffer."""

    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens):
        return super().forward(tokens) * self.scale


class Many(nn.Module):
    """Functions of one kind, each of which is an output: a fixture for the rows of the table."""

    def __init__(self, functions, **shapes):
        super().__init__()
        self.functions = functions
        for name, shape in shapes.items():
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(len(name))) * 0.7))

    def forward(self, x, i):
        return tuple(f(self, x, i) for f in self.functions)


def pointwise():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], b [4], p > 0."""
    T = torch
    return [
        lambda m, x, i: m.a + x, lambda m, x, i: T.sub(m.a, x, alpha=2), lambda m, x, i: 1 - m.a, lambda m, x, i: m.a * m.b,
        lambda m, x, i: m.a / (x * x + 1), lambda m, x, i: T.div(m.a, 0.3, rounding_mode="floor") * m.b,
        lambda m, x, i: T.div(m.a, 0.3, rounding_mode="trunc") * m.b, lambda m, x, i: i // 2, lambda m, x, i: i % 3,
        lambda m, x, i: T.maximum(m.a, x), lambda m, x, i: T.minimum(m.a, x), lambda m, x, i: m.a**2, lambda m, x, i: m.a**3,
        lambda m, x, i: (m.a * m.a + 1) ** -0.5, lambda m, x, i: (m.a * m.a + 1) ** x, lambda m, x, i: 2.0**m.a,
        lambda m, x, i: T.addcmul(m.a, x, m.b, value=0.5), lambda m, x, i: T.addcdiv(m.a, x, m.b * m.b + 1),
        lambda m, x, i: T.lerp(m.a, x, 0.3), lambda m, x, i: (m.a == x) | (m.a != x), lambda m, x, i: (m.a < x) & (m.b <= x),
        lambda m, x, i: (m.a > x) ^ (m.b >= x), lambda m, x, i: ~(m.a > 0.5), lambda m, x, i: T.logical_not(i > 3),
        lambda m, x, i: -m.a, lambda m, x, i: m.a.abs(), lambda m, x, i: m.a.sign() * m.b, lambda m, x, i: m.a.exp(),
        lambda m, x, i: T.exp2(m.a), lambda m, x, i: T.expm1(m.a), lambda m, x, i: (m.a * m.a + 1).log(), lambda m, x, i: (m.a * m.a + 1).log2(),
        lambda m, x, i: (m.a * m.a).log1p(), lambda m, x, i: (m.a * m.a + 1).sqrt(), lambda m, x, i: (m.a * m.a + 1).rsqrt(),
        lambda m, x, i: (m.a * m.a + 1).reciprocal(), lambda m, x, i: m.a.square(), lambda m, x, i: m.a.sin(), lambda m, x, i: m.a.cos(),
        lambda m, x, i: m.a.tanh(), lambda m, x, i: m.a.sigmoid(), lambda m, x, i: F.logsigmoid(m.a), lambda m, x, i: F.relu(m.a),
        lambda m, x, i: F.relu6(m.a * 9), lambda m, x, i: F.silu(m.a), lambda m, x, i: F.hardsigmoid(m.a * 4), lambda m, x, i: F.hardswish(m.a * 4),
        lambda m, x, i: F.mish(m.a), lambda m, x, i: m.a.erf(), lambda m, x, i: (m.a * 3).floor() * m.b, lambda m, x, i: (m.a * 3).ceil() * m.b,
        lambda m, x, i: (m.a * 3).round() * m.b, lambda m, x, i: F.gelu(m.a), lambda m, x, i: F.gelu(m.a, approximate="tanh"),
        lambda m, x, i: F.elu(m.a, 0.7), lambda m, x, i: F.softplus(m.a * 9, 2, 5), lambda m, x, i: F.leaky_relu(m.a, 0.2),
        lambda m, x, i: F.hardtanh(m.a), lambda m, x, i: m.a.clamp(-0.4, 0.6), lambda m, x, i: m.a.clamp(min=m.b),
        lambda m, x, i: T.where(m.a > x, m.a, m.b), lambda m, x, i: T.where(m.a > x, m.a, 0.5), lambda m, x, i: m.a.masked_fill(x > 0, -2.0),
        lambda m, x, i: T.isnan(m.a), lambda m, x, i: T.isinf(m.a / (x - x)), lambda m, x, i: m.a.to(T.float64) * 0.1, lambda m, x, i: i.to(T.float32) * m.b[:3],
        lambda m, x, i: m.a.detach() * m.b, lambda m, x, i: m.a.type_as(x).clone().contiguous()]


def ties():
    """Where functions have a corner: a [2, 7] has 0, the ends of intervals, and equal elements."""
    T = torch
    return [
        lambda m, x, i: F.relu(m.a), lambda m, x, i: F.relu6(m.a), lambda m, x, i: F.hardtanh(m.a), lambda m, x, i: m.a.clamp(-1, 1), lambda m, x, i: F.leaky_relu(m.a),
        lambda m, x, i: F.elu(m.a), lambda m, x, i: F.hardswish(m.a), lambda m, x, i: F.hardsigmoid(m.a), lambda m, x, i: m.a.abs(), lambda m, x, i: T.maximum(m.a, m.b),
        lambda m, x, i: T.minimum(m.a, m.b), lambda m, x, i: m.a.max(1)[0], lambda m, x, i: m.a.min(0)[0], lambda m, x, i: m.a.amax(1), lambda m, x, i: m.a.amin(0),
        lambda m, x, i: m.a.max(), lambda m, x, i: m.a.clamp(min=m.b), lambda m, x, i: m.a.sort(1)[0], lambda m, x, i: m.a.topk(3, 1)[0],
        lambda m, x, i: F.softplus(m.a, 1, 3)]


def shapes():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], b [6, 8]."""
    T = torch

    def uneven(m, x, i):
        return m.a.transpose(0, 1).reshape(4, 6)

    def written(m, x, i):
        y = m.a * 1.0
        y[:, 1] = x[:, 0]
        y[:, :, 1:3] += 1.0
        y[:, :, ::2] = m.a[:, :, 1::2]
        return y * y

    def view_of_written(m, x, i):
        y = m.a * 1.0
        rows = y.view(6, 4)
        y[0].mul_(2.0)
        rows[3].add_(1.0)
        return y + rows.view(2, 3, 4)

    def copy_is_no_view(m, x, i):
        y = m.a * 1.0
        turned = y.transpose(0, 1).reshape(6, 4)  # copies
        turned[0].mul_(2.0)
        same = y.to(T.float32).contiguous()  # does not
        same[1].add_(1.0)
        return y.sum(0) + turned[:3] + same[0]

    return [
        uneven, written, view_of_written, copy_is_no_view, lambda m, x, i: m.b.view(2, 3, 8) * m.b.view(2, 3, 2, 4).flatten(2), lambda m, x, i: m.b.unflatten(1, (2, -1)),
        lambda m, x, i: m.a.permute(2, 0, 1), lambda m, x, i: m.a.transpose(0, 2), lambda m, x, i: m.b.t() * 2, lambda m, x, i: m.b.T + 1,
        lambda m, x, i: T.swapaxes(m.a, 0, 1), lambda m, x, i: m.a.unsqueeze(1).squeeze(1) * x, lambda m, x, i: m.a[:, :1].squeeze(1).expand(5, 2, 4),
        lambda m, x, i: m.a.repeat(2, 1, 3), lambda m, x, i: m.a.repeat_interleave(2, dim=1), lambda m, x, i: m.b[1:4, ::3],
        lambda m, x, i: m.b[:3] * m.b[3:], lambda m, x, i: m.b[:, 0::2] - m.b[:, 1::2], lambda m, x, i: m.b.narrow(1, 2, 3),
        lambda m, x, i: m.a[:, -1], lambda m, x, i: T.cat([p * (k + 1) for k, p in enumerate(m.b.chunk(2, 1))], 0),
        lambda m, x, i: T.cat(m.b.split([5, 3], 1)[::-1], 1), lambda m, x, i: m.b.split(2, 0)[1], lambda m, x, i: sum(m.a.unbind(1)),
        lambda m, x, i: T.cat([m.a, x[:, :2]], 1), lambda m, x, i: T.stack([m.a, x], 2), lambda m, x, i: F.pad(m.a, (1, 2, 0, 1), value=0.5),
        lambda m, x, i: F.pad(m.a, (0, 0, 1, -1)), lambda m, x, i: m.a.flip(1), lambda m, x, i: m.a.roll((1, -1), (1, 2)),
        lambda m, x, i: m.a + T.zeros(4) + T.ones(3, 4) + T.full((4,), 0.5), lambda m, x, i: T.zeros_like(m.a) + T.ones_like(x) + m.a.new_zeros(4) + m.a.new_ones(4),
        lambda m, x, i: T.full_like(m.a, 2.0) * m.a, lambda m, x, i: T.arange(4) * m.a + T.arange(1, 9, 2) + T.linspace(0, 1, 4),
        lambda m, x, i: m.b @ T.eye(8), lambda m, x, i: m.b.tril(1), lambda m, x, i: m.b.triu(-1), lambda m, x, i: T.arange(3).unsqueeze(1) <= T.arange(3),
        lambda m, x, i: m.a.zero_() if False else m.a.clone().fill_(3.0) * m.a, lambda m, x, i: T.empty_like(m.a).copy_(m.a) * x]


def products():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], w [5, 4], v [4], s [4, 4], q [2, 2, 4, 2]."""
    T = torch
    return [
        lambda m, x, i: F.linear(m.a, m.w, m.w[:, 0]), lambda m, x, i: F.linear(x, m.s) + F.linear(F.linear(m.a, m.s), m.s), lambda m, x, i: m.a @ m.w.t(),
        lambda m, x, i: m.a @ m.v, lambda m, x, i: m.v @ m.s, lambda m, x, i: m.v @ m.v, lambda m, x, i: T.bmm(m.a, x.transpose(1, 2)),
        lambda m, x, i: m.s.mm(m.s.t()), lambda m, x, i: T.outer(m.v, m.w[:, 0]), lambda m, x, i: T.addmm(m.v, m.w, m.s, beta=0.5, alpha=2.0),
        lambda m, x, i: T.baddbmm(m.a @ x.transpose(1, 2), x, m.a.transpose(1, 2)), lambda m, x, i: T.einsum("bld,vd->blv", m.a, m.w),
        lambda m, x, i: T.einsum("bld,bmd,d->lm", m.a, x, m.v), lambda m, x, i: T.einsum("bld->db", m.a), lambda m, x, i: T.ones(3, 4) @ m.w.t(),
        lambda m, x, i: m.s[0].expand(3, 4) @ m.s, lambda m, x, i: (m.a @ m.a.transpose(1, 2)).softmax(-1) @ m.a,
        lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q * 2, m.q + 1), lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q, m.q, is_causal=True, scale=0.3),
        lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q[:, :1], m.q[:, :1], enable_gqa=True),
        lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q, m.q, attn_mask=T.ones(4, 4).tril().triu(-1).bool()),
        lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q, m.q, attn_mask=m.s), lambda m, x, i: F.scaled_dot_product_attention(m.q, m.q[:, :, :3], m.q[:, :, :3], attn_mask=(x[0].t() > -0.5) | (T.arange(3) == 0))]


def reductions():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], b [4]."""
    T = torch
    return [
        lambda m, x, i: m.a.sum(), lambda m, x, i: m.a.sum((0, 2)), lambda m, x, i: m.b.expand(3, 4).sum(0, keepdim=True), lambda m, x, i: m.a.mean(-1), lambda m, x, i: m.a.mean(),
        lambda m, x, i: m.a.prod(1), lambda m, x, i: m.a.amax(1), lambda m, x, i: m.a.amin((0, 1)), lambda m, x, i: (m.a > 1).any(1), lambda m, x, i: (m.a > -1).all(),
        lambda m, x, i: m.a.max(1)[0], lambda m, x, i: m.a.max(1)[1], lambda m, x, i: m.a.max(), lambda m, x, i: m.a.min(-1, keepdim=True)[0], lambda m, x, i: m.a.argmax(1),
        lambda m, x, i: m.a.argmin(), lambda m, x, i: m.a.var(1), lambda m, x, i: m.a.std((0, 2), correction=0), lambda m, x, i: m.a.norm(dim=1),
        lambda m, x, i: T.linalg.vector_norm(m.a, 1, dim=2), lambda m, x, i: m.a.softmax(1), lambda m, x, i: m.a.log_softmax(-1), lambda m, x, i: m.a.logsumexp(1),
        lambda m, x, i: m.a.cumsum(1), lambda m, x, i: m.a.sort(-1)[0], lambda m, x, i: m.a.sort(1, descending=True)[1], lambda m, x, i: m.a.argsort(1),
        lambda m, x, i: m.a.topk(2, 1)[0], lambda m, x, i: m.a.topk(2)[1], lambda m, x, i: T.histc(i.float(), 5, 0, 4), lambda m, x, i: m.a.view(2, 12).softmax(-1)]


def indexing():
    """x [2, 3, 4], i [2, 3] from 0 to 4, a [2, 3, 4], t [5, 4]."""
    T = torch

    def put(m, x, i):
        y = m.t * 1.0
        y[i[0, :2] * 0 + T.tensor([3, 1])] = x[0, :2]
        return y * y

    def put_mask(m, x, i):
        y = m.t * 1.0
        y[m.t > 0.5] = 0.25
        return y * y

    return [
        put, put_mask, lambda m, x, i: F.embedding(i, m.t), lambda m, x, i: F.embedding(i, m.t, padding_idx=1), lambda m, x, i: m.t[i], lambda m, x, i: m.t[:, i[0] % 4],
        lambda m, x, i: m.t[i, i % 4], lambda m, x, i: m.a[T.arange(2).unsqueeze(1), :, i % 4], lambda m, x, i: m.t[T.tensor([-1, 0])], lambda m, x, i: m.t.index_select(0, i[0]),
        lambda m, x, i: m.a.gather(2, i.unsqueeze(-1) % 4), lambda m, x, i: F.one_hot(i, 5), lambda m, x, i: m.t.scatter_add(0, i[:, :1].expand(2, 4), x[:, 0]),
        lambda m, x, i: m.t.scatter(0, T.tensor([[1], [3]]).expand(2, 4), x[:, 0]), lambda m, x, i: m.t.index_put((i[0],), x[0], accumulate=True),
        lambda m, x, i: T.diff(m.a, dim=1), lambda m, x, i: T.diff(i, prepend=T.zeros(2, 1, dtype=T.int64), dim=-1)]


def functions():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], b [4], c [3]."""
    T = torch
    u = lambda m: T.tanh(m.a) * 0.9
    return [
        lambda m, x, i: m.a.tan(), lambda m, x, i: m.a.sinh(), lambda m, x, i: m.a.cosh(), lambda m, x, i: (m.a * 4).atan(), lambda m, x, i: u(m).asin(),
        lambda m, x, i: u(m).acos(), lambda m, x, i: m.a.asinh(), lambda m, x, i: (m.a * m.a + 1.1).acosh(), lambda m, x, i: u(m).atanh(), lambda m, x, i: T.sinc(m.a),
        lambda m, x, i: T.logit(m.a.sigmoid()), lambda m, x, i: m.a.erfc(), lambda m, x, i: u(m).erfinv(), lambda m, x, i: (m.a * 3).trunc() * m.b,
        lambda m, x, i: (m.a * 3).frac(), lambda m, x, i: F.hardshrink(m.a, 0.4),
        lambda m, x, i: F.softshrink(m.a, 0.4), lambda m, x, i: F.threshold(m.a, 0.1, -2.0), lambda m, x, i: F.prelu(m.a, m.c), lambda m, x, i: F.glu(m.a, -1),
        lambda m, x, i: T.where(x > 0, m.a, x / 0.0).nan_to_num(1.0, 2.0, -2.0) * m.b, lambda m, x, i: T.isfinite(m.a / x.relu()), lambda m, x, i: T.fmod(m.a * 5, 2.0) * m.b,
        lambda m, x, i: T.atan2(m.a, x), lambda m, x, i: T.hypot(m.a, x), lambda m, x, i: T.logaddexp(m.a, x), lambda m, x, i: T.xlogy(m.a, x * x + 1),
        lambda m, x, i: m.a.cumprod(1), lambda m, x, i: m.a.logcumsumexp(2), lambda m, x, i: m.a.cummax(1)[0], lambda m, x, i: m.a.cummin(2)[0],
        lambda m, x, i: T.var_mean(m.a, 1)[0], lambda m, x, i: T.var_mean(m.a, 1)[1], lambda m, x, i: T.std_mean(m.a, (0, 2))[0], lambda m, x, i: m.a.topk(2, 1, largest=False)[0],
        lambda m, x, i: T.linalg.vector_norm(m.a, float("inf"), dim=2), lambda m, x, i: T.linalg.vector_norm(m.a, 3, dim=1), lambda m, x, i: T.rand_like(m.a) * 0 + T.randn(4) * 0 + m.a]


def moves():
    """x [2, 3, 4], i [2, 3], a [2, 3, 4], b [6, 8], c [2, 8, 4, 6]."""
    T = torch

    def view_of_written(m, x, i):
        y = m.a * 1.0
        y.view(6, 4)[:, 1:3].mul_(0.5)
        return y.view(24)

    return [
        view_of_written, lambda m, x, i: F.pad(m.a, (2, 1), mode="reflect"), lambda m, x, i: F.pad(m.a, (1, 2), mode="replicate"), lambda m, x, i: F.pad(m.a, (1, 1), mode="circular"),
        lambda m, x, i: F.pad(m.c, (1, 2, 2, 1), mode="reflect"), lambda m, x, i: m.b.roll(3), lambda m, x, i: m.b.repeat_interleave(2), lambda m, x, i: m.a.movedim(0, 2),
        lambda m, x, i: m.c.movedim((0, 3), (2, 0)), lambda m, x, i: F.pixel_shuffle(m.c, 2), lambda m, x, i: F.pixel_unshuffle(m.c, 2), lambda m, x, i: F.channel_shuffle(m.c, 2),
        lambda m, x, i: m.a.unfold(2, 3, 1), lambda m, x, i: F.unfold(m.c, (2, 3), padding=1, stride=2), lambda m, x, i: m.b.diagonal(), lambda m, x, i: m.a.diagonal(1, 1, 2),
        lambda m, x, i: T.diag_embed(m.a), lambda m, x, i: T.meshgrid(m.b[0], m.b[:, 0], indexing="ij")[0] * T.meshgrid(m.b[0], m.b[:, 0], indexing="ij")[1],
        lambda m, x, i: T.hstack([m.a, x[:, :1]]), lambda m, x, i: T.vstack([m.b[0], m.b[1:3]]), lambda m, x, i: m.a.view_as(x)]


def scatters():
    """x [2, 3, 4], i [2, 3] from 0 to 4, t [5, 4]."""
    T = torch

    def put_inside(m, x, i):
        y = m.t * 1.0
        y[:, T.tensor([3, 0])] = x[0, :, :2].repeat(2, 1)[:5]
        return y * y

    return [
        put_inside, lambda m, x, i: m.t.index_add(0, i[0], x[0], alpha=2.0), lambda m, x, i: m.t.index_add(1, i[1] % 4, T.ones(5, 3)), lambda m, x, i: m.t.index_fill(0, T.tensor([1, 3]), 0.5) * m.t,
        lambda m, x, i: m.t.index_copy(0, T.tensor([4, 0, 1]), x[1]), lambda m, x, i: m.t.scatter_reduce(0, i[:, :1].expand(2, 4), x[:, 0], "sum"),
        lambda m, x, i: m.t.scatter_reduce(0, i[:, :1].expand(2, 4), m.t[:2] * 2, "mean"), lambda m, x, i: m.t.scatter_reduce(0, i[0].unsqueeze(1).expand(3, 4), m.t[:3] * 2, "amax", include_self=False),
        lambda m, x, i: m.t.scatter_reduce(0, i[0].unsqueeze(1).expand(3, 4), x[0], "amin"), lambda m, x, i: T.take_along_dim(m.t, i[:1, :1] % 4 + T.zeros(5, 1, dtype=T.int64), 1),
        lambda m, x, i: T.bucketize(x, T.tensor([-0.5, 0.0, 0.7])), lambda m, x, i: T.searchsorted(T.tensor([-0.5, 0.0, 0.7]), x, right=True), lambda m, x, i: m.t[T.tril_indices(5, 4)[0], T.tril_indices(5, 4)[1]],
        lambda m, x, i: m.t[T.triu_indices(4, 4)[0], T.triu_indices(4, 4)[1]]]


def complexes():
    """x [2, 3, 4], a [2, 3, 4], b [2, 3, 4, 2], s [4, 4]."""
    T = torch
    z = lambda m: T.view_as_complex(m.b)
    r = T.view_as_real
    return [
        lambda m, x, i: r(z(m) * T.polar(x * x + 1, m.a)), lambda m, x, i: r(T.complex(m.a, x) / z(m)), lambda m, x, i: r(z(m) / (x * x + 1)), lambda m, x, i: z(m).real * z(m).imag,
        lambda m, x, i: z(m).abs(), lambda m, x, i: z(m).angle(), lambda m, x, i: r(z(m).conj() + 2 * z(m) + 1.5), lambda m, x, i: r(z(m).exp()), lambda m, x, i: r(z(m) @ T.complex(m.s, m.s.t())),
        lambda m, x, i: r(T.einsum("bij,kj->bik", z(m), T.complex(m.s, m.s + 1))), lambda m, x, i: r(T.cat([z(m), z(m)[:, :1] - 1], 1).transpose(0, 1).reshape(4, 8).sum(0)),
        lambda m, x, i: r(T.fft.fft(m.a, dim=1)), lambda m, x, i: r(T.fft.ifft(z(m), norm="ortho")), lambda m, x, i: r(T.fft.rfft(m.a, n=6)), lambda m, x, i: T.fft.irfft(z(m)),
        lambda m, x, i: T.fft.irfft(z(m), n=5, norm="forward"), lambda m, x, i: r(T.fft.rfft2(m.a)), lambda m, x, i: T.fft.irfft2(T.fft.rfft2(m.a) * z(m)[..., :3]), lambda m, x, i: r(T.fft.fft2(m.a)),
        lambda m, x, i: r(T.fft.fftn(z(m)))]


class Control(nn.Module):
    """A branch that the data choose, and a loop with a carry."""

    def __init__(self):
        super().__init__()
        self.w, self.v = nn.Parameter(numbers(4, 4) * 0.3), nn.Parameter(numbers(4, 4).t() * 0.3)

    def forward(self, x, i):
        from torch._higher_order_ops.scan import scan

        def step(state, row):
            state = torch.tanh(state @ self.w + row)
            return state, state @ self.v

        last, all = scan(step, torch.zeros(2, 4), x.transpose(0, 1), dim=0)
        branches = [torch.cond(i.sum() > most, lambda a: (a @ self.w).sin(), lambda a: a.transpose(-1, -2).transpose(-1, -2) @ self.v + 1, (x,)) for most in (6, 60)]
        return last, all, *branches


class Written(nn.Module):
    """Attention in several spellings, norms and rotary positions, all written out."""

    def __init__(self, d=16, heads=4):
        super().__init__()
        self.heads, self.tokens = heads, nn.Embedding(30, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d, bias=False) for _ in range(5))
        self.out = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(5))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(d)) for _ in range(5))
        self.bias = nn.Parameter(numbers(heads, 8, 8) * 0.3)

    def turn(self, x, cos, sin):
        a, b = x.chunk(2, -1)
        return x * cos + torch.cat((-b, a), -1) * sin

    def attend(self, i, q, k, v, causal):
        t = k.transpose(-2, -1)
        if i == 0:
            return torch.softmax(q @ t * 0.5, -1) @ v
        if i == 1:
            return F.dropout(F.softmax((q @ t / 2.0).masked_fill(causal == 0, float("-inf")), -1), 0.1, False) @ v
        if i == 2:
            return torch.softmax(torch.matmul(q, t) * 0.5 + torch.where(causal == 1, 0.0, torch.finfo(torch.float32).min), -1) @ v
        if i == 3:
            return torch.softmax(20.0 * torch.tanh(q @ t / 20.0) + self.bias, -1) @ v
        return torch.softmax(torch.where(causal == 1, q @ t, float("-inf")), -1, dtype=torch.float32).to(q.dtype) @ v

    def forward(self, tokens):
        x = self.tokens(tokens)
        b, n, d = x.shape
        width = d // self.heads
        rates = 100.0 ** (-torch.arange(0, width, 2) / width)
        angle = torch.arange(n)[:, None] * torch.cat((rates, rates))
        causal = torch.tril(torch.ones(n, n))
        for i in range(5):
            y = x.float()
            y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)
            q, k, v = self.qkv[i](self.scales[i] * y.to(x.dtype)).view(b, n, 3, self.heads, width).permute(2, 0, 3, 1, 4)
            q, k = self.turn(q, angle.cos(), angle.sin()), self.turn(k, angle.cos(), angle.sin())
            x = x + self.out[i](self.attend(i, q, k, v, causal).transpose(1, 2).reshape(b, n, d))
        return x @ self.tokens.weight.T


class Fused(nn.Module):
    """Products that are read in parts, in the spellings that models have, and functions of one value that are written out."""

    def __init__(self, d=16, heads=4):
        super().__init__()
        self.heads, self.first, self.norm = heads, nn.Linear(6, d), nn.LayerNorm(d)
        self.out = nn.ModuleList(nn.Linear(d, d) for _ in range(6))
        self.joint, self.q_bias, self.v_bias = nn.Linear(d, 3 * d, bias=False), nn.Parameter(numbers(d)), nn.Parameter(numbers(d) * 0.5)
        self.qkv = nn.ModuleList(nn.Linear(d, n * d // 2, bias=i % 2 == 0) for i, n in enumerate((6, 6, 6, 4)))
        self.conv1d_weight, self.conv1d_bias = nn.Parameter(numbers(d, 3 * d) * 0.3), nn.Parameter(numbers(3 * d) * 0.1)
        self.attention = nn.MultiheadAttention(d, heads, batch_first=True)
        self.gate_up, self.down, self.whole = nn.Linear(d, 2 * 24), nn.Linear(24, d), nn.Linear(d, 2 * d)

    def heads_of(self, i, x):
        b, n, d = x.shape
        width = d // self.heads
        if i == 0:  # one after the other
            return (t.view(b, n, self.heads, width).transpose(1, 2) for t in self.qkv[0](x).chunk(3, -1))
        if i == 1:
            return self.qkv[1](x).reshape(b, n, 3, self.heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        if i == 2:  # those of one head together
            return self.qkv[2](x).view(b, n, self.heads, 3, width).transpose(1, 2).unbind(3)
        if i == 3:  # half as many keys
            q, k, v = self.qkv[3](x).split([d, d // 2, d // 2], -1)
            k, v = (t.view(b, n, self.heads // 2, width).transpose(1, 2).repeat_interleave(2, 1) for t in (k, v))
            return q.view(b, n, self.heads, width).transpose(1, 2), k, v
        if i == 4:  # a bias that is no parameter
            y = F.linear(x, self.joint.weight, torch.cat((self.q_bias, torch.zeros(d), self.v_bias)))
            return y.reshape(b, n, 3, self.heads, width).permute(2, 0, 3, 1, 4).unbind(0)
        y = torch.addmm(self.conv1d_bias, x.view(-1, d), self.conv1d_weight).view(b, n, 3 * d)
        return (t.view(b, n, self.heads, width).transpose(1, 2) for t in y.split(d, 2))

    def forward(self, x):
        x = self.norm(self.first(x))
        b, n, d = x.shape
        for i in range(6):
            x = x + self.out[i](F.scaled_dot_product_attention(*self.heads_of(i, x)).transpose(1, 2).reshape(b, n, d))
        x = x + self.attention(x, x, x, need_weights=False)[0]
        gate, up = self.gate_up(x).chunk(2, -1)
        y = self.whole(x)
        return x + self.down(gate / (1 + torch.exp(-gate)) * up) + y[..., :d] * torch.tanh(y).sum(-1, keepdim=True), self.functions(x)

    @staticmethod
    def functions(x):
        tanh = 0.5 * x * (1.0 + torch.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * torch.pow(x, 3.0))))
        turned = x * 0.5 * (1 + torch.tanh(x * 0.7978845608 * (1 + 0.044715 * x * x)))
        return tanh + turned + x * (1 + torch.erf(x / math.sqrt(2))) / 2 + x * torch.sigmoid(x) + torch.log1p(torch.exp(x)) + 1 / (1 + torch.exp(-x)) + x * torch.sigmoid(1.702 * x)


class Plain(nn.Module):
    """Layers in forms that are not recognized: attention whose weights are used again, a norm that divides twice, an error function."""

    class Block(nn.Module):
        def __init__(self, d):
            super().__init__()
            self.q, self.k, self.v = (nn.Linear(d, d, bias=False) for _ in range(3))

        def forward(self, x):
            weights = torch.softmax(self.q(x) @ self.k(x).transpose(1, 2), -1)
            y = weights @ self.v(x) + weights.amax(-1, keepdim=True)
            return x + y * torch.rsqrt(y.pow(4).mean(-1, keepdim=True) + 1e-5)

    def __init__(self, d=6):
        super().__init__()
        self.blocks = nn.ModuleList(Plain.Block(d) for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return torch.erf(x), x @ torch.softmax(torch.arange(6.0), 0)


class Recurrent(nn.Module):
    """Layers, directions, kinds and cells."""

    def __init__(self, d=4, hidden=3):
        super().__init__()
        self.lstm = nn.LSTM(d, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.gru, self.rnn = nn.GRU(d, hidden, bidirectional=True), nn.RNN(d, hidden, nonlinearity="relu")
        self.tanh, self.lstm_cell, self.gru_cell = nn.RNN(d, hidden, bias=False), nn.LSTMCell(d, hidden), nn.GRUCell(d, hidden)
        self.start = nn.Parameter(torch.randn(2, 3, hidden) * 0.5)

    def forward(self, x):
        y, (h, c) = self.lstm(x)
        turned = x.transpose(0, 1)
        z, last = self.gru(turned, self.start[:, :2])
        cell, memory = self.lstm_cell(x[:, 0])
        return y, h, c, z, last, self.rnn(turned)[0], self.tanh(x[0])[0], cell, memory, self.gru_cell(x[:, 1], self.start[0, :2])


class Sampling(nn.Module):
    """Transposed convolutions, interpolation, pooling and grids."""

    def __init__(self):
        super().__init__()
        self.line, self.up = nn.ConvTranspose1d(4, 3, 3, stride=2, padding=1, output_padding=1), nn.ConvTranspose2d(4, 6, 3, stride=2, groups=2, padding=1)
        self.volume, self.grid = nn.ConvTranspose3d(1, 2, (1, 2, 2), stride=(1, 2, 2)), nn.Parameter(torch.rand(2, 3, 2, 2) * 2.4 - 1.2)
        self.normed, self.pair = nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), nn.Bilinear(4, 4, 3)

    def forward(self, image):
        I = F.interpolate
        y, volume = self.up(image), self.volume(image.unsqueeze(1))
        return (y, self.line(image.mean(2)), volume, F.adaptive_avg_pool2d(image, (3, 4)), F.adaptive_max_pool2d(image, (5, 2)), F.adaptive_max_pool1d(image.mean(2), 2), F.adaptive_avg_pool3d(volume, (2, 5, 3)),
                F.max_pool3d(volume, (2, 2, 3)), F.avg_pool3d(volume, 2), I(image, (7, 4), mode="bicubic"), I(image, (3, 4), mode="bilinear", antialias=True), I(image, (7, 3), mode="nearest-exact"),
                I(volume, scale_factor=2, mode="trilinear"), F.grid_sample(image, self.grid, align_corners=False), F.grid_sample(image, self.grid, padding_mode="border", align_corners=True),
                self.normed(image.mean((2, 3))), self.pair(image.mean((2, 3)), y[:, :4, 0, 0]))


class Image(nn.Module):
    """Convolutions, norms and pooling."""

    def __init__(self):
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(3, 8, 3, padding=1, stride=2, bias=False), nn.BatchNorm2d(8)
        self.conv2, self.norm2 = nn.Conv2d(8, 8, 3, padding="same", groups=4), nn.GroupNorm(2, 8)
        self.depthwise, self.line = nn.Conv2d(8, 8, 3, padding=2, dilation=2, groups=8), nn.Conv1d(8, 6, 2)
        self.head, self.volume = nn.Linear(8, 5), nn.Conv3d(1, 2, (2, 3, 3), padding=(0, 1, 1))

    def forward(self, image):
        x = F.relu(self.norm1(self.conv1(image)))
        x = x + self.norm2(self.conv2(x))
        x = x + self.depthwise(x)
        line = self.line(x.mean(2))
        y = F.max_pool2d(x, 3, 2, 1) + F.avg_pool2d(x, 2)
        z = F.adaptive_avg_pool2d(x, (2, 2)).flatten(1)
        return self.head(F.adaptive_avg_pool2d(y, 1).flatten(1)), line, z, F.avg_pool2d(x, 3, 3, ceil_mode=True), F.interpolate(
            x, scale_factor=2), F.interpolate(x, (7, 3), mode="bilinear"), F.interpolate(x, (6, 6), mode="bilinear", align_corners=True), F.max_pool1d(line, 2), F.avg_pool1d(
            line, 2), F.adaptive_avg_pool1d(z, 4), self.volume(image.unsqueeze(1))


class MoreLosses(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 5)

    def forward(self, x, labels):
        y, t = self.w(x), x[..., :5]
        logs, chances = F.log_softmax(y, -1), y.sigmoid()
        return (F.nll_loss(logs.transpose(1, 2), labels), F.nll_loss(logs.flatten(0, 1), labels.flatten(), reduction="none", ignore_index=2), F.l1_loss(y, t), F.smooth_l1_loss(y, t, beta=0.5),
                F.huber_loss(y, t, reduction="sum", delta=0.7), F.binary_cross_entropy(chances, t.sigmoid()), F.binary_cross_entropy_with_logits(y, t.sigmoid(), reduction="none"),
                F.kl_div(logs, t.softmax(-1), reduction="batchmean"), F.kl_div(logs, t.log_softmax(-1), log_target=True), F.cosine_similarity(y, t, dim=-1), F.cross_entropy(y.transpose(1, 2), t.softmax(-1).transpose(1, 2)))


class Losses(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Linear(6, 5)

    def forward(self, x, labels):
        logits = self.w(x)
        return (F.cross_entropy(logits.transpose(1, 2), labels), F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=0.1),
                F.cross_entropy(logits.transpose(1, 2), labels, reduction="none", ignore_index=2), F.mse_loss(logits, x[..., :5]), F.layer_norm(x * self.w.weight[0], (4, 6)),
                F.rms_norm(logits, (5,)), F.dropout(logits, 0.5, training=False))


def numbers(*shape):
    return torch.randn(shape, generator=torch.Generator().manual_seed(3))


def many(functions, **shapes):
    return Many(functions(), **shapes), (numbers(2, 3, 4), torch.tensor([[0, 4, 1], [2, 1, 3]])), {}


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


def corners():
    module, args, kwargs = many(ties, a=(2, 7), b=(2, 7))
    with torch.no_grad():
        module.a.copy_(torch.tensor([[0.0, 1, -1, 3, -3, 6, 0], [1, 1, 0, 3, 3, -3, 6]]))
        module.b.copy_(torch.tensor([[0.0, 1, 2, -3, -3, 0, 0], [1, 0, 0, 3, 4, -3, 6]]))
    return module, args, kwargs


CASES = {
    "gpt": lambda: (Gpt(), (tokens(2, 8),), {}),
    "core_gpt": lambda: (Gpt(), (tokens(2, 8),), {}),
    "core_image": lambda: (Image(), (numbers(2, 3, 8, 8),), {}),
    "core_complexes": lambda: many(complexes, a=(2, 3, 4), b=(2, 3, 4, 2), s=(4, 4)),
    "core_writes": lambda: many(writes, a=(2, 3, 4), w=(5, 4, 4)),
    "gpt_oss": lambda: (transformer("gpt_oss", num_local_experts=4, num_experts_per_tok=2), (), text(use_cache=False)),
    "rows": lambda: (Rows(), (numbers(2, 3, 4),), {}),
    "core_shapes": lambda: many(shapes, a=(2, 3, 4), b=(6, 8)),
    "periods": lambda: (Periods(), (tokens(2, 6) % 12,), {}),
    "gpt2": lambda: (transformer("gpt2"), (), text(use_cache=False)),
    "llama": lambda: (transformer("llama"), (), text(use_cache=False)),
    "qwen3": lambda: (transformer("qwen3"), (), text(use_cache=False)),
    "bert": lambda: (transformer("bert", "AutoModel"), (), text()),
    "t5": lambda: (transformer("t5", "AutoModelForSeq2SeqLM"), (), text(decoder_input_ids=tokens(2, 6), use_cache=False)),
    "mixtral": lambda: (transformer("mixtral", num_local_experts=4, num_experts_per_tok=2), (), text(use_cache=False)),
    "pointwise": lambda: many(pointwise, a=(2, 3, 4), b=(4,)),
    "ties": lambda: corners(),
    "shapes": lambda: many(shapes, a=(2, 3, 4), b=(6, 8)),
    "products": lambda: many(products, a=(2, 3, 4), w=(5, 4), v=(4,), s=(4, 4), q=(2, 2, 4, 2)),
    "reductions": lambda: many(reductions, a=(2, 3, 4), b=(4,)),
    "indexing": lambda: many(indexing, a=(2, 3, 4), t=(5, 4)),
    "image": lambda: (Image(), (numbers(2, 3, 8, 8),), {}),
    "functions": lambda: many(functions, a=(2, 3, 4), b=(4,), c=(3,)),
    "moves": lambda: many(moves, a=(2, 3, 4), b=(6, 8), c=(2, 8, 4, 6)),
    "scatters": lambda: many(scatters, t=(5, 4)),
    "complexes": lambda: many(complexes, a=(2, 3, 4), b=(2, 3, 4, 2), s=(4, 4)),
    "control": lambda: (Control(), (numbers(2, 3, 4), torch.tensor([[0, 4, 1], [2, 1, 3]])), {}),
    "written": lambda: (Written(), (tokens(2, 8),), {}),
    "fused": lambda: (Fused(), (numbers(2, 8, 6),), {}),
    "plain": lambda: (Plain(), (numbers(2, 8, 6),), {}),
    "recurrent": lambda: (Recurrent(), (numbers(2, 5, 4),), {}),
    "sampling": lambda: (Sampling(), (numbers(2, 4, 5, 6),), {}),
    "more_losses": lambda: (MoreLosses(), (numbers(2, 4, 6), torch.tensor([[0, 4, 1, 2], [2, 1, 3, 0]])), {}),
    "losses": lambda: (Losses(), (numbers(2, 4, 6), torch.tensor([[0, 4, 1, 2], [2, 1, 3, 0]])), {}),
    "vit": lambda: (transformer("vit", "AutoModel"), (), dict(pixel_values=torch.randn(2, 3, 16, 16))),
}


@torch.library.custom_op("tessera_tests::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x * 2


@own.register_fake
def own_shape(x):
    return torch.empty_like(x)


class Calls(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function, self.w = function, nn.Parameter(torch.ones(4))

    def forward(self, x):
        return self.function(x * self.w)


def damage(name, change=None, drop="", replace=None):
    """`name`.pt2 in bad/: a good one with another description, without entries or with other ones."""
    good = zipfile.ZipFile(FOLDER / "losses.pt2")
    with zipfile.ZipFile(FOLDER / "bad" / f"{name}.pt2", "w", zipfile.ZIP_DEFLATED) as to:
        for entry in good.namelist():
            content = good.read(entry)
            if entry.endswith("models/model.json") and change:
                description = json.loads(content)
                change(description)
                content = json.dumps(description).encode()
            if not drop or drop not in entry:
                to.writestr(zipfile.ZipInfo(entry), (replace or {}).get(entry.split("/", 1)[1], content), zipfile.ZIP_DEFLATED)


def write_bad():
    """Files that have to be refused."""
    (FOLDER / "bad").mkdir(exist_ok=True)
    from torch._higher_order_ops.while_loop import while_loop

    def repeats(x):
        return while_loop(lambda y: y.sum() < 9, lambda y: (y * 2,), (x,))[0]

    for name, function in dict(own_op=lambda x: torch.ops.tessera_tests.own(x), data_dependent=lambda x: x[x > 0], while_loop=repeats,
                               complex_op=lambda x: torch.view_as_real(torch.polar(x, x).sin())).items():
        program = torch.export.export(Calls(function), (torch.ones(3, 4),), strict=False)
        torch.export.save(program, FOLDER / "bad" / f"{name}.pt2")
        fixtures.repack(FOLDER / "bad" / f"{name}.pt2")

    with zipfile.ZipFile(FOLDER / "bad" / "old_layout.pt2", "w") as to:  # as PyTorch 2.5 to 2.7 lays it out
        for entry in ("version", "serialized_exported_program.json", "serialized_state_dict.pt", "serialized_constants.pt", "serialized_example_inputs.pt"):
            to.writestr(zipfile.ZipInfo(entry), b"8.2" if entry == "version" else b"{}")
    for name, module in dict(no_values=Gpt, no_buffers=ScaledGpt).items():
        with torch.device("meta"):
            program = torch.export.export(module(), (torch.zeros(2, 8, dtype=torch.int64),), strict=False)
        torch.export.save(program, FOLDER / "bad" / f"{name}.pt2")
        fixtures.repack(FOLDER / "bad" / f"{name}.pt2")

    def set_schema(d):
        d["schema_version"]["major"] = 9

    def shorten(d):
        d["graph_module"]["graph"]["tensor_values"]["p_w_weight"]["sizes"].pop()
        d["graph_module"]["graph"]["tensor_values"]["p_w_weight"]["strides"].pop()

    damage("newer_schema", set_schema)
    damage("no_graph", lambda d: d["graph_module"].pop("graph"))
    damage("lost_value", lambda d: d["graph_module"]["graph"]["tensor_values"].pop("x"))
    damage("other_rank", shorten)
    damage("no_program", drop="model.json")
    damage("no_json", replace={"models/model.json": b'{"graph_module": '})
    config = zipfile.ZipFile(FOLDER / "losses.pt2").read("losses/data/weights/model_weights_config.json")
    damage("pickled", replace={"data/weights/model_weights_config.json": config.replace(b'"use_pickle": false', b'"use_pickle": true')})
    damage("short_weight", replace={"data/weights/weight_0": b"1234"})


def write_native():
    """The models of tests/models that Tessera builds itself, exported, without their parameters: their collectives are compared, not their numbers."""
    import transformers

    for name, auto, given in (
            ("gpt2", "GPT2LMHeadModel", dict(use_cache=False)), ("llama", "LlamaForCausalLM", dict(use_cache=False)), ("qwen3", "Qwen3ForCausalLM", dict(use_cache=False)),
            ("bert", "BertForMaskedLM", {}), ("t5", "T5ForConditionalGeneration", dict(decoder_input_ids=tokens(4, 5), use_cache=False)), ("vit", "ViTForImageClassification", {})):
        module = getattr(transformers, auto).from_pretrained(FOLDER.parents[1] / "models" / name, dtype=torch.float32).eval()
        given["pixel_values" if name == "vit" else "input_ids"] = numbers(4, 3, 12, 12) if name == "vit" else tokens(4, 16)
        path = FOLDER / "native" / f"{name}.pt2"
        path.parent.mkdir(exist_ok=True)
        torch.export.save(torch.export.export(module, (), kwargs=given, strict=False), path)
        fixtures.repack(path, without={key for key, _ in module.named_parameters(remove_duplicate=False)})
        print(path.name, path.stat().st_size)


def main():
    FOLDER.mkdir(exist_ok=True)
    if not sys.argv[1:] or "bad" in sys.argv[1:]:
        write_bad()
    if not sys.argv[1:] or "native" in sys.argv[1:]:
        write_native()
    for name in [n for n in sys.argv[1:] if n not in ("bad", "native")] or ([] if sys.argv[1:] else CASES):
        torch.manual_seed(0)
        module, args, kwargs = CASES[name]()
        fixtures.write(module, args, kwargs, FOLDER / name, core=name.startswith("core_"))
        if name == "fused":
            sys.path.insert(0, str(FOLDER.parents[2] / "examples"))
            import pytorch_probe

            (FOLDER / "probe").mkdir(exist_ok=True)
            pytorch_probe.probe(module, args, kwargs, FOLDER / "probe" / f"{name}.safetensors")
        print(name, (FOLDER / f"{name}.pt2").stat().st_size, (FOLDER / f"{name}.safetensors").stat().st_size)


if __name__ == "__main__":
    main()
