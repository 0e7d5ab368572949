"""Comparisons, where the op set has them."""
from __future__ import annotations

from typing import Any, Optional

from ..framework import Variable, to_dtype
from .._missing import missing
from ._common import Namer, check, need_op, op, part_of
from .math import as_operand

__all__ = [
    "equal", "greater_equal", "greater_than", "is_tensor", "less_equal", "less_than",
    "logical_and", "logical_not", "logical_or", "not_equal", "where",
]


def compare(kind: str, x: Any, y: Any, out: str) -> Variable:
    """A comparison element by element; the result is 1 where it holds, otherwise 0."""
    need_op(kind, kind)
    if not isinstance(x, Variable):
        x = as_operand(x, check(y, f"{kind}: y"), out)
    y = as_operand(y, x, out)
    return op(kind, {"X": x, "Y": y}, out, None, to_dtype("bool"))


def _comparison(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(x: Variable, y: Any, cond: Any = None, name: Optional[str] = None) -> Variable:
        return compare(kind, x, y, Namer(kind, name).tmp())

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


equal = _comparison("equal", "Where two are equal.")
not_equal = _comparison("not_equal", "Where two differ.")
less_than = _comparison("less_than", "Where the first is smaller.")
less_equal = _comparison("less_equal", "Where the first is smaller, or both are equal.")
greater_than = _comparison("greater_than", "Where the first is larger.")
greater_equal = _comparison("greater_equal", "Where the first is larger, or both are equal.")


def _truths(x: Any, what: str) -> Variable:
    x = check(x, what)
    if x.dtype != "bool":
        raise TypeError(f"{what} should be bool, but '{x.name}' is {x.dtype}")
    return x


def logical_and(x: Variable, y: Variable, out: Any = None, name: Optional[str] = None) -> Variable:
    """Where both hold."""
    x, y = _truths(x, "logical_and: x"), _truths(y, "logical_and: y")
    return op("elementwise_mul", {"X": x, "Y": y}, Namer("logical_and", name).tmp())


def logical_not(x: Variable, out: Any = None, name: Optional[str] = None) -> Variable:
    """Where it does not hold."""
    from ._common import constant

    result = Namer("logical_not", name).tmp()
    one = constant(1.0, "bool", part_of(result))
    return op("elementwise_sub", {"X": one, "Y": _truths(x, "logical_not: x")}, result)


def logical_or(x: Variable, y: Variable, out: Any = None, name: Optional[str] = None) -> Variable:
    """Where one of two holds, or both."""
    x, y = _truths(x, "logical_or: x"), _truths(y, "logical_or: y")
    result = Namer("logical_or", name).tmp()
    both = op("elementwise_mul", {"X": x, "Y": y}, part_of(result))
    total = op("elementwise_add", {"X": x, "Y": y}, part_of(result))
    return op("elementwise_sub", {"X": total, "Y": both}, result)


def where(
    condition: Variable, x: Any = None, y: Any = None, name: Optional[str] = None
) -> Variable:
    """``x`` where the condition holds, otherwise ``y``."""
    need_op("where", "where")
    if x is None or y is None:
        raise NotImplementedError("where with a condition alone: how many elements it finds is "
                                  "known only when the program runs")
    out = Namer("where", name).tmp()
    like = x if isinstance(x, Variable) else check(y, "where: y")
    inputs = {
        "Condition": _truths(condition, "where: condition"),
        "X": as_operand(x, like, out), "Y": as_operand(y, like, out),
    }
    return op("where", inputs, out, None, like.dtype)


def is_tensor(x: Any) -> bool:
    """Whether it is a variable."""
    return isinstance(x, Variable)


__getattr__ = missing(__name__)
