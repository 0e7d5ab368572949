"""``paddle.fluid.param_attr``."""
from __future__ import annotations

from typing import Any

from ..framework import ParamAttr  # noqa: F401
from .._missing import missing

__all__ = ["ParamAttr"]


def __getattr__(name: str) -> Any:
    if name == "WeightNormParamAttr":
        raise AttributeError(
            "fluid.WeightNormParamAttr is not in Regatta: weights are not divided into a direction "
            "and a length; use ParamAttr"
        )
    return missing(__name__)(name)
