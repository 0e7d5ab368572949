"""Gradient clipping: what to pass to an optimizer as ``grad_clip``."""
from __future__ import annotations

from typing import Any, List, Optional

from .._missing import missing

__all__ = [
    "ClipGradBase", "ClipGradByGlobalNorm", "ClipGradByNorm", "ClipGradByValue",
    "GradientClipByGlobalNorm", "GradientClipByNorm", "GradientClipByValue", "clip_by_norm",
    "set_gradient_clip",
]


class ClipGradBase:
    """How gradients are limited."""

    def _clip_spec(self) -> List[Any]:
        """What ``_core.minimize`` takes."""
        raise NotImplementedError(f"{type(self).__name__} limits nothing")

    def __repr__(self) -> str:
        kind, *numbers = self._clip_spec()
        return f"{type(self).__name__}({', '.join(str(n) for n in numbers)})"


class ClipGradByValue(ClipGradBase):
    """Every element of a gradient to ``[min, max]``; ``min`` is ``-max`` unless given."""

    def __init__(self, max: float, min: Optional[float] = None, need_clip: Any = None) -> None:
        _refuse(need_clip)
        if min is None:
            if max <= 0:
                raise ValueError(f"ClipGradByValue: max is {max}, but should be above 0 where min "
                                 "is not given")
            min = -max
        if min > max:
            raise ValueError(f"ClipGradByValue: min is {min}, which is above max, {max}")
        self.max, self.min = float(max), float(min)

    def _clip_spec(self) -> List[Any]:
        return ["value", self.min, self.max]


class ClipGradByNorm(ClipGradBase):
    """Every gradient to a length of at most ``clip_norm``."""

    def __init__(self, clip_norm: float, need_clip: Any = None) -> None:
        _refuse(need_clip)
        self.clip_norm = _positive(clip_norm, type(self).__name__)

    def _clip_spec(self) -> List[Any]:
        return ["norm", self.clip_norm]


class ClipGradByGlobalNorm(ClipGradBase):
    """All gradients together to a length of at most ``clip_norm``."""

    def __init__(
        self, clip_norm: float, group_name: str = "default_group", auto_skip_clip: bool = False,
        need_clip: Any = None,
    ) -> None:
        _refuse(need_clip)
        if group_name != "default_group":
            raise NotImplementedError(f"ClipGradByGlobalNorm: the group {group_name!r}; all "
                                      "gradients are one group")
        if auto_skip_clip:
            raise NotImplementedError("ClipGradByGlobalNorm: auto_skip_clip")
        self.clip_norm = _positive(clip_norm, type(self).__name__)
        self.group_name = group_name

    def _clip_spec(self) -> List[Any]:
        return ["global_norm", self.clip_norm]


def _positive(clip_norm: float, what: str) -> float:
    if not clip_norm > 0:
        raise ValueError(f"{what}: clip_norm is {clip_norm}, but should be above 0")
    return float(clip_norm)


def _refuse(need_clip: Any) -> None:
    if need_clip is not None:
        raise NotImplementedError("need_clip of a clip: say need_clip in the ParamAttr of the "
                                  "parameters")


GradientClipByValue = ClipGradByValue
GradientClipByNorm = ClipGradByNorm
GradientClipByGlobalNorm = ClipGradByGlobalNorm


def set_gradient_clip(clip: ClipGradBase, param_list: Any = None, program: Any = None) -> None:
    """Raises: clips belong to optimizers."""
    raise NotImplementedError("set_gradient_clip: pass grad_clip to the optimizer")


def clip_by_norm(x: Any, max_norm: float, name: Optional[str] = None) -> Any:
    """``x``, shortened to the length ``max_norm`` if it is longer."""
    from ..tensor._common import check, namer_of, op, part_of
    from ..tensor.linalg import p_norm

    out = namer_of(x, "clip_by_norm", name).tmp()
    x = check(x, "clip_by_norm: x")
    length = p_norm(x, 2.0, [], False, part_of(out))
    longer = op("clip", {"X": length}, part_of(out), {"min": float(max_norm)})
    part = op("elementwise_div", {"X": x, "Y": longer}, part_of(out))
    return op("scale", {"X": part}, out, {"scale": float(max_norm)})


__getattr__ = missing(__name__)
