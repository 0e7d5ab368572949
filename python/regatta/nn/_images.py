"""Borders and sizes of images and sequences."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from ..framework import Tensor, Variable
from ..tensor import linalg, manipulation
from ..tensor._common import check, int_list, namer_of, op

__all__ = ["channel_shuffle", "interpolate", "pad", "pixel_shuffle", "upsample", "zeropad2d"]


def pad(
    x: Variable, pad: Sequence[int], mode: str = "constant", value: float = 0.0,
    data_format: str = "NCHW", name: Optional[str] = None,
) -> Variable:
    """Adds elements before and after. Two sizes for each dimension of ``x``, the first dimension
    first; or, for images and sequences, two for each dimension of space, the last one first. The
    elements are a number ('constant') or those of ``x``: 'reflect', 'replicate', 'circular'."""
    x = check(x, "pad: x")
    sizes = int_list(pad, "pad")
    rank = len(x.shape)
    if mode not in ("constant", "reflect", "replicate", "circular"):
        raise ValueError(f"pad: mode {mode!r}")
    if len(sizes) != 2 * rank or mode != "constant":
        sizes = _of_space(sizes, rank, data_format)
    if mode != "constant":
        return _from_inside(x, sizes, mode)
    attrs = {"paddings": sizes, "value": float(value)}
    return op("pad", {"X": x}, namer_of(x, "pad", name).tmp(), attrs)


def _of_space(sizes: List[int], rank: int, data_format: str) -> List[int]:
    """Two sizes for each dimension, from two for each of those behind batch and channels."""
    space = list(range(2, rank)) if data_format[1] == "C" else list(range(1, rank - 1))
    if len(sizes) != 2 * len(space):
        raise ValueError(f"pad: {len(sizes)} sizes for {rank} dimensions ({data_format})")
    out = [0] * (2 * rank)
    for i, axis in enumerate(reversed(space)):
        out[2 * axis:2 * axis + 2] = sizes[2 * i:2 * i + 2]
    return out


def _from_inside(x: Any, sizes: List[int], mode: str) -> Any:
    """The border has elements of ``x``: gathered, dimension by dimension."""
    import numpy as np

    from ..tensor.search import gather

    numpy_mode = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode]
    for axis in range(len(x.shape)):
        before, after = sizes[2 * axis:2 * axis + 2]
        if before or after:
            rows = np.pad(np.arange(x.shape[axis]), (before, after), numpy_mode)
            x = gather(x, Tensor(rows, "int64"), axis)
    return x


def zeropad2d(
    x: Variable, padding: Sequence[int], data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """Adds zeros around images: left, right, top, bottom."""
    return pad(x, padding, "constant", 0.0, data_format, name)


def interpolate(
    x: Variable, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: bool = False, align_mode: int = 0, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Variable:
    """Images of another size, by the nearest element."""
    from ..tensor.search import gather

    if mode != "nearest" or align_corners:
        raise NotImplementedError(f"interpolate: mode {mode!r} with align_corners={align_corners}; "
                                  "'nearest' is possible")
    x = check(x, "interpolate: x")
    rank = len(x.shape)
    space = list(range(2, rank)) if data_format[1] == "C" else list(range(1, rank - 1))
    for i, axis in enumerate(space):
        have = x.shape[axis]
        want = _size(size, scale_factor, i, have)
        rows = [min(int(at * have / want), have - 1) for at in range(want)]
        x = gather(x, Tensor(rows, "int64"), axis)
    return x


upsample = interpolate


def _size(size: Any, scale: Any, i: int, have: int) -> int:
    if (size is None) == (scale is None):
        raise ValueError("interpolate: give one of size and scale_factor")
    if size is not None:
        wanted = int_list(size, "interpolate: size")
        return wanted[i if len(wanted) > 1 else 0]
    factors = scale if isinstance(scale, (list, tuple)) else [scale]
    return int(have * float(factors[i if len(factors) > 1 else 0]))


def pixel_shuffle(
    x: Variable, upscale_factor: int, data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """Channels as pixels of a larger image."""
    if data_format != "NCHW":
        raise NotImplementedError("pixel_shuffle: data_format NHWC")
    n, c, h, w = check(x, "pixel_shuffle: x").shape
    r = int(upscale_factor)
    parts = manipulation.reshape(x, [n, c // (r * r), r, r, h, w])
    turned = linalg.transpose(parts, [0, 1, 4, 2, 5, 3])
    return manipulation.reshape(turned, [n, c // (r * r), h * r, w * r])


def channel_shuffle(
    x: Variable, groups: int, data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """Channels of groups in turn."""
    if data_format != "NCHW":
        raise NotImplementedError("channel_shuffle: data_format NHWC")
    n, c, h, w = check(x, "channel_shuffle: x").shape
    parts = manipulation.reshape(x, [n, groups, c // groups, h, w])
    return manipulation.reshape(linalg.transpose(parts, [0, 2, 1, 3, 4]), [n, c, h, w])
