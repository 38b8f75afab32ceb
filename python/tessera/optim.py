"""Optimizers. The learning rate is a number, a scalar tensor, or a ts.Schedule."""
from __future__ import annotations

from typing import Any

from . import _tessera


class Optimizer:
    """How ts.minimize() changes the parameters."""

    def __init__(self, lr: Any, rule: _tessera.Optimizer):
        self.lr, self.rule = lr, rule


def sgd(lr: Any, weight_decay: float = 0.0) -> Optimizer:
    """p - lr g."""
    return Optimizer(lr, _tessera.sgd(weight_decay))


def momentum(lr: Any, mu: float = 0.9, weight_decay: float = 0.0) -> Optimizer:
    """v = mu v + g; p - lr v."""
    return Optimizer(lr, _tessera.momentum(mu, weight_decay))


def adam(lr: Any, **options: Any) -> Optimizer:
    """Adam (Kingma & Ba 2015). options: beta1, beta2, eps, weight_decay, no_decay, decay_all, decoupled; which decay: as of adamw()."""
    return Optimizer(lr, _tessera.adam(**options))


def adamw(lr: Any, weight_decay: float = 0.01, **options: Any) -> Optimizer:
    """Adam with decoupled weight decay (Loshchilov & Hutter 2019). options: beta1, beta2, eps, no_decay, decay_all.

    A parameter with at least two dims decays, unless its last name is b, bias or scale, or a glob of `no_decay` matches its name. With
    decay_all only `no_decay` counts. print(step.summary()) shows which do.
    """
    return Optimizer(lr, _tessera.adam(weight_decay=weight_decay, **options))


def lamb(lr: Any, **options: Any) -> Optimizer:
    """LAMB (You et al. 2020). options: beta1, beta2, eps, weight_decay."""
    return Optimizer(lr, _tessera.lamb(**options))


def lion(lr: Any, **options: Any) -> Optimizer:
    """Lion (Chen et al. 2023). options: beta1, beta2, weight_decay."""
    return Optimizer(lr, _tessera.lion(**options))


def adafactor(lr: Any) -> Optimizer:
    """Adafactor (Shazeer & Stern 2018)."""
    return Optimizer(lr, _tessera.adafactor())


def muon(lr: Any, others: Optimizer | None = None, **options: Any) -> Optimizer:
    """Muon (Jordan et al. 2024) for matrices, `others` (adam) for the rest. options: mu, weight_decay, matrices, rows."""
    return Optimizer(lr, _tessera.muon(_tessera.adam() if others is None else others.rule, **options))


def with_average(optimizer: Optimizer, decay: float) -> Optimizer:
    """`optimizer`, with a moving average of each parameter as state."""
    return Optimizer(optimizer.lr, _tessera.with_average(optimizer.rule, decay))
