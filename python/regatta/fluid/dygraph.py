"""Dynamic graphs under their names of Fluid.

>>> import numpy as np
>>> from regatta.fluid import dygraph
>>> with dygraph.guard():
...     print(dygraph.to_variable(np.ones([2], "float32")).shape)
[2]
"""
from __future__ import annotations

import contextlib
from typing import Any, Iterator, Optional

from .. import _mode
from .._missing import absent
from .._mode import enable_grad, grad, no_grad  # noqa: F401
from ..framework import _building
from ..nn import (  # noqa: F401
    BatchNorm, Dropout, Embedding, Layer, LayerList, LayerNorm, Linear, ParameterList, Sequential,
)
from ..tensor import to_tensor

__all__ = [
    "BatchNorm", "DataParallel", "Dropout", "Embedding", "Layer", "LayerList", "LayerNorm",
    "Linear", "ParallelEnv", "ParallelStrategy", "ParameterList", "Sequential", "base",
    "disable_dygraph", "enable_dygraph", "enabled", "grad", "guard", "no_grad", "parallel",
    "prepare_context", "to_variable",
]


@contextlib.contextmanager
def guard(place: Any = None) -> Iterator[None]:
    """The dynamic mode inside ``with``, also inside of a program_guard."""
    old, guards = _mode._static, _building.guards
    _mode._static, _building.guards = False, 0
    try:
        yield
    finally:
        _mode._static, _building.guards = old, guards


def to_variable(
    value: Any, name: Optional[str] = None, zero_copy: Any = None, dtype: Any = None
) -> Any:
    """A tensor with the values of an array."""
    made = to_tensor(value, dtype)
    if name is not None:
        made.name = name
    return made


class ParallelStrategy:
    """Who this rank is, as Fluid passes it to :class:`DataParallel`."""

    def __init__(self) -> None:
        from ..distributed import ParallelEnv

        env = ParallelEnv()
        self.nranks, self.local_rank = env.nranks, env.rank
        self.trainer_endpoints = env.trainer_endpoints
        self.current_endpoint = env.current_endpoint


def prepare_context(strategy: Optional[ParallelStrategy] = None) -> ParallelStrategy:
    """Joins the other ranks: the name of Fluid for ``paddle.distributed.init_parallel_env``."""
    from ..distributed import init_parallel_env

    init_parallel_env()
    return ParallelStrategy() if strategy is None else strategy


def enabled() -> bool:
    """Whether the mode is dynamic."""
    return _mode.in_dynamic_mode()


enable_dygraph, disable_dygraph = _mode.disable_static, _mode.enable_static


def __getattr__(name: str) -> Any:
    if name in ("base", "parallel"):
        import sys

        return sys.modules[__name__]
    if name in ("DataParallel", "ParallelEnv"):
        from .. import distributed

        return getattr(distributed, name)
    if name.startswith("__"):
        raise AttributeError(name)
    raise absent(__name__, name, __all__)
