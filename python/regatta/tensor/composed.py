"""Functions that are made of others of this package."""
from __future__ import annotations

import math as numbers
from typing import Any, List, Optional, Sequence, Tuple, Union

from .._missing import missing
from ..framework import Tensor, Variable, to_dtype
from ._common import axes_of, axis_of, check, int_list, product
from . import linalg, logic, manipulation, math, search

__all__ = [
    "atan2", "atleast_1d", "atleast_2d", "atleast_3d", "cdist", "deg2rad", "frac", "heaviside",
    "hypot", "index_fill", "index_put", "logaddexp", "logit", "multiplex", "nanmean", "quantile",
    "rad2deg", "sgn", "tensordot", "unflatten", "vander", "view", "view_as", "vsplit",
]


# --- of elements ---------------------------------------------------------------------------------


def deg2rad(x: Variable, name: Optional[str] = None) -> Variable:
    """Degrees as radians."""
    return math.scale(x, numbers.pi / 180.0)


def rad2deg(x: Variable, name: Optional[str] = None) -> Variable:
    """Radians as degrees."""
    return math.scale(x, 180.0 / numbers.pi)


def frac(x: Variable, name: Optional[str] = None) -> Variable:
    """What is behind the point."""
    return math.subtract(x, math.trunc(x))


def sgn(x: Variable, name: Optional[str] = None) -> Variable:
    """-1, 0 or 1."""
    return math.sign(x)


def hypot(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """``sqrt(x * x + y * y)``."""
    return math.sqrt(math.add(math.square(x), math.square(y)))


def logaddexp(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """``log(exp(x) + exp(y))``, which no element overflows."""
    apart = math.scale(math.abs(math.subtract(x, y)), -1.0)
    return math.add(math.maximum(x, y), math.log1p(math.exp(apart)))


def logit(x: Variable, eps: Optional[float] = None, name: Optional[str] = None) -> Variable:
    """``log(x / (1 - x))``; with ``eps`` of ``x`` limited to ``[eps, 1 - eps]``."""
    if eps is not None:
        x = math.clip(x, eps, 1.0 - eps)
    return math.subtract(math.log(x), math.log(math.scale(x, -1.0, 1.0)))


def heaviside(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """0 below 0, 1 above, and ``y`` at 0."""
    above = logic.where(logic.greater_than(x, 0.0), 1.0, 0.0)
    return logic.where(logic.equal(x, 0.0), y, above)


def atan2(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """The angle of the point ``(y, x)``, in all quadrants."""
    angle = math.atan(math.divide(x, y))
    turn = logic.where(logic.less_than(x, 0.0), -numbers.pi, numbers.pi)
    return logic.where(logic.less_than(y, 0.0), math.add(angle, turn), angle)


# --- over dimensions -----------------------------------------------------------------------------


def nanmean(
    x: Variable, axis: Any = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """The mean of what is a number."""
    known = logic.logical_not(logic.isnan(x)).astype(x.dtype)
    return math.divide(math.nansum(x, axis, None, keepdim), math.sum(known, axis, None, keepdim))


def quantile(
    x: Tensor, q: Union[float, Sequence[float]], axis: Any = None, keepdim: bool = False,
    interpolation: str = "linear",
) -> Tensor:
    """Values below which a share ``q`` of the elements lies, between neighbours if need be."""
    if interpolation != "linear":
        raise NotImplementedError(f"quantile: interpolation {interpolation!r}, not 'linear'")
    if isinstance(q, (list, tuple)):
        return manipulation.stack([quantile(x, one, axis, keepdim) for one in q], 0)
    if not 0.0 <= q <= 1.0:
        raise ValueError(f"quantile: q should be in [0, 1], but is {q}")
    rank = x.ndim
    if axis is None or isinstance(axis, (list, tuple)):
        dims = axes_of(axis, rank, "quantile") or list(range(rank))
        rest = [d for d in range(rank) if d not in dims]
        flat = x.transpose(rest + dims).reshape([x.shape[d] for d in rest] + [-1])
        made = quantile(flat, q, -1)
        kept = [1 if d in dims else x.shape[d] for d in range(rank)]
        return made.reshape(kept) if keepdim else made
    at = axis_of(axis, rank, "quantile")
    ordered, place = search.sort(x, at), q * (x.shape[at] - 1)
    low, high = int(numbers.floor(place)), int(numbers.ceil(place))
    below, above = search.gather(ordered, [low], at), search.gather(ordered, [high], at)
    made = below + (above - below) * (place - low)
    return made if keepdim else made.squeeze(at)


def tensordot(
    x: Variable, y: Variable, axes: Any = 2, name: Optional[str] = None
) -> Variable:
    """Products summed over some dimensions of both: the last of ``x`` with the first of ``y``, or
    those named."""
    a, b = _pairs(axes, len(x.shape))
    rows = [d for d in range(len(x.shape)) if d not in a]
    columns = [d for d in range(len(y.shape)) if d not in b]
    left, right = [x.shape[d] for d in rows], [y.shape[d] for d in columns]
    inner = product([x.shape[d] for d in a])
    flat_x = manipulation.reshape(linalg.transpose(x, rows + a), [product(left), inner])
    flat_y = manipulation.reshape(linalg.transpose(y, b + columns), [inner, product(right)])
    return manipulation.reshape(linalg.matmul(flat_x, flat_y), left + right)


def _pairs(axes: Any, rank: int) -> Tuple[List[int], List[int]]:
    if isinstance(axes, int):
        return list(range(rank - axes, rank)), list(range(axes))
    parts = [int_list(a, "tensordot: axes") if not isinstance(a, int) else a for a in axes]
    if all(isinstance(p, int) for p in parts):
        return list(parts), list(parts)
    return list(parts[0]), list(parts[1] if len(parts) > 1 else parts[0])


def cdist(
    x: Variable, y: Variable, p: float = 2.0, compute_mode: str = "", name: Optional[str] = None
) -> Variable:
    """The distances of all rows of ``x`` to all rows of ``y``."""
    apart = math.subtract(manipulation.unsqueeze(x, -2), manipulation.unsqueeze(y, -3))
    return linalg.norm(apart, p, -1)


def vander(
    x: Tensor, n: Optional[int] = None, increasing: bool = False, name: Optional[str] = None
) -> Tensor:
    """Powers of a vector, one in each column."""
    count = x.shape[0] if n is None else int(n)
    powers = [float(i) for i in range(count)]
    parts = [x ** p for p in (powers if increasing else powers[::-1])]
    return manipulation.stack(parts, 1)


# --- shapes and positions ------------------------------------------------------------------------


def _at_least(values: Sequence[Variable], rank: int) -> Any:
    made = []
    for x in values:
        have = len(check(x, "atleast: an input").shape)
        dims = list(x.shape)
        if have == 0:
            dims = [1] * rank
        elif have == 1 and rank > 1:
            dims = [1] + dims + [1] * (rank - 2)
        elif have == 2 and rank == 3:
            dims = dims + [1]
        made.append(x if len(dims) == have else manipulation.reshape(x, dims))
    return made[0] if len(made) == 1 else made


def atleast_1d(*inputs: Variable, name: Optional[str] = None) -> Any:
    """With one dimension or more."""
    return _at_least(inputs, 1)


def atleast_2d(*inputs: Variable, name: Optional[str] = None) -> Any:
    """With two dimensions or more."""
    return _at_least(inputs, 2)


def atleast_3d(*inputs: Variable, name: Optional[str] = None) -> Any:
    """With three dimensions or more."""
    return _at_least(inputs, 3)


def view(x: Tensor, shape_or_dtype: Any, name: Optional[str] = None) -> Tensor:
    """The same elements under another shape."""
    if not isinstance(shape_or_dtype, (list, tuple)):
        raise NotImplementedError(f"view of the bits as {to_dtype(shape_or_dtype)}; use astype")
    return manipulation.reshape(x, shape_or_dtype)


def view_as(x: Tensor, other: Tensor, name: Optional[str] = None) -> Tensor:
    """The same elements under the shape of another tensor."""
    return manipulation.reshape(x, list(other.shape))


def unflatten(x: Variable, axis: int, shape: Any, name: Optional[str] = None) -> Variable:
    """Divides a dimension into several."""
    at = axis_of(axis, len(x.shape), "unflatten")
    dims = list(x.shape)
    return manipulation.reshape(x, dims[:at] + int_list(shape, "unflatten") + dims[at + 1:])


def vsplit(x: Variable, num_or_sections: Any, name: Optional[str] = None) -> List[Variable]:
    """Divides the first dimension."""
    return manipulation.split(x, num_or_sections, 0)


def index_fill(
    x: Tensor, index: Tensor, axis: int, value: float, name: Optional[str] = None
) -> Tensor:
    """``x`` with a number in parts of a dimension."""
    at = axis_of(axis, x.ndim, "index_fill")
    made = x.clone()
    number = value.item() if isinstance(value, Tensor) else value
    made[(slice(None),) * at + (index,)] = number
    return made


def index_put(
    x: Tensor, indices: Sequence[Tensor], value: Any, accumulate: bool = False,
    name: Optional[str] = None,
) -> Tensor:
    """``x`` with other elements at positions, or with elements added there."""
    if accumulate:
        rows = manipulation.stack(list(manipulation.broadcast_tensors(list(indices))), -1)
        shape = list(rows.shape[:-1]) + x.shape[len(indices):]
        return search.scatter_nd_add(x, rows, manipulation.expand(value, shape))
    made = x.clone()
    made[tuple(indices)] = value
    return made


def multiplex(inputs: Sequence[Variable], index: Variable, name: Optional[str] = None) -> Variable:
    """Row by row one of several tensors."""
    every = manipulation.stack(list(inputs), 1)
    column = manipulation.reshape(index, [-1, 1] + [1] * (len(every.shape) - 2)).astype("int64")
    dims = [-1, 1] + list(every.shape[2:])
    chosen = search.take_along_axis(every, manipulation.expand(column, dims), 1)
    return manipulation.squeeze(chosen, 1)


__getattr__ = missing(__name__)
