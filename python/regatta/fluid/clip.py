"""Limits on gradients under the names of Fluid."""
from __future__ import annotations

from typing import Any, Optional

from ..framework import Program, default_main_program
from ..nn.clip import (  # noqa: F401
    ClipGradByGlobalNorm, ClipGradByNorm, ClipGradByValue, GradientClipByGlobalNorm,
    GradientClipByNorm, GradientClipByValue,
)
from .._missing import missing

__all__ = [
    "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue", "GradientClipByGlobalNorm",
    "GradientClipByNorm", "GradientClipByValue", "set_gradient_clip",
]


def set_gradient_clip(clip: Any, param_list: Any = None, program: Optional[Program] = None) -> None:
    """The clip of all optimizers of Fluid that a program has and that have none of their own. Call
    it before ``minimize``."""
    if clip is not None and not hasattr(clip, "_clip_spec"):
        raise TypeError(f"set_gradient_clip: {clip!r} is not a clip such as GradientClipByNorm(1.0)")
    if param_list is not None:
        raise NotImplementedError(
            "set_gradient_clip: param_list: exclude parameters with ParamAttr(need_clip=False)"
        )
    program = program or default_main_program()
    program._gradient_clip = clip  # type: ignore[attr-defined]


__getattr__ = missing(__name__)
