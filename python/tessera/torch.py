"""Modules of PyTorch in a program: their dims are found, and their own weights are the start."""
from __future__ import annotations

import os
import tempfile
from typing import Any, Callable, Mapping, Sequence

from . import _tessera
from .build import current_graph
from .program import note_start

_ops: dict[str, Any] = {}


def op(name: str, axes: str = "") -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Says what a custom op of PyTorch is in ops of Tessera, for all modules that are imported after it.

    @ts.torch.op("my::scaled", axes="...d,d->...d")
    def scaled(x, scale, factor):
        return x * scale * factor

    axes: one letter is one dim, `...` are leading axes; without it the operands are broadcast. The function gets tensors with these
    dims, and the other arguments as numbers, by name.
    """

    def keep(function):
        _ops[name] = _tessera.pytorch_op(name, axes, function)
        return function

    return keep


def from_torch(module: Any, example_args: Sequence[Any] = (), dims: Mapping[str, str] | str = "", example_kwargs: Mapping[str, Any] | None = None, dynamic_shapes: Any = None, scan: bool = False) -> Module:
    """A torch.nn.Module, what torch.export.export() made of one, or the path of a .pt2, to call in a function under @ts.program.

    dims: names of axes where the ones that are found do not please: {"tokens": "batch length", "*.up.weight": "ff d_model"}.
    dynamic_shapes: as of torch.export.export(); without it sizes are those of the example.
    scan: layers that are alike and follow one another are a loop over the dim "layers", of which one is compiled.
    """
    return Module(module, tuple(example_args), dims, example_kwargs, dynamic_shapes, scan)


class Module:
    """A module in a program: `net(tokens)` is what its forward() returns, a tensor or a dict of them by name.

    Its parameters have the names of the state_dict, and each run begins with the module's weights. Call it once in a program.
    """

    def __init__(self, module: Any, example_args: Sequence[Any], dims: Mapping[str, str] | str, example_kwargs: Mapping[str, Any] | None, dynamic_shapes: Any, scan: bool):
        self._scan = scan
        text = dims if isinstance(dims, str) else "; ".join(f"{tensor}: {names}" for tensor, names in dims.items())
        self._first: dict[str, Any] | None = None
        if not isinstance(module, (str, os.PathLike)):
            import torch  # type: ignore[import-not-found]

            exported = module
            if not isinstance(module, torch.export.ExportedProgram):
                exported = torch.export.export(module, example_args, kwargs=dict(example_kwargs or {}), dynamic_shapes=dynamic_shapes, strict=False)
            self._folder = tempfile.TemporaryDirectory(prefix="tessera-torch-")
            module = os.path.join(self._folder.name, f"{type(module).__name__}.pt2")
            torch.export.save(exported, module)
            self._first = exported.state_dict
        self._model = _tessera.PytorchModel(os.fspath(module), text, _ops)

    @property
    def dims(self) -> dict[str, int]:
        """The dims that were found, with their sizes."""
        return self._model.dims

    @property
    def inputs(self) -> dict[str, list[_tessera.Dim]]:
        """The dims of each input: `ts.i32[net.inputs["tokens"]]` is the annotation of an argument."""
        return {x.name: x.dims for x in self._model.inputs}

    def __call__(self, *tensors: _tessera.Tensor, evaluates: bool = False, dtype: Any = "float32") -> Any:
        """The outputs for these inputs, in the order of forward(). evaluates: without dropout."""
        inputs = self._model.inputs
        if len(tensors) != len(inputs):
            raise TypeError(_tessera.with_line(f"the module has the inputs {', '.join(x.name for x in inputs)}, and is given {len(tensors)} tensors"))
        batch = 0
        for given, tensor in zip(inputs, tensors):
            if given.dims and given.dims[0].name == "batch":
                batch = tensor.dims[0].size
        outputs = self._model.build(current_graph(), {x.name: t for x, t in zip(inputs, tensors)}, batch, evaluates, self._scan, dtype)
        note_start(self)
        return next(iter(outputs.values())) if len(outputs) == 1 else outputs

    def load(self, run: Any) -> None:
        """Gives the parameters of a run the weights that the module had when it was imported. Collective."""
        self._model.load(run._open())

    def state_dict(self, run: Any) -> dict[str, Any]:
        """The parameters and buffers of a run, under the names and in the sizes of the module: for module.load_state_dict()."""
        if self._first is None:
            raise TypeError(_tessera.with_line("a module of a file has no state_dict() here: `tessera export` writes that of a checkpoint"))
        import torch

        result = {}
        for name, first in self._first.items():
            array = self._model.fetch(run._open(), name)
            # What is not stored is a buffer that nothing changes.
            result[name] = first if array is None else torch.from_numpy(array).reshape(first.shape).to(first.dtype)
        return result
