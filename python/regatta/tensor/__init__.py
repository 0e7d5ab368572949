"""Functions on tensors, and on variables of programs; importing it gives both their operators and
methods.

>>> import regatta as rg
>>> with rg.static.program_guard(rg.static.Program()), rg.unique_name.guard():
...     x = rg.static.data("x", [None, 3], "float32")
...     y = rg.concat([1 - x, x * 2], axis=1)
>>> y.shape
(-1, 6)
"""
from __future__ import annotations

from . import (
    _methods, attribute, composed, creation, einsum as _einsum, linalg, logic, manipulation, math, random,
    search,
)
from .attribute import *  # noqa: F401,F403
from .composed import *  # noqa: F401,F403
from .creation import *  # noqa: F401,F403
from .einsum import *  # noqa: F401,F403
from .linalg import *  # noqa: F401,F403
from .logic import *  # noqa: F401,F403
from .manipulation import *  # noqa: F401,F403
from .math import *  # noqa: F401,F403
from .random import *  # noqa: F401,F403
from .search import *  # noqa: F401,F403
from .._missing import missing
from ..framework import Tensor  # noqa: F401

__all__ = sorted(
    attribute.__all__ + composed.__all__ + creation.__all__ + _einsum.__all__ + linalg.__all__ + logic.__all__
    + manipulation.__all__ + math.__all__ + random.__all__ + search.__all__
)

_methods.attach()

__getattr__ = missing(__name__)
