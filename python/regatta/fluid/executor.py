"""``paddle.fluid.executor``."""
from __future__ import annotations

from ..executor import Executor  # noqa: F401
from ..framework import Scope, global_scope, scope_guard  # noqa: F401
from .._missing import missing

__all__ = ["Executor", "Scope", "global_scope", "scope_guard"]

__getattr__ = missing(__name__)
