"""Comparisons and what follows from them."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing
from ..framework import Tensor, Variable, to_dtype
from ._common import (
    Values, cast_to, check, is_integer, namer_of, op, part_of, scalar, stored_as,
)
from .math import as_operand

__all__ = [
    "all", "allclose", "any", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor", "equal",
    "equal_all", "greater_equal", "greater_than", "is_empty", "is_tensor", "isclose", "isfinite",
    "isinf", "isnan", "less_equal", "less_than", "logical_and", "logical_not", "logical_or",
    "logical_xor", "not_equal", "where",
]


_BOOL = to_dtype("bool")


def compare(kind: str, x: Any, y: Any, out: str) -> Variable:
    """A comparison element by element; the result is 1 where it holds, otherwise 0."""
    if not isinstance(x, Values):
        x = as_operand(x, check(y, f"{kind}: y"), out)
    y = as_operand(y, x, out)
    if stored_as(x) != stored_as(y):
        if stored_as(x) != "f32":
            x = cast_to(x, "float32", part_of(out))
        if stored_as(y) != "f32":
            y = cast_to(y, "float32", part_of(out))
    return op(kind, {"X": x, "Y": y}, out, None, _BOOL)


def _comparison(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(x: Variable, y: Any, cond: Any = None, name: Optional[str] = None) -> Variable:
        return compare(kind, x, y, namer_of(x, kind, name).tmp())

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
        if isinstance(x, Tensor):
            return cast_to(x, "bool", "")
        raise TypeError(f"{what} should be bool, but '{x.name}' is {x.dtype}")
    return x


def _logical(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(
        x: Variable, y: Variable, out: Any = None, name: Optional[str] = None
    ) -> Variable:
        inputs = {"X": _truths(x, f"{kind}: x"), "Y": _truths(y, f"{kind}: y")}
        return op(kind, inputs, namer_of(x, kind, name).tmp(), None, _BOOL)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


logical_and = _logical("logical_and", "Where both hold.")
logical_or = _logical("logical_or", "Where one of two holds, or both.")
logical_xor = _logical("logical_xor", "Where exactly one of two holds.")


def logical_not(x: Variable, out: Any = None, name: Optional[str] = None) -> Variable:
    """Where it does not hold."""
    inputs = {"X": _truths(x, "logical_not: x")}
    return op("logical_not", inputs, namer_of(x, "logical_not", name).tmp(), None, _BOOL)


def _bitwise(word: str, what: str):  # type: ignore[no-untyped-def]
    def function(
        x: Variable, y: Variable, out: Any = None, name: Optional[str] = None
    ) -> Variable:
        x = check(x, f"bitwise_{word}: x")
        y = as_operand(y, x, namer_of(x, f"bitwise_{word}").tmp()) if isinstance(y, int) else y
        y = check(y, f"bitwise_{word}: y")
        kind = f"logical_{word}" if x.dtype == "bool" and y.dtype == "bool" else f"bitwise_{word}"
        return op(kind, {"X": x, "Y": y}, namer_of(x, f"bitwise_{word}", name).tmp())

    function.__name__ = function.__qualname__ = f"bitwise_{word}"
    function.__doc__ = what
    return function


bitwise_and = _bitwise("and", "The bits that both have.")
bitwise_or = _bitwise("or", "The bits that one of two has, or both.")
bitwise_xor = _bitwise("xor", "The bits that exactly one of two has.")


def bitwise_not(x: Variable, out: Any = None, name: Optional[str] = None) -> Variable:
    """All bits turned over; for truth values where it does not hold."""
    kind = "logical_not" if check(x, "bitwise_not: x").dtype == "bool" else "bitwise_not"
    return op(kind, {"X": x}, namer_of(x, "bitwise_not", name).tmp())


def _question(kind: str, what: str, word: str):  # type: ignore[no-untyped-def]
    def function(x: Variable, name: Optional[str] = None) -> Variable:
        x = check(x, f"{kind}: x")
        out = namer_of(x, word, name).tmp()
        if is_integer(x):
            x = cast_to(x, "float32", part_of(out))
        return op(kind, {"X": x}, out, None, _BOOL)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


isnan = _question("isnan", "Where it is no number.", "isnan_v2")
isinf = _question("isinf", "Where it is infinite.", "isinf_v2")
isfinite = _question("isfinite", "Where it is a finite number.", "isfinite_v2")


def where(
    condition: Variable, x: Any = None, y: Any = None, name: Optional[str] = None
) -> Variable:
    """``x`` where the condition holds, otherwise ``y``. With a condition alone, the positions where
    it holds, a tensor for each dimension."""
    if x is None and y is None:
        from .search import nonzero

        return nonzero(condition, as_tuple=True)
    if x is None or y is None:
        raise ValueError("where: give both x and y, or none of them")
    out = namer_of(condition, "where", name).tmp()
    like = x if isinstance(x, Values) else y if isinstance(y, Values) else None
    if like is None:
        x = as_operand(x, cast_to(condition, "float32", part_of(out)), out)
        like = x
    x, y = as_operand(x, like, out), as_operand(y, like, out)
    if is_integer(x) != is_integer(y):
        x, y = (cast_to(v, "float32", part_of(out)) if is_integer(v) else v for v in (x, y))
        like = x
    inputs = {"Condition": _truths(condition, "where: condition"), "X": x, "Y": y}
    return op("where", inputs, out, None, like.dtype)


def _every(x: Variable, axis: Any, keepdim: bool, word: str, name: Optional[str]) -> Any:
    from .math import _reduce

    truths = _truths(x, f"{word}: x")
    made = _reduce(f"reduce_{word}", truths, axis, keepdim, namer_of(x, word, name).tmp())
    if isinstance(made, Tensor):
        return made if made._dtype == "bool" else made._as("bool")
    made.program._note_dtype(made.name, _BOOL)
    return made


def all(x: Variable, axis: Any = None, keepdim: bool = False, name: Optional[str] = None) -> Any:
    """Whether all elements hold, over some dimensions."""
    return _every(x, axis, keepdim, "all", name)


def any(x: Variable, axis: Any = None, keepdim: bool = False, name: Optional[str] = None) -> Any:
    """Whether any element holds, over some dimensions."""
    return _every(x, axis, keepdim, "any", name)


def isclose(
    x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False,
    name: Optional[str] = None,
) -> Any:
    """Where ``|x - y| <= atol + rtol * |y|``."""
    import numpy as np

    a, b = _eager(x, "isclose"), _eager(y, "isclose")
    return Tensor(np.isclose(a.numpy(), b.numpy(), rtol, atol, equal_nan), "bool")


def allclose(
    x: Variable, y: Variable, rtol: float = 1e-5, atol: float = 1e-8, equal_nan: bool = False,
    name: Optional[str] = None,
) -> Any:
    """Whether ``|x - y| <= atol + rtol * |y|`` everywhere."""
    import numpy as np

    a, b = _eager(x, "allclose"), _eager(y, "allclose")
    return scalar(np.allclose(a.numpy(), b.numpy(), rtol, atol, equal_nan), "bool")


def equal_all(x: Variable, y: Variable, name: Optional[str] = None) -> Any:
    """Whether both have the same shape and the same elements."""
    import numpy as np

    a, b = _eager(x, "equal_all"), _eager(y, "equal_all")
    return scalar(np.array_equal(a.numpy(), b.numpy()), "bool")


def _eager(x: Any, what: str) -> Tensor:
    if isinstance(x, Tensor):
        return x
    raise NotImplementedError(f"{what} of variables: compare what Executor.run fetches")


def is_empty(x: Variable, name: Optional[str] = None) -> Any:
    """Whether there are no elements."""
    return scalar(_eager(x, "is_empty").size == 0, "bool")


def is_tensor(x: Any) -> bool:
    """Whether it is a tensor or a variable."""
    return isinstance(x, Values)


__getattr__ = missing(__name__)
