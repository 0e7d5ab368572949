"""Shapes, parts and element types of tensors and variables."""
from __future__ import annotations

import builtins
from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable, unique_name
from ._common import (
    NO_NAMES, _ERRORS, _SHAPES, Unknown, Values, activate, axes_of, axis_of, broadcast_dims,
    cast_to, check, constant, int_list, located, namer_of, op, part_of, product, rows_like, said,
    several, shape_op, to_shape,
)

__all__ = [
    "broadcast_shape", "broadcast_tensors", "broadcast_to", "cast", "chunk", "concat", "crop",
    "expand", "expand_as", "flatten", "moveaxis", "reshape", "reshape_", "slice", "split",
    "squeeze", "squeeze_", "stack", "strided_slice", "swapaxes", "tile", "tolist", "unbind",
    "unsqueeze", "unsqueeze_", "unstack",
]

_MOST_PARTS = 64  # of one split op


def cast(x: Variable, dtype: Any) -> Variable:
    """Converts the element type."""
    return cast_to(check(x, "cast: x"), dtype, namer_of(x, "cast").tmp())


def concat(
    x: Any = None, axis: int = 0, name: Optional[str] = None, input: Any = None
) -> Variable:
    """Joins a list of variables along a dimension."""
    x = input if x is None else x
    if x is None:
        raise TypeError("concat: which variables?")
    values = [x] if isinstance(x, Values) else list(x)
    if not values:
        raise ValueError("concat: there is nothing to join")
    if isinstance(values[0], Tensor):
        made = _joined(values, axis)
        if made is not None:
            return made
    values = [check(v, "concat: an input") for v in values]
    at = axis_of(axis, len(values[0].shape), "concat")
    return op("concat", {"X": values}, namer_of(values[0], "concat", name).tmp(), {"axis": at})


def _joined(values: List[Any], axis: Any) -> Any:
    """Tensors of one type joined; None if there are variables among them."""
    if type(axis) is not int:
        axis = int(axis)
    if axis < 0:
        axis = axis_of(axis, values[0].ndim, "concat")
    try:
        return _core.eager_op("concat", {"X": values}, {"axis": axis})
    except _ERRORS as error:
        if any(isinstance(v, Variable) for v in values):
            return None
        kinds = {v.dtype for v in values if isinstance(v, Tensor)}
        if len(kinds) > 1:
            raise located(TypeError(
                f"concat: the types differ: {', '.join(sorted(kinds))}; cast them first"
            )) from None
        raise located(error) from None


def _sections(x: Variable, wanted: Any, at: int, what: str) -> List[int]:
    size = x.shape[at]
    if isinstance(wanted, int):
        if wanted <= 0 or size < 0 or size % wanted:
            raise ValueError(
                f"{what}: dimension {at} of {said(x)} {list(x.shape)} cannot be divided into "
                f"{wanted} equal parts"
            )
        return [size // wanted] * wanted
    sizes = int_list(wanted, what)
    if sizes.count(-1) == 1 and size >= 0:
        rest = size - builtins.sum(s for s in sizes if s >= 0)
        sizes[sizes.index(-1)] = rest
    return sizes


def _split(x: Variable, sizes: List[int], at: int, names: List[str]) -> List[Variable]:
    """Parts of given sizes under given names."""
    if len(sizes) <= _MOST_PARTS:
        return several("split", {"X": x}, {"Out": names}, {"sections": sizes, "axis": at})
    starts = range(0, len(sizes), _MOST_PARTS)
    groups = [sum(sizes[s:s + _MOST_PARTS]) for s in starts]
    parts = _split(x, groups, at, [part_of(names[0]) for _ in groups])
    out: List[Variable] = []
    for start, part in zip(starts, parts):
        end = start + _MOST_PARTS
        out.extend(_split(part, sizes[start:end], at, names[start:end]))
    return out


def split(
    x: Variable, num_or_sections: Union[int, Sequence[int]], axis: int = 0,
    name: Optional[str] = None,
) -> List[Variable]:
    """Divides a variable into equal parts, or parts of given sizes, of which one may be -1."""
    x = check(x, "split: x")
    at = axis_of(axis, len(x.shape), "split")
    sizes = _sections(x, num_or_sections, at, "split")
    namer = namer_of(x, "split", name)
    return _split(x, sizes, at, [namer.tmp() for _ in sizes])


def chunk(x: Variable, chunks: int, axis: int = 0, name: Optional[str] = None) -> List[Variable]:
    """Divides a variable into equal parts."""
    return split(x, chunks, axis, name)


def _with_axis(x: Variable, at: int, out: str) -> Variable:
    """With another dimension of size 1."""
    dims = list(x.shape)
    dims.insert(at, 1)
    return to_shape(x, dims, out)


def stack(x: Sequence[Variable], axis: int = 0, name: Optional[str] = None) -> Variable:
    """Joins variables of one shape along a new dimension."""
    values = [x] if isinstance(x, Values) else [check(v, "stack: an input") for v in x]
    if not values:
        raise ValueError("stack: there is nothing to join")
    rank = len(values[0].shape)
    at = axis_of(axis, rank + 1, "stack")
    out = namer_of(values[0], "stack", name).tmp()
    batch = values[0].shape.index(-1) if -1 in values[0].shape else None
    if batch is None or batch < at:
        wide = [_with_axis(v, at, part_of(out)) for v in values]
        return op("concat", {"X": wide}, out, {"axis": at})
    # The batch would move behind the new dimension: join behind it, then exchange.
    behind = batch + 1
    wide = [_with_axis(v, behind, part_of(out)) for v in values]
    joined = op("concat", {"X": wide}, part_of(out), {"axis": behind})
    perm = [d for d in range(rank + 1) if d != behind]
    perm.insert(at, behind)
    return op("transpose", {"X": joined}, out, {"perm": perm})


def _unstack(x: Any, axis: int, namer: Any, what: str) -> List[Variable]:
    x = check(x, f"{what}: x")
    at = axis_of(axis, len(x.shape), what)
    count = x.shape[at]
    if count < 0:
        raise ValueError(f"{what}: dimension {at} of {said(x)} {list(x.shape)} has no known size")
    names = [namer.tmp() for _ in range(count)]
    parts = _split(x, [1] * count, at, [part_of(name) for name in names])
    dims = [d for i, d in enumerate(x.shape) if i != at] or _alone(x)
    return [to_shape(part, dims, name) for part, name in zip(parts, names)]


def _alone(x: Any) -> List[int]:
    """The shape of one element: Paddle's tensors have none, variables here ``[1]``."""
    return [] if isinstance(x, Tensor) else [1]


def unstack(x: Variable, axis: int = 0, num: Optional[int] = None) -> List[Variable]:
    """The parts along a dimension, which is not in them."""
    made = _unstack(x, axis, namer_of(x, "unstack"), "unstack")
    if num is not None and num != len(made):
        raise ValueError(f"unstack: num is {num}, but dimension {axis} has the size {len(made)}")
    return made


def unbind(input: Variable, axis: int = 0) -> List[Variable]:
    """The parts along a dimension, which is not in them."""
    return _unstack(input, axis, namer_of(input, "unbind"), "unbind")


def reshape(
    x: Variable, shape: Sequence[int], name: Optional[str] = None, actual_shape: Any = None,
    act: Optional[str] = None, inplace: bool = False,
) -> Variable:
    """The same elements under another shape: 0 keeps the dimension at that place, -1 is what is
    left."""
    if isinstance(x, Tensor):
        made = _reshaped(x, shape)
        return made if act is None else activate(made, act, NO_NAMES)
    namer = namer_of(x, "reshape2", name)
    out = namer.tmp()
    namer.skip()
    x = check(x, "reshape: x")
    if actual_shape is not None:
        raise NotImplementedError("reshape: actual_shape; the shape is known while the program is "
                                  "built")
    dims = _resolved(x, int_list(shape, "reshape: shape"))
    for at, d in enumerate(dims):
        if d == 0 and at < len(x.shape) and x.shape[at] >= 0:
            dims[at] = x.shape[at]
    made = _reshape(x, dims, out)
    return activate(made, act, namer)


def _resolved(x: Variable, dims: List[int]) -> List[int]:
    """Two dimensions of -1 of which one is the batch: the other follows from the rest."""
    batches = [i for i, d in enumerate(dims) if isinstance(d, Unknown)]
    if dims.count(-1) < 2 or not batches or list(x.shape).count(-1) != 1:
        return [int(d) for d in dims]
    rest = product([d for d in x.shape if d >= 0]) * getattr(x, "_rows_each", 1)
    given = product([d for d in dims if d > 0])
    out = [int(d) for d in dims]
    free = next(i for i, d in enumerate(dims) if d == -1 and i not in batches)
    out[free] = rest // given
    return out


def _reshaped(x: Tensor, shape: Any) -> Tensor:
    key = tuple(shape) if type(shape) in (list, tuple) else tuple(int_list(shape, "reshape"))
    if 0 in key:
        key = tuple(x.shape[i] if d == 0 and i < x.ndim else d for i, d in enumerate(key))
    try:
        made = _SHAPES.get(key)
        return (made or shape_op(tuple(int_list(key, "reshape: shape"))))(x)
    except _ERRORS as error:
        raise located(error) from None


def _reshape(x: Variable, dims: List[int], out: str) -> Variable:
    unknown = [i for i, d in enumerate(x.shape) if d == -1]
    if unknown and unknown != [0]:
        # Zeros in 'dims' now stand for unknown dimensions that stay.
        kept = [-1 if d == 0 else d for d in dims]
        if len(unknown) == 1 and kept.count(-1) == 1:
            return to_shape(x, kept, out)
    return op("reshape", {"X": x}, out, {"shape": dims})


def reshape_(x: Variable, shape: Sequence[int], name: Optional[str] = None) -> Variable:
    """As :func:`reshape`, in place where ``x`` is a tensor."""
    return in_place(x, reshape(x, shape, name))


def in_place(x: Any, value: Any) -> Any:
    """A tensor takes the value of another one; a variable stays, and the other is the result."""
    if not isinstance(x, Tensor):
        return value
    if value.stop_gradient:
        # What is not recorded changes the value alone.
        stops = x.stop_gradient
        x._share(value)
        x.stop_gradient = stops
    else:
        refuse_leaf(x)
        x._share(value)
    return x


def refuse_leaf(x: Tensor) -> None:
    """Raises for a leaf that wants a gradient: it would not be a leaf any more."""
    if x.is_leaf and not x.stop_gradient:
        raise located(RuntimeError(
            "a leaf tensor that wants a gradient cannot be changed in place: use no_grad(), or a "
            "copy by clone()"
        ))


def squeeze(
    x: Optional[Variable] = None, axis: Any = None, name: Optional[str] = None,
    input: Optional[Variable] = None, axes: Any = None,
) -> Variable:
    """Without dimensions of size 1: those given, or all."""
    x = check(x if x is not None else input, "squeeze: x")
    axis = axes if axis is None else axis
    rank = len(x.shape)
    named = axes_of(axis, rank, "squeeze")
    gone = [a for a in named if x.shape[a] == 1]
    if not named:
        gone = [i for i, d in enumerate(x.shape) if d == 1]
    dims = [d for i, d in enumerate(x.shape) if i not in gone] or _alone(x)
    namer = namer_of(x, "squeeze", name)
    out = namer.tmp()
    namer.skip()
    return to_shape(x, dims, out)


def squeeze_(x: Any, axis: Any = None, name: Optional[str] = None) -> Any:
    """As :func:`squeeze`, in place where ``x`` is a tensor."""
    return in_place(x, squeeze(x, axis, name))


def unsqueeze(
    x: Optional[Variable] = None, axis: Any = None, name: Optional[str] = None,
    input: Optional[Variable] = None, axes: Any = None,
) -> Variable:
    """With dimensions of size 1 at the given places of the result."""
    x = check(x if x is not None else input, "unsqueeze: x")
    axis = axes if axis is None else axis
    if axis is None:
        raise TypeError("unsqueeze: where? Give axis")
    namer = namer_of(x, "unsqueeze2", name)
    out = namer.tmp()
    namer.skip()
    dims = list(x.shape)
    if isinstance(axis, Tensor):
        axis = int_list(axis, "unsqueeze: axis")
    for a in axis if isinstance(axis, (list, tuple)) else [axis]:
        dims.insert(axis_of(a, len(dims) + 1, "unsqueeze"), 1)
    return to_shape(x, dims, out)


def unsqueeze_(x: Any, axis: Any = None, name: Optional[str] = None) -> Any:
    """As :func:`unsqueeze`, in place where ``x`` is a tensor."""
    return in_place(x, unsqueeze(x, axis, name))


def flatten(
    x: Variable, start_axis: int = 0, stop_axis: int = -1, name: Optional[str] = None
) -> Variable:
    """Joins neighbouring dimensions."""
    x = check(x, "flatten: x")
    if len(x.shape) == 0:
        return reshape(x, [1], name)
    rank = len(x.shape)
    start, stop = axis_of(start_axis, rank, "flatten"), axis_of(stop_axis, rank, "flatten")
    if start > stop:
        raise ValueError(f"flatten: start_axis {start_axis} lies behind stop_axis {stop_axis}")
    middle = list(x.shape[start:stop + 1])
    joined = -1 if -1 in middle else product(middle)
    namer = namer_of(x, "flatten", name)
    out = namer.tmp()
    namer.skip()
    return _reshape(x, list(x.shape[:start]) + [joined] + list(x.shape[stop + 1:]), out)


# --- parts ---------------------------------------------------------------------------------------

_END = 2**31 - 1


def _range(start: int, end: int, size: int) -> Tuple[int, int]:
    """A range inside a dimension of known size, as Python's slices mean it."""
    start = max(start + size, 0) if start < 0 else min(start, size)
    end = max(end + size, 0) if end < 0 else min(end, size)
    return start, end


def cut(
    x: Variable, ranges: Sequence[Tuple[int, int, int]], dims: Optional[List[int]], out: str
) -> Variable:
    """Ranges ``(axis, start, end)`` of some dimensions, then other dimensions if given."""
    wanted = []
    for axis, start, end in ranges:
        size = x.shape[axis]
        if size >= 0:
            start, end = _range(start, end, size)
            if start >= end:
                raise ValueError(
                    f"{said(x)} {list(x.shape)}: {start}:{end} of dimension {axis} is empty"
                )
            if (start, end) == (0, size):
                continue
        elif start == 0 and end >= _END:
            continue
        wanted.append((axis, start, end))
    for i, (axis, start, end) in enumerate(wanted):
        last = i == len(wanted) - 1 and dims is None
        attrs = {"axis": axis, "start": start, "end": end}
        x = op("slice", {"X": x}, out if last else part_of(out), attrs)
    if dims is not None:
        return to_shape(x, dims, out)
    return x if wanted else op("assign", {"X": x}, out)


def slice(
    input: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
    name: Optional[str] = None,
) -> Variable:
    """Parts of some dimensions; positions below 0 count from the end, those beyond it are the
    end."""
    x = check(input, "slice: input")
    axes = axes_of(int_list(axes, "slice: axes"), len(x.shape), "slice")
    starts, ends = int_list(starts, "slice: starts"), int_list(ends, "slice: ends")
    if not len(axes) == len(starts) == len(ends):
        raise ValueError(f"slice: {len(axes)} axes, {len(starts)} starts and {len(ends)} ends")
    return cut(x, list(zip(axes, starts, ends)), None, namer_of(input, "slice", name).tmp())


def strided_slice(
    x: Variable, axes: Sequence[int], starts: Sequence[int], ends: Sequence[int],
    strides: Sequence[int], name: Optional[str] = None,
) -> Variable:
    """As :func:`slice` in steps, which may go backwards."""
    steps = int_list(strides, "strided_slice: strides")
    if all(s == 1 for s in steps):
        return slice(x, axes, starts, ends, name)
    x = check(x, "strided_slice: x")
    attrs = {
        "axes": axes_of(int_list(axes, "strided_slice: axes"), len(x.shape), "strided_slice"),
        "starts": int_list(starts, "strided_slice: starts"),
        "ends": int_list(ends, "strided_slice: ends"), "strides": steps,
    }
    return op("strided_slice", {"X": x}, namer_of(x, "strided_slice", name).tmp(), attrs)


def get_item(x: Variable, key: Any) -> Variable:
    """``x[key]`` of a variable with integers, slices, None and ``...``."""
    keys = list(key) if isinstance(key, tuple) else [key]
    sizes = getattr(x, "_sizes", None)
    if sizes is not None and isinstance(key, (int, _SLICE)):
        made = _plain_item(x, keys)
        made._sizes = sizes[key] if isinstance(key, _SLICE) else [sizes[key]]
        return made
    if any(isinstance(k, _SLICE) and k.step not in (None, 1) for k in keys):
        return _in_steps(x, keys)
    if len(keys) == 1 and isinstance(keys[0], Values):
        return _by_index(x, keys[0])
    return _plain_item(x, keys)


def _plain_item(x: Variable, keys: List[Any]) -> Variable:
    rank = len(x.shape)
    used = len([k for k in keys if k is not None and k is not Ellipsis])
    if used > rank:
        raise IndexError(f"'{x.name}' has {rank} dimensions, but {used} are indexed")
    if Ellipsis in [k for k in keys if k is None or k is Ellipsis]:
        at = next(i for i, k in enumerate(keys) if k is Ellipsis)
        keys[at:at + 1] = [_ALL] * (rank - used)
    else:
        keys += [_ALL] * (rank - used)
    ranges, dims, axis, plain = [], [], 0, True
    for k in keys:
        if k is None:
            dims.append(1)
            continue
        size = x.shape[axis]
        if isinstance(k, _SLICE):
            start, end = _bounds(x, axis, k)
            ranges.append((axis, start, end))
            dims.append(_length(start, end, size))
        else:
            ranges.append(_single(x, axis, k, size))
            plain = False
        axis += 1
    shaped = None if plain and len(dims) == rank else (dims or [1])
    if all(r[1] == 0 and r[2] == _END for r in ranges) and shaped is not None:
        namer = namer_of(x, "unsqueeze2")
        out = namer.tmp()
        namer.skip()
        return to_shape(x, shaped, out)
    return cut(x, ranges, shaped, unique_name.generate(x.name + "_slice"))


_SLICE = builtins.slice
_ALL = _SLICE(None, None, None)


def _by_index(x: Variable, index: Any) -> Variable:
    from .search import gather, gather_nd

    if index.dtype == "bool":
        raise NotImplementedError(f"'{x.name}' indexed by a mask: how many elements it takes is "
                                  "known only when the program runs")
    if len(index.shape) == 2 and index.shape[1] == 1:
        return gather_nd(x, index)
    return gather(x, index)


def _in_steps(x: Variable, keys: List[Any]) -> Variable:
    """Slices in steps first, then the rest."""
    rank = len(x.shape)
    used = len([k for k in keys if k is not None and k is not Ellipsis])
    axis, axes, starts, ends, steps, rest = 0, [], [], [], [], []
    for k in keys:
        if k is Ellipsis:
            axis += rank - used
        elif k is not None:
            if isinstance(k, _SLICE) and k.step not in (None, 1):
                back = k.step < 0
                axes.append(axis)
                starts.append(k.start if k.start is not None else _END if back else 0)
                ends.append(k.stop if k.stop is not None else -_END if back else _END)
                steps.append(k.step)
                k = _ALL
            axis += 1
        rest.append(k)
    attrs = {"axes": axes, "starts": starts, "ends": ends, "strides": steps}
    made = op("strided_slice", {"X": x}, unique_name.generate(x.name + "_strided_slice"), attrs)
    return made if all(k == _ALL or k is Ellipsis for k in rest) else get_item(made, tuple(rest))


def _single(x: Variable, axis: int, k: Any, size: int) -> Tuple[int, int, int]:
    try:
        at = k.__index__()
    except AttributeError:
        raise NotImplementedError(
            f"'{x.name}' indexed by {type(k).__name__}: only integers, slices, None and ... are "
            "possible"
        ) from None
    if size >= 0 and not -size <= at < size:
        raise IndexError(f"'{x.name}' {list(x.shape)}: {at} is not in dimension {axis}")
    return axis, at, at + 1 if at != -1 else _END


def _bounds(x: Variable, axis: int, k: Any) -> Tuple[int, int]:
    for bound in (k.start, k.stop):
        if isinstance(bound, Variable):
            raise NotImplementedError(f"'{x.name}' sliced by the variable '{bound.name}': numbers "
                                      "are needed while the program is built")
    start = 0 if k.start is None else int(k.start)
    end = _END if k.stop is None else int(k.stop)
    return start, end


def _length(start: int, end: int, size: int) -> int:
    if size < 0:
        return -1
    start, end = _range(start, end, size)
    return end - start


# --- repetitions ---------------------------------------------------------------------------------


def expand(x: Variable, shape: Sequence[int], name: Optional[str] = None) -> Variable:
    """Repeats dimensions of size 1 so often that the shape is ``shape``; -1 keeps a dimension."""
    x = check(x, "expand: x")
    dims = int_list(shape, "expand: shape")
    if dims and isinstance(dims[0], Unknown) and not isinstance(x, Tensor):
        x, dims = _by_rows(x, dims[0].of, len(dims)), [-1] + dims[1:]
    lead = len(dims) - len(x.shape)
    if lead < 0:
        raise ValueError(f"expand: {said(x)} {list(x.shape)} has more dimensions than {dims}")
    for i, d in enumerate(dims):
        have = 1 if i < lead else x.shape[i - lead]
        if d != have and d != -1 and have not in (1, -1):
            raise ValueError(f"expand: {said(x)} {list(x.shape)} does not repeat to {dims}")
        if d == -1 and i < lead:
            raise ValueError(f"expand: {dims} has -1 for a dimension that {said(x)} "
                             f"{list(x.shape)} does not have")
    out = namer_of(x, "expand", name).tmp()
    if lead and -1 in x.shape:
        return _behind_others(x, dims, out)
    return op("expand", {"X": x}, out, {"shape": dims})


def _behind_others(x: Variable, dims: List[int], out: str) -> Variable:
    """Repeated so that the batch is not the first dimension any more: a product with ones."""
    have = [1] * (len(dims) - len(x.shape)) + list(x.shape)
    ones = [d if h == 1 and d != -1 else 1 for d, h in zip(dims, have)]
    unit = constant(1.0, x.dtype, part_of(out), ones)
    return op("elementwise_mul", {"X": x, "Y": unit}, out)


def _by_rows(x: Variable, of: Variable, rank: int) -> Variable:
    """``x`` once for each row of another variable, one below the other."""
    lead = rank - len(x.shape)
    if lead <= 0 and x.shape[0] == -1:
        return x
    if lead <= 0 and x.shape[0] != 1:
        dims = list(x.shape)
        each = _by_rows(reshape(x, [1] + dims), of, rank + 1)
        made = reshape(each, [-1] + dims[1:])
        made._rows_each = dims[0]
        return made
    out = unique_name.generate("expand")
    ones = rows_like(of, rank, 1.0, x.dtype, part_of(out))
    return op("elementwise_mul", {"X": x, "Y": ones}, out)


def broadcast_to(x: Variable, shape: Sequence[int], name: Optional[str] = None) -> Variable:
    """As :func:`expand`."""
    return expand(x, shape, name)


def expand_as(
    x: Variable, y: Optional[Variable] = None, name: Optional[str] = None,
    target_tensor: Optional[Variable] = None,
) -> Variable:
    """Repeats dimensions of size 1 so often that the shape is that of ``y``."""
    x, y = check(x, "expand_as: x"), check(y if y is not None else target_tensor, "expand_as: y")
    return op("expand_as", {"X": x, "Y": y}, namer_of(x, "expand_as", name).tmp())


def tile(x: Variable, repeat_times: Sequence[int], name: Optional[str] = None) -> Variable:
    """Repeats every dimension a number of times."""
    x = check(x, "tile: x")
    times = int_list(repeat_times, "tile: repeat_times")
    if times and isinstance(times[0], Unknown) and not isinstance(x, Tensor):
        x, times = _by_rows(x, times[0].of, max(len(times), len(x.shape))), [1] + times[1:]
        if all(count == 1 for count in times):
            return x
    if any(count < 1 for count in times):
        raise ValueError(f"tile: repeat_times {times} should be above 0")
    return op("tile", {"X": x}, namer_of(x, "tile", name).tmp(), {"repeats": times})


def moveaxis(x: Variable, source: Any, destination: Any, name: Optional[str] = None) -> Variable:
    """Moves dimensions to other places; the others keep their order."""
    x = check(x, "moveaxis: x")
    rank = len(x.shape)
    come, go = axes_of(source, rank, "moveaxis"), axes_of(destination, rank, "moveaxis")
    perm = [d for d in range(rank) if d not in come]
    for to, at in sorted(zip(go, come)):
        perm.insert(to, at)
    namer = namer_of(x, "moveaxis", name)
    out = namer.tmp()
    namer.skip()
    return op("transpose", {"X": x}, out, {"perm": perm})


def swapaxes(x: Variable, axis0: int, axis1: int, name: Optional[str] = None) -> Variable:
    """With two dimensions exchanged."""
    from .linalg import transpose

    x = check(x, "swapaxes: x")
    rank = len(x.shape)
    order = list(range(rank))
    a, b = axis_of(axis0, rank, "swapaxes"), axis_of(axis1, rank, "swapaxes")
    order[a], order[b] = b, a
    return transpose(x, order, name)


def broadcast_shape(x_shape: Sequence[int], y_shape: Sequence[int]) -> List[int]:
    """The shape that two shapes broadcast to."""
    return broadcast_dims(x_shape, y_shape)


def broadcast_tensors(input: Sequence[Variable], name: Optional[str] = None) -> List[Variable]:
    """All of them repeated to the shape that they broadcast to."""
    shape: List[int] = []
    for value in input:
        shape = broadcast_dims(shape, value.shape)
    return [expand(value, shape) for value in input]


def crop(
    x: Variable, shape: Any = None, offsets: Any = None, name: Optional[str] = None
) -> Variable:
    """A part of a given shape that begins at given offsets."""
    x = check(x, "crop: x")
    starts = [0] * len(x.shape) if offsets is None else int_list(offsets, "crop: offsets")
    sizes = list(x.shape) if shape is None else int_list(shape, "crop: shape")
    ends = [x.shape[i] if n < 0 else starts[i] + n for i, n in enumerate(sizes)]
    return slice(x, list(range(len(sizes))), starts, ends, name)


def tolist(x: Variable) -> List[Any]:
    """The values as nested lists. Those of a variable are known when the program runs."""
    if isinstance(x, Tensor):
        return x.numpy().tolist()
    from ..framework import ValueNeeded

    raise ValueNeeded(x.name, "tolist()")


__getattr__ = missing(__name__)
