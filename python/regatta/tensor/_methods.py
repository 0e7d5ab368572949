"""Operators and methods of variables, attached to their class. Those of tensors with values are in
``_tensor``; both share the functions of this package."""
from __future__ import annotations

import builtins
from typing import Any, Callable, Dict

from ..framework import Variable, dtype, unique_name
from ..framework import Tensor
from . import _tensor, attribute, composed, creation, linalg, logic, manipulation, math, search
from ._common import Numbers, cast_to, is_integer, op, part_of


def _tmp() -> str:
    return unique_name.generate("tmp")


def _number(value: Any) -> bool:
    return isinstance(value, Numbers) or (
        type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    )


def _scaled(x: Variable, factor: float, shift: float, float_result: bool = False) -> Variable:
    """``factor * x + shift``."""
    if is_integer(x) and (float_result or factor != int(factor) or shift != int(shift)):
        x = cast_to(x, "float32", _tmp())
        return op("scale", {"X": x}, _tmp(), {"scale": factor, "bias": shift})
    return math._linear(x, factor, shift, _tmp())


def _beside(kind: str, x: Any, y: Any) -> Variable:
    """An element-wise op; casts take names before the result, as elsewhere."""
    values = isinstance(x, (Tensor, Variable)) and isinstance(y, (Tensor, Variable))
    if values and is_integer(x) != is_integer(y):
        if is_integer(x):
            x = cast_to(x, "float32", _tmp())
        else:
            y = cast_to(y, "float32", _tmp())
    return math.combine(kind, x, y, _tmp())


def _operand(value: Any) -> bool:
    """Whether a value can stand beside a variable."""
    if isinstance(value, (Tensor, Variable, list, tuple) + Numbers):
        return True
    return type(value).__module__ == "numpy" and hasattr(value, "__array__")


def _add(self: Variable, other: Any) -> Any:
    if _number(other):
        return _scaled(self, 1.0, float(other))
    return _beside("elementwise_add", self, other) if _operand(other) else NotImplemented


def _sub(self: Variable, other: Any) -> Any:
    if _number(other):
        return _scaled(self, 1.0, -float(other))
    return _beside("elementwise_sub", self, other) if _operand(other) else NotImplemented


def _rsub(self: Variable, other: Any) -> Any:
    if _number(other):
        return _scaled(self, -1.0, float(other))
    return _beside("elementwise_sub", other, self) if _operand(other) else NotImplemented


def _mul(self: Variable, other: Any) -> Any:
    if _number(other):
        return _scaled(self, float(other), 0.0)
    return _beside("elementwise_mul", self, other) if _operand(other) else NotImplemented


def _div(self: Variable, other: Any) -> Any:
    if _number(other):
        if float(other) == 0.0:
            raise ZeroDivisionError(f"'{self.name}' is divided by 0")
        return _scaled(self, 1.0 / float(other), 0.0, float_result=True)
    return _beside("elementwise_div", self, other) if _operand(other) else NotImplemented


def _rdiv(self: Variable, other: Any) -> Any:
    if _number(other):
        _tmp()
        out = _tmp()
        x = cast_to(self, "float32", part_of(out)) if is_integer(self) else self
        turned = op("pow", {"X": x}, part_of(out), {"factor": -1.0})
        return op("scale", {"X": turned}, out, {"scale": float(other)})
    return _beside("elementwise_div", other, self) if _operand(other) else NotImplemented


def _pow(self: Variable, other: Any) -> Any:
    if _number(other):
        _tmp()
        return math.power(self, float(other), _tmp())
    return math.power(self, other, _tmp()) if _operand(other) else NotImplemented


def _rpow(self: Variable, other: Any) -> Any:
    if not _number(other):
        return NotImplemented
    _tmp()
    return math.power(float(other), self, _tmp())


def _matmul(self: Variable, other: Any) -> Any:
    if not _operand(other) or _number(other):
        return NotImplemented
    out = _tmp()
    return linalg.product_of(self, math.as_operand(other, self, out), False, False, out)


def _rmatmul(self: Variable, other: Any) -> Any:
    if not _operand(other) or _number(other):
        return NotImplemented
    out = _tmp()
    return linalg.product_of(math.as_operand(other, self, out), self, False, False, out)


def _neg(self: Variable) -> Variable:
    return _scaled(self, -1.0, 0.0)


def _floordiv(self: Variable, other: Any) -> Any:
    if _number(other):
        _tmp()
    return _beside("elementwise_floordiv", self, other) if _operand(other) else NotImplemented


def _mod(self: Variable, other: Any) -> Any:
    if _number(other):
        _tmp()
    return _beside("elementwise_mod", self, other) if _operand(other) else NotImplemented


def _compared(kind: str) -> Callable[[Variable, Any], Any]:
    def method(self: Variable, other: Any) -> Any:
        if _number(other):
            _tmp()
        return logic.compare(kind, self, other, _tmp()) if _operand(other) else NotImplemented

    return method


def _eq(self: Variable, other: Any) -> Any:
    if isinstance(other, Variable) and other.name == self.name and other.program is self.program:
        return True
    if not _operand(other):
        return NotImplemented
    return logic.compare("equal", self, other, _tmp())


def _ne(self: Variable, other: Any) -> Any:
    if isinstance(other, Variable) and other.name == self.name and other.program is self.program:
        return False
    if not _operand(other):
        return NotImplemented
    return logic.compare("not_equal", self, other, _tmp())


def _len(self: Variable) -> int:
    if not self.shape or self.shape[0] < 0:
        raise TypeError(f"the length of '{self.name}' {list(self.shape)} is known only when the "
                        "program runs")
    return self.shape[0]


def _iter(self: Variable) -> Any:
    return (self[i] for i in range(_len(self)))


def _astype(self: Variable, dtype: Any) -> Variable:
    """Converts the element type."""
    return cast_to(self, dtype, _tmp())


def _item(self: Variable, *args: Any) -> Any:
    from ..framework import ValueNeeded

    raise ValueNeeded(self.name, "the number")


def _transposed(self: Variable) -> Variable:
    perm = builtins.list(range(len(self.shape)))[::-1]
    return op("transpose", {"X": self}, unique_name.generate(self.name + ".tmp"), {"perm": perm})


def _detach(self: Variable) -> Variable:
    """A copy through which no gradient flows."""
    made = op("assign", {"X": self}, unique_name.generate(self.name + ".detached"))
    made.stop_gradient = True
    return made


_OPERATORS: Dict[str, Any] = {
    "__add__": _add, "__radd__": _add, "__sub__": _sub, "__rsub__": _rsub, "__mul__": _mul,
    "__rmul__": _mul, "__truediv__": _div, "__rtruediv__": _rdiv, "__div__": _div,
    "__rdiv__": _rdiv, "__pow__": _pow, "__rpow__": _rpow, "__matmul__": _matmul,
    "__rmatmul__": _rmatmul, "__neg__": _neg, "__floordiv__": _floordiv, "__mod__": _mod,
    "__lt__": _compared("less_than"), "__le__": _compared("less_equal"),
    "__gt__": _compared("greater_than"), "__ge__": _compared("greater_equal"),
    "__eq__": _eq, "__ne__": _ne, "__getitem__": manipulation.get_item, "__len__": _len,
    "__iter__": _iter, "__abs__": math.abs, "__float__": _item, "__int__": _item,
    "astype": _astype, "item": _item, "detach": _detach, "T": property(_transposed),
    "dim": lambda self: len(self.shape), "ndimension": lambda self: len(self.shape),
    "element_size": lambda self: {"bool": 1}.get(str(self.dtype), _bytes(self.dtype)),
}


def _bytes(kind: dtype) -> int:
    return {"64": 8, "32": 4, "16": 2}.get(str(kind)[-2:], 1)


# Functions whose first argument is the variable.
_METHODS = {
    math: [
        "abs", "acos", "acosh", "add", "add_n", "addmm", "amax", "amin", "asin", "asinh", "atan",
        "atanh", "ceil", "clip", "cos", "cosh", "count_nonzero", "cumprod", "cumsum", "diff",
        "divide", "erf", "exp", "expm1", "floor", "floor_divide", "floor_mod", "fmax", "fmin",
        "increment", "inner", "lerp", "log", "log10", "log1p", "log2", "logsumexp", "max",
        "maximum", "mean", "min", "minimum", "mod", "multiply", "nan_to_num", "nansum", "neg",
        "outer", "pow", "prod", "reciprocal", "remainder", "round", "rsqrt", "scale", "sigmoid",
        "sign", "sin", "sinh", "sqrt", "square", "stanh", "std", "subtract", "sum", "tan", "tanh",
        "trunc", "var",
    ],
    linalg: [
        "bmm", "cross", "dist", "dot", "kron", "matmul", "mm", "mv", "norm", "t", "trace",
        "transpose",
    ],
    manipulation: [
        "broadcast_to", "cast", "chunk", "concat", "expand", "expand_as", "flatten", "moveaxis",
        "reshape", "reshape_", "slice", "split", "squeeze", "squeeze_", "stack", "strided_slice",
        "swapaxes", "tile", "tolist", "unbind", "unsqueeze", "unsqueeze_", "unstack",
    ],
    creation: ["clone", "diag", "diagflat", "tril", "triu"],
    logic: [
        "all", "allclose", "any", "bitwise_and", "bitwise_not", "bitwise_or", "bitwise_xor",
        "equal", "equal_all", "greater_equal", "greater_than", "is_empty", "is_tensor", "isclose",
        "isfinite", "isinf", "isnan", "less_equal", "less_than", "logical_and", "logical_not",
        "logical_or", "logical_xor", "not_equal", "where",
    ],
    search: [
        "argmax", "argmin", "argsort", "bincount", "bucketize", "diagonal", "flip", "gather",
        "gather_nd", "histogram", "index_add", "index_sample", "index_select", "kthvalue",
        "masked_fill", "masked_select", "median", "mode", "nonzero", "put_along_axis",
        "repeat_interleave", "roll", "rot90", "scatter", "scatter_nd_add", "sort", "take",
        "take_along_axis", "topk", "unique", "unique_consecutive",
    ],
    composed: [
        "atan2", "cdist", "deg2rad", "frac", "heaviside", "hypot", "index_fill", "index_put",
        "logaddexp", "logit", "nanmean", "quantile", "rad2deg", "sgn", "tensordot", "unflatten",
        "view", "view_as", "vsplit",
    ],
    attribute: ["is_complex", "is_floating_point", "is_integer", "numel", "rank"],
}


def attach() -> None:
    """Gives variables and tensors their operators and methods."""
    for name, method in _OPERATORS.items():
        setattr(Variable, name, method)
    for module, names in _METHODS.items():
        for name in names:
            function = getattr(module, name)
            setattr(Variable, name, function)
            setattr(Tensor, name, function)
    _tensor.attach()
