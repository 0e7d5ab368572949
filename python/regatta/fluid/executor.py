"""``paddle.fluid.executor``."""
from __future__ import annotations

from ..executor import Executor, FetchHandler  # noqa: F401
from ..framework import Scope, global_scope, scope_guard  # noqa: F401
from .._missing import missing

__all__ = ["Executor", "FetchHandler", "Scope", "global_scope", "scope_guard"]

__getattr__ = missing(__name__)
