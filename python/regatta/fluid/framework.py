"""``paddle.fluid.framework``."""
from __future__ import annotations

from ..framework import *  # noqa: F401,F403
from ..framework import __all__ as _names
from .._missing import missing

__all__ = [*_names, "in_dygraph_mode"]


def in_dygraph_mode() -> bool:
    """False: programs are static."""
    return False


_non_static_mode = in_dygraph_mode

__getattr__ = missing(__name__)
