"""Writes what PyTorch computes of a module, for `tessera compare m.pt2 probe.safetensors`. Copy this file: it needs torch and safetensors only.

    probe(module, (tokens,), path="probe.safetensors")
"""

import torch
from safetensors.torch import save_file


def probe(module, args=(), kwargs=None, path="probe.safetensors", seed=1):
    """Runs forward and backward once. The file has inputs, the value and the gradient of each module's result by its path, gradients of parameters, and outputs.

    Backward starts from the sum of the outputs times random numbers, which the file has too.
    """
    kept, calls = {}, {}

    def keep(name):
        def hook(_, __, result):
            calls[name] = calls.get(name, 0) + 1
            if isinstance(result, torch.Tensor) and result.is_floating_point():
                kept[name] = result
                if result.requires_grad:
                    result.retain_grad()

        return hook

    hooks = [part.register_forward_hook(keep(name)) for name, part in module.named_modules() if name]
    module.zero_grad()
    result = module(*args, **(kwargs or {}))
    for hook in hooks:
        hook.remove()
    names = list(torch.export.export(module, args, kwargs=kwargs, strict=False).graph_signature.user_inputs)
    given = [x for x in torch.utils._pytree.tree_leaves((args, kwargs or {})) if isinstance(x, torch.Tensor)]
    tensors = {f"in.{name}": x for name, x in zip([n for n in names if isinstance(n, str)], given)}
    outputs, tree = torch.utils._pytree.tree_flatten(result)
    keys = list(result.keys()) if hasattr(result, "keys") else ["output"] + [f"output_{i}" for i in range(1, len(outputs))]
    generator, total = torch.Generator().manual_seed(seed), 0
    for key, out in zip(keys, outputs):
        tensors[f"out.{key}"] = out
        if out.is_floating_point() and out.requires_grad:
            tensors[f"cotangent.{key}"] = torch.randn(out.shape, generator=generator).to(out.dtype)
            total = total + (out * tensors[f"cotangent.{key}"]).sum()
    if isinstance(total, torch.Tensor):
        total.backward()
    for name, value in kept.items():
        if calls[name] == 1:
            tensors[f"value.{name}"] = value
            if value.grad is not None:
                tensors[f"grad of {name}"] = value.grad
    tensors |= {f"grad.{name}": p.grad for name, p in module.named_parameters() if p.grad is not None}
    module.zero_grad()
    save_file({name: (x.int() if x.dtype == torch.int64 else x).detach().clone().contiguous() for name, x in tensors.items()}, path)
