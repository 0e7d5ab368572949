"""What is known of a tensor, or of a variable while a program is built."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing
from ..framework import Tensor, Variable, to_dtype
from ._common import array_constant, check, namer_of, op, part_of, product, scalar

__all__ = ["is_complex", "is_floating_point", "is_integer", "numel", "rank", "shape"]


def shape(input: Variable) -> Variable:
    """The dimensions as a constant; all of them are known while a program is built."""
    dims = list(check(input, "shape: input").shape)
    if -1 in dims:
        raise NotImplementedError(
            f"shape of '{input.name}' {dims}: a dimension is known only when the program runs. "
            "Use -1 or 0 in reshape, or full_like"
        )
    kind = "int32" if isinstance(input, Tensor) else "int64"
    return array_constant(dims, namer_of(input, "shape").tmp(), kind)


def rank(input: Variable) -> Variable:
    """The number of dimensions as a constant."""
    dims = len(check(input, "rank: input").shape)
    if isinstance(input, Tensor):
        return scalar(dims, "int32")
    return array_constant([dims], namer_of(input, "assign").tmp(), "int64")


def numel(x: Variable, name: Optional[str] = None) -> Variable:
    """How many elements there are."""
    x = check(x, "numel: x")
    if isinstance(x, Tensor):
        return scalar(x.size, "int64")
    out = namer_of(x, "numel", name).tmp()
    if -1 not in x.shape:
        return array_constant([product(x.shape)], out, "int64")
    from .creation import fill_like

    ones = fill_like(x, 1.0, to_dtype("int64"), part_of(out))
    return op("reduce_sum", {"X": ones}, out, {"dims": [], "keep_dim": False})


def is_floating_point(x: Any) -> bool:
    """Whether it holds floats."""
    return "float" in str(check(x, "is_floating_point: x").dtype)


def is_integer(x: Any) -> bool:
    """Whether it holds integers."""
    return "int" in str(check(x, "is_integer: x").dtype)


def is_complex(x: Any) -> bool:
    """False: there are no complex numbers here."""
    check(x, "is_complex: x")
    return False


__getattr__ = missing(__name__)
