"""Gradients as part of a program."""
from __future__ import annotations

from typing import Any, Iterable, List, Optional, Tuple

from .. import _core
from .._missing import missing
from ..framework import Parameter, Variable

__all__ = ["append_backward"]


def append_backward(
    loss: Variable,
    parameter_list: Optional[Iterable[Any]] = None,
    no_grad_set: Optional[Iterable[Any]] = None,
    callbacks: Any = None,
    checkpoints: Any = None,
) -> List[Tuple[Parameter, Variable]]:
    """Appends the gradients of parameters to the program of ``loss``. Returns both in pairs."""
    if callbacks is not None or checkpoints is not None:
        raise NotImplementedError("append_backward: callbacks and checkpoints are not supported")
    name = lambda v: v if isinstance(v, str) else v.name  # noqa: E731
    program = loss.program
    params = None if parameter_list is None else [name(p) for p in parameter_list]
    pairs = _core.append_backward(
        program._core, loss.name, params, [name(v) for v in no_grad_set or ()]
    )
    return [(program._variable(p), program._variable(g)) for p, g in pairs]  # type: ignore[misc]


__getattr__ = missing(__name__)
