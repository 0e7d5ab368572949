"""Functions on variables of programs; importing it gives variables their operators and methods.

>>> import regatta as rg
>>> with rg.static.program_guard(rg.static.Program()), rg.unique_name.guard():
...     x = rg.static.data("x", [None, 3], "float32")
...     y = rg.concat([1 - x, x * 2], axis=1)
>>> y.shape
(-1, 6)
"""
from __future__ import annotations

from . import _methods, attribute, creation, linalg, logic, manipulation, math
from .attribute import *  # noqa: F401,F403
from .creation import *  # noqa: F401,F403
from .linalg import *  # noqa: F401,F403
from .logic import *  # noqa: F401,F403
from .manipulation import *  # noqa: F401,F403
from .math import *  # noqa: F401,F403
from .._missing import missing

__all__ = sorted(
    attribute.__all__ + creation.__all__ + linalg.__all__ + logic.__all__ + manipulation.__all__
    + math.__all__
)

_methods.attach()

__getattr__ = missing(__name__)
