#!/usr/bin/env python3
"""Exports random modules into a folder, with what PyTorch computes of them and the dims that they were made of.

A module is built over dims, each with an identity; sizes are few, so that equal ones mean different dims. An axis is a product of
dims, as axes of Tessera are products of atoms. Beside the values, `dims.NAME` holds the dims of each axis of an input or parameter:
two of them that Tessera takes for one are confused. `NAME.txt` is the module's source.

The hidden test [pytorch_cases] imports and compares them: TESSERA_PYTORCH_CASES=FOLDER tessera_tests '[pytorch_cases]'.
Usage: random_modules.py FOLDER COUNT [FIRST_SEED]"""

import copy
import pathlib
import random
import re
import sys
import warnings

import torch
from torch import nn
from torch.nn import functional as F

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import fixtures

warnings.filterwarnings("ignore")
SIZES = (2, 3, 4, 4, 6, 6, 8)
POINTWISE = ("torch.tanh({})", "F.silu({})", "F.gelu({})", "{} * 0.5 + 1", "torch.sigmoid({})", "-{}", "{}.exp().clamp(max=3)", "F.relu({})")


class Module(nn.Module):
    def __init__(self, shapes, source):
        super().__init__()
        for name, shape in shapes.items():
            generator = torch.Generator().manual_seed(len(self._parameters))
            setattr(self, name, nn.Parameter(torch.randn(shape, generator=generator) * 0.6))
        scope = dict(torch=torch, F=F)
        exec(source, scope)
        self.dtype = torch.float32
        self.function = scope["forward"]

    def double(self):
        self.dtype = torch.float64
        return super().double()

    def forward(self, x, y):
        return self.function(self, x, y)


class Maker:
    """Values are names with axes; an axis is a list of dims, a dim a number with a size. Equal dims have one root."""

    def __init__(self, seed):
        self.random = random.Random(seed)
        self.sizes, self.roots, self.lines, self.count = [], [], [], 0
        self.parameters, self.others, self.values = {}, {}, {}
        batch = self.dim(self.random.choice((2, 4)))
        self.inputs = {"x": [[batch], [self.dim()], [self.dim()]], "y": [[batch], [self.dim()]]}
        self.values.update(self.inputs)

    def dim(self, size=None):
        self.sizes.append(size or self.random.choice(SIZES))
        self.roots.append(len(self.roots))
        return len(self.sizes) - 1

    def root(self, dim):
        while self.roots[dim] != dim:
            dim = self.roots[dim]
        return dim

    def size(self, axis):
        n = 1
        for dim in axis:
            n *= self.sizes[dim]
        return n

    def shape(self, axes):
        return [self.size(a) for a in axes]

    def parameter(self, axes):
        name = f"p{len(self.parameters)}"
        self.parameters[name] = [list(a) for a in axes]
        return f"m.{name}"

    def make(self, text, axes):
        name = f"v{self.count}"
        self.count += 1
        self.lines.append(f"{name} = {text}")
        self.values[name] = [list(a) for a in axes]
        return name

    def pick(self, least=1, most=9):
        fit = [n for n, axes in self.values.items() if least <= len(axes) <= most and self.total(axes) <= 3000]
        return self.random.choice(fit[-4:] + fit) if fit else None  # of the newest more often

    def total(self, axes):
        n = 1
        for s in self.shape(axes):
            n *= s
        return n

    def same(self, a, b):
        return [self.root(d) for d in a] == [self.root(d) for d in b]

    def unify(self, a, b):
        """Whether two axes can be one dim by dim; then they are."""
        if [self.sizes[d] for d in a] != [self.sizes[d] for d in b]:
            return False
        for d, e in zip(a, b):
            d, e = self.root(d), self.root(e)
            self.roots[max(d, e)] = min(d, e)
        return True

    # ------------------------------------------------------------------------------------- ops
    def pointwise(self):
        x = self.pick()
        self.make(self.random.choice(POINTWISE).format(x), self.values[x])

    def with_parameter(self):
        """Broadcasting: trailing axes of a parameter, some of size 1."""
        x = self.pick()
        axes = self.values[x][self.random.randrange(len(self.values[x])) :]
        axes = [a if self.random.random() < 0.7 else [] for a in axes]
        self.make(f"{x} {self.random.choice('+*-')} {self.parameter(axes)}", self.values[x])

    def sum_of_two(self):
        x, y = self.pick(), self.pick()
        a, b = self.values[x], self.values[y]
        for i in range(1, min(len(a), len(b)) + 1):
            one, other = a[-i], b[-i]
            if not (self.size(one) == 1 or self.size(other) == 1 or [self.sizes[d] for d in one] == [self.sizes[d] for d in other]):
                return
        axes = []
        for i in range(max(len(a), len(b)), 0, -1):
            one, other = a[-i] if i <= len(a) else [], b[-i] if i <= len(b) else []
            if one and other:
                self.unify(one, other)
            axes.append(one or other)
        self.make(f"{x} {self.random.choice('+*')} {y}", axes)

    def linear(self):
        x = self.pick()
        axes = self.values[x]
        out = [self.dim()] if self.random.random() < 0.7 else [self.dim(), self.dim(self.random.choice((2, 3)))]
        w = self.parameter([out, axes[-1]])
        bias = f", {self.parameter([out])}" if self.random.random() < 0.5 else ""
        self.make(f"torch.tanh(F.linear({x}, {w}{bias}))", axes[:-1] + [out])

    def transposed(self):
        x = self.pick(2)
        order = list(range(len(self.values[x])))
        self.random.shuffle(order)
        self.make(f"{x}.permute({order})", [self.values[x][i] for i in order])

    def merged(self):
        """Adjacent axes as one."""
        x = self.pick(2)
        axes = self.values[x]
        i = self.random.randrange(len(axes) - 1)
        axes = axes[:i] + [axes[i] + axes[i + 1]] + axes[i + 2 :]
        self.make(f"{x}.reshape({self.shape(axes)})", axes)

    def divided(self):
        """An axis of several dims as several axes."""
        for x in self.random.sample(list(self.values), len(self.values)):
            axes = self.values[x]
            long = [i for i, a in enumerate(axes) if len(a) > 1]
            if long and len(axes) < 5:
                i = self.random.choice(long)
                at = self.random.randrange(1, len(axes[i]))
                axes = axes[:i] + [axes[i][:at], axes[i][at:]] + axes[i + 1 :]
                self.make(f"{x}.reshape({self.shape(axes)})", axes)
                return

    def cut_anew(self):
        """A reshape whose boundaries are no dim's: what follows has dims of its own."""
        x = self.pick(2, 3)
        axes = self.values[x]
        n = self.total(axes)
        a = self.random.choice([k for k in range(1, n + 1) if n % k == 0])
        y = self.make(f"{x}.reshape({a}, {n // a})", [[], []])
        del self.values[y]
        if self.random.random() < 0.5:  # a parameter over axes that are no dims of ours
            self.others[f"q{len(self.others)}"] = [n // a]
            y = f"({y} * m.q{len(self.others) - 1})"
        self.make(f"torch.softmax({y}, {self.random.choice((0, 1))}).reshape({self.shape(axes)})", axes)

    def parts(self):
        """Equal parts along the outer dim of an axis."""
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        if not axes[i]:
            return
        n, rest = self.sizes[axes[i][0]], axes[i][1:]
        kind = self.random.choice(("chunk", "slice", "unbind"))
        if kind == "unbind" and not rest:
            y = [f"{x}.unbind({i})[{k}]" for k in range(n)]
            axes = axes[:i] + axes[i + 1 :]
            if not axes:
                return
        elif kind == "slice":
            step = self.size(rest)
            y = [f"{x}.narrow({i}, {k * step}, {step})" for k in range(n)]
            axes = axes[:i] + [rest] + axes[i + 1 :]
        else:
            y = [f"{x}.chunk({n}, {i})[{k}]" for k in range(n)]
            axes = axes[:i] + [rest] + axes[i + 1 :]
        self.make(f"{y[0]} * torch.sigmoid({y[-1]})" + "".join(f" + {p}" for p in y[1:-1]), axes)

    def interval(self):
        """A part of an axis is a dim of its own."""
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        n = self.size(axes[i])
        if n < 3:
            return
        begin = self.random.randrange(n - 1)
        size = self.random.randrange(1, n - begin + 1)
        if size in (n, 1) or n % size == 0:
            return
        self.make(f"{x}.narrow({i}, {begin}, {size})", axes[:i] + [[self.dim(size)]] + axes[i + 1 :])

    def broadcast(self):
        x = self.pick(1, 3)
        axes = self.values[x]
        i, d = self.random.randrange(len(axes) + 1), self.dim()
        axes = axes[:i] + [[d]] + axes[i:]
        self.make(f"{x}.unsqueeze({i}).expand({self.shape(axes)})", axes)

    def repeated(self):
        x = self.pick()
        axes = [list(a) for a in self.values[x]]
        i, d = self.random.randrange(len(axes)), self.dim(self.random.choice((2, 3)))
        if self.random.random() < 0.5:
            axes[i] = axes[i] + [d]
            self.make(f"{x}.repeat_interleave({self.sizes[d]}, {i})", axes)
        else:
            axes[i] = [d] + axes[i]
            counts = [self.sizes[d] if k == i else 1 for k in range(len(axes))]
            self.make(f"{x}.repeat({counts})", axes)

    def norm(self):
        x = self.pick()
        last = self.values[x][-1]
        kind = self.random.randrange(4)
        if kind == 0:
            self.make(f"F.layer_norm({x}, [{self.size(last)}], {self.parameter([last])}, {self.parameter([last])})", self.values[x])
        elif kind == 1:
            self.make(f"{x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + 1e-3) * {self.parameter([last])}", self.values[x])
        elif kind == 2:
            self.make(f"torch.softmax({x}, {self.random.randrange(len(self.values[x]))})", self.values[x])
        else:
            self.make(f"F.rms_norm({x}, [{self.size(last)}], {self.parameter([last])}, 1e-3)", self.values[x])

    def reduced(self):
        x = self.pick(2)
        axes = self.values[x]
        i, keeps = self.random.randrange(len(axes)), self.random.random() < 0.4
        f = self.random.choice(("sum", "mean", "amax", "logsumexp", "norm"))
        self.make(f"torch.{f}({x}, dim={i}, keepdim={keeps})", axes[:i] + ([[]] if keeps else []) + axes[i + 1 :])

    def cumulative(self):
        x = self.pick()
        i = self.random.randrange(len(self.values[x]))
        self.make(self.random.choice((f"{x}.cumsum({i})", f"{x}.flip({i})", f"{x}.roll(1, {i})")), self.values[x])

    def joined(self):
        """Parts behind one another: of one dim they are a product, of several a dim of their own."""
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        if self.random.random() < 0.5:
            other = axes[i]
            d = [self.dim(2)] + axes[i] if axes[i] else [self.dim(2)]
        else:
            other = [self.dim()]
            d = [self.dim(self.size(axes[i]) + self.size(other))]
        y = self.parameter(axes[:i] + [other] + axes[i + 1 :])
        self.make(f"torch.cat([{x}, {y}], {i})", axes[:i] + [d] + axes[i + 1 :])

    def attended(self):
        """Attention written out: of a value with itself, over heads that its last axis is cut into."""
        x = self.pick(3, 3)
        if not x:
            return
        b, l, d = self.values[x]
        if self.size(l) == 1:  # of one key the gradients are zero but for rounding
            return
        heads, width = [self.dim(2)], [self.dim(self.random.choice((2, 3, 4)))]
        size = self.shape([b, l, heads, width])
        q, k, v = (
            self.make(f"F.linear({x}, {self.parameter([heads + width, d])}).view({size}).transpose(1, 2)", [b, heads, l, width]) for _ in range(3)
        )
        if self.random.random() < 0.5:
            o = self.make(f"torch.softmax({q} @ {k}.transpose(-1, -2) * 0.5, -1) @ {v}", [b, heads, l, width])
        else:
            o = self.make(f"F.scaled_dot_product_attention({q}, {k}, {v}, is_causal={self.random.random() < 0.5})", [b, heads, l, width])
        self.make(f"{o}.transpose(1, 2).reshape({self.shape([b, l, heads + width])})", [b, l, heads + width])

    def contracted(self):
        """x y^T over the last axis, of two values, or of one with itself."""
        x = self.pick(2, 3)
        a = self.values[x]
        fit = [n for n, b in self.values.items() if len(b) == 2 and self.same(b[-1], a[-1])]
        y = self.random.choice(fit) if fit else None
        if not y or not a[-1]:
            return
        self.make(f"torch.tanh({x} @ {y}.t())", a[:-1] + [self.values[y][0]])

    def summed_up(self):
        """einsum over an outer axis."""
        x = self.pick(3, 3)
        if not x:
            return
        a = self.values[x]
        out = [self.dim()]
        w = self.parameter([a[1], out, a[2]] if self.random.random() < 0.3 else [a[1], out])
        text = f'torch.einsum("abc,bdc->adc", {x}, {w})' if len(self.parameters[w[2:]]) == 3 else f'torch.einsum("abc,bd->adc", {x}, {w})'
        self.make(f"torch.tanh({text})", [a[0], out, a[2]])

    def looked_up(self):
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        if not axes[i]:
            return
        out = [self.dim()]
        indices = [self.random.randrange(self.size(axes[i])) for _ in range(self.size(out))]
        self.make(f"{x}.index_select({i}, torch.tensor({indices}))", axes[:i] + [out] + axes[i + 1 :])

    def rotated(self):
        """The halves of an axis change places: rotary positions."""
        x = self.pick()
        axes = self.values[x]
        if not axes[-1] or self.sizes[axes[-1][0]] != 2:
            return
        half = self.size(axes[-1]) // 2
        turned = self.make(f"torch.cat([-{x}[..., {half}:], {x}[..., :{half}]], -1)", axes)
        self.make(f"{x} * {self.parameter([axes[-1]])} + {turned} * {self.parameter([axes[-1]])}", axes)

    def written(self):
        """A part of a copy is overwritten, or a view of it."""
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        n = self.size(axes[i])
        if n < 2:
            return
        begin = self.random.randrange(n)
        end = self.random.randrange(begin + 1, n + 1)
        at = ", ".join([":"] * i + [f"{begin}:{end}:{self.random.choice((1, 2))}"])
        y = self.make(f"{x} * 1.0", axes)
        self.lines.append(f"{y}[{at}] {self.random.choice(('=', '+=', '*='))} {self.random.choice((0.5, -1.5))}")

    def convolved(self):
        x = self.pick(3, 3)
        if not x or self.size(self.values[x][2]) < 2:
            return
        b, c, l = self.values[x]
        out = [self.dim()]
        self.make(f"torch.tanh(F.conv1d({x}, {self.parameter([out, c, [self.dim(3)]])}, padding=1))", [b, out, l])

    def windows(self):
        x = self.pick(1, 3)
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        n = self.size(axes[i])
        size, step = self.random.choice((2, 3)), self.random.choice((1, 2))
        if n <= size:
            return
        count = (n - size) // step + 1
        self.make(f"{x}.unfold({i}, {size}, {step})", axes[:i] + [[self.dim(count)] if count > 1 else []] + axes[i + 1 :] + [[self.dim(size)]])

    def ordered(self):
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        if self.size(axes[i]) < 3:
            return
        if self.random.random() < 0.5:
            self.make(f"{x}.sort({i})[0]", axes)
        else:
            self.make(f"{x}.topk(2, {i})[0]", axes[:i] + [[self.dim(2)]] + axes[i + 1 :])

    def chosen(self):
        """By a mask of queries by keys, or of signs."""
        x = self.pick()
        axes = self.values[x]
        if len(axes) > 1 and self.random.random() < 0.5:
            n, k = self.size(axes[-2]), self.size(axes[-1])
            self.make(f"{x}.masked_fill(torch.ones({n}, {k}).tril() == 0, -0.5)", axes)
        else:
            self.make(f"torch.where({x} > 0, {x}, {self.parameter([axes[-1]])})", axes)

    def parts_joined(self):
        """Uneven parts in another order."""
        x = self.pick()
        axes = self.values[x]
        i = self.random.randrange(len(axes))
        n = self.size(axes[i])
        if n < 3:
            return
        at = self.random.randrange(1, n)
        d = [self.dim(n)]
        if 2 * at == n:
            return
        self.make(f"torch.cat({x}.split([{at}, {n - at}], {i})[::-1], {i})", axes[:i] + [d] + axes[i + 1 :])

    def run(self):
        ops = [f for n, f in type(self).__dict__.items() if n not in OWN and callable(f)]
        for _ in range(self.random.randrange(5, 15)):
            self.random.choice(ops)(self)
        lines = "\n".join(self.lines)
        outputs = [v for v in self.values if v not in self.inputs and not re.search(rf"= .*\b{v}\b", lines)][-4:] or ["x"]
        source = "def forward(m, x, y):\n  " + "\n  ".join(self.lines) + f"\n  return ({', '.join(outputs)},)\n"
        return source


OWN = set("__init__ dim root size shape parameter make pick total same unify run".split())


def is_ill_conditioned(module, given):
    """Whether PyTorch's own gradients in float32 are far from those in float64: then there is nothing to compare with."""
    results = []
    for m in (module, copy.deepcopy(module).double()):
        generator = torch.Generator().manual_seed(1)
        outputs = m(*(x.to(m.dtype) for x in given))
        total = sum((y * torch.randn(y.shape, generator=generator).to(y.dtype)).sum() for y in outputs)
        used = [p for p in m.parameters()]
        results.append(list(outputs) + [g for g in torch.autograd.grad(total, used, allow_unused=True) if g is not None] if total.requires_grad else list(outputs))
    least = 1e-4 * max(b.norm() for b in results[1])  # zero but for rounding
    return any((a - b).norm() > 2e-6 * b.norm() or b.norm() < least for a, b in zip(*results))


def main():
    folder, count, first = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder.mkdir(exist_ok=True)
    for seed in range(first, first + count):
        maker = Maker(seed)
        source = maker.run()
        path = folder / f"random{seed:04}"
        path.with_suffix(".txt").write_text("\n".join(f"# {n} {maker.shape(a)}" for n, a in {**maker.inputs, **maker.parameters}.items()) + "\n" + source)
        module = Module({n: maker.shape(a) for n, a in maker.parameters.items()} | maker.others, source)
        generator = torch.Generator().manual_seed(seed)
        given = tuple(torch.randn(maker.shape(a), generator=generator) for a in maker.inputs.values())
        if is_ill_conditioned(module, given):
            print(seed, "is ill-conditioned", flush=True)
            continue
        dims = {}
        for name, axes in {**maker.inputs, **maker.parameters}.items():
            most = max([len(a) for a in axes] + [1])
            rows = [[n for d in a for n in (maker.root(d), maker.sizes[d])] + [-1, 1] * (most - len(a)) for a in axes]
            dims[f"dims.{name}"] = torch.tensor(rows, dtype=torch.int32)
        try:
            fixtures.write(module, given, {}, path, more=dims, exact=True)
        except Exception as error:
            print(seed, type(error).__name__, str(error)[:300])
            print(source)


if __name__ == "__main__":
    main()
