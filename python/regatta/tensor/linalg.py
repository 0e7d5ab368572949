"""Products and lengths of matrices and vectors."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable
from ._common import (
    _ERRORS, _PREPARED, Axis, axes_of, check, int_list, is_integer, located, namer_of, op, part_of,
    prepared, product, run, said, to_shape,
)
from .math import TO_SCALAR, combine

__all__ = [
    "bmm", "cross", "dist", "dot", "kron", "matmul", "mm", "mul", "mv", "norm", "t", "trace",
    "transpose",
]


def product_of(x: Any, y: Any, transpose_x: bool, transpose_y: bool, out: str) -> Variable:
    """The matrix product of the last two dimensions. A vector on the left is a row, one on the
    right a column; that dimension is not in the result."""
    x, y = check(x, "matmul: x"), check(y, "matmul: y")
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return _eager_product(x, y, bool(transpose_x), bool(transpose_y))
    if -1 in x.shape[1:-2] and len(y.shape) == 2 and not transpose_x:
        if transpose_y:
            y = op("transpose", {"X": y}, part_of(out), {"perm": [1, 0]})
        # One matrix for all: this op does not mind where the batch is.
        return op("fc", {"X": x, "W": y}, out)
    attrs = {"trans_x": bool(transpose_x), "trans_y": bool(transpose_y)}
    at = _batch_behind(x, y)
    if at is None:
        return op("matmul", {"X": x, "Y": y}, out, attrs)
    x, y = (op("transpose", {"X": v}, part_of(out), {"perm": _exchanged(v, at)}) for v in (x, y))
    made = op("matmul", {"X": x, "Y": y}, part_of(out), attrs)
    return op("transpose", {"X": made}, out, {"perm": _exchanged(made, at)})


def _eager_product(x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool) -> Tensor:
    key = ("matmul", transpose_x, transpose_y)
    made = _PREPARED.get(key)
    if made is None:
        attrs = {"trans_x": transpose_x, "trans_y": transpose_y}
        made = prepared(key, "matmul", ("X", "Y"), attrs)
    try:
        if x._stored == "i64" and y._stored == "i64":
            return _integer_product(x, y, transpose_x, transpose_y)
        result = made(x, y)
    except _ERRORS as error:
        raise located(error) from None
    return TO_SCALAR(result) if x.ndim == 1 and y.ndim == 1 else result


def _integer_product(x: Tensor, y: Tensor, transpose_x: bool, transpose_y: bool) -> Tensor:
    a, b = x.numpy(), y.numpy()
    a = a.swapaxes(-1, -2) if transpose_x and a.ndim > 1 else a
    b = b.swapaxes(-1, -2) if transpose_y and b.ndim > 1 else b
    return Tensor(a @ b, x._dtype)


def _batch_behind(x: Variable, y: Variable) -> Optional[int]:
    """Which leading dimension of both has an unknown size, if it is not the first: the op wants the
    batch first."""
    rank = len(x.shape)
    if rank < 4 or len(y.shape) != rank or -1 not in x.shape[1:-2]:
        return None
    at = x.shape.index(-1)
    return at if at > 0 and y.shape[at] == -1 else None


def _exchanged(x: Variable, at: int) -> List[int]:
    perm = list(range(len(x.shape)))
    perm[0], perm[at] = at, 0
    return perm


def matmul(
    x: Variable, y: Variable, transpose_x: bool = False, transpose_y: bool = False,
    name: Optional[str] = None, alpha: float = 1.0,
) -> Variable:
    """The matrix product over the last two dimensions."""
    out = namer_of(x, "matmul_v2", name).tmp()
    if alpha == 1.0:
        return product_of(x, y, transpose_x, transpose_y, out)
    made = product_of(x, y, transpose_x, transpose_y, part_of(out))
    return op("scale", {"X": made}, out, {"scale": float(alpha)})


def mm(input: Variable, mat2: Variable, name: Optional[str] = None) -> Variable:
    """The matrix product."""
    return product_of(input, mat2, False, False, namer_of(input, "mm", name).tmp())


def bmm(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """The products of two rows of matrices."""
    for slot, value in (("x", x), ("y", y)):
        if len(check(value, f"bmm: {slot}").shape) != 3:
            raise ValueError(f"bmm: {slot} should have 3 dimensions, but {said(value)} has the "
                             f"shape {list(value.shape)}")
    return product_of(x, y, False, False, namer_of(x, "bmm", name).tmp())


def mv(x: Variable, vec: Variable, name: Optional[str] = None) -> Variable:
    """A matrix times a vector."""
    return product_of(x, vec, False, False, namer_of(x, "mv", name).tmp())


def dot(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """The inner products of rows: the products summed over the last dimension."""
    out = namer_of(x, "dot", name).tmp()
    both = op("elementwise_mul", {"X": check(x, "dot: x"), "Y": check(y, "dot: y")}, part_of(out))
    if isinstance(both, Tensor):
        return both.sum(-1)
    return op("reduce_sum", {"X": both}, out, {"dims": [len(both.shape) - 1], "keep_dim": False})


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1,
    name: Optional[str] = None,
) -> Variable:
    """Fluid's product of matrices, to which leading and trailing dimensions are joined."""
    out = namer_of(x, "mul", name).tmp()
    x, y = check(x, "mul: x"), check(y, "mul: y")
    rows, columns = list(x.shape[:x_num_col_dims]), list(y.shape[y_num_col_dims:])
    flat = [_joined(rows), product(x.shape[x_num_col_dims:])]
    if list(x.shape) != flat:
        x = to_shape(x, flat, part_of(out))
    flat = [product(y.shape[:y_num_col_dims]), product(columns)]
    if list(y.shape) != flat:
        y = to_shape(y, flat, part_of(out))
    if len(rows) == 1 and len(columns) == 1:
        return op("matmul", {"X": x, "Y": y}, out)
    made = op("matmul", {"X": x, "Y": y}, part_of(out))
    return to_shape(made, rows + columns, out)


def _joined(dims: Sequence[int]) -> int:
    return -1 if -1 in dims else product(dims)


def transpose(x: Variable, perm: Sequence[int], name: Optional[str] = None) -> Variable:
    """Reorders the dimensions: dimension ``i`` of the result is ``perm[i]`` of ``x``."""
    if isinstance(x, Tensor):
        return _transposed(x, perm)
    namer = namer_of(x, "transpose", name)
    out = namer.tmp()
    namer.skip()
    x = check(x, "transpose: x")
    rank = len(x.shape)
    order = [p + rank if p < 0 else p for p in int_list(perm, "transpose: perm")]
    return op("transpose", {"X": x}, out, {"perm": order})


def _transposed(x: Tensor, perm: Sequence[int]) -> Tensor:
    key = ("transpose", *perm)
    made = _PREPARED.get(key)
    if made is None:
        rank = x.ndim
        order = [p + rank if p < 0 else p for p in int_list(perm, "transpose: perm")]
        if sorted(order) != list(range(rank)):
            raise located(ValueError(f"transpose: perm {list(perm)} does not order the {rank} "
                                     "dimensions of x"))
        made = _core.Op("transpose", ("X",), {"perm": order})
        if all(p >= 0 for p in order) and order == list(perm):
            _PREPARED[key] = made
    try:
        return made(x)
    except _ERRORS as error:
        raise located(error) from None


def t(input: Variable, name: Optional[str] = None) -> Variable:
    """A matrix with rows and columns exchanged; a vector as it is."""
    namer = namer_of(input, "t", name)
    out = namer.tmp()
    namer.skip()
    input = check(input, "t: input")
    if len(input.shape) > 2:
        raise ValueError(f"t: {said(input)} has {len(input.shape)} dimensions, but at most 2 are "
                         "possible; use transpose")
    if len(input.shape) < 2:
        return op("assign", {"X": input}, out)
    return op("transpose", {"X": input}, out, {"perm": [1, 0]})


# Below this a sum of squares counts as this: the square root has no slope at 0.
_TINY = 1e-37


def p_norm(x: Variable, p: float, dims: List[int], keepdim: bool, out: str) -> Variable:
    """The p-norm over some dimensions; over all if there are none."""
    if isinstance(x, Tensor):
        return _eager_norm(x, p, dims, keepdim)
    over = {"dims": dims, "keep_dim": bool(keepdim)}
    if p == 2.0:
        squares = op("square", {"X": x}, part_of(out))
        total = op("reduce_sum", {"X": squares}, part_of(out), over)
        total = op("clip", {"X": total}, part_of(out), {"min": _TINY})
        return op("sqrt", {"X": total}, out)
    size = op("abs", {"X": x}, part_of(out))
    if p == 1.0:
        return op("reduce_sum", {"X": size}, out, over)
    if p == float("inf"):
        return op("reduce_max", {"X": size}, out, over)
    if p <= 0.0:
        raise NotImplementedError(f"norm with p = {p}: p should be above 0")
    grown = op("pow", {"X": size}, part_of(out), {"factor": p})
    total = op("reduce_sum", {"X": grown}, part_of(out), over)
    return op("pow", {"X": total}, out, {"factor": 1.0 / p})


def _eager_norm(x: Tensor, p: float, dims: List[int], keepdim: bool) -> Tensor:
    if is_integer(x):
        x = x.astype("float32")
    made = run("p_norm", {"X": x}, {"p": p, "dims": dims, "keep_dim": bool(keepdim)})
    return made if keepdim or (dims and len(dims) < x.ndim) else TO_SCALAR(made)


def norm(
    x: Variable, p: Any = "fro", axis: Axis = None, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The length of vectors: 'fro' (the 2-norm), a number above 0, or infinity."""
    x = check(x, "norm: x")
    if isinstance(p, str) and p not in ("fro", "inf"):
        raise ValueError(f"norm: p should be 'fro' or a number, but is {p!r}")
    power = {"fro": 2.0, "inf": float("inf")}[p] if isinstance(p, str) else float(p)
    word = "frobenius_norm" if p == "fro" and not isinstance(axis, int) else "p_norm"
    dims = axes_of(axis, len(x.shape), "norm")
    return p_norm(x, power, dims, keepdim, namer_of(x, word, name).tmp())


def kron(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """Every element of ``x`` times the whole of ``y``."""
    x, y = check(x, "kron: x"), check(y, "kron: y")
    rank = max(len(x.shape), len(y.shape))
    a = [1] * (rank - len(x.shape)) + list(x.shape)
    b = [1] * (rank - len(y.shape)) + list(y.shape)
    wide = to_shape(x, [d for size in a for d in (size, 1)], namer_of(x, "kron").tmp())
    tall = to_shape(y, [d for size in b for d in (1, size)], namer_of(y, "kron").tmp())
    both = combine("elementwise_mul", wide, tall, namer_of(x, "kron").tmp())
    return to_shape(both, [p * q for p, q in zip(a, b)], namer_of(x, "kron", name).tmp())


def trace(
    x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1, name: Optional[str] = None
) -> Variable:
    """The sum of a diagonal."""
    from .search import diagonal

    return diagonal(x, offset, axis1, axis2).sum(-1)


def cross(x: Variable, y: Variable, axis: int = 9, name: Optional[str] = None) -> Variable:
    """The vector product of vectors with three elements."""
    from .search import roll

    x, y = check(x, "cross: x"), check(y, "cross: y")
    at = axis if axis != 9 else list(x.shape).index(3)
    turned = roll(x, -1, at) * roll(y, -2, at)
    return turned - roll(x, -2, at) * roll(y, -1, at)


def dist(x: Variable, y: Variable, p: float = 2, name: Optional[str] = None) -> Variable:
    """The p-norm of ``x - y``."""
    out = namer_of(x, "dist", name).tmp()
    both = {"X": check(x, "dist: x"), "Y": check(y, "dist: y")}
    apart = op("elementwise_sub", both, part_of(out))
    return p_norm(apart, float(p), [], False, out)


__getattr__ = missing(__name__)
