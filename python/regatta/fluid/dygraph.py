"""Dynamic graphs under their names of Fluid.

>>> import numpy as np
>>> from regatta.fluid import dygraph
>>> with dygraph.guard():
...     print(dygraph.to_variable(np.ones([2], "float32")).shape)
[2]
"""
from __future__ import annotations

import contextlib
import os
from typing import Any, Dict, Iterator, Optional, Tuple

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
    "disable_dygraph", "enable_dygraph", "enabled", "grad", "guard", "load_dygraph", "no_grad",
    "parallel", "prepare_context", "save_dygraph", "to_variable",
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


def save_dygraph(state_dict: Dict[str, Any], model_path: str) -> None:
    """Writes the state of a layer to ``model_path.pdparams``, that of an optimizer to
    ``model_path.pdopt``. ``paddle.save`` takes the whole name instead."""
    from .. import EagerParamBase, save

    if not state_dict:
        raise ValueError("save_dygraph: there is nothing to save")
    is_layer = any(isinstance(value, EagerParamBase) for value in state_dict.values())
    save(state_dict, model_path + (".pdparams" if is_layer else ".pdopt"))


def load_dygraph(model_path: str, **configs: Any) -> Tuple[Any, Any]:
    """The states of a layer and of an optimizer that :func:`save_dygraph` wrote, as dictionaries of
    arrays; None where there is no file."""
    from .. import load

    for end in (".pdparams", ".pdopt"):
        if model_path.endswith(end):
            model_path = model_path[: -len(end)]
    paths = [model_path + end for end in (".pdparams", ".pdopt")]
    if not any(map(os.path.exists, paths)):
        raise FileNotFoundError(f"load_dygraph: there is neither {paths[0]} nor {paths[1]}")
    params, others = (
        load(path, return_numpy=True, **configs) if os.path.exists(path) else None
        for path in paths
    )
    return params, others


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
