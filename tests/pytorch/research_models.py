"""Ten models in plain PyTorch as papers' code has them, each tiny: recurrent, second order, attention of its own, a Fourier layer ..."""

import math

import torch
from torch import nn
from torch.nn import functional as F


class RecurrentTagger(nn.Module):
    """Words to a bidirectional LSTM of two layers, then a GRU (Graves & Schmidhuber 2005)."""

    def __init__(self, vocab=40, d=12, hidden=10, tags=5):
        super().__init__()
        self.words = nn.Embedding(vocab, d)
        self.lstm = nn.LSTM(d, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.gru = nn.GRU(2 * hidden, hidden, batch_first=True)
        self.tags = nn.Linear(hidden, tags)

    def forward(self, tokens):
        x, _ = self.lstm(self.words(tokens))
        y, last = self.gru(x)
        return self.tags(y), last


class FactorizationMachine(nn.Module):
    """Products of all pairs of fields, by the square of a sum (Rendle 2010), and a deep part beside them."""

    def __init__(self, fields=6, each=10, d=8):
        super().__init__()
        self.offsets = nn.Buffer(torch.arange(fields) * each)
        self.table, self.first = nn.Embedding(fields * each, d), nn.Embedding(fields * each, 1)
        self.deep = nn.Sequential(nn.Linear(fields * d, 16), nn.ReLU(), nn.Linear(16, 1))

    def forward(self, tokens):
        at = tokens + self.offsets
        v = self.table(at)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(-1)
        return self.first(at).sum((1, 2)) + pairs + self.deep(v.flatten(1)).squeeze(-1)


class RotaryDecoder(nn.Module):
    """Attention, rotary positions and a gated layer, all written out."""

    def __init__(self, vocab=40, d=16, heads=4, ff=24, layers=2):
        super().__init__()
        self.heads, self.layers = heads, layers
        self.tokens = nn.Embedding(vocab, d)
        self.qkv = nn.ModuleList(nn.Linear(d, 3 * d, bias=False) for _ in range(layers))
        self.out = nn.ModuleList(nn.Linear(d, d, bias=False) for _ in range(layers))
        self.gate_up = nn.ModuleList(nn.Linear(d, 2 * ff, bias=False) for _ in range(layers))
        self.down = nn.ModuleList(nn.Linear(ff, d, bias=False) for _ in range(layers))
        self.scales = nn.ParameterList(nn.Parameter(torch.ones(d)) for _ in range(2 * layers + 1))

    def norm(self, x, i):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-6) * self.scales[i]

    def turn(self, x, cos, sin):
        a, b = x[..., ::2], x[..., 1::2]
        return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)

    def forward(self, tokens):
        x = self.tokens(tokens)
        b, n, d = x.shape
        h = self.heads
        angle = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, d // h, 2) / (d // h))
        cos, sin = angle.cos(), angle.sin()
        hidden = torch.triu(torch.full((n, n), float("-inf")), 1)
        for i in range(self.layers):
            q, k, v = self.qkv[i](self.norm(x, 2 * i)).view(b, n, 3, h, d // h).permute(2, 0, 3, 1, 4)
            q, k = self.turn(q, cos, sin), self.turn(k, cos, sin)
            a = torch.softmax(q @ k.transpose(-1, -2) / math.sqrt(d // h) + hidden, -1) @ v
            x = x + self.out[i](a.transpose(1, 2).reshape(b, n, d))
            gate, up = self.gate_up[i](self.norm(x, 2 * i + 1)).chunk(2, -1)
            x = x + self.down[i](F.silu(gate) * up)
        return self.norm(x, 2 * self.layers) @ self.tokens.weight.T


class LinearAttention(nn.Module):
    """Causal attention without softmax by cumulative sums (Katharopoulos et al. 2020), over a short convolution."""

    def __init__(self, vocab=40, d=12, heads=3):
        super().__init__()
        self.heads = heads
        self.tokens, self.conv = nn.Embedding(vocab, d), nn.Conv1d(d, d, 4, groups=d, padding=3)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))

    def forward(self, tokens):
        x = self.tokens(tokens)
        x = x + self.conv(x.transpose(1, 2))[..., : tokens.shape[1]].transpose(1, 2)
        q, k, v = (f(x).unflatten(-1, (self.heads, -1)) for f in (self.q, self.k, self.v))
        q, k = F.elu(q) + 1, F.elu(k) + 1
        state = torch.einsum("blhd,blhe->blhde", k, v).cumsum(1)
        y = torch.einsum("blhd,blhde->blhe", q, state) / torch.einsum("blhd,blhd->blh", q, k.cumsum(1)).unsqueeze(-1)
        return x + self.out(y.flatten(2))


class NeuralOde(nn.Module):
    """Four steps of Runge and Kutta through a small field (Chen et al. 2018)."""

    def __init__(self, d=6, hidden=16):
        super().__init__()
        self.up, self.down = nn.Linear(d + 1, hidden), nn.Linear(hidden, d)

    def field(self, t, x):
        return self.down(torch.tanh(self.up(torch.cat([x, torch.full_like(x[:, :1], t)], 1))))

    def forward(self, x):
        step, path = 0.25, [x]
        for i in range(4):
            t = i * step
            a = self.field(t, x)
            b = self.field(t + step / 2, x + step / 2 * a)
            c = self.field(t + step / 2, x + step / 2 * b)
            d = self.field(t + step, x + step * c)
            x = x + step / 6 * (a + 2 * b + 2 * c + d)
            path.append(x)
        return torch.stack(path, 1)


class FourierOperator(nn.Module):
    """The Fourier neural operator (Li et al. 2021) in one dimension: products of a few low frequencies."""

    def __init__(self, width=6, modes=4, layers=2):
        super().__init__()
        self.lift, self.project = nn.Conv1d(2, width, 1), nn.Conv1d(width, 1, 1)
        self.local = nn.ModuleList(nn.Conv1d(width, width, 1) for _ in range(layers))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width, modes, 2) / width) for _ in range(layers))
        self.modes = modes

    def forward(self, x):
        x = self.lift(x)
        for local, weights in zip(self.local, self.weights):
            low = torch.fft.rfft(x)[..., : self.modes]
            low = torch.einsum("bim,iom->bom", low, torch.view_as_complex(weights))
            x = F.gelu(torch.fft.irfft(F.pad(low, (0, x.shape[-1] // 2 + 1 - self.modes)), n=x.shape[-1]) + local(x))
        return self.project(x)


class BilinearRelations(nn.Module):
    """Pairs of entities by a bilinear form and by complex rotations (Trouillon et al. 2016, Sun et al. 2019)."""

    def __init__(self, entities=20, relations=4, d=6):
        super().__init__()
        self.entities, self.relations = nn.Embedding(entities, 2 * d), nn.Embedding(relations, d)
        self.form = nn.Bilinear(2 * d, 2 * d, 3)

    def forward(self, heads, relations, tails):
        h, t = self.entities(heads), self.entities(tails)
        turned = torch.view_as_complex(h.unflatten(-1, (-1, 2))) * torch.polar(torch.ones_like(self.relations(relations)), self.relations(relations))
        distance = (turned - torch.view_as_complex(t.unflatten(-1, (-1, 2)))).abs().sum(-1)
        return distance, self.form(h, t)


class SlotAttention(nn.Module):
    """Slots that compete for inputs, over three rounds of a GRU cell (Locatello et al. 2020)."""

    def __init__(self, d=8, slots=3, features=6):
        super().__init__()
        self.start = nn.Parameter(torch.randn(slots, d))
        self.k, self.v, self.q = nn.Linear(features, d, False), nn.Linear(features, d, False), nn.Linear(d, d, False)
        self.cell, self.norm_x, self.norm_s = nn.GRUCell(d, d), nn.LayerNorm(features), nn.LayerNorm(d)

    def forward(self, x):
        x = self.norm_x(x)
        k, v = self.k(x), self.v(x)
        slots = self.start.expand(x.shape[0], -1, -1)
        for _ in range(3):
            logits = torch.einsum("bsd,bnd->bsn", self.q(self.norm_s(slots)), k) * k.shape[-1] ** -0.5
            weights = logits.softmax(1) + 1e-8
            weights = weights / weights.sum(-1, keepdim=True)
            updates = weights @ v
            slots = self.cell(updates.flatten(0, 1), slots.flatten(0, 1)).view_as(slots)
        return slots


class SecondOrder(nn.Module):
    """A physics-informed network's residual: derivatives of the network by its input, written out (Raissi et al. 2019)."""

    def __init__(self, hidden=12):
        super().__init__()
        self.w1, self.b1 = nn.Parameter(torch.randn(hidden, 2) * 0.5), nn.Parameter(torch.zeros(hidden))
        self.w2, self.b2 = nn.Parameter(torch.randn(hidden, hidden) * 0.3), nn.Parameter(torch.zeros(hidden))
        self.w3 = nn.Parameter(torch.randn(hidden) * 0.3)

    def forward(self, x):
        """u, u_t, u_xx and the residual of u_t = 0.1 u_xx - u u_x, by the Taylor series of the layers."""
        z = x @ self.w1.T + self.b1
        zt, zx = self.w1[:, 1].expand_as(z), self.w1[:, 0].expand_as(z)
        a = torch.tanh(z)
        slope = 1 - a * a
        at, ax, axx = slope * zt, slope * zx, -2 * a * slope * zx * zx
        z = a @ self.w2.T + self.b2
        zt, zx, zxx = at @ self.w2.T, ax @ self.w2.T, axx @ self.w2.T
        a = torch.tanh(z)
        slope = 1 - a * a
        at, ax, axx = slope * zt, slope * zx, slope * zxx - 2 * a * slope * zx * zx
        u, ut, ux, uxx = (y @ self.w3 for y in (a, at, ax, axx))
        return u, ut + u * ux - 0.1 * uxx


class MixtureDensity(nn.Module):
    """A mixture of Gaussians for each example (Bishop 1994), and a differentiable sort of scores (Blondel's by a soft permutation)."""

    def __init__(self, d=5, hidden=16, parts=4):
        super().__init__()
        self.trunk, self.parts = nn.Sequential(nn.Linear(d, hidden), nn.SiLU(), nn.Linear(hidden, 3 * parts)), parts

    def forward(self, x, target):
        weights, mean, log_width = self.trunk(x).split(self.parts, -1)
        log_width = log_width.clamp(-5, 5)
        log_density = -0.5 * ((target.unsqueeze(-1) - mean) / log_width.exp()) ** 2 - log_width - 0.5 * math.log(2 * math.pi)
        loss = -torch.logsumexp(F.log_softmax(weights, -1) + log_density, -1).mean()
        distance = (mean.sort(-1, descending=True)[0].unsqueeze(-1) - mean.unsqueeze(-2)).abs()
        ranks = F.softmax(-distance / 0.5, -1) @ mean.unsqueeze(-1)
        best, at = mean.topk(2, -1)
        return loss, ranks.squeeze(-1), best, mean.gather(-1, at) * torch.where(best > 0, best, -best)


def cases():
    """Name, module, arguments."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape):
        return torch.randn(shape, generator=generator)

    def tokens(most, *shape):
        return torch.randint(0, most, shape, generator=generator)

    for make, given in {
        RecurrentTagger: (tokens(40, 2, 7),),
        FactorizationMachine: (tokens(10, 4, 6),),
        RotaryDecoder: (tokens(40, 2, 8),),
        LinearAttention: (tokens(40, 2, 7),),
        NeuralOde: (numbers(4, 6),),
        FourierOperator: (numbers(2, 2, 16),),
        BilinearRelations: (tokens(20, 4), tokens(4, 4), tokens(20, 4)),
        SlotAttention: (numbers(2, 5, 6),),
        SecondOrder: (numbers(6, 2),),
        MixtureDensity: (numbers(4, 5), numbers(4)),
    }.items():
        torch.manual_seed(0)
        yield make.__name__, make().eval(), given
