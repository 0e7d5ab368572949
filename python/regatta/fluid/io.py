"""Saving and loading with the arguments of Fluid.

Everything that a program keeps goes into one file, ``persistables.safetensors`` in the folder, or
the file that ``filename`` names. A program of a job is saved by its first worker, with what the
servers hold.
"""
from __future__ import annotations

import contextlib
import os
from typing import Any, Callable, Iterator, List, Optional, Sequence

from .. import _core
from .._missing import missing
from ..batch import batch  # noqa: F401
from ..framework import (
    _STORED, Parameter, Program, Variable, default_main_program, global_scope, to_dtype,
)
from ..reader import (  # noqa: F401
    ComposeNotAligned, buffered, cache, chain, compose, firstn, map_readers, multiprocess_reader,
    shuffle, xmap_readers,
)

__all__ = [
    "batch", "buffered", "cache", "chain", "compose", "firstn", "get_parameter_value",
    "get_parameter_value_by_name", "get_program_parameter", "get_program_persistable_vars",
    "is_belong_to_optimizer", "is_parameter", "is_persistable", "load_inference_model",
    "load_params", "load_persistables", "load_vars", "map_readers", "multiprocess_reader",
    "save_inference_model", "save_params", "save_persistables", "save_vars", "shuffle",
    "xmap_readers",
]

_FILE = "persistables.safetensors"
# Names that live elsewhere.
_ELSEWHERE = {
    "DataLoader": "regatta.io", "save": "regatta.static", "load": "regatta.static",
    "load_program_state": "regatta.static", "set_program_state": "regatta.static",
}


def is_parameter(var: Variable) -> bool:
    """Whether a variable is learned."""
    return isinstance(var, Parameter)


def is_persistable(var: Variable) -> bool:
    """Whether a variable is kept between runs."""
    return var.persistable


def is_belong_to_optimizer(var: Variable) -> bool:
    """Whether a variable is kept between runs but not learned."""
    return var.persistable and not is_parameter(var)


def get_program_parameter(program: Program) -> List[Parameter]:
    """The parameters of a program."""
    return program.all_parameters()


def get_program_persistable_vars(program: Program) -> List[Variable]:
    """What a program keeps between runs."""
    return [var for var in _program(program).list_vars() if var.persistable]


def get_parameter_value(para: Variable, executor: Any = None) -> Any:
    """The value of a parameter in the global scope."""
    if not is_parameter(para):
        raise ValueError(f"'{para.name}' is not a parameter")
    return para.get_value()


def get_parameter_value_by_name(name: str, executor: Any = None, program: Any = None) -> Any:
    """The value of a parameter in the global scope."""
    return get_parameter_value(_program(program).global_block().var(name))


# --- variables -----------------------------------------------------------------------------------


def save_persistables(
    executor: Any, dirname: Optional[str], main_program: Any = None, filename: Optional[str] = None
) -> None:
    """Saves everything that a program keeps: parameters, optimizer state, statistics."""
    _save("save_persistables", executor, dirname, main_program, None, filename)


def load_persistables(
    executor: Any, dirname: Optional[str], main_program: Any = None, filename: Optional[str] = None
) -> None:
    """Loads what :func:`save_persistables` wrote. Training continues as if it had never stopped."""
    _load("load_persistables", executor, dirname, main_program, None, filename)


def save_params(
    executor: Any, dirname: Optional[str], main_program: Any = None, filename: Optional[str] = None
) -> None:
    """Saves the parameters of a program."""
    params = _program(main_program).all_parameters()
    _save("save_params", executor, dirname, main_program, params, filename)


def load_params(
    executor: Any, dirname: Optional[str], main_program: Any = None, filename: Optional[str] = None
) -> None:
    """Loads the parameters of a program from what :func:`save_params` or
    :func:`save_persistables` wrote."""
    params = _program(main_program).all_parameters()
    _load("load_params", executor, dirname, main_program, params, filename)


def save_vars(
    executor: Any,
    dirname: Optional[str],
    main_program: Any = None,
    vars: Optional[Sequence[Any]] = None,
    predicate: Optional[Callable[[Variable], bool]] = None,
    filename: Optional[str] = None,
) -> None:
    """Saves some variables of a program: a list of them, or those that ``predicate`` accepts."""
    chosen = _chosen("save_vars", main_program, vars, predicate)
    _save("save_vars", executor, dirname, main_program, chosen, filename)


def load_vars(
    executor: Any,
    dirname: Optional[str],
    main_program: Any = None,
    vars: Optional[Sequence[Any]] = None,
    predicate: Optional[Callable[[Variable], bool]] = None,
    filename: Optional[str] = None,
) -> None:
    """Loads some variables of a program."""
    chosen = _chosen("load_vars", main_program, vars, predicate)
    _load("load_vars", executor, dirname, main_program, chosen, filename)


def _chosen(
    call: str, main_program: Any, vars: Optional[Sequence[Any]],
    predicate: Optional[Callable[[Variable], bool]],
) -> List[Variable]:
    program = _program(main_program)
    if vars is None and predicate is None:
        raise ValueError(f"{call}: pass vars or predicate, to say what is meant")
    if vars is None:
        return [var for var in program.list_vars() if predicate(var)]  # type: ignore[misc]
    block = program.global_block()
    return [block.var(var) if isinstance(var, str) else var for var in vars]


def _program(program: Any) -> Program:
    program = program if program is not None else default_main_program()
    program = getattr(program, "_program", program)  # a CompiledProgram
    if not isinstance(program, Program):
        raise TypeError(f"main_program should be a Program, not {type(program).__name__}")
    return program


def _only(vars: Sequence[Variable]) -> _core.Program:
    """A program that keeps these variables and does nothing."""
    program = _core.Program("main")
    for var in vars:
        if not var.persistable:
            raise ValueError(f"'{var.name}' is not kept between runs, so it has no value to save")
        program.declare(var.name, _STORED[to_dtype(var.dtype)], list(var.shape), True)
    return program


def _where(call: str, dirname: Any) -> str:
    if dirname is None:
        raise NotImplementedError(f"{call}: dirname is None: values are saved to folders")
    return os.fspath(dirname)


def _save(
    call: str, executor: Any, dirname: Any, main_program: Any, vars: Any, filename: Optional[str]
) -> None:
    program, scope, folder = _program(main_program), global_scope(), _where(call, dirname)
    job = getattr(program, "_job", None) or _fleet_job(program)
    if job is not None:
        _refuse_part(call, vars, filename)
        job.save_persistables(executor, scope, folder)
        return
    native = program._core if vars is None else _only(vars)
    os.makedirs(folder, exist_ok=True)
    if not filename or filename == _FILE:
        _core.save_persistables(native, scope._core, folder)
        return
    import tempfile

    with tempfile.TemporaryDirectory(prefix=".saving-", dir=folder) as draft:
        _core.save_persistables(native, scope._core, draft)
        os.replace(os.path.join(draft, _FILE), os.path.join(folder, filename))


def _load(
    call: str, executor: Any, dirname: Any, main_program: Any, vars: Any, filename: Optional[str]
) -> None:
    program, scope, folder = _program(main_program), global_scope(), _where(call, dirname)
    job = getattr(program, "_job", None) or _fleet_job(program)
    if job is not None:
        _refuse_part(call, vars, filename)
        job.load_persistables(executor, scope, folder)
        return
    native = program._core if vars is None else _only(vars)
    with _folder_of(folder, filename) as source:
        _core.load_persistables(native, scope._core, source)


@contextlib.contextmanager
def _folder_of(folder: str, filename: Optional[str]) -> Iterator[str]:
    """A folder in which the file has the name that the native module looks for."""
    if not filename or filename == _FILE:
        yield folder
        return
    import tempfile

    path = os.path.abspath(os.path.join(folder, filename))
    if not os.path.isfile(path):
        raise FileNotFoundError(f"{path} does not exist")
    with tempfile.TemporaryDirectory(prefix="regatta-") as links:
        os.symlink(path, os.path.join(links, _FILE))
        yield links


def _fleet_job(program: Program) -> Any:
    """The job of a program that fleet has minimized."""
    runner = getattr(program, "_runner", None)
    job = getattr(runner, "__self__", None)
    if job is None or not hasattr(job, "core"):
        return None
    return _FleetSaver(job)


class _FleetSaver:
    """The same two calls for a job of fleet."""

    def __init__(self, job: Any) -> None:
        self._job = job

    def save_persistables(self, executor: Any, scope: Any, dirname: str) -> None:
        self._job.begin(executor, scope)
        self._job.core.save_persistables(scope._core, dirname)

    def load_persistables(self, executor: Any, scope: Any, dirname: str) -> None:
        self._job.begin(executor, scope)
        self._job.core.init_worker(scope._core)
        self._job.core.load_model(scope._core, dirname)
        self._job.core.barrier_worker()


def _refuse_part(call: str, vars: Any, filename: Optional[str]) -> None:
    if call in ("save_vars", "load_vars") or filename:
        raise NotImplementedError(
            f"{call}: a program of a job is saved and loaded whole, by save_persistables and "
            "load_persistables without filename"
        )


# --- models --------------------------------------------------------------------------------------


def save_inference_model(
    dirname: str,
    feeded_var_names: Sequence[str],
    target_vars: Sequence[Any],
    executor: Any,
    main_program: Any = None,
    model_filename: Optional[str] = None,
    params_filename: Optional[str] = None,
    export_for_deployment: bool = True,
    program_only: bool = False,
) -> List[str]:
    """Saves the part of a program that makes ``target_vars`` from the named inputs, with its
    parameters, as the folder ``dirname``. Returns the names of the outputs."""
    if program_only:
        raise NotImplementedError("save_inference_model: program_only: a model has its parameters")
    if not export_for_deployment:
        raise NotImplementedError(
            "save_inference_model: export_for_deployment=False: save_persistables keeps what training "
            "needs"
        )
    feeds = _feed_names(feeded_var_names)
    targets = target_vars if isinstance(target_vars, (list, tuple)) else [target_vars]
    fetches = [var if isinstance(var, str) else var.name for var in targets]
    program, scope = _program(main_program), global_scope()
    job = getattr(program, "_job", None)
    if job is not None:
        job.save_inference_model(executor, scope, os.fspath(dirname), feeds, fetches)
    else:
        os.makedirs(os.path.dirname(os.path.abspath(os.fspath(dirname))), exist_ok=True)
        _core.save_inference_model(os.fspath(dirname), program._core, feeds, fetches, scope._core)
    return fetches


def _feed_names(names: Any) -> List[str]:
    if isinstance(names, str):
        return [names]
    return [name if isinstance(name, str) else name.name for name in names]


def load_inference_model(
    dirname: str,
    executor: Any,
    model_filename: Optional[str] = None,
    params_filename: Optional[str] = None,
    pserver_endpoints: Any = None,
) -> List[Any]:
    """Loads a model. Returns a program, the names of its inputs, and its outputs."""
    if pserver_endpoints is not None:
        raise NotImplementedError(
            "load_inference_model: pserver_endpoints: a saved model has its tables with it"
        )
    from ..static import load_inference_model as load

    return list(load(os.fspath(dirname), executor))


def __getattr__(name: str) -> Any:
    if name in _ELSEWHERE:
        import importlib

        return getattr(importlib.import_module(_ELSEWHERE[name]), name)
    if name == "PyReader":
        from .reader import PyReader

        return PyReader
    return missing(__name__)(name)
