"""Inputs."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from ...framework import Variable
from ... import static

__all__ = ["data"]


def data(
    name: str,
    shape: Sequence[Optional[int]],
    append_batch_size: bool = True,
    dtype: Any = "float32",
    lod_level: int = 0,
    type: Any = None,
    stop_gradient: bool = True,
) -> Variable:
    """An input that is fed by name. The batch is put before ``shape``, unless ``shape`` has a -1 or
    ``append_batch_size`` is False."""
    dims = [-1 if d is None else int(d) for d in shape]
    if append_batch_size and not any(d < 0 for d in dims):
        dims = [-1] + dims
    variable = static.data(name, dims, dtype, lod_level)
    if not stop_gradient:
        variable.stop_gradient = False
    return variable
