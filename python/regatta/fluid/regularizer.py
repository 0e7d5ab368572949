"""Regularization: that of :mod:`regatta.regularizer`, which takes Fluid's arguments too."""
from __future__ import annotations

from ..regularizer import *  # noqa: F401,F403
from ..regularizer import __all__ as _names
from .._missing import missing

__all__ = list(_names)

__getattr__ = missing(__name__)
