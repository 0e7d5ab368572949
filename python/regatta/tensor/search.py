"""Elements by position or by value: gathering, scattering, sorting, selecting.

Where the positions follow from values (sorting, masks) numpy finds them, and the elements are
gathered, so that gradients flow. In a program such positions are known only when it runs: functions
that need them take tensors alone.
"""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

from .._missing import missing
from ..framework import Tensor, Variable, to_dtype
from ._common import (
    Values, axes_of, axis_of, check, int_list, is_integer, namer_of, op, part_of, product, said,
    several, to_shape,
)
from ._index import take_positions
from .manipulation import in_place, reshape, swapaxes
from .math import as_operand

__all__ = [
    "argmax", "argmin", "argsort", "bincount", "bucketize", "diagonal", "flip", "gather",
    "gather_nd", "histogram", "index_add", "index_sample", "index_select", "kthvalue",
    "masked_fill", "masked_select", "median", "mode", "nonzero", "put_along_axis",
    "repeat_interleave", "reverse", "roll", "rot90", "scatter", "scatter_", "scatter_nd",
    "scatter_nd_add", "searchsorted", "shard_index", "sort", "take", "take_along_axis", "topk",
    "unique", "unique_consecutive",
]


def _eager(x: Any, what: str) -> Tensor:
    if isinstance(check(x, f"{what}: x"), Tensor):
        return x
    raise NotImplementedError(f"{what} of '{x.name}': which elements it takes is known only when "
                              "the program runs; it is for tensors")


def _whole(index: Any, what: str) -> Any:
    index = check(index, what)
    if not is_integer(index):
        raise TypeError(f"{what} should hold integers, but {said(index)} is {index.dtype}")
    return index


# --- by position ---------------------------------------------------------------------------------


def gather(x: Variable, index: Any, axis: Any = None, name: Optional[str] = None) -> Variable:
    """Parts of a dimension by number."""
    return _gathered(x, index, axis, "gather", name)


def _gathered(x: Variable, index: Any, axis: Any, word: str, name: Optional[str]) -> Variable:
    x = check(x, "gather: x")
    if not isinstance(index, Values):
        index = Tensor(index, "int64")
    index = _whole(index, "gather: index")
    at = 0 if axis is None else axis_of(axis, len(x.shape), "gather")
    out = namer_of(x, word, name).tmp()
    if len(index.shape) == 2 and index.shape[1] == 1:
        index = to_shape(index, [index.shape[0]], part_of(out))
    return op("gather", {"X": x, "Index": index}, out, {"axis": at})


def index_select(
    x: Variable, index: Variable, axis: int = 0, name: Optional[str] = None
) -> Variable:
    """Parts of a dimension by number."""
    return _gathered(x, index, axis, "index_select", name)


def gather_nd(x: Variable, index: Variable, name: Optional[str] = None) -> Variable:
    """Elements or parts by rows of positions, one for each leading dimension."""
    x, index = check(x, "gather_nd: x"), _whole(index, "gather_nd: index")
    return op("gather_nd", {"X": x, "Index": index}, namer_of(x, "gather_nd", name).tmp())


def take(x: Tensor, index: Any, mode: str = "raise", name: Optional[str] = None) -> Tensor:
    """Elements by their position among all of them."""
    import numpy as np

    x = _eager(x, "take")
    at = np.asarray(index.numpy() if isinstance(index, Tensor) else index)
    if mode == "wrap":
        at = at % x.size
    elif mode == "clip":
        at = np.clip(at, 0, x.size - 1)
    elif at.size and not (-x.size <= at.min() and at.max() < x.size):
        raise IndexError(f"take: a position is not in a tensor of {x.size} elements")
    return take_positions(x, np.where(at < 0, at + x.size, at))


def take_along_axis(
    arr: Variable, indices: Variable, axis: int, broadcast: bool = True
) -> Variable:
    """Elements of a dimension by position, for each of the other dimensions."""
    return _taken(arr, indices, axis, "take_along_axis")


def _taken(arr: Variable, indices: Variable, axis: int, word: str) -> Variable:
    arr = check(arr, "take_along_axis: arr")
    inputs = {"X": arr, "Index": _whole(indices, "take_along_axis: indices")}
    attrs = {"axis": axis_of(axis, len(arr.shape), "take_along_axis")}
    return op("take_along_axis", inputs, namer_of(arr, word).tmp(), attrs)


def _along(shape: Sequence[int], index: Any, axis: int) -> Any:
    """Positions among all elements of what ``index`` names along a dimension."""
    import numpy as np

    grid = list(np.indices(index.shape, sparse=True))
    grid[axis] = np.where(index < 0, index + shape[axis], index)
    return np.ravel_multi_index(np.broadcast_arrays(*grid), tuple(shape))


def put_along_axis(
    arr: Variable, indices: Variable, values: Any, axis: int, reduce: str = "assign",
    include_self: bool = True, broadcast: bool = True,
) -> Variable:
    """``arr`` with other elements at positions along a dimension: set, added or multiplied."""
    arr = check(arr, "put_along_axis: arr")
    index = _whole(indices, "put_along_axis: indices")
    out = namer_of(arr, "put_along_axis").tmp()
    at = axis_of(axis, len(arr.shape), "put_along_axis")
    values = as_operand(values, arr, out)
    if len(values.shape) < len(arr.shape):
        values = to_shape(values, [1] * (len(arr.shape) - len(values.shape)) + list(values.shape),
                          part_of(out))
    if reduce in ("mul", "multiply"):
        return _multiplied(_eager(arr, "put_along_axis"), index, values, at)
    kind = {"add": "add", "sum": "add", "assign": "assign"}.get(reduce)
    if kind is None or not include_self:
        raise NotImplementedError(f"put_along_axis: reduce={reduce!r} with include_self="
                                  f"{include_self}; assign, add and multiply are possible")
    inputs = {"X": arr, "Index": index, "Value": values}
    return op("put_along_axis", inputs, out, {"axis": at, "reduce": kind})


def _multiplied(arr: Tensor, index: Tensor, values: Tensor, at: int) -> Tensor:
    import numpy as np

    dims = list(arr.shape)
    dims[at] = index.shape[at]
    positions = _along(arr.shape, np.broadcast_to(index.numpy(), dims), at).reshape(-1)
    base = arr.numpy().reshape(-1)
    np.multiply.at(base, positions, np.broadcast_to(values.numpy(), dims).reshape(-1))
    return Tensor(base.reshape(arr.shape), arr._dtype)


def scatter(
    x: Variable, index: Variable, updates: Variable, overwrite: bool = True,
    name: Optional[str] = None,
) -> Variable:
    """``x`` with other rows at given numbers; without ``overwrite`` those rows are the sums of the
    updates."""
    x, updates = check(x, "scatter: x"), check(updates, "scatter: updates")
    index = _whole(index, "scatter: index")
    out = namer_of(x, "scatter", name).tmp()
    if len(index.shape) == 2:
        index = to_shape(index, [index.shape[0]], part_of(out))
    inputs = {"X": x, "Ids": index, "Updates": updates}
    return op("scatter", inputs, out, {"overwrite": bool(overwrite)})


def scatter_(
    x: Tensor, index: Tensor, updates: Tensor, overwrite: bool = True, name: Optional[str] = None
) -> Tensor:
    """As :func:`scatter`, in place."""
    return in_place(x, scatter(x, index, updates, overwrite, name))


def scatter_nd_add(
    x: Variable, index: Variable, updates: Variable, name: Optional[str] = None
) -> Variable:
    """Adds parts to ``x`` at rows of positions."""
    inputs = {
        "X": check(x, "scatter_nd_add: x"), "Index": _whole(index, "scatter_nd_add: index"),
        "Updates": check(updates, "scatter_nd_add: updates"),
    }
    return op("scatter_nd_add", inputs, namer_of(x, "scatter_nd_add", name).tmp())


def scatter_nd(
    index: Tensor, updates: Tensor, shape: Sequence[int], name: Optional[str] = None
) -> Tensor:
    """Zeros with parts added at rows of positions."""
    import numpy as np

    zeros = Tensor(np.zeros(int_list(shape, "scatter_nd: shape"), "float32"), updates._dtype)
    return scatter_nd_add(zeros, index, updates)


def index_add(
    x: Tensor, index: Tensor, axis: int, value: Tensor, name: Optional[str] = None
) -> Tensor:
    """Adds parts to a dimension of ``x`` by number."""
    x = check(x, "index_add: x")
    at = axis_of(axis, len(x.shape), "index_add")
    front, values = swapaxes(x, 0, at), swapaxes(value, 0, at)
    rows = to_shape(index, [index.shape[0], 1], namer_of(x, "index_add").tmp())
    return swapaxes(scatter_nd_add(front, rows, values), 0, at)


def index_sample(x: Variable, index: Variable) -> Variable:
    """Elements of each row by number."""
    return _taken(x, index, 1, "index_sample")


# --- by value ------------------------------------------------------------------------------------


def masked_select(x: Tensor, mask: Tensor, name: Optional[str] = None) -> Tensor:
    """The elements where a mask holds, as a vector."""
    import numpy as np

    x = _eager(x, "masked_select")
    truths = np.broadcast_to(mask.numpy().astype(bool), x.shape)
    return take_positions(x, np.flatnonzero(truths))


def masked_fill(x: Variable, mask: Variable, value: Any, name: Optional[str] = None) -> Variable:
    """``x`` with a number where a mask holds."""
    from .logic import where

    return where(mask, value, x, name)


def nonzero(x: Tensor, as_tuple: bool = False) -> Any:
    """Positions of elements other than 0: rows, or a column for each dimension."""
    import numpy as np

    found = np.argwhere(_eager(x, "nonzero").numpy())
    if not as_tuple:
        return Tensor(found, "int64")
    return tuple(Tensor(found[:, i:i + 1], "int64") for i in range(found.shape[1]))


def _arg(word: str, x: Any, axis: Any, keepdim: bool, dtype: Any, name: Optional[str]) -> Any:
    x = check(x, f"{word}: x")
    out, rank = namer_of(x, word, name).tmp(), len(x.shape)
    logical = to_dtype(dtype)
    flat = axis is None
    if flat:
        x, axis = to_shape(x, [-1 if -1 in x.shape else product(x.shape)], part_of(out)), 0
    at = axis_of(axis, len(x.shape), word)
    attrs = {"axis": at, "keep_dim": bool(keepdim) and not flat}
    found = op(word, {"X": x}, out, attrs, logical)
    if not isinstance(found, Tensor):
        return found
    if flat:
        return found.reshape([1] * rank if keepdim else [])
    return found.reshape([]) if rank == 1 and not keepdim else found


def argmax(
    x: Variable, axis: Optional[int] = None, keepdim: bool = False, dtype: Any = "int64",
    name: Optional[str] = None,
) -> Variable:
    """The position of the largest element."""
    return _arg("argmax", x, axis, keepdim, dtype, name)


def argmin(
    x: Variable, axis: Optional[int] = None, keepdim: bool = False, dtype: Any = "int64",
    name: Optional[str] = None,
) -> Variable:
    """The position of the smallest element."""
    return _arg("argmin", x, axis, keepdim, dtype, name)


def _order(x: Tensor, axis: int, descending: bool) -> Any:
    import numpy as np

    array = x.numpy()
    if descending:
        # Equal elements keep their order.
        turned = np.flip(array, axis)
        order = np.flip(np.argsort(turned, axis, kind="stable"), axis)
        return array.shape[axis] - 1 - order
    return np.argsort(array, axis, kind="stable")


def _sorted(x: Any, axis: int, descending: bool, word: str, name: Optional[str]) -> List[Any]:
    """The elements of a dimension in their order, and their positions."""
    x = check(x, f"{word}: x")
    if len(x.shape) == 0:
        return [x, Tensor(0, "int64").reshape([])]
    namer = namer_of(x, word, name)
    names = {"Out": namer.tmp(), "Indices": namer.tmp()}
    at = axis_of(axis, len(x.shape), word)
    made = several("argsort", {"X": x}, names, {"axis": at, "descending": bool(descending)})
    return [made[0], _positions(made[1])]


def _positions(found: Any) -> Any:
    """Positions are int64, whatever the elements are."""
    if isinstance(found, Tensor):
        return found if found._dtype == "int64" else found._as("int64")
    found.program._note_dtype(found.name, to_dtype("int64"))
    return found


def argsort(
    x: Variable, axis: int = -1, descending: bool = False, stable: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """Positions in the order of the elements along a dimension."""
    return _sorted(x, axis, descending, "argsort", name)[1]


def sort(
    x: Variable, axis: int = -1, descending: bool = False, stable: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The elements of a dimension in their order."""
    return _sorted(x, axis, descending, "sort", name)[0]


def topk(
    x: Variable, k: Any, axis: Optional[int] = None, largest: bool = True, sorted: bool = True,
    name: Optional[str] = None,
) -> Tuple[Any, Any]:
    """The ``k`` largest elements of a dimension and their positions."""
    x = check(x, "topk: x")
    at = axis_of(-1 if axis is None else axis, len(x.shape), "topk")
    namer = namer_of(x, "top_k_v2", name)
    names = {"Out": namer.tmp(), "Indices": namer.tmp()}
    attrs = {"k": int(k), "axis": at, "largest": bool(largest)}
    made = several("topk", {"X": x}, names, attrs)
    return made[0], _positions(made[1])


def kthvalue(
    x: Tensor, k: int, axis: Optional[int] = None, keepdim: bool = False,
    name: Optional[str] = None,
) -> Tuple[Tensor, Tensor]:
    """The ``k``-th smallest element of a dimension, from 1 on, and its position."""
    x = _eager(x, "kthvalue")
    at = axis_of(-1 if axis is None else axis, x.ndim, "kthvalue")
    values, order = _sorted(x, at, False, "kthvalue", None)
    value, index = gather(values, [k - 1], at), gather(order, [k - 1], at)
    return (value, index) if keepdim else (value.squeeze(at), index.squeeze(at))


def mode(
    x: Tensor, axis: int = -1, keepdim: bool = False, name: Optional[str] = None
) -> Tuple[Tensor, Tensor]:
    """The most frequent element of a dimension, and the last position that has it."""
    import numpy as np

    x = _eager(x, "mode")
    at = axis_of(axis, x.ndim, "mode")

    def last_of_most(row: Any) -> int:
        values, counts = np.unique(row, return_counts=True)
        return int(np.flatnonzero(row == values[counts.argmax()])[-1])

    order = np.expand_dims(np.apply_along_axis(last_of_most, at, x.numpy()), at)
    value, index = take_positions(x, _along(x.shape, order, at)), Tensor(order, "int64")
    return (value, index) if keepdim else (value.squeeze(at), index.squeeze(at))


def median(
    x: Tensor, axis: Any = None, keepdim: bool = False, name: Optional[str] = None
) -> Tensor:
    """The middle element of a dimension, or the mean of the two in the middle."""
    x = _eager(x, "median")
    flat = x.reshape([-1]) if axis is None else x
    at = 0 if axis is None else axis_of(axis, x.ndim, "median")
    ordered, size = sort(flat, at), flat.shape[at]
    low = gather(ordered, [(size - 1) // 2], at)
    middle = (low + gather(ordered, [size // 2], at)) * 0.5
    if axis is None:
        return middle.reshape([1] * x.ndim if keepdim else [])
    return middle if keepdim else middle.squeeze(at)


def unique(
    x: Tensor, return_index: bool = False, return_inverse: bool = False,
    return_counts: bool = False, axis: Optional[int] = None, dtype: Any = "int64",
    name: Optional[str] = None,
) -> Any:
    """The different elements in order; also where they are first, which one each element is, and
    how often they occur."""
    import numpy as np

    x = _eager(x, "unique")
    found = np.unique(x.numpy(), True, True, True, axis)
    kind = str(to_dtype(dtype))
    values, first, inverse, counts = found
    out = [Tensor(values, x._dtype)]
    asked = (return_index, return_inverse, return_counts)
    for wanted, array in zip(asked, (first, inverse, counts)):
        if wanted:
            out.append(Tensor(np.asarray(array).reshape(-1), kind))
    return out[0] if len(out) == 1 else tuple(out)


def unique_consecutive(
    x: Tensor, return_inverse: bool = False, return_counts: bool = False,
    axis: Optional[int] = None, dtype: Any = "int64", name: Optional[str] = None,
) -> Any:
    """As :func:`unique` of neighbours: elements that equal the one before are left out."""
    import numpy as np

    if axis is not None:
        raise NotImplementedError("unique_consecutive along an axis; leave axis out")
    array = _eager(x, "unique_consecutive").numpy().reshape(-1)
    first = np.concatenate([[True], array[1:] != array[:-1]]) if array.size else np.zeros(0, bool)
    kind, out = str(to_dtype(dtype)), [Tensor(array[first], x._dtype)]
    if return_inverse:
        out.append(Tensor(np.cumsum(first) - 1, kind))
    if return_counts:
        out.append(Tensor(np.diff(np.append(np.flatnonzero(first), array.size)), kind))
    return out[0] if len(out) == 1 else tuple(out)


def searchsorted(
    sorted_sequence: Tensor, values: Any, out_int32: bool = False, right: bool = False,
    name: Optional[str] = None,
) -> Tensor:
    """Where values would be inserted into rows that are in order."""
    import numpy as np

    rows, side = sorted_sequence.numpy(), "right" if right else "left"
    wanted = values.numpy() if isinstance(values, Tensor) else np.asarray(values)
    kind = "int32" if out_int32 else "int64"
    if rows.ndim == 1:
        return Tensor(np.searchsorted(rows, wanted, side), kind)
    found = [np.searchsorted(row, want, side) for row, want in zip(
        rows.reshape(-1, rows.shape[-1]), wanted.reshape(-1, wanted.shape[-1]))]
    return Tensor(np.array(found).reshape(wanted.shape), kind)


def bucketize(
    x: Tensor, sorted_sequence: Tensor, out_int32: bool = False, right: bool = False,
    name: Optional[str] = None,
) -> Tensor:
    """In which interval of an ordered vector each element lies."""
    return searchsorted(sorted_sequence, x, out_int32, right)


def bincount(
    x: Tensor, weights: Optional[Tensor] = None, minlength: int = 0, name: Optional[str] = None
) -> Tensor:
    """How often each number from 0 on occurs, or the sum of its weights."""
    import numpy as np

    given = None if weights is None else weights.numpy()
    counts = np.bincount(_eager(x, "bincount").numpy(), given, minlength)
    return Tensor(counts, "int64" if weights is None else "float32")


def histogram(
    input: Tensor, bins: int = 100, min: float = 0, max: float = 0, name: Optional[str] = None
) -> Tensor:
    """How many elements lie in each of equal intervals."""
    import numpy as np

    array = _eager(input, "histogram").numpy()
    over = (array.min(), array.max()) if min == 0 and max == 0 else (min, max)
    return Tensor(np.histogram(array, bins, over)[0], "int64")


def shard_index(
    input: Tensor, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1
) -> Tensor:
    """Ids of one shard counted from 0; others become ``ignore_value``."""
    import numpy as np

    size = (index_num + nshards - 1) // nshards
    ids = _eager(input, "shard_index").numpy()
    return Tensor(np.where(ids // size == shard_id, ids % size, ignore_value), input._dtype)


# --- other orders --------------------------------------------------------------------------------


def flip(x: Variable, axis: Any, name: Optional[str] = None) -> Variable:
    """Dimensions in the opposite order."""
    x = check(x, "flip: x")
    dims = axes_of(axis, len(x.shape), "flip")
    return op("flip", {"X": x}, namer_of(x, "flip", name).tmp(), {"axes": dims})


reverse = flip


def roll(
    x: Variable, shifts: Union[int, Sequence[int]], axis: Any = None, name: Optional[str] = None
) -> Variable:
    """Elements moved along dimensions; those that leave at the end come back at the front."""
    x = check(x, "roll: x")
    if axis is None:
        flat = reshape(x, [-1 if -1 in x.shape else product(x.shape)])
        return reshape(roll(flat, shifts, 0), list(x.shape))
    moves = int_list(shifts, "roll: shifts")
    dims = axes_of(axis, len(x.shape), "roll")
    if len(moves) != len(dims):
        raise ValueError(f"roll: {len(moves)} shifts for {len(dims)} dimensions")
    return op("roll", {"X": x}, namer_of(x, "roll", name).tmp(), {"shifts": moves, "axes": dims})


def rot90(x: Tensor, k: int = 1, axes: Sequence[int] = (0, 1), name: Optional[str] = None) -> Any:
    """Turned by right angles in the plane of two dimensions."""
    import numpy as np

    x = _eager(x, "rot90")
    return take_positions(x, np.rot90(np.arange(x.size).reshape(x.shape), k, tuple(axes)))


def diagonal(
    x: Tensor, offset: int = 0, axis1: int = 0, axis2: int = 1, name: Optional[str] = None
) -> Tensor:
    """The diagonals of matrices in two dimensions, as the last dimension."""
    import numpy as np

    x = _eager(x, "diagonal")
    return take_positions(x, np.arange(x.size).reshape(x.shape).diagonal(offset, axis1, axis2))


def repeat_interleave(
    x: Tensor, repeats: Any, axis: Optional[int] = None, name: Optional[str] = None
) -> Tensor:
    """Each part of a dimension a number of times."""
    import numpy as np

    x = _eager(x, "repeat_interleave")
    if axis is None:
        x, axis = x.reshape([-1]), 0
    at = axis_of(axis, x.ndim, "repeat_interleave")
    times = repeats.numpy() if isinstance(repeats, Tensor) else repeats
    return gather(x, Tensor(np.repeat(np.arange(x.shape[at]), times), "int64"), at)


__getattr__ = missing(__name__)
