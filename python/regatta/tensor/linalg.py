"""Products and lengths of matrices and vectors."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

from ..framework import Variable
from .._missing import missing
from ._common import Axis, Namer, axes_of, check, int_list, op, part_of, product, to_shape

__all__ = ["bmm", "dist", "dot", "matmul", "mm", "mul", "mv", "norm", "t", "transpose"]


def product_of(x: Any, y: Any, transpose_x: bool, transpose_y: bool, out: str) -> Variable:
    """The matrix product of the last two dimensions. A vector on the left is a row, one on the
    right a column; that dimension is not in the result."""
    x, y = check(x, "matmul: x"), check(y, "matmul: y")
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
    out = Namer("matmul_v2", name).tmp()
    if alpha == 1.0:
        return product_of(x, y, transpose_x, transpose_y, out)
    made = product_of(x, y, transpose_x, transpose_y, part_of(out))
    return op("scale", {"X": made}, out, {"scale": float(alpha)})


def mm(input: Variable, mat2: Variable, name: Optional[str] = None) -> Variable:
    """The matrix product."""
    return product_of(input, mat2, False, False, Namer("mm", name).tmp())


def bmm(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """The products of two rows of matrices."""
    for slot, value in (("x", x), ("y", y)):
        if len(check(value, f"bmm: {slot}").shape) != 3:
            raise ValueError(f"bmm: {slot} should have 3 dimensions, but '{value.name}' has the "
                             f"shape {list(value.shape)}")
    return product_of(x, y, False, False, Namer("bmm", name).tmp())


def mv(x: Variable, vec: Variable, name: Optional[str] = None) -> Variable:
    """A matrix times a vector."""
    return product_of(x, vec, False, False, Namer("mv", name).tmp())


def dot(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """The inner products of rows: the products summed over the last dimension."""
    out = Namer("dot", name).tmp()
    both = op("elementwise_mul", {"X": check(x, "dot: x"), "Y": check(y, "dot: y")}, part_of(out))
    return op("reduce_sum", {"X": both}, out, {"dims": [len(both.shape) - 1], "keep_dim": False})


def mul(
    x: Variable, y: Variable, x_num_col_dims: int = 1, y_num_col_dims: int = 1,
    name: Optional[str] = None,
) -> Variable:
    """Fluid's product of matrices, to which leading and trailing dimensions are joined."""
    out = Namer("mul", name).tmp()
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
    namer = Namer("transpose", name)
    out = namer.tmp()
    namer.skip()
    x = check(x, "transpose: x")
    rank = len(x.shape)
    order = [p + rank if p < 0 else p for p in int_list(perm, "transpose: perm")]
    return op("transpose", {"X": x}, out, {"perm": order})


def t(input: Variable, name: Optional[str] = None) -> Variable:
    """A matrix with rows and columns exchanged; a vector as it is."""
    namer = Namer("t", name)
    out = namer.tmp()
    namer.skip()
    input = check(input, "t: input")
    if len(input.shape) > 2:
        raise ValueError(f"t: '{input.name}' has {len(input.shape)} dimensions, but at most 2 are "
                         "possible; use transpose")
    if len(input.shape) < 2:
        return op("assign", {"X": input}, out)
    return op("transpose", {"X": input}, out, {"perm": [1, 0]})


# Below this a sum of squares counts as this: the square root has no slope at 0.
_TINY = 1e-37


def p_norm(x: Variable, p: float, dims: List[int], keepdim: bool, out: str) -> Variable:
    """The p-norm over some dimensions; over all if there are none."""
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
    return p_norm(x, power, dims, keepdim, Namer(word, name).tmp())


def dist(x: Variable, y: Variable, p: float = 2, name: Optional[str] = None) -> Variable:
    """The p-norm of ``x - y``."""
    out = Namer("dist", name).tmp()
    both = {"X": check(x, "dist: x"), "Y": check(y, "dist: y")}
    apart = op("elementwise_sub", both, part_of(out))
    return p_norm(apart, float(p), [], False, out)


__getattr__ = missing(__name__)
