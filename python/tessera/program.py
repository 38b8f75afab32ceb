"""A step as a Python function, compiled for a mesh and a layout, and run."""
from __future__ import annotations

import atexit
import functools
import inspect
import logging
import numbers
import os
import sys
import threading
import time
import traceback
import weakref
from typing import Any, Callable, Iterable, Mapping

import numpy as np

from . import _tessera
from .build import InputSpec, building, building_now, current_graph, input as make_input, is_number
from .data import Batches
from .errors import FOLDER, Error, IoError, UsageError, end_in_users_line
from .optim import Optimizer
from .report import Explanation, Plan

_RATE = "learning_rate"
_log = logging.getLogger("tessera")
_runs: weakref.WeakSet = weakref.WeakSet()


@atexit.register
def _close_runs():
    """When the interpreter ends: waits for steps that daemon threads make, some seconds at most, and closes all runs."""
    _tessera.stop_other_threads(5.0)
    for run in list(_runs):
        run.close()


def _fail_peers(run, error):
    """Tells the other processes of a run that this one leaves it with `error`, instead of letting them wait."""
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith(FOLDER)]
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno})" if frames else ""
    text = "".join(traceback.format_exception_only(type(error), error)).strip()
    run.cluster.fail(f"the program of that process ended with {text}{where}")


def _watch(hooks, name, error_of, is_concerned):
    """Before what an uncaught exception does, its peers are told."""
    then = getattr(hooks, name)

    def hook(*arguments):
        error = error_of(*arguments)
        if error is not None:
            for run in list(_runs):
                if is_concerned(run):
                    _fail_peers(run, error)
        then(*arguments)

    setattr(hooks, name, hook)


@functools.lru_cache(None)
def _watch_exceptions():
    """An exception that leaves the main thread ends the process; one of another thread ends the runs that it made steps of."""
    _watch(sys, "excepthook", lambda kind, error, trace: error, lambda run: True)
    _watch(threading, "excepthook", lambda e: e.exc_value, lambda run: run._thread == threading.get_ident())


class _Step:
    """What the function returned, by name, and the schedules that are fed each step."""

    def __init__(self):
        self.outputs, self.schedules, self.defaults, self.metadata, self.starts = {}, {}, {}, {}, []


_tracing: list = []


def note_metadata(key, text):
    """Checkpoints of the program that is being traced say this of it."""
    if _tracing:
        _tracing[-1].metadata[key] = text


def note_start(module):
    """Runs of the program that is being traced begin with the weights of a module: module.load(run)."""
    if _tracing:
        _tracing[-1].starts.append(module)


def minimize(
    loss: Any, optimizer: Optimizer, clip: float = 0.0, recompute: Iterable[str] = (), trainable: Iterable[str] = (), microbatches: int = 1, dim: str = "batch"
) -> _tessera.Minimized:
    """Adds gradients of `loss` and updates of all trainable parameters. Returns .loss and .gradient_norm.

    loss: a tensor, summed if it is not a scalar; or, with microbatches, a function that builds a scalar for one of them along `dim`.
    clip: the greatest norm of the gradient; 0: no limit. recompute, trainable: globs of scopes and of parameters.
    """
    graph = current_graph()
    if not isinstance(optimizer, Optimizer):
        raise TypeError(f"ts.minimize takes an optimizer such as ts.optim.adamw(3e-4), not {optimizer!r}")
    lr = optimizer.lr
    if isinstance(lr, _tessera.Schedule):
        schedule, lr = lr, make_input(_RATE, [])
        if _tracing:
            _tracing[-1].schedules[_RATE] = schedule
    elif is_number(lr):
        lr = _tessera.constant(graph, float(lr), "float32", [])
    options = (float(clip), list(recompute), list(trainable))
    if microbatches < 1:
        raise _usage(f"[minimize] {microbatches} microbatches; there is at least 1")
    if microbatches > 1:
        if not callable(loss):
            raise TypeError("with microbatches, the loss is a function that builds it for one microbatch")
        return _tessera.minimize_in_microbatches(graph, dim, microbatches, loss, lr, optimizer.rule, *options)
    return _tessera.minimize(loss() if callable(loss) else loss, lr, optimizer.rule, *options)


def _default(name, spec, value):
    """What an argument is when a call does not give it: an array, or a number in every element."""
    if hasattr(value, "__dlpack__") and not is_number(value):
        return value
    if not is_number(value) and not isinstance(value, list):
        raise TypeError(f"the default of argument '{name}' is an array of {spec!r} or a number, not {value!r}")
    if spec.dtype.name == "bfloat16":
        raise TypeError(f"the default of argument '{name}' is bfloat16, which NumPy lacks: give an array of PyTorch or JAX")
    made = _as_dtype(value, spec.dtype.name)
    if made.dtype != spec.dtype.name:
        raise TypeError(f"the default of argument '{name}' is {value!r}, which {spec.dtype} cannot hold")
    return made if made.ndim else np.full([dim.size for dim in spec.dims], made)


def _as_dtype(value, dtype):
    """A number or a list of numbers as an array of this dtype; as it is, if that would lose more than digits."""
    array = np.asarray(value)
    if dtype == "bfloat16" or array.dtype.kind not in "biuf":
        return array
    with np.errstate(all="ignore"):
        made = array.astype(dtype, copy=False)
    return made if made.dtype.kind == "f" or np.array_equal(made, array) else array


def _named_outputs(returned):
    if isinstance(returned, _tessera.Tensor):
        return {"result": returned}
    if isinstance(returned, _tessera.Minimized):
        return {"loss": returned.loss, "gradient_norm": returned.gradient_norm}
    if isinstance(returned, dict):
        outputs = {}
        for name, value in returned.items():
            if isinstance(value, _tessera.Minimized):
                outputs.update(_named_outputs(value))
            else:
                outputs[name] = value
        returned = outputs
    if not isinstance(returned, dict) or not all(isinstance(v, _tessera.Tensor) for v in returned.values()):
        raise TypeError(f"a program returns a tensor, what ts.minimize() returned, or a dict of these, not {returned!r}")
    return returned


def _strict_chunks(numerics: str) -> int:
    """CompileOptions::strict_chunks."""
    kind, colon, chunks = numerics.partition(":")
    if numerics == "default":
        return 0
    if kind != "strict" or (colon and not chunks.isdigit()):
        raise _usage(f"numerics={numerics!r}: it is 'default', 'strict', or 'strict:C' with a power of two C, the chunks of a sum")
    return int(chunks) if colon else 16


class Program:
    """A function whose annotated arguments are inputs: see ts.program."""

    def __init__(self, function):
        self.function = function
        self.__name__, self.__doc__ = function.__name__, function.__doc__

    def _trace(self):
        """Calls the function: what it reads from outside is as it is now."""
        graph, step = _tessera.make_graph(), _Step()
        arguments, code = {}, getattr(self.function, "__code__", None)
        line = None if code is None else (code.co_filename, code.co_firstlineno)
        annotations = inspect.get_annotations(self.function, eval_str=True) if hasattr(inspect, "get_annotations") else self.function.__annotations__
        _tracing.append(step)
        try:
            with building(graph):
                for name, parameter in inspect.signature(self.function).parameters.items():
                    spec = annotations.get(name)
                    if not isinstance(spec, InputSpec):
                        raise TypeError(f"argument '{name}' of {self.__name__}() needs dtype and dims as its annotation: {name}: ts.f32[batch, length]")
                    arguments[name] = graph.input(name, spec.dims, spec.dtype, line)
                    if parameter.default is not parameter.empty:
                        step.defaults[name] = _default(name, spec, parameter.default)
                step.outputs = _named_outputs(self.function(**arguments))
        except (Error, TypeError) as error:
            end_in_users_line(error)
            raise
        finally:
            _tracing.pop()
        function = _tessera.FunctionSpec("step", list(step.outputs.values()), graph.has_updates)
        return graph, step, function

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """In a function under @ts.program: what this program's function makes of these tensors."""
        if not building_now():
            raise TypeError(
                f"{self.__name__}() is a program: {self.__name__}.compile(mesh=..., layout=...) makes a run of it, which takes arrays; only other programs call it, with tensors"
            )
        return self.function(*arguments, **named)

    @property
    def graph(self) -> _tessera.Graph:
        """The model as the function builds it now; str() lists its nodes."""
        return self._trace()[0]

    @staticmethod
    def _options(function, mesh, layout, seed=0, device="cpu", keep=(), threads_per_rank=0, numerics="default"):
        return _tessera.CompileOptions(
            _mesh_text(mesh), _layout_text(layout), [function], seed, device, list(keep), threads_per_rank, _strict_chunks(numerics), _log.info
        )

    def compile(
        self, mesh: str | Mapping = "", layout: str | Mapping = "", seed: int = 0, device: str = "cpu", keep: Iterable[str] = (), cluster: Any = None, threads_per_rank: int = 0, numerics: str = "default"
    ) -> Run:
        """A Run on the ranks of `mesh` ("data:2;model:2", or {"data": 2}), whose tensors are cut as `layout` says.

        The function is called, so what it reads from outside, such as a global number, is as it is now. layout: rules as "batch:data; heads,ff:model", or a dict {"batch": "data", ("heads", "ff"): "model"}. cluster: its ranks, or a communicator of
        mpi4py, instead of those of the launcher or threads. threads_per_rank: threads that may share the kernels of a rank; 0: the
        cores over the ranks, and no more than OMP_NUM_THREADS. numerics: with "strict" every sum has one order, so that losses and
        parameters have the same bits on every mesh and layout (run.state_hash()); "strict:C" cuts a summed dim into at most C
        chunks, 16 by default. Collective over the processes of a launcher.
        """
        graph, step, function = self._trace()
        options = self._options(function, mesh, layout, seed, device, keep, threads_per_rank, numerics)
        if cluster is None:
            cluster = _tessera.Cluster.from_environment(_tessera.mesh_size(_mesh_text(mesh)))
        elif not isinstance(cluster, _tessera.Cluster):
            cluster = _tessera.Cluster.adopt(cluster)
        return Run(self, step, graph, cluster, options)

    def summary(self) -> str:
        """A table: each parameter with its dims, its number of elements, whether it is trained, and its weight decay."""
        return self._trace()[0].parameter_table()

    def explain(self, mesh: str | Mapping = "", layout: str | Mapping = "", machine: str | None = None) -> Explanation:
        """The collectives, bytes and memory of a layout, without running it; with a machine also predicted times, on devices of its kind."""
        on = _machine(machine)
        graph, _, function = self._trace()
        return Explanation(_tessera.explain(graph, self._options(function, mesh, layout, device=on.device_type if on else "cpu"), on))

    def plan(self, mesh: str | Mapping | int, machine: str = "h100", layout: str | Mapping = "", memory: int | None = None, seconds: float = 10.0) -> Plan:
        """The layout and storage with the least predicted time on a machine: its .mesh and .layout are for compile().

        mesh: axes, or a number of devices for any mesh of them. layout: rules that every plan keeps ("heads:auto" leaves heads
        open). memory: bytes of a device, instead of the machine's. seconds: limit of the search. Without ranks. Local.
        """
        graph, _, function = self._trace()
        axes, devices = ("", mesh) if isinstance(mesh, int) else (_mesh_text(mesh), 0)
        return Plan(_tessera.plan(graph, [function], axes, devices, _machine(machine), _layout_text(layout), memory, seconds))

    def simulate(self, mesh: str | Mapping = "", layout: str | Mapping = "", machine: str = "h100") -> _tessera.Simulation:
        """When each step of the Program runs on a described machine: .seconds, .steps, .trace()."""
        on = _machine(machine)
        graph, _, function = self._trace()
        return _tessera.simulate(graph, self._options(function, mesh, layout, device=on.device_type), on)

    def layouts(self, mesh: str | Mapping) -> list[str]:
        """All legal layouts that give each axis of `mesh` to one dim or to none."""
        graph, _, function = self._trace()
        return _tessera.legal_layouts(graph, _mesh_text(mesh), [function])

    def verify(self, mesh: str | Mapping, steps: int = 2, tolerance: float = 1e-4, **arrays: Any) -> float:
        """Runs every legal layout of `mesh` beside one rank with these inputs. Returns the largest relative difference of any
        scalar output; raises AssertionError for one beyond `tolerance`."""
        scalars = [name for name, x in self._trace()[1].outputs.items() if not x.dims]
        if not scalars:
            raise UsageError(f"verify: {self.__name__}() has no scalar output to compare")

        def values(mesh, layout):
            with self.compile(mesh=mesh, layout=layout) as run:
                return np.array([[float(result[name]) for name in scalars] for result in (run(**arrays) for _ in range(steps))])

        expected, worst = values("all:1", ""), 0.0
        for layout in self.layouts(mesh):
            difference = float(np.max(np.abs(values(mesh, layout) - expected) / np.maximum(np.abs(expected), 1e-12)))
            if not difference <= tolerance:
                raise AssertionError(f"layout '{layout}' on {mesh} differs from one rank by {difference:.3g} (relative), more than {tolerance:g}")
            worst = max(worst, difference)
        return worst


def _machine(machine):
    return _tessera.Machine.load(machine) if isinstance(machine, str) else machine


def _mesh_text(mesh):
    """"data:2;model:2" of itself or of {"data": 2, "model": 2}."""
    if isinstance(mesh, str):
        return mesh or "all:1"
    if not isinstance(mesh, Mapping):
        raise TypeError(f"a mesh is a text such as 'data:2;model:2' or a dict such as {{'data': 2, 'model': 2}}, not {mesh!r}")
    for axis, size in mesh.items():
        if not isinstance(axis, str) or not axis.strip() or set(axis) & set(":;"):
            raise _usage(f"mesh {dict(mesh)!r}: a key is the name of one axis, such as 'data', not {axis!r}")
        # "2@nvlink" is a size with the class of its links.
        if isinstance(size, bool) or not isinstance(size, (numbers.Integral, str)):
            raise _usage(f"mesh {dict(mesh)!r}: the size of axis '{axis}' is a whole number, not {size!r}")
    return ";".join(f"{axis}:{size}" for axis, size in mesh.items()) or "all:1"


def _names(whole, names, what):
    """One name or several, each a text or a Dim."""
    named = [getattr(x, "name", x) for x in (names if isinstance(names, (tuple, list)) else [names])]
    if not named or not all(isinstance(x, str) and x.strip() and not set(x) & set(":;\n") for x in named):
        raise _usage(f"layout {whole!r}: {what}, not {names!r}")
    return named


def _layout_text(layout):
    """"batch:data; heads,ff:model" of itself or of {"batch": "data", ("heads", "ff"): "model"}."""
    if isinstance(layout, str):
        return layout
    if not isinstance(layout, Mapping):
        raise TypeError(f"a layout is a text such as 'batch:data; heads,ff:model' or a dict such as {{'batch': 'data'}}, not {layout!r}")
    whole, rules = dict(layout), []
    for dims, axes in layout.items():
        dims = ",".join(_names(whole, dims, "a key is a dim or a tuple of dims, also with a purpose or scope before them as in '@params d_model'"))
        axes = "-" if axes is None else "+".join(_names(whole, axes, f"the value of '{dims}' is a mesh axis, a list of them from major to minor, or None for no axis"))
        rules.append(f"{dims}:{axes}")
    return "; ".join(rules)


def _give(take, what, name, array, dtype):
    """Gives the engine an array under `name`: take(name, array), which reads its memory in place. Numbers get the tensor's dtype()."""
    try:
        is_array = hasattr(array, "__dlpack__") and not (isinstance(array, np.ndarray) and array.ndim == 0)
        take(name, array if is_array else _as_dtype(array, dtype()))
    except TypeError:
        raise _no_array(what, name, array) from None


def _no_array(what, name, x):
    """Why the engine cannot read `x`, which is given for an input or for what is stored."""
    why = f"is {type(x).__name__} {x!r:.60}" if not hasattr(x, "__dlpack__") else f"is a {type(x).__name__} that gives no array"
    if getattr(x, "__dlpack_device__", lambda: (1, 0))()[0] != 1:
        why = "is not in host memory; copy it: x.cpu() of PyTorch, jax.device_get(x) of JAX"
    elif hasattr(x, "dtype"):
        why = f"has the dtype {x.dtype}" if isinstance(x, np.ndarray) else why
        try:
            x.__dlpack__()
        except Exception as e:
            why += f": {e}"
    return TypeError(_tessera.with_line(f"[{what}] what is given for '{name}' {why}; arrays are of float16, bfloat16, float32, float64, int32, int64, uint8 or bool"))


def _usage(message):
    """A UsageError with the caller's line."""
    return UsageError(_tessera.with_line(message))


def program(function: Callable[..., Any]) -> Program:
    """Makes a Program of a function: its annotated arguments are inputs, and what it returns are outputs. Each call gives all
    inputs; an argument with a default, a number or an array, may be left out.

    @ts.program
    def step(x: ts.f32[batch, rows], labels: ts.i32[batch]): ...
    """
    return Program(function)


class Result:
    """The outputs of a run, by attribute or by name. They are fetched when they are asked for, before the next run.

    A scalar is a number of Python, another output an array with the dims of the tensor, in its order: print(result) shows them.
    """

    def __init__(self, run, number):
        self._run, self._number, self._values = run, number, {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._values:
            outputs = self._run._outputs
            if name not in outputs:
                raise KeyError(f"no output is called '{name}'; there are: {', '.join(outputs)}")
            if self._number != self._run._number:
                raise _usage(f"'{name}' is asked of run {self._number}, but run {self._run._number} has begun: ask for it before")
            value = self._run._open().fetch(outputs[name].name)
            self._values[name] = value.item() if value.ndim == 0 else value
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except KeyError as e:
            raise AttributeError(e.args[0]) from None

    def __dir__(self):
        return list(self._run._outputs)

    def __repr__(self):
        return f"Result({', '.join(f'{name}: {x.dtype}{list(x.dims)}' for name, x in self._run._outputs.items())})"


class Run:
    """A Program on its ranks: `run(tokens=array)` makes one step. Use it from one thread; close() or `with` ends it.

    Random numbers are those of the seed, the step counter and the place in the model: others in each run, the same again with
    run(..., step=7), under every layout. Ctrl-C ends a long step within a second; a Run of one rank can go on then.

    Under a launcher, an exception that leaves `with` or the program fails the other processes at once.
    """

    def __init__(self, program, step, graph, cluster, options):
        self.program, self.cluster = program, cluster
        self._outputs, self._schedules, self._defaults, self._metadata = step.outputs, step.schedules, step.defaults, step.metadata
        self._options, self._graph, self._number, self._checkpoints = options, graph, 0, {}
        begin = time.perf_counter()
        self._thread = threading.get_ident()
        self._session = session = _tessera.Session(graph, cluster, options)
        self._inputs = {name: place for name, place in _tessera.inputs_of(graph, session, "step") if name not in self._schedules}
        if "step" in self._inputs:
            raise _usage(f"the input 'step' ({self._inputs['step']}) has the name of the step counter, which each call takes; give it another one")
        self._required = self._inputs.keys() - self._defaults.keys()
        self._modules = step.starts
        for module in self._modules:
            module.load(self)
        _runs.add(self)
        if cluster.backend == "mpi":
            _watch_exceptions()
        if cluster.is_root:
            seconds, name, ranks, device = time.perf_counter() - begin, program.__name__, cluster.size, session.device
            _log.info("compiled %s in %.2f s: %d ranks (%s) on %s, a rank has %d bytes of parameters, optimizer state and inputs, and %d transient, at the peak", name, seconds, ranks, cluster.backend, device, session.persistent_bytes, session.transient_bytes)
            for fallback in session.fallbacks:
                _log.warning("%s", fallback)

    def _open(self):
        if self._session is None:
            raise _usage(f"this run of {self.program.__name__}() was closed; {self.program.__name__}.compile() makes another")
        return self._session

    def __call__(self, *, step: int | None = None, **arrays: Any) -> Result:
        """Feeds inputs (NumPy, PyTorch, JAX: whatever has DLPack or a buffer) and runs one step. Collective.

        Each call gives all inputs that the step reads, but for arguments with a default. Numbers and lists of them get the dtype of
        the input. step: the step counter, for this run and those that follow: the same step draws the same random numbers again.
        """
        session = self._open()
        self._feed(session, arrays, frozenset())
        if step is not None:
            session.set_step(step)
        return self._step()

    def step(self, batches: Batches, number: int | None = None, **arrays: Any) -> Result:
        """One step on the data of step `number` (that of the step counter, if it is not given). arrays: the other inputs."""
        if not isinstance(batches, Batches):
            raise TypeError(f"run.step() takes what ts.batches() returns, not {batches!r}")
        session = self._open()
        batches.feed(session, self.step_count if number is None else number)
        self._feed(session, arrays, batches.names)
        return self._step()

    def _feed(self, session, arrays, fed):
        for name, array in arrays.items():
            _give(session.feed, "feed", name, array, lambda: self._graph.find(name).dtype)
        if not self._required <= arrays.keys() | fed:
            self._refuse(self._required - arrays.keys() - fed)
        for name, array in self._defaults.items():
            if name not in arrays and name not in fed:
                session.feed(name, array)

    def _refuse(self, missing):
        names = [name for name in self._inputs if name in missing]
        what = " and ".join(f"'{name}' ({self._inputs[name]})" for name in names)
        raise _usage(
            f"[run] {self.program.__name__}() reads the input{'s' if len(names) > 1 else ''} {what}, which this call does not give: no call keeps what an earlier"
            f" one gave; add {', '.join(name + '=...' for name in names)}, or a default to the argument"
        )

    def _step(self):
        session, self._thread = self._session, threading.get_ident()
        for name, schedule in self._schedules.items():
            session.feed(name, np.float32(schedule.at(session.step)).reshape(()))
        self._number += 1
        step = session.step
        session.run("step")
        if session.step == step:  # it updates nothing
            session.set_step(step + 1)
        return Result(self, self._number)

    @property
    def step_count(self) -> int:
        """The number of the next step: each run adds one. Random numbers and schedules depend on it, and checkpoints keep it."""
        return self._open().step

    def fetch(self, name: str) -> np.ndarray:
        """A parameter, state or output by its full name, whole. Collective."""
        return self._open().fetch(name)

    def assign(self, name: str, array: Any) -> None:
        """Overwrites a parameter or state with a whole value: any array that a call takes, read in place. The same in every process."""
        _give(self._open().assign, "assign", name, array, lambda: self._graph.find(name).dtype)

    def slices(self, name: str) -> list[tuple[int, list[int], np.ndarray]]:
        """(rank, offset, array) of each local rank's slice of a tensor: the memory itself, on the CPU."""
        return _tessera.slices(self._open(), name)

    def set_size(self, dim: Any, size: int) -> None:
        """The size of a bounded dim in the next runs."""
        self._open().set_size(dim, size)

    def state_dict(self) -> dict[str, Any]:
        """The parameters and buffers of the modules of PyTorch in the program, for load_state_dict(). Collective."""
        return {name: x for module in self._modules for name, x in module.state_dict(self).items()}

    @property
    def parameters(self) -> list[str]:
        """The names of parameters and state."""
        return self._open().stored_names

    def state_hash(self) -> str:
        """The SHA-256 of all parameters and optimizer state; with numerics="strict" it is the same on every mesh. Collective."""
        return _tessera.state_hash(self._open())

    @property
    def program_text(self) -> str:
        """Every step that a rank runs."""
        return self._open().program_text

    @property
    def device(self) -> str:
        """"cpu", or "cuda:0" of the first local rank's GPU."""
        return self._open().device

    def explain(self) -> Explanation:
        """The collectives, bytes and memory of this layout."""
        return Explanation(_tessera.explain(self._graph, self._options, None))

    def save(self, directory: Any, keep: int = 3) -> str:
        """Saves parameters, state and step as directory/step-N, whole or not at all, and keeps the last `keep`. Returns the path."""
        directory, session = str(directory), self._open()
        if directory not in self._checkpoints:
            self._checkpoints[directory] = _tessera.Checkpoints(self.cluster, directory, keep)
        return self._checkpoints[directory].save(session, session.step, self._metadata)

    def load(self, path: Any, names: Iterable[str] | None = None) -> int:
        """Loads a checkpoint of any mesh and layout: a step-N, or the latest one of a directory. Returns its step.

        names: only these parameters and state, without the step counter; the checkpoint may have more. So a program that predicts
        loads what another one has trained: predict.load(folder, predict.parameters).
        """
        session = self._open()
        found = _tessera.find_latest(str(path))
        if found is None:
            raise IoError(f"'{path}' has no checkpoint")
        step, warning = _tessera.load_checkpoint(session, found, None if names is None else list(names))
        if warning and self.cluster.is_root:
            _log.warning("%s", warning)
        return step

    def close(self) -> None:
        """Ends the run and frees its memory."""
        self._checkpoints.clear()
        self._session = None

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind, error, trace):
        if error is not None and self.cluster.backend == "mpi" and not (isinstance(error, SystemExit) and not error.code):
            _fail_peers(self, error)
        self.close()
