"""Training in a few calls: :class:`regatta.Model`, its callbacks, and :func:`regatta.summary`."""
from __future__ import annotations

from .._missing import missing
from . import callbacks
from .model import Model
from .layer_table import summary

__all__ = ["Model", "callbacks", "summary"]

__getattr__ = missing(__name__)
