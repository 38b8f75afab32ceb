"""Models of Hugging Face folders, texts by them, and the command line for models in Python."""
from __future__ import annotations

import json
import sys
from typing import Any, Callable, Mapping, Sequence

from . import _tessera
from .build import building, current_graph
from .data import Batches
from .errors import IoError
from .program import Run, _layout_text, note_metadata

_PARSED = {bool: lambda text: text == "true", int: int, float: float, str: str}


def load_model(
    path: Any, batch: int = 8, length: int = 0, dtype: Any = "float32", scan: bool = False, dropout: float = 0.0,
    lora_rank: int = 0, lora_alpha: float = 16.0, lora_dropout: float = 0.0, lora_targets: Sequence[str] = (),
) -> Model:
    """A folder with config.json and weights. `length`: tokens of an example; 0: as the model says.

    lora_rank: adds parameters a and b of LoRA to its dense layers, whose product counts alpha / rank times; train them with
    trainable=["*.lora_a", "*.lora_b"]. lora_targets: only the layers whose names end so, as ["query", "mlp.*"].
    """
    folder = _tessera.ModelFolder(str(path))
    lora = _tessera.LoraOptions(lora_rank, lora_alpha, lora_dropout, list(lora_targets))
    return Model(folder, folder.options(batch, length, dtype, scan, dropout, lora), lora)


class Model:
    """A transformer of a folder: to build in a program, and to generate with."""

    def __init__(self, folder: _tessera.ModelFolder, options: _tessera.TransformerOptions, lora: _tessera.LoraOptions):
        self.folder, self.options, self.lora = folder, options, lora

    def build(self) -> Any:
        """Its graph, in a function under @ts.program: .loss, .logits, and .inputs "inputs" and "targets"."""
        if self.lora.rank:
            note_metadata("lora", json.dumps({"alpha": self.lora.alpha, "dropout": self.lora.dropout}))
        return _tessera.transformer(current_graph(), self.options)

    def load(self, run: Run) -> None:
        """Gives the parameters of a run of build() the folder's weights. Each process reads its slices. Collective."""
        self.folder.load(run._open(), self.options)

    def export(self, checkpoint: Any, to: Any, adapter: bool = False, average: bool = False) -> None:
        """Writes a checkpoint of a run of build() as a new folder `to`, which transformers opens: see `tessera export`.

        Matrices of LoRA are merged into the weights; with `adapter` the folder is an adapter of PEFT, with everything else that was
        trained as its modules_to_save. average: the moving averages of ts.optim.with_average(). Local: one process calls it.
        """
        _tessera.export_model(str(checkpoint), self.folder, str(to), self.lora, adapter, average)

    @property
    def tokenizer(self) -> _tessera.Tokenizer:
        """That of the folder, read anew."""
        return _tessera.Tokenizer.load(self.folder.path)

    def generator(self, mesh: str = "", layout: str | Mapping = "", rows: int = 1, context: int = 0, device: str = "cpu", checkpoint: Any = None) -> TextGenerator:
        """Writes texts, `rows` at a time. checkpoint: that of a training run, instead of the folder's weights. Collective."""
        made = TextGenerator(self, mesh or "all:1", _layout_text(layout), rows, context, device)
        if checkpoint is None:
            self.folder.load(made._generator.session, self.options)
        else:
            found = _tessera.find_latest(str(checkpoint))
            if found is None:
                raise IoError(f"'{checkpoint}' has no checkpoint")
            _tessera.load_tensors(made._generator.session, found, made._generator.parameters)
        return made


class TextGenerator:
    """Texts by a model, with a cache of keys and values."""

    def __init__(self, model: Model, mesh: str, layout: str, rows: int, context: int, device: str):
        self.cluster = _tessera.Cluster.from_environment(_tessera.mesh_size(mesh))
        self._generator = _tessera.Generator(model.options, self.cluster, mesh, layout, rows, context, device)
        self._model = model

    def __call__(self, prompts: Any, max_tokens: int = 64, on_token: Callable[[int, int], bool] | None = None, **sampling: Any) -> Any:
        """Continues a text, or a list of token ids, or several of these: returns what it was given, the new part only.

        sampling: temperature (0: the likeliest token), top_k, top_p, min_p, repetition_penalty, seed. on_token(prompt, token) is
        called with each new token; False ends the text. Texts also end with the tokenizer's end token. Collective.
        """
        single = isinstance(prompts, str) or (len(prompts) > 0 and isinstance(prompts[0], int))
        given = [prompts] if single else list(prompts)
        texts = [p for p in given if isinstance(p, str)]
        tokenizer = self._model.tokenizer if texts else None
        end = tokenizer.eos if tokenizer is not None else None
        ids = [tokenizer.encode(p) if tokenizer is not None and isinstance(p, str) else list(p) for p in given]

        def goes_on(prompt, token):
            return token != end and (on_token is None or on_token(prompt, token) is not False)

        made = self._generator.run(ids, max_tokens, _tessera.Sampling(**sampling), goes_on)
        results = [tokenizer.decode(new, True) if tokenizer is not None and isinstance(p, str) else new for p, new in zip(given, made)]
        return results[0] if single else results


class CliModel:
    """A model for ts.run_cli(): derive from it, set `name`, and write build() and data()."""

    name = ""
    help = ""
    keys: Mapping[str, Any] = {}  #: the model's own keys with their defaults: {"hidden": 64}
    tiny: Mapping[str, Any] = {}  #: other values for `verify`
    layout = ""  #: the default of --layout

    def build(self, keys: Any, batch: _tessera.Dim) -> Mapping[str, Any]:
        """{"loss": scalar, "inputs": tensors named like the fields of the data}, and "logits", "weight", "tokens" where there are.

        keys: the values, by attribute, those of --dtype and so on as keys.train_dtype. batch: the dim of the examples.
        """
        raise NotImplementedError

    def data(self, keys: Any, held_out: bool) -> Batches | None:
        """What ts.batches() returns, or None where there are no held-out data."""
        raise NotImplementedError

    def tokens(self, keys: Any) -> int:
        """Tokens of one example, for the tokens/s of the log."""
        return 1


class _Keys:
    def __init__(self, model, texts):
        for key, text in texts.items():
            section, _, name = key.partition(".")
            if section == "model" and name in model.keys:
                setattr(self, name, _PARSED[type(model.keys[name])](text))
            else:
                setattr(self, f"{section}_{name}", text)


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)


def _spec(model):
    def build(graph, texts, batch):
        with building(graph):
            made = dict(model.build(_Keys(model, texts), batch))
        return made

    def data(texts, held_out):
        made = model.data(_Keys(model, texts), held_out)
        return getattr(made, "source", made)

    pairs = lambda values: [(f"model.{k}", _text(v)) for k, v in values.items()]
    tiny = [(k if "." in k else f"model.{k}", _text(v)) for k, v in model.tiny.items()]
    return _tessera.model_spec(
        model.name, model.help or f"The model {model.name}.", pairs(model.keys), tiny, model.layout, build, data, lambda texts: model.tokens(_Keys(model, texts))
    )


def run_cli(models: Sequence[CliModel] = (), argv: Sequence[str] | None = None) -> int:
    """The whole command line for models in Python: `sys.exit(ts.run_cli([MyModel()]))`. Returns the exit code."""
    return _tessera.run_cli(list(sys.argv if argv is None else argv), [_spec(model) for model in models])
