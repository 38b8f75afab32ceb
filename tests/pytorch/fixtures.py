"""Exports a module, and writes beside it what PyTorch computes of it: values and gradients, in float32."""

import io
import json
import pathlib
import zipfile

import torch
from safetensors.torch import save_file


def leaves(value):
    """Tensors of what forward() returns, in the order of torch.export."""
    return [x for x in torch.utils._pytree.tree_leaves(value) if isinstance(x, torch.Tensor)]


def repack(path):
    """Deflates the description, which is most of a tiny model's file, and leaves out what is pickled."""
    old = path.read_bytes()
    with zipfile.ZipFile(io.BytesIO(old)) as source, zipfile.ZipFile(path, "w") as to:
        for entry in source.infolist():
            if entry.filename.endswith("sample_inputs/model.pt"):
                continue
            method = zipfile.ZIP_DEFLATED if entry.filename.endswith(".json") else zipfile.ZIP_STORED
            to.writestr(zipfile.ZipInfo(entry.filename), source.read(entry), method, 9)


def write(module, args=(), kwargs=None, path="", dynamic_shapes=None):
    """`path`.pt2 and `path`.safetensors: in.NAME, out.I, cotangent.I and grad.PARAMETER of the sum of out cotangent."""
    kwargs = kwargs or {}
    path = pathlib.Path(path)
    program = torch.export.export(module, args, kwargs=kwargs, dynamic_shapes=dynamic_shapes, strict=False)
    torch.export.save(program, path.with_suffix(".pt2"))
    repack(path.with_suffix(".pt2"))
    names = list(program.graph_signature.user_inputs)
    given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    tensors = {f"in.{n}": x.detach().clone().contiguous() for n, x in zip([n for n in names if isinstance(n, str)], given)}
    generator = torch.Generator().manual_seed(1)
    parameters = {n: p for n, p in module.named_parameters() if p.requires_grad}
    outputs = leaves(module(*args, **kwargs))
    total = 0
    for i, out in enumerate(outputs):
        tensors[f"out.{i}"] = out.detach().clone().contiguous()
        if not out.is_floating_point():
            continue
        cotangent = torch.randn(out.shape, generator=generator, dtype=out.dtype)
        tensors[f"cotangent.{i}"] = cotangent
        if out.requires_grad:
            total = total + (out * cotangent).sum()
    if parameters and isinstance(total, torch.Tensor):
        grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
        for name, grad in zip(parameters, grads):
            if grad is not None:
                tensors[f"grad.{name}"] = grad.detach().clone().contiguous()
    tensors = {k: (v.to(torch.int32) if v.dtype == torch.int64 else v) for k, v in tensors.items()}
    save_file(tensors, path.with_suffix(".safetensors"))
    return program
