"""Values of other libraries without a copy through Python.

>>> import numpy as np
>>> import regatta as rg
>>> shared = rg.utils.dlpack.to_dlpack(rg.to_tensor([1.0, 2.0]))
>>> rg.utils.dlpack.from_dlpack(shared).numpy()
array([1., 2.], dtype=float32)
>>> rg.utils.dlpack.from_dlpack(np.arange(3)).shape
[3]
"""
from __future__ import annotations

from typing import Any

from .._missing import missing

__all__ = ["from_dlpack", "to_dlpack"]

__getattr__ = missing(__name__)


def to_dlpack(x: Any) -> Any:
    """A capsule with the values of a tensor, which any library takes once."""
    return x.__dlpack__()


class _Capsule:
    """What numpy asks for its values: a capsule of memory that processors read."""

    def __init__(self, capsule: Any) -> None:
        self._capsule = capsule

    def __dlpack__(self, **options: Any) -> Any:
        return self._capsule

    def __dlpack_device__(self) -> Any:
        return (1, 0)


def from_dlpack(dlpack: Any) -> Any:
    """A tensor with the values of a capsule, or of anything that gives one: tensors of PyTorch,
    arrays of numpy."""
    import numpy as np

    from ..tensor import to_tensor

    source = dlpack if hasattr(dlpack, "__dlpack__") else _Capsule(dlpack)
    return to_tensor(np.from_dlpack(source))
