"""Static programs: built first, then run.

>>> import numpy as np, regatta as rg
>>> main, startup = rg.static.Program(), rg.static.Program()
>>> with rg.static.program_guard(main, startup), rg.unique_name.guard():
...     x = rg.static.data("x", [None, 1], "float32")
...     y = rg.static.data("y", [None, 1], "float32")
...     cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1), y))
...     _ = rg.optimizer.SGD(0.5).minimize(cost)
>>> exe = rg.static.Executor()
>>> _ = exe.run(startup)
>>> xs = np.array([[1.0], [-1.0]], "float32")
>>> for _ in range(20):
...     loss, = exe.run(main, feed={"x": xs, "y": 3 * xs}, fetch_list=[cost])
>>> loss[0] < 1e-6
np.True_
"""
from __future__ import annotations

import importlib
from typing import Any, List, Optional, Sequence

from .. import _core
from .. import tensor as _tensor  # noqa: F401  (operators of variables)
from .._missing import missing
from ..executor import Executor, FetchHandler
from ..framework import (
    _STORED, Parameter, Program, Scope, Variable, default_main_program, default_startup_program,
    global_scope, name_scope, program_guard, scope_guard, to_dtype,
)
from ..framework import create_state as _create_state
from ..framework import unique_name as _unique_name
from .compiled import BuildStrategy, CompiledProgram, ExecutionStrategy, ParallelExecutor

__all__ = [
    "BuildStrategy", "CompiledProgram", "ExecutionStrategy", "Executor", "FetchHandler",
    "InputSpec", "ParallelExecutor", "Parameter", "Program", "Scope", "Variable",
    "WeightNormParamAttr", "accuracy", "append_backward", "auc", "cpu_places", "create_global_var",
    "create_parameter", "cuda_places", "data", "default_main_program", "default_startup_program",
    "deserialize_persistables", "deserialize_program", "device_guard", "global_scope", "gradients",
    "io", "load", "load_from_file", "load_inference_model", "load_program_state", "load_vars",
    "metric", "name_scope", "nn", "normalize_program", "program_guard", "py_func", "save",
    "save_inference_model", "save_to_file", "save_vars", "scope_guard", "serialize_persistables",
    "serialize_program", "set_program_state",
]

_LAZY = {"nn": "nn", "io": "io", "metric": "metric"}
_FROM_IO = {
    "save", "load", "save_inference_model", "load_inference_model", "save_vars", "load_vars",
    "load_program_state", "set_program_state", "serialize_program", "deserialize_program",
    "serialize_persistables", "deserialize_persistables", "save_to_file", "load_from_file",
    "normalize_program", "is_persistable", "is_parameter",
}
_missing = missing(__name__)


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return importlib.import_module(f"{__name__}.{_LAZY[name]}")
    if name in _FROM_IO:
        return getattr(importlib.import_module(f"{__name__}.io"), name)
    if name in ("auc", "accuracy"):
        return getattr(importlib.import_module(f"{__name__}.metric"), name)
    if name == "create_parameter":
        return importlib.import_module("regatta.tensor").create_parameter
    return _missing(name)


def data(
    name: str, shape: Sequence[Optional[int]], dtype: Any = "float32", lod_level: int = 0
) -> Variable:
    """An input that is fed by name. The first dimension is usually None or -1, the batch.
    With ``lod_level=1`` an example has any number of ids. The same again is the same input."""
    program = default_main_program()
    logical = to_dtype(dtype)
    if lod_level not in (0, 1):
        raise ValueError(f"data '{name}': lod_level should be 0 or 1, but is {lod_level}")
    if lod_level == 1:
        if logical not in ("int64", "uint64"):
            raise TypeError(f"data '{name}': inputs with lod_level=1 hold ids, of type int64")
        program._core.sparse_data(name)
    else:
        # Another dimension than the first may be open, too: it has nothing to do with the batch.
        dims = [(-2 if i else -1) if d is None or d < 0 else int(d) for i, d in enumerate(shape)]
        program._core.data(name, _STORED[logical], dims)
    program._note_dtype(name, logical)
    return program._variable(name)


class InputSpec:
    """The shape and type of an input."""

    def __init__(
        self,
        shape: Sequence[Optional[int]],
        dtype: Any = "float32",
        name: Optional[str] = None,
        stop_gradient: bool = True,
    ) -> None:
        self.shape = tuple(-1 if d is None else int(d) for d in shape)
        self.dtype = to_dtype(dtype)
        self.name = name
        self.stop_gradient = stop_gradient

    @classmethod
    def from_tensor(cls, tensor: Any, name: Optional[str] = None) -> "InputSpec":
        """That of a tensor or variable."""
        return cls(tensor.shape, tensor.dtype, name or getattr(tensor, "name", None))

    @classmethod
    def from_numpy(cls, ndarray: Any, name: Optional[str] = None) -> "InputSpec":
        """That of an array."""
        return cls(ndarray.shape, ndarray.dtype, name)

    def batch(self, batch_size: int) -> "InputSpec":
        """Puts a dimension in front; returns itself."""
        self.shape = (int(batch_size), *self.shape)
        return self

    def unbatch(self) -> "InputSpec":
        """Takes the first dimension away; returns itself."""
        if not self.shape:
            raise ValueError("unbatch: there is no dimension to take away")
        self.shape = self.shape[1:]
        return self

    def __repr__(self) -> str:
        return f"InputSpec(shape={self.shape}, dtype={self.dtype}, name={self.name})"


def create_global_var(
    shape: Sequence[int],
    value: float,
    dtype: Any,
    persistable: bool = False,
    force_cpu: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """A variable that keeps its value between runs, ``value`` everywhere at first."""
    return _create_state(name or _unique_name.generate("global_var"), shape, dtype, value)


def append_backward(
    loss: Variable,
    parameter_list: Optional[Sequence[Any]] = None,
    no_grad_set: Optional[Sequence[Any]] = None,
    callbacks: Any = None,
    checkpoints: Any = None,
) -> List[Any]:
    """Appends gradients of a loss; returns parameters with their gradients."""
    if callbacks is not None or checkpoints is not None:
        raise ValueError("append_backward: callbacks and checkpoints cannot be honoured; for "
                         "checkpoints use recompute of fleet.DistributedStrategy")
    names = None
    if parameter_list is not None:
        names = [p if isinstance(p, str) else p.name for p in parameter_list]
    no_grad = [v if isinstance(v, str) else v.name for v in no_grad_set or ()]
    program = loss.program
    pairs = _core.append_backward(program._core, loss.name, names, no_grad)
    return [(program._variable(p), program._variable(g)) for p, g in pairs]


def cpu_places(device_count: Optional[int] = None) -> List[Any]:
    """The CPU, as often as there are devices to be."""
    from ..device import CPUPlace

    return [CPUPlace() for _ in range(device_count or 1)]


def cuda_places(device_ids: Optional[Sequence[int]] = None) -> List[Any]:
    """Places of devices; Regatta computes on CPUs."""
    from ..device import CUDAPlace

    return [CUDAPlace(i) for i in (device_ids or [0])]
