"""Tessera: write a model once over named dimensions; the layout over a mesh of ranks is an argument.

    import tessera as ts
    batch, hidden = ts.dims(batch=64, hidden=256)
    ...
    run = step.compile(mesh="data:2;model:2", layout="batch:data; hidden:model")
"""
import os as _os

from . import _tessera

_tessera.set_package_folder(_os.path.dirname(_os.path.abspath(__file__)) + _os.sep)

from ._tessera import (
    Cluster,
    Dim,
    Graph,
    Machine,
    Minimized,
    Schedule,
    Simulation,
    Tensor,
    Tokenizer,
    find_latest,
)
from .build import (
    bf16,
    bool_,
    constant,
    current_graph,
    dims,
    eager,
    f16,
    f32,
    f64,
    i32,
    i64,
    input,
    iota,
    param,
    random_normal,
    random_uniform,
    scan,
    scope,
    state,
    truncated_normal,
    u8,
    update,
)
from .composed import bernoulli, categorical, cross_entropy, expm1, flip, norm, permutation, randint, segment_max, std, var
from .data import Batches, batches, prefetch, write_corpus
from .models import CliModel, Model, TextGenerator, load_model, run_cli
from .errors import CommError, DeviceError, Error, InternalError, IoError, UnsupportedError, UsageError
from .ops import *
from .ops import abs, max, min, pow, print, round, sum
from .own import Op, op
from .program import Program, Result, Run, minimize, program
from .report import Explanation, Plan
from .torch import from_torch
from . import init, nn, optim, testing, torch

__version__ = "0.1.0"
