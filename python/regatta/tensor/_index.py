"""``x[key]`` and ``x[key] = value`` of tensors.

Integers, slices, None and ``...`` are slices and a view. An array of integers in front gathers
rows. Whatever else numpy understands (masks, several arrays) is asked of numpy: it indexes the
positions of the elements, and these are gathered. Gradients flow through all of them.
"""
from __future__ import annotations

import builtins
from typing import Any, List, Optional, Sequence, Tuple

from ..framework import Tensor
from ._common import _ERRORS, _PREPARED, _SHAPES, located, prepared, product, run, shape_op

_SLICE = builtins.slice
_ALL = _SLICE(None, None, None)


def get_item(x: Tensor, key: Any) -> Tensor:
    """``x[key]``."""
    kind = type(key)
    if kind is int:
        return _one(x, key)
    try:
        keys = _keys(key)
        plain = _plain(x, keys)
        if plain is not None:
            return plain
        if len(keys) == 1 and _is_integers(keys[0]) and x.ndim and 0 not in x.shape:
            return _rows(x, keys[0])
        return _any(x, keys)
    except (IndexError,) + _ERRORS as error:
        raise located(error) from None


def _one(x: Tensor, at: int) -> Tensor:
    """Part ``at`` of the first dimension."""
    shape = x.shape
    if not shape:
        raise located(IndexError("a tensor without dimensions has no parts"))
    size = shape[0]
    if not -size <= at < size:
        raise located(IndexError(f"{at} is not in the first dimension of the shape {shape}"))
    part = _cut(x, 0, at + size if at < 0 else at, (at + size if at < 0 else at) + 1)
    return _shaped(part, shape[1:])


def _cut(x: Tensor, axis: int, start: int, end: int) -> Tensor:
    return run("slice", {"X": x}, {"axis": axis, "start": start, "end": end})


def _shaped(x: Tensor, dims: Sequence[int]) -> Tensor:
    key = tuple(dims)
    return (_SHAPES.get(key) or shape_op(key))(x)


def _keys(key: Any) -> Tuple[Any, ...]:
    keys = key if isinstance(key, tuple) else (key,)
    return tuple(_plain_key(k) for k in keys)


def _plain_key(key: Any) -> Any:
    """A key as numpy takes it."""
    if isinstance(key, Tensor):
        if key.ndim == 0 and key._dtype != "bool":
            return int(key.item())
        return key.numpy()
    if isinstance(key, _SLICE):
        bounds = (key.start, key.stop, key.step)
        return _SLICE(*(b if b is None or type(b) is int else int(b) for b in bounds))
    if isinstance(key, (list, tuple, range)):
        import numpy as np

        parts = [_plain_key(k) for k in key]
        array = np.asarray(parts)
        return array.astype("int64") if array.size == 0 else array
    return key


def _is_integers(key: Any) -> bool:
    return hasattr(key, "dtype") and key.dtype.kind in "iu" and key.ndim > 0


def _plain(x: Tensor, keys: Tuple[Any, ...]) -> Optional[Tensor]:
    """The result for integers, slices, None and ``...``; otherwise None."""
    shape = x.shape
    used = 0
    for k in keys:
        if type(k) is int or isinstance(k, _SLICE):
            used += 1
        elif k is not None and k is not Ellipsis:
            return None
    if used > len(shape):
        raise IndexError(f"{used} dimensions of a tensor with {len(shape)} are indexed")
    ranges: List[Tuple[int, int, int]] = []
    dims: List[int] = []
    axis, rest = 0, len(shape) - used
    for k in keys:
        if k is None:
            dims.append(1)
        elif k is Ellipsis:
            dims += shape[axis:axis + rest]
            axis += rest
            rest = 0
        else:
            size = shape[axis]
            part = _range(k, size, axis)
            if part != (0, size, 1):
                ranges.append((axis,) + part)
            if type(k) is not int:
                dims.append(len(range(*part)))
            axis += 1
    dims += shape[axis:]
    return _shaped_parts(x, ranges, dims)


def _shaped_parts(x: Tensor, ranges: List[Tuple[int, int, int, int]], dims: List[int]) -> Tensor:
    if all(step == 1 and start < end for _, start, end, step in ranges):
        for axis, start, end, _ in ranges:
            x = _cut(x, axis, start, end)
    else:
        axes, starts, ends, steps = (list(part) for part in zip(*ranges))
        # An end before the first element, of a slice that goes backwards.
        ends = [-(2**31) if end < 0 else end for end in ends]
        attrs = {"axes": axes, "starts": starts, "ends": ends, "strides": steps}
        x = run("strided_slice", {"X": x}, attrs)
    if x.shape != dims:
        return _shaped(x, dims)
    return x if ranges else run("assign", {"X": x})


def _range(key: Any, size: int, axis: int) -> Tuple[int, int, int]:
    if type(key) is not int:
        return key.indices(size)
    if not -size <= key < size:
        raise IndexError(f"{key} is not in dimension {axis} of size {size}")
    at = key + size if key < 0 else key
    return at, at + 1, 1


def _rows(x: Tensor, index: Any) -> Tensor:
    """Parts of the first dimension by number."""
    import numpy as np

    size = x.shape[0]
    if index.size and not (-size <= index.min() and index.max() < size):
        wrong = int(index.min() if index.min() < -size else index.max())
        raise IndexError(f"{wrong} is not in the first dimension of a tensor of shape {x.shape}")
    if index.size == 0:
        return Tensor(np.empty([*index.shape, *x.shape[1:]], "float32"), x._dtype)
    at = np.where(index < 0, index + size, index).astype("int64")
    found = gather_rows(x, Tensor(at.reshape(-1), "int64"))
    return _shaped(found, [*index.shape, *x.shape[1:]])


def gather_rows(x: Tensor, index: Tensor) -> Tensor:
    """Parts of the first dimension by a vector of numbers from 0 on."""
    made = _PREPARED.get("gather")
    return (made or prepared("gather", "gather", ("X", "Index"), {"axis": 0}))(x, index)


def _any(x: Tensor, keys: Tuple[Any, ...]) -> Tensor:
    import numpy as np

    positions = np.arange(x.size).reshape(x.shape)[keys]
    return take_positions(x, positions)


def take_positions(x: Tensor, positions: Any) -> Tensor:
    """The elements at positions that count all elements, in the shape of the positions."""
    import numpy as np

    positions = np.asarray(positions)
    if positions.size == 0:
        return Tensor(np.empty(positions.shape, "float32"), x._dtype)
    flat = _shaped(x, [x.size])
    found = gather_rows(flat, Tensor(positions.reshape(-1).astype("int64"), "int64"))
    return _shaped(found, list(positions.shape))


def set_item(x: Tensor, key: Any, value: Any) -> None:
    """``x[key] = value``."""
    from .. import _core

    keys = _keys(key)
    recorded = _core.is_grad_enabled() and (
        not x.stop_gradient or (isinstance(value, Tensor) and not value.stop_gradient)
    )
    try:
        if recorded:
            _set_recorded(x, keys, value)
        else:
            array = x.numpy()
            array[keys] = value.numpy() if isinstance(value, Tensor) else value
            x._set(array)
    except (IndexError,) + _ERRORS as error:
        raise located(error) from None


def _set_recorded(x: Tensor, keys: Tuple[Any, ...], value: Any) -> None:
    """As a function: where elements are set those of ``value``, elsewhere those of ``x``."""
    import numpy as np

    from .manipulation import refuse_leaf

    refuse_leaf(x)
    if not isinstance(value, Tensor):
        value = Tensor(np.asarray(value), x._dtype)
    elif value._dtype != x._dtype:
        value = value.astype(x._dtype)
    whose = np.full(x.size, -1, "int64").reshape(x.shape)
    target = whose[keys]
    count = product(value.shape)
    whose[keys] = np.broadcast_to(np.arange(count).reshape(value.shape), target.shape)
    mask = Tensor(whose >= 0, "bool")
    spread = take_positions(value, np.maximum(whose, 0))
    x._share(run("where", {"Condition": mask, "X": spread, "Y": x}, None, None, x._dtype))
