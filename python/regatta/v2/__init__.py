"""What scripts of Fluid take from ``paddle.v2``: batches, readers and data sets.

The layers and trainers of Paddle v2 are not here: :mod:`regatta.fluid` and :mod:`regatta.static`
describe models.
"""
from __future__ import annotations

from typing import Any

from ..batch import batch

__all__ = ["batch", "dataset", "minibatch", "reader"]

_V2_ONLY = (
    "activation", "attr", "data_type", "event", "evaluator", "infer", "inference", "init", "layer",
    "networks", "optimizer", "parameters", "pooling", "topology", "trainer",
)


class minibatch:
    """``paddle.v2.minibatch.batch``."""

    batch = staticmethod(batch)


def __getattr__(name: str) -> Any:
    if name in ("dataset", "reader"):
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    if name in _V2_ONLY:
        raise AttributeError(
            f"paddle.v2.{name} is not in Regatta: models of Paddle v2 are written with paddle.fluid "
            "or paddle.static (paddle.v2 has batch, reader and dataset)"
        )
    from .._missing import missing

    return missing(__name__)(name)
