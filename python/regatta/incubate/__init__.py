"""Paddle's place for what is new. Nothing of it is in Regatta."""
from __future__ import annotations

from .._missing import missing

__all__: list = []

__getattr__ = missing(__name__)
