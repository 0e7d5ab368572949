"""Metrics that are part of the program."""
from __future__ import annotations

from ...static.metric import accuracy, auc  # noqa: F401

__all__ = ["accuracy", "auc"]
