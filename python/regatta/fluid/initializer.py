"""Initial values of parameters: those of :mod:`regatta.nn.initializer`, which take Fluid's
arguments too."""
from __future__ import annotations

from ..nn.initializer import *  # noqa: F401,F403
from ..nn.initializer import __all__ as _names
from .._missing import missing

__all__ = list(_names)

__getattr__ = missing(__name__)
