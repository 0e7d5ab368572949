"""Programs of one machine become programs of a job."""
from __future__ import annotations

from .distribute_transpiler import (  # noqa: F401
    DistributeTranspiler, DistributeTranspilerConfig, HashName, RoundRobin,
)
from .memory_optimization import memory_optimize, release_memory  # noqa: F401
from ..._missing import missing

__all__ = [
    "DistributeTranspiler", "DistributeTranspilerConfig", "HashName", "RoundRobin",
    "memory_optimize", "release_memory",
]

__getattr__ = missing(__name__)
