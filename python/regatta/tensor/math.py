"""Arithmetic on tensors and variables, element by element with broadcasting and over dimensions."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Union

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable, to_dtype, unique_name
from ._common import (
    _ERRORS, _PREPARED, _SCALES, Axis, Numbers, activate, array_constant, axes_of, axis_of, cast_to,
    check, constant, filled, fresh, is_integer, located, namer_of, need_op, op, part_of, prepared,
    said, scalar, scale_op, to_shape,
)

__all__ = [
    "abs", "acos", "acosh", "add", "add_n", "addmm", "amax", "amin", "asin", "asinh", "atan",
    "atanh", "ceil", "clip", "cos", "cosh", "count_nonzero", "cumprod", "cumsum", "diff", "divide",
    "elementwise_add", "elementwise_div", "elementwise_max", "elementwise_min", "elementwise_mul",
    "elementwise_pow", "elementwise_sub", "erf", "exp", "expm1", "floor", "floor_divide",
    "floor_mod", "fmax", "fmin", "increment", "inner", "lerp", "log", "log10", "log1p", "log2",
    "logsumexp", "max", "maximum", "mean", "min", "minimum", "mod", "multiply", "nan_to_num",
    "nansum", "neg", "outer", "pow", "prod", "reciprocal", "reduce_max", "reduce_mean",
    "reduce_min", "reduce_sum", "remainder", "round", "rsqrt", "scale", "sigmoid", "sign", "sin",
    "sinh", "sqrt", "square", "stanh", "std", "subtract", "sum", "sums", "tan", "tanh", "trunc",
    "var",
]

Operand = Union[Variable, int, float, Any]


# --- functions of one element --------------------------------------------------------------------


def _floats(x: Any, what: str, out: str) -> Variable:
    """``x``; integers become floats."""
    x = check(x, what)
    return cast_to(x, "float32", part_of(out)) if is_integer(x) else x


_OF_INTEGERS = frozenset({"abs", "ceil", "relu", "round", "sign", "square", "trunc"})


def _eager_unary(kind: str, x: Tensor) -> Tensor:
    made = _PREPARED.get(kind) or prepared(kind, kind, ("X",), {})
    try:
        if x._stored == "i64" and kind not in _OF_INTEGERS:
            x = cast_to(x, "float32", "")
        return made(x)
    except _ERRORS as error:
        raise located(error) from None


def _unary(
    kind: str, x: Any, name: Optional[str], word: Optional[str] = None, **attrs: Any
) -> Variable:
    if isinstance(x, Tensor) and not attrs:
        return _eager_unary(kind, x)
    out = namer_of(x, word or kind, name).tmp()
    return op(kind, {"X": _floats(x, f"{kind}: x", out)}, out, attrs)


def sqrt(x: Variable, name: Optional[str] = None) -> Variable:
    """Square root."""
    return _unary("sqrt", x, name)


def rsqrt(x: Variable, name: Optional[str] = None) -> Variable:
    """One over the square root."""
    need_op("rsqrt", "rsqrt")
    return _unary("rsqrt", x, name)


def exp(x: Variable, name: Optional[str] = None) -> Variable:
    """Exponential function."""
    return _unary("exp", x, name)


def expm1(x: Variable, name: Optional[str] = None) -> Variable:
    """``exp(x) - 1``."""
    if isinstance(x, Tensor):
        return _eager_unary("expm1", x)
    out = namer_of(x, "expm1", name).tmp()
    grown = op("exp", {"X": _floats(x, "expm1: x", out)}, part_of(out))
    return op("scale", {"X": grown}, out, {"bias": -1.0})


def log(x: Variable, name: Optional[str] = None) -> Variable:
    """Natural logarithm."""
    return _unary("log", x, name)


def _log_of_base(x: Any, name: Optional[str], word: str, factor: float) -> Variable:
    if isinstance(x, Tensor):
        return _eager_unary(word, x)
    out = namer_of(x, word, name).tmp()
    natural = op("log", {"X": _floats(x, f"{word}: x", out)}, part_of(out))
    return op("scale", {"X": natural}, out, {"scale": factor})


def log2(x: Variable, name: Optional[str] = None) -> Variable:
    """Logarithm to base 2."""
    return _log_of_base(x, name, "log2", 1.4426950408889634)


def log10(x: Variable, name: Optional[str] = None) -> Variable:
    """Logarithm to base 10."""
    return _log_of_base(x, name, "log10", 0.4342944819032518)


def log1p(x: Variable, name: Optional[str] = None) -> Variable:
    """``log(1 + x)``."""
    need_op("log1p", "log1p")
    return _unary("log1p", x, name)


def _no_integers(x: Any, what: str) -> Variable:
    x = check(x, f"{what}: x")
    if is_integer(x):
        raise NotImplementedError(
            f"{what} of {said(x)}, which holds integers: cast it to float32 first (exact up to "
            "2^24)"
        )
    return x


def whole(x: Any) -> bool:
    """Whether it is a tensor of integers. They have no gradients, so what no op does with them
    numpy does exactly: see :func:`by_numpy`."""
    return isinstance(x, Tensor) and x._stored == "i64"


def by_numpy(function: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """A function of numpy on a tensor without a gradient; the element type stays."""
    return Tensor(function(x.numpy(), *args, **kwargs), x._dtype)


def abs(x: Variable, name: Optional[str] = None) -> Variable:
    """Absolute value."""
    return _unary("abs", _no_integers(x, "abs") if not isinstance(x, Tensor) else x, name)


def square(x: Variable, name: Optional[str] = None) -> Variable:
    """Square."""
    if is_integer(check(x, "square: x")) and not isinstance(x, Tensor):
        return op("elementwise_mul", {"X": x, "Y": x}, namer_of(x, "square", name).tmp())
    return _unary("square", x, name)


def tanh(x: Variable, name: Optional[str] = None) -> Variable:
    """Hyperbolic tangent."""
    return _unary("tanh", x, name)


def sigmoid(x: Variable, name: Optional[str] = None) -> Variable:
    """Logistic function."""
    return _unary("sigmoid", x, name)


def sign(x: Variable, name: Optional[str] = None) -> Variable:
    """-1, 0 or 1."""
    return _unary("sign", _no_integers(x, "sign") if not isinstance(x, Tensor) else x, name)


def reciprocal(x: Variable, name: Optional[str] = None) -> Variable:
    """``1 / x``."""
    if isinstance(x, Tensor):
        return _eager_unary("reciprocal", x)
    return _unary("pow", x, name, "reciprocal", factor=-1.0)


def neg(x: Variable, name: Optional[str] = None) -> Variable:
    """``-x``."""
    return scale(x, -1.0, name=name)


def _of_the_op_set(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(x: Variable, name: Optional[str] = None) -> Variable:
        need_op(kind, kind)
        return _unary(kind, x, name)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


floor = _of_the_op_set("floor", "The next integer below.")
ceil = _of_the_op_set("ceil", "The next integer above.")
round = _of_the_op_set("round", "The nearest integer.")
sin = _of_the_op_set("sin", "Sine.")
cos = _of_the_op_set("cos", "Cosine.")
erf = _of_the_op_set("erf", "Error function.")


tan = _of_the_op_set("tan", "Tangent.")
sinh = _of_the_op_set("sinh", "Hyperbolic sine.")
cosh = _of_the_op_set("cosh", "Hyperbolic cosine.")
asin = _of_the_op_set("asin", "Inverse sine.")
acos = _of_the_op_set("acos", "Inverse cosine.")
atan = _of_the_op_set("atan", "Inverse tangent.")
asinh = _of_the_op_set("asinh", "Inverse hyperbolic sine.")
acosh = _of_the_op_set("acosh", "Inverse hyperbolic cosine.")
atanh = _of_the_op_set("atanh", "Inverse hyperbolic tangent.")
trunc = _of_the_op_set("trunc", "The next integer towards 0.")


def stanh(
    x: Variable, scale_a: float = 0.67, scale_b: float = 1.7159, name: Optional[str] = None
) -> Variable:
    """``scale_b * tanh(scale_a * x)``."""
    out = namer_of(x, "stanh", name).tmp()
    x = _floats(x, "stanh: x", out)
    x = op("scale", {"X": x}, part_of(out), {"scale": float(scale_a)})
    curved = op("tanh", {"X": x}, part_of(out))
    return op("scale", {"X": curved}, out, {"scale": float(scale_b)})


def scale(
    x: Variable,
    scale: float = 1.0,
    bias: float = 0.0,
    bias_after_scale: bool = True,
    act: Optional[str] = None,
    name: Optional[str] = None,
) -> Variable:
    """``scale * x + bias``, or ``scale * (x + bias)``."""
    namer = namer_of(x, "scale", name)
    x = check(x, "scale: x")
    if isinstance(scale, (Tensor, Variable)):
        if isinstance(x, Tensor):
            moved = x if bias_after_scale else x + bias
            return activate(moved * scale + (bias if bias_after_scale else 0.0), act, namer)
        out = op("elementwise_mul", {"X": x, "Y": scale}, namer.tmp())
        return activate(out, act, namer)
    factor = float(scale)
    shift = float(bias) if bias_after_scale else factor * float(bias)
    return activate(_linear(x, factor, shift, namer.tmp()), act, namer)


def _linear(x: Variable, factor: float, shift: float, out: str) -> Variable:
    """``factor * x + shift``; integers stay integers where both numbers are whole."""
    if isinstance(x, Tensor) and x._stored != "i64":
        key = (factor, shift)
        return (_SCALES.get(key) or scale_op(key))(x)
    if not is_integer(x):
        return op("scale", {"X": x}, out, {"scale": factor, "bias": shift})
    if factor != int(factor) or shift != int(shift):
        x = cast_to(x, "float32", part_of(out))
        return op("scale", {"X": x}, out, {"scale": factor, "bias": shift})
    if factor != 1.0:
        by = constant(factor, x.dtype, part_of(out))
        x = op("elementwise_mul", {"X": x, "Y": by}, out if shift == 0.0 else part_of(out))
        if shift == 0.0:
            return x
    by = constant(shift, x.dtype, part_of(out))
    return op("elementwise_add", {"X": x, "Y": by}, out)


def clip(
    x: Variable, min: Any = None, max: Any = None, name: Optional[str] = None
) -> Variable:
    """Limits every element to ``[min, max]``."""
    if isinstance(x, Tensor):
        min, max = (b.item() if isinstance(b, Tensor) else b for b in (min, max))
        if x._stored == "i64":
            given = {"min": min, "max": max}
            attrs = {k: float(v) for k, v in given.items() if v is not None}
            return op("clip", {"X": x}, "", attrs)
    for bound in (min, max):
        if isinstance(bound, Variable):
            raise NotImplementedError(
                f"clip: the bound '{bound.name}' is a variable; use maximum and minimum"
            )
    attrs = {}
    if min is not None:
        attrs["min"] = float(min)
    if max is not None:
        attrs["max"] = float(max)
    return op("clip", {"X": _no_integers(x, "clip")}, namer_of(x, "clip", name).tmp(), attrs)


# --- two operands --------------------------------------------------------------------------------


def as_operand(y: Any, x: Variable, out: str) -> Variable:
    """A number or an array as something that can stand beside ``x``."""
    if isinstance(y, (Tensor, Variable)):
        return y
    if isinstance(y, Numbers):
        kind = x.dtype if not is_integer(x) or float(y).is_integer() else "float32"
        if not out:
            return scalar(y, kind)
        return constant(float(y), kind if is_integer(x) else "float32", part_of(out))
    import numpy as np

    if isinstance(y, (np.ndarray, np.generic, list, tuple)):
        kind = None if is_integer(x) else x.dtype if not out else "float32"
        return array_constant(y, part_of(out), kind)
    raise TypeError(f"{said(x)} cannot be combined with {type(y).__name__}: {y!r:.80}")


def combine(kind: str, x: Any, y: Any, out: str) -> Variable:
    """An element-wise op on two operands, of which one may be a number or an array. Integers
    beside floats become floats; so do both in a quotient."""
    if not isinstance(x, _VALUES):
        if not isinstance(y, _VALUES):
            raise TypeError(f"{kind}: neither {x!r:.60} nor {y!r:.60} is a variable or a tensor")
        x = as_operand(x, y, out)
    else:
        y = as_operand(y, x, out)
    whole_x, whole_y = is_integer(x), is_integer(y)
    if whole_x and (not whole_y or kind == "elementwise_div"):
        x = cast_to(x, "float32" if whole_y else y.dtype, part_of(out))
    if whole_y and (not whole_x or kind == "elementwise_div"):
        y = cast_to(y, "float32" if whole_x else x.dtype, part_of(out))
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return _together(kind, x, y)
    return op(kind, {"X": x, "Y": y}, out)


_VALUES = (Tensor, Variable)
_WIDTHS = {"bool": 0, "uint8": 1, "int8": 1, "int16": 2, "int32": 3, "int64": 4, "float16": 5,
           "bfloat16": 5, "float32": 6, "float64": 7}


def _together(kind: str, x: Tensor, y: Tensor) -> Tensor:
    """An element-wise op on two tensors; the result has the wider of both types."""
    if x._dtype != y._dtype:
        if _WIDTHS[x._dtype] < _WIDTHS[y._dtype]:
            x = cast_to(x, y._dtype, "")
        else:
            y = cast_to(y, x._dtype, "")
    if x._stored == "i64" and kind in _BY_NUMPY:
        import numpy as np

        return Tensor(getattr(np, _BY_NUMPY[kind])(x.numpy(), y.numpy()), x._dtype)
    try:
        return (_PREPARED.get(kind) or prepared(kind, kind, ("X", "Y"), {}))(x, y)
    except _ERRORS as error:
        raise located(error) from None


_BY_NUMPY = {"elementwise_max": "maximum", "elementwise_min": "minimum"}


def _named_binary(kind: str, x: Any, y: Any, name: Optional[str]) -> Variable:
    if isinstance(x, Tensor) and isinstance(y, Tensor):
        return combine(kind, x, y, "") if x._dtype != y._dtype else _together(kind, x, y)
    if isinstance(x, Tensor) or isinstance(y, Tensor):
        if not isinstance(x, Variable) and not isinstance(y, Variable):
            return combine(kind, x, y, "")
    out = unique_name.generate(kind) if name is None else name
    for value in (x, y):
        if isinstance(value, Variable) and name and value.program._core.has_var(name):
            out = unique_name.generate(name)
            break
    return combine(kind, x, y, out)


def add(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """``x + y`` with broadcasting."""
    return _named_binary("elementwise_add", x, y, name)


def subtract(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """``x - y`` with broadcasting."""
    return _named_binary("elementwise_sub", x, y, name)


def multiply(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """``x * y`` with broadcasting."""
    return _named_binary("elementwise_mul", x, y, name)


def divide(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """``x / y`` with broadcasting."""
    return _named_binary("elementwise_div", x, y, name)


def maximum(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """The larger of two."""
    return _named_binary("elementwise_max", x, y, name)


def minimum(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """The smaller of two."""
    return _named_binary("elementwise_min", x, y, name)


fmax, fmin = maximum, minimum


def floor_divide(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """The largest integer not above the quotient."""
    return _named_binary("elementwise_floordiv", x, y, name)


def mod(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """The remainder of a division, with the sign of the divisor."""
    return _named_binary("elementwise_mod", x, y, name)


remainder = floor_mod = mod


def power(x: Any, y: Any, out: str) -> Variable:
    """``x`` to the power ``y``, of which one is a number."""
    if whole(x) and isinstance(y, int) and y >= 0:
        import numpy as np

        return by_numpy(np.power, x, y)
    if isinstance(x, _VALUES) and isinstance(y, Numbers):
        if float(y) == 2.0 and not is_integer(x):
            return op("square", {"X": x}, out)
        return op("pow", {"X": _floats(x, "pow: x", out)}, out, {"factor": float(y)})
    if isinstance(y, _VALUES) and isinstance(x, Numbers) and float(x) > 0.0:
        import math

        grown = op("scale", {"X": _floats(y, "pow: y", out)}, part_of(out), {"scale": math.log(x)})
        return op("exp", {"X": grown}, out)
    return combine("elementwise_pow", x, y, out)


def pow(x: Operand, y: Operand, name: Optional[str] = None) -> Variable:
    """``x`` to the power ``y``; one of them is a number."""
    if isinstance(y, Numbers):
        return power(x, y, namer_of(x, "pow", name).tmp())
    namer = namer_of(x, "elementwise_pow", name)
    if name is None:
        fresh(x, "elementwise_pow")
    return power(x, y, namer.tmp())


def elementwise(
    kind: str, x: Variable, y: Any, axis: int, act: Optional[str], name: Optional[str]
) -> Variable:
    """An element-wise op in Fluid's way: ``y`` stands below ``x`` from dimension ``axis`` on."""
    namer = namer_of(x, kind, name)
    x = check(x, f"{kind}: x")
    out = namer.tmp()
    y = as_operand(y, x, out)
    rank, below = len(x.shape), len(y.shape)
    if axis not in (-1, None, rank - below):
        dims = [1] * axis + list(y.shape) + [1] * (rank - below - axis)
        if axis + below > rank:
            raise ValueError(f"{kind}: '{y.name}' with {below} dimensions does not stand below "
                             f"'{x.name}' with {rank} from dimension {axis} on")
        y = to_shape(y, dims[axis:], part_of(out))
    return activate(combine(kind, x, y, out), act, namer)


def _fluid_elementwise(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(
        x: Variable, y: Any, axis: int = -1, act: Optional[str] = None, name: Optional[str] = None
    ) -> Variable:
        need_op(kind, kind)
        return elementwise(kind, x, y, axis, act, name)

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


elementwise_add = _fluid_elementwise("elementwise_add", "``x + y`` with Fluid's arguments.")
elementwise_sub = _fluid_elementwise("elementwise_sub", "``x - y`` with Fluid's arguments.")
elementwise_mul = _fluid_elementwise("elementwise_mul", "``x * y`` with Fluid's arguments.")
elementwise_div = _fluid_elementwise("elementwise_div", "``x / y`` with Fluid's arguments.")
elementwise_max = _fluid_elementwise("elementwise_max", "The larger of two; Fluid's arguments.")
elementwise_min = _fluid_elementwise("elementwise_min", "The smaller of two; Fluid's arguments.")


def elementwise_pow(
    x: Variable, y: Any, axis: int = -1, act: Optional[str] = None, name: Optional[str] = None
) -> Variable:
    """``x`` to the power ``y``, a number."""
    namer = namer_of(x, "elementwise_pow", name)
    return activate(power(x, y, namer.tmp()), act, namer)


def add_n(inputs: Union[Variable, Sequence[Variable]], name: Optional[str] = None) -> Variable:
    """The sum of variables of one shape."""
    values = [inputs] if isinstance(inputs, _VALUES) else list(inputs)
    if not values:
        raise ValueError("add_n: there is nothing to add")
    values = [check(v, "add_n: an input") for v in values]
    return op("sum", {"X": values}, namer_of(values[0], "add_n", name).tmp())


def sums(input: Sequence[Variable], out: Optional[Variable] = None) -> Variable:
    """As :func:`add_n`, under its name of Fluid."""
    if out is not None:
        raise NotImplementedError("sums: writing into 'out'; use what it returns")
    values = [input] if isinstance(input, _VALUES) else list(input)
    values = [check(v, "sums: an input") for v in values]
    return op("sum", {"X": values}, namer_of(values[0], "sum").tmp())


def lerp(x: Variable, y: Variable, weight: Any, name: Optional[str] = None) -> Variable:
    """``x + weight * (y - x)``."""
    out = namer_of(x, "lerp", name).tmp()
    apart = combine("elementwise_sub", y, x, part_of(out))
    if isinstance(weight, Numbers):
        moved = op("scale", {"X": apart}, part_of(out), {"scale": float(weight)})
    else:
        moved = combine("elementwise_mul", apart, weight, part_of(out))
    return combine("elementwise_add", x, moved, out)


def increment(
    x: Variable, value: float = 1.0, in_place: bool = True, name: Optional[str] = None
) -> Variable:
    """Adds ``value`` to a variable that is kept between runs, in place."""
    x = check(x, "increment: x")
    if isinstance(x, Tensor):
        x._set((x + value).detach())
        return x
    out = unique_name.generate("increment")
    if not x.persistable:
        return _linear(x, 1.0, float(value), out + ".tmp_0")
    more = _linear(x, 1.0, float(value), part_of(out))
    return op("assign", {"X": more}, x.name)


# --- over dimensions -----------------------------------------------------------------------------


def _reduce(
    kind: str, x: Any, axis: Axis, keepdim: bool, out: str, dtype: Any = None
) -> Variable:
    if isinstance(x, Tensor):
        return _eager_reduce(kind, x, axis, keepdim, dtype)
    x = check(x, f"{kind}: x")
    if dtype is not None and to_dtype(dtype) != x.dtype:
        x = cast_to(x, dtype, part_of(out))
    if kind == "reduce_mean":
        x = _no_integers(x, kind)
    logical = to_dtype("int64") if x.dtype == "bool" else None
    dims = axes_of(axis, len(x.shape), kind)
    attrs = {"dims": dims, "keep_dim": bool(keepdim)}
    if not dims and kind == "reduce_mean" and not keepdim:
        return op("mean", {"X": x}, out)
    if kind == "reduce_min" and not is_integer(x):
        turned = op("scale", {"X": x}, part_of(out), {"scale": -1.0})
        most = op("reduce_max", {"X": turned}, part_of(out), attrs)
        return op("scale", {"X": most}, out, {"scale": -1.0})
    return op(kind, {"X": x}, out, attrs, logical)


_MEAN = _core.Op("mean", ("X",), {})
# The ops give one element the shape [1]; a tensor over all dimensions has none, as Paddle's.
TO_SCALAR = _core.Op("reshape", ("X",), {"shape": []})


def _eager_reduce(kind: str, x: Tensor, axis: Axis, keepdim: bool, dtype: Any) -> Tensor:
    if dtype is not None and to_dtype(dtype) != x.dtype:
        x = cast_to(x, dtype, "")
    if x._stored == "i64":
        if kind == "reduce_mean":
            x = cast_to(x, "float32", "")
        elif kind in ("reduce_sum", "reduce_prod") and x._dtype != "int64":
            x = x._as("int64")
    rank = x.ndim
    if rank == 0:
        return x.clone()
    dims = tuple(axes_of(axis, rank, kind))
    every = not dims or len(dims) == rank
    if every and kind == "reduce_mean" and not keepdim:
        return TO_SCALAR(_MEAN(x))
    key = (kind, dims, bool(keepdim))
    made = _PREPARED.get(key)
    if made is None:
        made = prepared(key, kind, ("X",), {"dims": list(dims), "keep_dim": bool(keepdim)})
    try:
        result = made(x)
    except _ERRORS as error:
        raise located(error) from None
    return TO_SCALAR(result) if every and not keepdim else result


def sum(
    x: Variable, axis: Axis = None, dtype: Any = None, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The sum over some dimensions, or over all of them, which gives shape ``[1]``."""
    return _reduce("reduce_sum", x, axis, keepdim, namer_of(x, "sum", name).tmp(), dtype)


def mean(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """The mean over some dimensions, or over all of them, which gives shape ``[1]``."""
    return _reduce("reduce_mean", x, axis, keepdim, namer_of(x, "mean", name).tmp())


def max(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """The largest element over some dimensions."""
    return _reduce("reduce_max", x, axis, keepdim, namer_of(x, "max", name).tmp())


def min(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """The smallest element over some dimensions."""
    return _reduce("reduce_min", x, axis, keepdim, namer_of(x, "min", name).tmp())


def amax(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """As :func:`max`; equal elements share the gradient."""
    return _reduce("reduce_amax", x, axis, keepdim, namer_of(x, "amax", name).tmp())


def amin(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """As :func:`min`; equal elements share the gradient."""
    return _reduce("reduce_amin", x, axis, keepdim, namer_of(x, "amin", name).tmp())


def _fluid_reduce(kind: str, what: str):  # type: ignore[no-untyped-def]
    def function(
        input: Variable, dim: Axis = None, keep_dim: bool = False, name: Optional[str] = None
    ) -> Variable:
        return _reduce(kind, input, dim, keep_dim, namer_of(input, kind, name).tmp())

    function.__name__ = function.__qualname__ = kind
    function.__doc__ = what
    return function


reduce_sum = _fluid_reduce("reduce_sum", "As :func:`sum`, with Fluid's arguments.")
reduce_mean = _fluid_reduce("reduce_mean", "As :func:`mean`, with Fluid's arguments.")
reduce_max = _fluid_reduce("reduce_max", "As :func:`max`, with Fluid's arguments.")
reduce_min = _fluid_reduce("reduce_min", "As :func:`min`, with Fluid's arguments.")


def prod(
    x: Variable, axis: Axis = None, keepdim: bool = False, dtype: Any = None,
    name: Optional[str] = None,
) -> Variable:
    """The product over some dimensions."""
    return _reduce("reduce_prod", x, axis, keepdim, namer_of(x, "reduce_prod", name).tmp(), dtype)


def log_sum_exp(x: Variable, dims: List[int], keepdim: bool, out: str) -> Variable:
    """``log(sum(exp(x)))`` that no element overflows."""
    over = {"dims": dims, "keep_dim": True}
    most = op("reduce_max", {"X": x}, part_of(out), over)
    below = op("elementwise_sub", {"X": x, "Y": most}, part_of(out))
    grown = op("exp", {"X": below}, part_of(out))
    total = op("reduce_sum", {"X": grown}, part_of(out), over)
    level = op("log", {"X": total}, part_of(out))
    if keepdim:
        return op("elementwise_add", {"X": level, "Y": most}, out)
    full = op("elementwise_add", {"X": level, "Y": most}, part_of(out))
    # Dimensions of size 1 go.
    return op("reduce_sum", {"X": full}, out, {"dims": dims, "keep_dim": False})


def logsumexp(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """``log(sum(exp(x)))`` over some dimensions."""
    out = namer_of(x, "logsumexp", name).tmp()
    x = _floats(x, "logsumexp: x", out)
    rank = len(x.shape)
    dims = axes_of(axis, rank, "logsumexp") or list(range(rank))
    if isinstance(x, Tensor):
        return _eager_reduce("logsumexp", x, dims, keepdim, None)
    return log_sum_exp(x, dims, keepdim, out)


def var(
    x: Variable, axis: Axis = None, unbiased: bool = True, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The variance over some dimensions; ``unbiased`` divides by the count less one."""
    out = namer_of(x, "var", name).tmp()
    x = _floats(x, "var: x", out)
    if isinstance(x, Tensor):
        return _eager_var(x, axis, unbiased, keepdim)
    dims = axes_of(axis, len(x.shape), "var") or list(range(len(x.shape)))
    middle = op("reduce_mean", {"X": x}, part_of(out), {"dims": dims, "keep_dim": True})
    apart = op("elementwise_sub", {"X": x, "Y": middle}, part_of(out))
    squares = op("square", {"X": apart}, part_of(out))
    over = {"dims": dims, "keep_dim": bool(keepdim)}
    if not unbiased:
        return op("reduce_mean", {"X": squares}, out, over)
    total = op("reduce_sum", {"X": squares}, part_of(out), over)
    ones = filled(x, 1.0, part_of(out))
    count = op("reduce_sum", {"X": ones}, part_of(out), over)
    less = op("scale", {"X": count}, part_of(out), {"bias": -1.0})
    return op("elementwise_div", {"X": total, "Y": less}, out)


def _eager_var(x: Tensor, axis: Axis, unbiased: bool, keepdim: bool) -> Tensor:
    dims = axes_of(axis, x.ndim, "var") or list(range(x.ndim))
    count = 1
    for d in dims:
        count *= x.shape[d]
    squares = (x - x.mean(dims, True)).square()
    return squares.sum(dims, None, keepdim) * (1.0 / (count - 1 if unbiased else count))


def std(
    x: Variable, axis: Axis = None, unbiased: bool = True, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The standard deviation over some dimensions."""
    return sqrt(var(x, axis, unbiased, keepdim, name))


def _running(kind: str, x: Any, axis: Optional[int], dtype: Any, name: Optional[str]) -> Variable:
    x = check(x, f"{kind}: x")
    out = namer_of(x, kind, name).tmp()
    if dtype is not None:
        x = cast_to(x, dtype, part_of(out))
    elif x.dtype == "bool":
        x = cast_to(x, "int64", part_of(out))
    if axis is None:
        x, axis = to_shape(x, [_count(x)], part_of(out)), 0
    return op(kind, {"X": x}, out, {"axis": axis_of(axis, len(x.shape), kind)})


def cumsum(
    x: Variable, axis: Optional[int] = None, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Running sums along a dimension, or over all elements."""
    return _running("cumsum", x, axis, dtype, name)


def cumprod(
    x: Variable, dim: Optional[int] = None, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """Running products along a dimension, or over all elements."""
    return _running("cumprod", x, dim, dtype, name)


def count_nonzero(
    x: Variable, axis: Axis = None, keepdim: bool = False, name: Optional[str] = None
) -> Variable:
    """How many elements are not 0, over some dimensions."""
    return sum(cast_to(x, "bool", fresh(x, "count_nonzero")), axis, "int64", keepdim, name)


def nansum(
    x: Variable, axis: Axis = None, dtype: Any = None, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The sum without what is no number."""
    from .logic import isnan, where

    return sum(where(isnan(x), 0.0, x), axis, dtype, keepdim, name)


def nan_to_num(x: Variable, nan: float = 0.0, name: Optional[str] = None) -> Variable:
    """A number in place of what is none."""
    from .logic import isnan, where

    return where(isnan(x), float(nan), x)


def diff(x: Variable, n: int = 1, axis: int = -1, name: Optional[str] = None) -> Variable:
    """Differences of neighbours along a dimension."""
    from .manipulation import slice as part

    for _ in range(n):
        at = axis_of(axis, len(x.shape), "diff")
        x = part(x, [at], [1], [x.shape[at]]) - part(x, [at], [0], [x.shape[at] - 1])
    return x


# --- products of matrices, under their names here ------------------------------------------------


def addmm(
    input: Variable, x: Variable, y: Variable, beta: float = 1.0, alpha: float = 1.0,
    name: Optional[str] = None,
) -> Variable:
    """``beta * input + alpha * x @ y``."""
    out = namer_of(input, "addmm", name).tmp()
    made = op("matmul", {"X": check(x, "addmm: x"), "Y": check(y, "addmm: y")}, part_of(out))
    if alpha != 1.0:
        made = op("scale", {"X": made}, part_of(out), {"scale": float(alpha)})
    if beta != 1.0:
        input = op("scale", {"X": input}, part_of(out), {"scale": float(beta)})
    return combine("elementwise_add", input, made, out)


def inner(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """Products over the last dimension of both; ``y`` has known dimensions."""
    from .linalg import product_of

    return product_of(x, y, False, True, namer_of(x, "inner", name).tmp())


def outer(x: Variable, y: Variable, name: Optional[str] = None) -> Variable:
    """All products of an element of ``x`` with one of ``y``."""
    out = namer_of(x, "outer", name).tmp()
    column = to_shape(check(x, "outer: x"), [_count(x), 1], part_of(out))
    row = to_shape(check(y, "outer: y"), [1, _count(y)], part_of(out))
    return combine("elementwise_mul", column, row, out)


def _count(x: Variable) -> int:
    from ._common import product

    return -1 if -1 in x.shape else product(x.shape)


__getattr__ = missing(__name__)
