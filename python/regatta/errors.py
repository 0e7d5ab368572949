"""Exceptions that no built-in kind says better."""
from __future__ import annotations

__all__ = ["PeerLost", "RegattaError"]


class RegattaError(RuntimeError):
    """A run failed: a value is not initialised, a loss is not finite, a call came too early."""


class PeerLost(RegattaError, ConnectionError):
    """Another process of the job is gone, late, or not the one it should be."""
