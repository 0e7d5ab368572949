"""Linear algebra: the functions of ``regatta.tensor`` that Paddle also has here."""
from __future__ import annotations

from ._missing import missing
from .tensor.linalg import cross, dist, matmul, mv, norm  # noqa: F401
from .tensor.search import diagonal  # noqa: F401

__all__ = ["cross", "diagonal", "dist", "matmul", "mv", "norm"]

__getattr__ = missing(__name__)
