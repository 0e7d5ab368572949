"""Values and models of static programs on disk.

``save(program, "dir/name")`` writes three files: ``name.pdparams`` (parameters) and ``name.pdopt``
(everything else that the program keeps) are pickles of dictionaries of arrays that Paddle reads
and writes too; ``name.pdmodel`` is the program as text, which only Regatta reads.

``save_inference_model("dir/name", ...)`` writes the folder ``dir/name``, which ``regatta predict``,
``regatta serve``, :class:`regatta.Model` and :func:`load_inference_model` read. Beside it
``name.pdmodel`` and ``name.pdiparams`` are one line each that says where the model is, for scripts
that look for these files. Models in Paddle's binary format are neither read nor written.
"""
from __future__ import annotations

import os
import re
import warnings
from typing import Any, Dict, Iterable, List, Optional, Sequence, Tuple, Union

from .. import _core
from .._files import load as _load_file
from .._files import save as _save_file
from .._files import unpickle, values_of, write_file
from .._missing import missing
from .._model import SavedModel, model_folder, read_program, read_values
from ..framework import Program, Scope, Variable, default_main_program, global_scope

__all__ = [
    "deserialize_persistables", "deserialize_program", "load", "load_from_file",
    "load_inference_model", "load_program_state", "load_vars", "normalize_program", "save",
    "save_inference_model", "save_to_file", "save_vars", "serialize_persistables",
    "serialize_program", "set_program_state",
]

_ENDS = (".pdparams", ".pdopt", ".pdmodel")
_REFERENCE = "regatta-inference-model 1\nfolder {}\n"


# --- names ---------------------------------------------------------------------------------------


def paddle_name(name: str) -> str:
    """The name that Paddle gives to a piece of optimizer state.

    >>> paddle_name("fc_0.w_0_beta1_pow_0")
    'fc_0.w_0_beta1_pow_acc_0'
    """
    return re.sub(r"_beta([12])_pow_(\d+)$", r"_beta\1_pow_acc_\2", name)


def _find(state: Dict[str, Any], name: str) -> Any:
    value = state.get(paddle_name(name))
    return value if value is not None else state.get(name)


# --- values of programs --------------------------------------------------------------------------


def _program(program: Any, call: str) -> Program:
    program = program if program is not None else default_main_program()
    program = getattr(program, "_program", program)  # a CompiledProgram
    if not isinstance(program, Program):
        raise TypeError(f"{call} takes a Program, not {type(program).__name__}")
    return program


def _prefix(path: Any, call: str) -> str:
    prefix = os.fspath(path)
    if not os.path.basename(prefix):
        raise ValueError(f"{call}: '{prefix}' is a folder; expected a folder and a name in it")
    for end in _ENDS:
        if prefix.endswith(end):
            return prefix[: -len(end)]
    return prefix


def _job(program: Program) -> Any:
    """The job that runs a program, if there is one."""
    job = getattr(program._runner, "__self__", None)
    return job if hasattr(job, "core") else None


def _pull(program: Program, scope: Scope, call: str) -> None:
    """Takes the latest values of a job into the scope."""
    job = _job(program)
    if job is None:
        return
    if job.core.server_num():
        raise NotImplementedError(
            f"{call}: the values of this program are on parameter servers; use "
            "fleet.save_persistables and fleet.load_model"
        )
    if job.core.is_worker():
        job.core.pull_parameters(scope._core)


def _values(
    program: Program, scope: Scope, variables: Iterable[Variable], call: str
) -> Dict[str, Any]:
    values = {}
    for variable in variables:
        value = scope._core.get(variable.name)
        if value is None:
            raise RuntimeError(
                f"{call}: '{variable.name}' has no value: run the startup program first"
            )
        if variable.name == program._lr_name and value.size == 1:
            value = value.reshape(())
        values[paddle_name(variable.name)] = value
    return values


def _put(variable: Variable, scope: Scope, value: Any, call: str) -> None:
    import numpy as np

    value = np.asarray(value)
    shape = tuple(variable.shape)
    if value.shape != shape:
        if value.size != int(np.prod(shape)) or value.ndim > 1 and len(shape) > 1:
            raise ValueError(
                f"{call}: '{variable.name}' has the shape {list(shape)}, but the value has "
                f"{list(value.shape)}"
            )
        value = value.reshape(shape)
    name = str(variable.dtype)
    stored = "float32" if name.startswith(("float", "bfloat")) else (
        "uint64" if name == "uint64" else "int64")
    scope._core.set(variable.name, np.ascontiguousarray(value, dtype=stored))


def _kept(program: Program) -> Tuple[List[Variable], List[Variable]]:
    """Parameters, and what else is kept between runs."""
    kept = [v for v in program.list_vars() if v.persistable]
    return [v for v in kept if v.is_parameter], [v for v in kept if not v.is_parameter]


def save(
    program: Program, model_path: Union[str, "os.PathLike[str]"], protocol: int = 4, **configs: Any
) -> None:
    """Writes ``model_path.pdparams``, ``.pdopt`` and ``.pdmodel``."""
    program, scope = _program(program, "save"), global_scope()
    prefix = _prefix(model_path, "save")
    if "pickle_protocol" in configs:
        protocol = configs.pop("pickle_protocol")
    if configs:
        raise TypeError(f"save: unknown arguments {sorted(configs)}")
    _pull(program, scope, "save")
    parameters, others = _kept(program)
    learned = _values(program, scope, parameters, "save")
    state = _values(program, scope, others, "save")
    _save_file(learned, prefix + ".pdparams", protocol)
    _save_file(state, prefix + ".pdopt", protocol)
    write_file(prefix + ".pdmodel", program.serialize_to_string())


def load(
    program: Program,
    model_path: Union[str, "os.PathLike[str]"],
    executor: Any = None,
    var_list: Optional[Sequence[Variable]] = None,
) -> None:
    """Puts the values of ``model_path.pdparams`` and ``.pdopt`` into the global scope. Every
    parameter of the program must be there; other state that is not is named by a warning and stays
    as it is."""
    program, scope = _program(program, "load"), global_scope()
    state = load_program_state(model_path)
    parameters, others = _kept(program)
    if var_list is not None:
        names = {v if isinstance(v, str) else v.name for v in var_list}
        unknown = names - {v.name for v in [*parameters, *others]}
        if unknown:
            raise ValueError(f"load: the program keeps no variable {sorted(unknown)}")
        parameters = [v for v in [*parameters, *others] if v.name in names]
        others = []
    absent = [v.name for v in parameters if _find(state, v.name) is None]
    if absent:
        raise RuntimeError(
            f"load: {_prefix(model_path, 'load')}.pdparams has no value of {', '.join(absent)}"
        )
    for variable in [*parameters, *others]:
        value = _find(state, variable.name)
        if value is not None:
            _put(variable, scope, value, "load")
    left = [v.name for v in others if _find(state, v.name) is None]
    if left:
        warnings.warn(
            f"load: {_prefix(model_path, 'load')} has no value of {', '.join(left)}; they stay as "
            "they are", UserWarning, stacklevel=2,
        )


def load_program_state(
    model_path: Union[str, "os.PathLike[str]"], var_list: Optional[Sequence[Variable]] = None
) -> Dict[str, Any]:
    """Arrays by name, of ``model_path.pdparams`` and ``.pdopt`` together."""
    prefix = _prefix(model_path, "load_program_state")
    state: Dict[str, Any] = {}
    found = [prefix + end for end in (".pdparams", ".pdopt") if os.path.isfile(prefix + end)]
    if not found:
        raise FileNotFoundError(f"there is neither {prefix}.pdparams nor {prefix}.pdopt")
    for path in found:
        values = _load_file(path, return_numpy=True)
        if not isinstance(values, dict):
            raise ValueError(f"{path} holds a {type(values).__name__}, not a dictionary of arrays")
        state.update(values)
    if var_list is not None:
        names = [v if isinstance(v, str) else v.name for v in var_list]
        state = {n: _find(state, n) for n in names if _find(state, n) is not None}
    return state


def set_program_state(program: Program, state_dict: Dict[str, Any]) -> None:
    """Puts values into the global scope, by name. Names that the program does not keep are named by
    a warning."""
    program, scope = _program(program, "set_program_state"), global_scope()
    parameters, others = _kept(program)
    used = set()
    for variable in [*parameters, *others]:
        for name in (paddle_name(variable.name), variable.name):
            if name in state_dict:
                _put(variable, scope, state_dict[name], "set_program_state")
                used.add(name)
                break
    unused = sorted(set(map(str, state_dict)) - used)
    if unused:
        warnings.warn(
            f"set_program_state: the program keeps no {', '.join(unused)}", UserWarning,
            stacklevel=2,
        )


def _saved_by_fluid(call: str) -> Any:
    from ..fluid import io as fluid_io

    return getattr(fluid_io, call)


def save_vars(executor: Any, dirname: str, *args: Any, **kwargs: Any) -> None:
    """As ``fluid.io.save_vars``."""
    _saved_by_fluid("save_vars")(executor, dirname, *args, **kwargs)


def load_vars(executor: Any, dirname: str, *args: Any, **kwargs: Any) -> None:
    """As ``fluid.io.load_vars``."""
    _saved_by_fluid("load_vars")(executor, dirname, *args, **kwargs)


# --- models --------------------------------------------------------------------------------------


def _var_names(values: Any, what: str, call: str) -> List[str]:
    values = list(values) if isinstance(values, (list, tuple)) else [values]
    for value in values:
        if not isinstance(value, (str, Variable)):
            raise TypeError(f"{call}: {what} holds {value!r}, which is not a variable")
    return [v if isinstance(v, str) else v.name for v in values]


def _program_of(variables: Any, program: Any, call: str) -> Program:
    if program is None:
        variables = variables if isinstance(variables, (list, tuple)) else [variables]
        program = next((v.program for v in variables if isinstance(v, Variable)), None)
    return _program(program, call)


def _check(program: Program, feeds: Sequence[str], fetches: Sequence[str], call: str) -> None:
    for name in [*feeds, *fetches]:
        if not program._core.has_var(name):
            raise ValueError(f"{call}: the program has no variable '{name}'")


def save_inference_model(
    path_prefix: Union[str, "os.PathLike[str]"],
    feed_vars: Any,
    fetch_vars: Any,
    executor: Any,
    **kwargs: Any,
) -> None:
    """Saves the part of a program that makes ``fetch_vars`` from ``feed_vars``, with its values, as
    the folder ``path_prefix``."""
    call = "save_inference_model"
    program = _program_of(fetch_vars, kwargs.pop("program", None), call)
    for name in ("clip_extra", "legacy_format"):
        kwargs.pop(name, None)  # they concern Paddle's binary format
    if kwargs:
        raise TypeError(f"{call}: unknown arguments {sorted(kwargs)}")
    feeds, fetches = _var_names(feed_vars, "feed_vars", call), _var_names(
        fetch_vars, "fetch_vars", call)
    _check(program, feeds, fetches, call)
    save_model_folder(_prefix(path_prefix, call), program, feeds, fetches, executor)
    prefix = _prefix(path_prefix, call)
    note = _REFERENCE.format(os.path.basename(prefix)).encode("utf-8")
    write_file(prefix + ".pdmodel", note)
    write_file(prefix + ".pdiparams", note)


def save_model_folder(
    folder: str, program: Program, feeds: Sequence[str], fetches: Sequence[str], executor: Any
) -> None:
    """Saves a model as a folder. A folder that holds something else is left alone."""
    if os.path.isdir(folder) and os.listdir(folder):
        if not os.path.isfile(os.path.join(folder, "model.program")):
            raise FileExistsError(
                f"{folder} is a folder that holds something else than a model; a model would take "
                "its place"
            )
    os.makedirs(os.path.dirname(os.path.abspath(folder)), exist_ok=True)
    scope, job = global_scope(), _job(program)
    if job is not None:
        job.begin(executor, scope)
        job.core.save_inference_model(scope._core, folder, list(feeds), list(fetches))
    else:
        _core.save_inference_model(folder, program._core, list(feeds), list(fetches), scope._core)


class _ModelRunner:
    """Runs the program of a saved model by the model itself, whose values it has."""

    def __init__(self, model: SavedModel) -> None:
        self.model = model

    def run(
        self, executor: Any, feed: Dict[str, Any], fetch: Sequence[str], scope: Scope,
        kind: Any = "run",
    ) -> List[Any]:
        _only_runs(kind)
        outputs = self.model.outputs
        for name in fetch:
            if name not in outputs:
                raise ValueError(f"a saved model gives its outputs {outputs}, not '{name}'")
        wanted = {each.name for each in self.model.inputs}
        values = self.model._core.predict({n: v for n, v in feed.items() if n in wanted})
        by_name = dict(zip(outputs, values))
        return [by_name[name] for name in fetch]


class _ValuesRunner:
    """Runs the program of a saved model on values in memory: for inputs that are not rows, which
    :class:`regatta.Model` does not take."""

    def __init__(self, folder: str, program: Program, feeds: Sequence[str]) -> None:
        self._program, self._feeds = program, set(feeds)
        self._scope = _core.Scope()
        for name, value in read_values(folder).items():
            self._scope.set(name, value)

    def run(
        self, executor: Any, feed: Dict[str, Any], fetch: Sequence[str], scope: Scope,
        kind: Any = "run",
    ) -> List[Any]:
        _only_runs(kind)
        ready = {n: v for n, v in feed.items() if n in self._feeds}
        return executor._core.run(self._program._core, self._scope, ready, list(fetch))


def _only_runs(kind: Any) -> None:
    if kind != "run":
        raise NotImplementedError("the program of a saved model is run with Executor.run")


def load_inference_model(
    path_prefix: Union[str, "os.PathLike[str]", None], executor: Any, **kwargs: Any
) -> List[Any]:
    """The program of a saved model, the names of its inputs, and its outputs. The program runs with
    ``executor.run(program, feed=..., fetch_list=outputs)``; its values stay with the model."""
    for name in ("model_filename", "params_filename", "pserver_endpoints"):
        if kwargs.pop(name, None) is not None and path_prefix is None:
            raise NotImplementedError(
                "load_inference_model: a model is a folder; pass its path prefix"
            )
    if kwargs:
        raise TypeError(f"load_inference_model: unknown arguments {sorted(kwargs)}")
    if path_prefix is None:
        raise ValueError("load_inference_model: path_prefix is None; expected the path of a model")
    return load_model_folder(model_folder(os.fspath(path_prefix)))


def _is_rows(variable: Variable) -> bool:
    """Whether an input has one row of a known width, or any number of ids, per example."""
    shape = variable.shape
    return variable.lod_level > 0 or len(shape) == 1 or (len(shape) == 2 and shape[1] > 0)


def load_model_folder(folder: str) -> List[Any]:
    """As :func:`load_inference_model`, from a folder."""
    feeds, fetches, text = read_program(folder)
    program = Program(_core.Program.parse(text))
    program._is_test = True
    if all(_is_rows(program._variable(name)) for name in feeds):
        program._runner = _ModelRunner(SavedModel.open(folder)).run
    else:
        program._runner = _ValuesRunner(folder, program, feeds).run
    return [program, feeds, [program.global_block().var(name) for name in fetches]]


# --- bytes ---------------------------------------------------------------------------------------


def normalize_program(
    program: Program, feed_vars: Any, fetch_vars: Any, **kwargs: Any
) -> Program:
    """The part of a program that makes ``fetch_vars``, for prediction."""
    call = "normalize_program"
    program = _program(program, call)
    fetches = _var_names(fetch_vars, "fetch_vars", call)
    _check(program, _var_names(feed_vars, "feed_vars", call), fetches, call)
    kwargs.pop("skip_prune_program", None)
    if kwargs:
        raise TypeError(f"{call}: unknown arguments {sorted(kwargs)}")
    return program.clone(for_test=True)._prune(fetches)


def serialize_program(feed_vars: Any, fetch_vars: Any, **kwargs: Any) -> bytes:
    """The part of a program that makes ``fetch_vars``, as bytes."""
    program = _program_of(fetch_vars, kwargs.pop("program", None), "serialize_program")
    kwargs.pop("legacy_format", None)
    return normalize_program(program, feed_vars, fetch_vars, **kwargs).serialize_to_string()


def serialize_persistables(
    feed_vars: Any, fetch_vars: Any, executor: Any, **kwargs: Any
) -> bytes:
    """The values that :func:`serialize_program`'s program needs, as bytes."""
    import pickle

    call = "serialize_persistables"
    program = _program_of(fetch_vars, kwargs.pop("program", None), call)
    part = normalize_program(program, feed_vars, fetch_vars, **kwargs)
    _pull(program, global_scope(), call)
    parameters, others = _kept(part)
    return pickle.dumps(_values(part, global_scope(), [*parameters, *others], call), protocol=4)


def deserialize_program(data: bytes) -> Program:
    """The program of :func:`serialize_program`."""
    return Program.parse_from_string(data)


def deserialize_persistables(program: Program, data: bytes, executor: Any) -> None:
    """Puts the values of :func:`serialize_persistables` into the global scope."""
    set_program_state(program, values_of(unpickle(data)))


def save_to_file(path: str, content: bytes) -> None:
    """Writes bytes to a file."""
    if not isinstance(content, bytes):
        raise TypeError(f"save_to_file takes bytes, not {type(content).__name__}")
    write_file(path, content)


def load_from_file(path: str) -> bytes:
    """The bytes of a file."""
    with open(path, "rb") as file:
        return file.read()


__getattr__ = missing(__name__)
