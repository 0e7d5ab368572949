"""What is known of a tensor, or of a variable while a program is built."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing
from ..framework import Tensor, Variable, to_dtype
from ._common import array_constant, check, namer_of, op, part_of, product, scalar, sizes_of

__all__ = ["is_complex", "is_floating_point", "is_integer", "numel", "rank", "shape"]


def shape(input: Variable) -> Variable:
    """The dimensions. Those of a variable can be used as a shape while the program is built, also
    where one of them is known only when it runs."""
    dims = list(check(input, "shape: input").shape)
    if isinstance(input, Tensor):
        return array_constant(dims, "", "int32")
    name = namer_of(input, "shape").tmp()
    if -1 in dims:
        made = op("shape", {"X": input}, name, None, to_dtype("int64"))
    else:
        made = array_constant(dims, name, "int64")
    made._sizes = sizes_of(input)
    return made


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
