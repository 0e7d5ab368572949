"""``paddle.fluid.contrib``."""
from __future__ import annotations

from typing import Any

from .layers import sparse_embedding  # noqa: F401
from ..._missing import missing

__all__ = [
    "BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent",
    "Inferencer", "Trainer", "layers", "sparse_embedding",
]

_TRAINER = (
    "BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent",
    "Trainer",
)


def __getattr__(name: str) -> Any:
    if name in _TRAINER:
        from .. import trainer

        return getattr(trainer, name)
    if name == "Inferencer":
        from ..inferencer import Inferencer

        return Inferencer
    return missing(__name__)(name)
