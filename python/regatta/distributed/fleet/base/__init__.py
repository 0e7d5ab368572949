"""Roles, strategies and the fleet itself, at Paddle's paths."""
from ...._missing import missing

__getattr__ = missing(__name__)
