"""Parameters with values, and tensors in programs.

A :class:`Parameter` of the dynamic mode is a tensor that optimizers update. Its initial values are
those that a startup program gives to a parameter of the same name. Where an op of a program reads a
tensor, the tensor becomes a parameter, a state or a constant of the program, and its value goes
into the scope.
"""
from __future__ import annotations

import copy
from typing import Any, Dict, Optional, Sequence, Tuple

from . import _core
from .framework import (
    _STORED, ParamAttr, Program, Tensor, current_seed, default_startup_program, global_scope,
    to_dtype, unique_name,
)


class EagerParamBase(Tensor):
    """A tensor that is learned: a parameter of a layer in the dynamic mode."""

    def __new__(
        cls, value: Any, dtype: Any = "float32", name: Optional[str] = None,
        trainable: bool = True, *more: Any, **attributes: Any,
    ) -> "EagerParamBase":
        return super().__new__(cls, value, str(to_dtype(dtype)), not trainable)

    def __init__(
        self, value: Any, dtype: Any = "float32", name: Optional[str] = None,
        trainable: bool = True, learning_rate: float = 1.0, regularizer: Any = None,
        need_clip: bool = True, do_model_average: bool = True, init: Any = None,
    ) -> None:
        self.name = name if name is not None else unique_name.generate("_eager_param_base")
        self.optimize_attr = {"learning_rate": float(learning_rate)}
        self.regularizer = regularizer
        self.need_clip = bool(need_clip)
        self.do_model_average = do_model_average
        self.is_distributed = False
        self.persistable = True
        # The op of the initial values, and the version of the tensor that has them.
        self._init, self._init_version = init, self._version

    @property
    def trainable(self) -> bool:
        """Whether optimizers update it."""
        return not self.stop_gradient

    @trainable.setter
    def trainable(self, value: bool) -> None:
        self.stop_gradient = not value

    def _attributes(self) -> Dict[str, Any]:
        return {
            "trainable": not self.stop_gradient, "regularizer": self.regularizer,
            "learning_rate": self.optimize_attr["learning_rate"], "need_clip": self.need_clip,
            "do_model_average": self.do_model_average,
        }

    def __deepcopy__(self, memo: Dict[int, Any]) -> "EagerParamBase":
        name = self.name + unique_name.generate("_deepcopy")
        made = type(self)(self.detach(), self.dtype, name, **self._attributes())
        _copy_extras(self, made, memo)
        memo[id(self)] = made
        return made

    def __reduce_ex__(self, protocol: Any) -> Any:
        arguments = {**self._attributes(), "name": self.name}
        return _unpickled, (type(self), self.numpy(), str(self.dtype), arguments)


_OWN = {
    "_name", "optimize_attr", "regularizer", "need_clip", "do_model_average", "is_distributed",
    "persistable", "_init", "_init_version",
}


def _copy_extras(old: Tensor, new: Tensor, memo: Dict[int, Any]) -> None:
    for name, value in old.__dict__.items():
        if name not in _OWN:
            setattr(new, name, copy.deepcopy(value, memo))


def _unpickled(kind: type, value: Any, dtype: str, arguments: Dict[str, Any]) -> Any:
    return kind(value, dtype, **arguments)


def create_eager(
    name: Optional[str], prefix: str, suffix: str, shape: Sequence[int], attr: ParamAttr,
    init: Any, dtype: Any,
) -> EagerParamBase:
    """A parameter of the dynamic mode with its initial values."""
    name = attr.name or name or unique_name.generate(f"{prefix}.{suffix}")
    if not hasattr(init, "_init_op"):
        raise TypeError(f"parameter '{name}': {init!r} is not an initializer")
    if _STORED[to_dtype(dtype)] not in ("f32", "f16", "bf16"):
        raise TypeError(f"a parameter holds floats, not {dtype}")
    dims = [int(d) for d in shape]
    value, op = initial_value(name, dims, init)
    return EagerParamBase(
        value, dtype, name, attr.trainable, attr.learning_rate, attr.regularizer, attr.need_clip,
        attr.do_model_average, op,
    )


_starter: Optional[_core.Executor] = None


def initial_value(name: str, dims: Sequence[int], init: Any) -> Tuple[Any, Any]:
    """What a startup program gives to a parameter of that name: an array. Also the op that gives
    it, except for given numbers."""
    if hasattr(init, "_array"):
        return init._array(dims), None
    op = init._init_op(dims, current_seed())
    return _drawn(name, dims, op), op


def _drawn(name: str, dims: Sequence[int], op: Any) -> Any:
    global _starter
    if op[0] == "fill_constant":
        import numpy as np

        return np.full(list(dims), op[1]["value"], "float32")
    if _starter is None:
        _starter = _core.Executor(1, False)
    main, startup, scope = _core.Program("main"), _core.Program("startup"), _core.Scope()
    main.param(startup, name, list(dims), op)
    _starter.run(startup, scope, {}, [])
    return scope.get(name)


# --- tensors in programs -------------------------------------------------------------------------

_MOST_CONSTANT = 4096  # elements of a tensor that is written into a program


def imported(program: Program, tensor: Tensor) -> str:
    """The name of a tensor in a program, where it becomes a parameter, a state or a constant."""
    found = program._imported.get(id(tensor))
    if found is not None and program._core.has_var(found[1]):
        return found[1]
    if isinstance(tensor, EagerParamBase):
        name = _import_parameter(program, tensor)
    elif getattr(tensor, "persistable", False) or tensor.size > _MOST_CONSTANT:
        name = _import_state(program, tensor)
    else:
        name = _import_constant(program, tensor)
    # The tensor is kept: its identity must not be that of another one.
    program._imported[id(tensor)] = (tensor, name)
    return name


def _import_parameter(program: Program, tensor: EagerParamBase) -> str:
    name, dims = tensor.name, list(tensor.shape)
    if program._core.has_var(name):
        return name
    fresh = tensor._init is not None and tensor._version == tensor._init_version
    startup = default_startup_program()._core if fresh else _core.Program("startup")
    init = tensor._init if fresh else ("fill_constant", {"shape": dims, "value": 0.0})
    regularizer = tensor.regularizer
    program._core.param(
        startup, name, dims, init, not tensor.stop_gradient,
        float(tensor.optimize_attr["learning_rate"]),
        regularizer._regularizer_spec() if regularizer is not None else None, tensor.need_clip,
    )
    global_scope()._core.set(name, tensor.numpy().astype("float32", copy=False))
    return name


def _import_state(program: Program, tensor: Tensor) -> str:
    name = tensor.name
    if not program._core.has_var(name):
        program._core.state(
            _core.Program("startup"), name, tensor._stored, list(tensor.shape), 0.0
        )
        program._note_dtype(name, tensor.dtype)
        program._core.set_stop_gradient(name, True)
        global_scope()._core.set(name, _stored_array(tensor))
    return name


def _stored_array(tensor: Tensor) -> Any:
    kind = "int64" if tensor._stored in ("i64", "u64") else "float32"
    return tensor.numpy().astype(kind, copy=False)


def _import_constant(program: Program, tensor: Tensor) -> str:
    from .tensor._common import array_op

    kind, attrs, _ = array_op(_stored_array(tensor))
    attrs["shape"] = list(tensor.shape)
    name = unique_name.generate("eager_constant")
    program._core.append_op(kind, {}, {"Out": [name]}, attrs)
    program._note_dtype(name, tensor.dtype)
    return name
