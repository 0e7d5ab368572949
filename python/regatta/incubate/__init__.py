"""Paddle's place for what is new: ``distributed.fleet.fleet_util`` is in Regatta."""
from __future__ import annotations

from .._missing import missing

__all__: list = []

__getattr__ = missing(__name__)
