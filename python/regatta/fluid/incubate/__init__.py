"""``paddle.fluid.incubate``: its fleet was removed, its data generators are those of fleet."""
from __future__ import annotations

from typing import Any

from ..._missing import missing

__all__ = ["data_generator"]


def __getattr__(name: str) -> Any:
    if name == "fleet":
        from ._removed import REMOVED

        raise AttributeError(REMOVED)
    return missing(__name__)(name)
