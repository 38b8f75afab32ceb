"""Exports a module, and writes beside it what PyTorch computes of it: values and gradients, in float32."""

import copy
import io
import json
import pathlib
import zipfile

import torch
from safetensors.torch import save_file


def leaves(value):
    """Tensors of what forward() returns, in the order of torch.export."""
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def repack(path, without=()):
    """Deflates the description, which is most of a tiny model's file, and leaves out what is pickled, and the elements of these parameters."""
    old = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(old)) as source:
        config = next(n for n in source.namelist() if n.endswith("data/weights/model_weights_config.json"))
        dropped = {config.replace("model_weights_config.json", w["path_name"]) for name, w in json.loads(source.read(config))["config"].items() if name in without}
    with zipfile.ZipFile(io.BytesIO(old)) as source, zipfile.ZipFile(path, "w") as to:
        for entry in source.infolist():
            if entry.filename.endswith("sample_inputs/model.pt") or entry.filename in dropped:
                continue
            method = zipfile.ZIP_DEFLATED if entry.filename.endswith(".json") else zipfile.ZIP_STORED
            to.writestr(zipfile.ZipInfo(entry.filename), source.read(entry), method, 9)


def results(module, args, kwargs):
    """Outputs, cotangents and gradients."""
    generator = torch.Generator().manual_seed(1)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    total, tensors = 0, {}
    for i, out in enumerate(leaves(module(*args, **kwargs))):
        tensors[f"out.{i}"] = out.detach().clone()
        if not out.is_floating_point():
            continue
        cotangent = torch.randn(out.shape, generator=generator).to(out.dtype)
        tensors[f"cotangent.{i}"] = cotangent
        if out.requires_grad:
            total = total + (out * cotangent).sum()
    if parameters and isinstance(total, torch.Tensor):
        grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        tensors |= {f"grad.{name}": grad.detach().clone() for name, grad in zip(parameters, grads) if grad is not None}
    return tensors


def distance(computed, wide, kind):
    """The largest |a - b| / |b| of a tensor, of those in float32 from those in float64; of a gradient that is zero but for rounding on the scale of all."""
    pairs = [(a.double(), wide[k].double()) for k, a in computed.items() if k.startswith(kind)]
    least = 1e-3 * max([b.norm() for _, b in pairs] + [torch.tensor(0.0)]) if kind == "grad." else torch.tensor(1e-20)
    return max([float((a - b).norm() / torch.maximum(b.norm(), least)) for a, b in pairs if a.numel()] + [0.0])


def write(module, args=(), kwargs=None, path="", dynamic_shapes=None, more=None, exact=False, core=False):
    """`path`.pt2 and `path`.safetensors: in.NAME, out.I, cotangent.I and grad.PARAMETER of the sum of out cotangent. `core`: as core ATen."""
    kwargs = kwargs or {}
    path = pathlib.Path(path)
    program = torch.export.export(module, args, kwargs=kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    program = program.run_decompositions() if core else program
    torch.export.save(program, path.with_suffix(".pt2"))
    repack(path.with_suffix(".pt2"))
    names = list(program.graph_signature.user_inputs)
    given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    tensors = {f"in.{n}": x.detach().clone().contiguous() for n, x in zip([n for n in names if isinstance(n, str)], given)}
    computed = results(module, args, kwargs)
    if exact:  # in float64, unless the module has a dtype of its own
        double = lambda x: x.double() if isinstance(x, torch.Tensor) and x.is_floating_point() else x
        try:
            wide = results(copy.deepcopy(module).double(), *torch.utils._pytree.tree_map(double, (args, kwargs)))
            tensors["noise"] = torch.tensor(max(distance(computed, wide, "out."), distance(computed, wide, "grad.")))
            computed = {k: v.to(computed[k].dtype) for k, v in wide.items()}
        except RuntimeError:
            pass
    tensors |= {k: (v.to(torch.int32) if v.dtype == torch.int64 else v).contiguous() for k, v in computed.items()}
    tensors = {k: (v.to(torch.int32) if v.dtype == torch.int64 else v) for k, v in tensors.items()}
    save_file({**tensors, **(more or {})}, path.with_suffix(".safetensors"))
    return program
