"""Operators and methods that tensors with values have, attached to their class."""
from __future__ import annotations

import copy
import itertools
import warnings
from typing import Any, Callable, Dict, Optional

from .. import _core
from ..framework import _BY_STORED, Tensor, Variable, dtype, to_dtype
from . import composed, creation, linalg, logic, manipulation, math, search
from ._common import _ERRORS, _SCALES, Numbers, cast_to, located, run
from ._index import get_item, set_item
from ._print import to_text

_DTYPES = {str(d): d for d in _BY_STORED.values()}
_counter = itertools.count()


# --- what it is ----------------------------------------------------------------------------------


def _dtype(self: Tensor) -> dtype:
    """Element type."""
    kind = self._dtype
    found = _DTYPES.get(kind)
    if found is None:
        found = _DTYPES[kind] = to_dtype(kind)
    return found


def _get_name(self: Tensor) -> str:
    """Its name; tensors without one are numbered when they are asked."""
    own = self.__dict__
    name = own.get("_name")
    if name is None:
        name = own["_name"] = f"generated_tensor_{next(_counter)}"
    return name


def _set_name(self: Tensor, value: str) -> None:
    self.__dict__["_name"] = value


def _place(self: Tensor) -> Any:
    """The processor."""
    from ..device import CPUPlace

    return CPUPlace()


def _repr(self: Tensor) -> str:
    from .._bridge import EagerParamBase

    head = "Parameter containing:\n" if isinstance(self, EagerParamBase) else ""
    return head + to_text(self)


def _len(self: Tensor) -> int:
    if not self.ndim:
        raise TypeError("a tensor without dimensions has no length")
    return self.shape[0]


def _iter(self: Tensor) -> Any:
    if not self.ndim:
        raise TypeError("a tensor without dimensions cannot be iterated over")
    return (get_item(self, i) for i in range(self.shape[0]))


def _contains(self: Tensor, value: Any) -> bool:
    return bool((self.numpy() == (value.numpy() if isinstance(value, Tensor) else value)).any())


def _one(self: Tensor, what: str) -> Any:
    if self.size != 1:
        raise located(ValueError(f"{what} of a tensor with {self.size} elements: only one element "
                                 "can become a number"))
    return self.numpy().reshape(-1)[0].item()


def _bool(self: Tensor) -> bool:
    return bool(_one(self, "bool"))


def _float(self: Tensor) -> float:
    return float(_one(self, "float"))


def _int(self: Tensor) -> int:
    return int(_one(self, "int"))


def _index(self: Tensor) -> int:
    if self._stored != "i64":
        raise TypeError(f"a tensor of type {self._dtype} is no index; only integers are")
    return int(_one(self, "index"))


def _format(self: Tensor, spec: str) -> str:
    return format(_one(self, "format") if self.size == 1 and spec else str(self), spec)


def _item(self: Tensor, *args: Any) -> Any:
    """An element as a number: the only one, or that at a position."""
    if not args and self.size != 1:
        _one(self, "item")
    return self.numpy().item(*args)


def _array(self: Tensor, dtype: Any = None, copy: Optional[bool] = None) -> Any:
    array = self.numpy()
    return array if dtype is None else array.astype(dtype, copy=False)


def _dlpack(self: Tensor, **kwargs: Any) -> Any:
    return self.numpy().__dlpack__(**kwargs)


def _dlpack_device(self: Tensor) -> Any:
    return self.numpy().__dlpack_device__()


def _transposed(self: Tensor) -> Tensor:
    """With the order of dimensions turned round."""
    return linalg.transpose(self, list(range(self.ndim))[::-1])


def _matrix_transposed(self: Tensor) -> Tensor:
    """With the last two dimensions exchanged."""
    order = list(range(self.ndim))
    return linalg.transpose(self, order[:-2] + [order[-1], order[-2]])


# --- values --------------------------------------------------------------------------------------


def _astype(self: Tensor, dtype: Any) -> Tensor:
    """With another element type."""
    return cast_to(self, dtype, "")


def _same(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """This tensor: all memory is that of the processor."""
    return self


_warned = False


def _cuda(self: Tensor, device_id: Any = None, blocking: bool = True) -> Tensor:
    """This tensor, with a warning: Regatta computes on CPUs."""
    global _warned
    if not _warned:
        _warned = True
        warnings.warn("Tensor.cuda: Regatta computes on CPUs", UserWarning, stacklevel=2)
    return self


def _to(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """With another element type, if one is among the arguments; the place is the processor."""
    from ..device import Place

    for value in [*args, *kwargs.values()]:
        if value is None or isinstance(value, (bool, Place)):
            continue
        if isinstance(value, Tensor):
            return cast_to(self, value.dtype, "")
        if isinstance(value, str) and value.split(":")[0] in ("cpu", "gpu", "xpu", "npu"):
            continue
        return cast_to(self, value, "")
    return self


def _set_value(self: Tensor, value: Any) -> None:
    """Takes other values of the same shape, in place."""
    import numpy as np

    array = value.numpy() if isinstance(value, Tensor) else np.asarray(value)
    if list(array.shape) != self.shape:
        raise located(ValueError(f"set_value: the tensor has the shape {self.shape}, but the value "
                                 f"has {list(array.shape)}"))
    self._set(array)


def _copy_from(self: Tensor, other: Any, *args: Any) -> Tensor:
    """Takes the values of another tensor, in place."""
    _set_value(self, other)
    return self


def _fill(self: Tensor, value: Any) -> Tensor:
    """One number everywhere, in place."""
    import numpy as np

    self._set(np.full(self.shape, float(value)))
    return self


def _zero(self: Tensor) -> Tensor:
    """Zeros, in place."""
    return _fill(self, 0)


def _deepcopy(self: Tensor, memo: Dict[int, Any]) -> Tensor:
    if not self.is_leaf:
        raise RuntimeError("deepcopy: only leaf tensors can be copied deeply; detach() others")
    made = Tensor(self.detach(), self._dtype, self.stop_gradient)
    for name, value in self.__dict__.items():
        if name != "_name":
            setattr(made, name, copy.deepcopy(value, memo))
    memo[id(self)] = made
    return made


def _reduce(self: Tensor, protocol: Any) -> Any:
    own = dict(self.__dict__)
    return _unpickled, (self.numpy(), self._dtype, self.stop_gradient, own)


def _unpickled(value: Any, kind: str, stop_gradient: bool, own: Dict[str, Any]) -> Tensor:
    made = Tensor(value, kind, stop_gradient)
    made.__dict__.update(own)
    return made


# --- gradients -----------------------------------------------------------------------------------


def _backward(
    self: Tensor, grad_tensor: Optional[Tensor] = None, retain_graph: bool = False
) -> None:
    """Adds the gradients of this tensor to ``.grad`` of the leaves that it follows from. Its own
    is ``grad_tensor``, or ones."""
    if self.stop_gradient and self.is_leaf:
        # As in Paddle; a model that sets gradients itself may return any constant as its loss.
        warnings.warn("backward of a tensor that nothing trainable went into does nothing: its "
                      "stop_gradient is True", stacklevel=2)
        return
    if grad_tensor is None and self.size != 1:
        grad_tensor = run("fill_like", {"X": self.detach()}, {"value": 1.0})
    try:
        self._backward(grad_tensor, retain_graph)
    except _ERRORS as error:
        raise located(error) from None


def _gradient(self: Tensor) -> Any:
    """The gradient as an array; of a table with a sparse gradient values and rows."""
    grad = self.grad
    if grad is None:
        return None
    if grad._is_rows:
        rows, values = grad._rows()
        return values, rows
    return grad.numpy()


def _clear_gradient(self: Tensor, set_to_zero: bool = True) -> None:
    """Without a gradient, or with one of zeros."""
    self._clear_grad(set_to_zero)


def _set_gradient(self: Tensor, gradient: Any) -> None:
    """Gives the tensor a gradient, as scripts of Paddle spell ``x.grad = gradient``."""
    self.grad = gradient


class TensorHookRemoveHelper:
    """Takes a hook away again."""

    def __init__(self, tensor: Tensor, key: int) -> None:
        self._tensor, self._key = tensor, key

    def remove(self) -> bool:
        """The hook is not called any more."""
        self._tensor._unhook(self._key)
        return True


def _register_hook(self: Tensor, hook: Callable[[Tensor], Any]) -> TensorHookRemoveHelper:
    """``hook(gradient)`` is called when the gradient is known, and may return another one."""
    if self.stop_gradient:
        raise RuntimeError("register_hook: the tensor wants no gradient (stop_gradient=True)")
    return TensorHookRemoveHelper(self, self._hook(hook))


def _retain_grads(self: Tensor) -> None:
    """Keeps ``.grad`` although the tensor is no leaf."""
    self._retain_grads()


def _detach_(self: Tensor) -> Tensor:
    """Cuts the tensor from what it follows from, in place."""
    self._share(self.detach())
    self.stop_gradient = True
    return self


def _clone(self: Tensor) -> Tensor:
    """A copy; the gradient flows back."""
    return run("assign", {"X": self})


# --- operators -----------------------------------------------------------------------------------

_ADD = _core.Op("elementwise_add", ("X", "Y"), {})
_SUB = _core.Op("elementwise_sub", ("X", "Y"), {})
_MUL = _core.Op("elementwise_mul", ("X", "Y"), {})


def _number(value: Any) -> bool:
    return isinstance(value, Numbers) or (
        type(value).__module__ == "numpy" and getattr(value, "ndim", 1) == 0
    )


def _operand(value: Any) -> bool:
    if isinstance(value, (Tensor, Variable, list, tuple) + Numbers):
        return True
    return hasattr(value, "__array__")


def _scaled(x: Tensor, factor: float, shift: float) -> Tensor:
    made = _SCALES.get((factor, shift))
    if made is not None and x._stored == "f32":
        return made(x)
    return math._linear(x, factor, shift, "")


def _add(self: Tensor, other: Any) -> Any:
    if isinstance(other, Tensor) and self._dtype == other._dtype:
        try:
            return _ADD(self, other)
        except _ERRORS as error:
            raise located(error) from None
    if _number(other):
        return _scaled(self, 1.0, float(other))
    return math.combine("elementwise_add", self, other, "") if _operand(other) else NotImplemented


def _sub(self: Tensor, other: Any) -> Any:
    if isinstance(other, Tensor) and self._dtype == other._dtype:
        try:
            return _SUB(self, other)
        except _ERRORS as error:
            raise located(error) from None
    if _number(other):
        return _scaled(self, 1.0, -float(other))
    return math.combine("elementwise_sub", self, other, "") if _operand(other) else NotImplemented


def _mul(self: Tensor, other: Any) -> Any:
    if isinstance(other, Tensor) and self._dtype == other._dtype:
        try:
            return _MUL(self, other)
        except _ERRORS as error:
            raise located(error) from None
    if _number(other):
        return _scaled(self, float(other), 0.0)
    return math.combine("elementwise_mul", self, other, "") if _operand(other) else NotImplemented


def _rsub(self: Tensor, other: Any) -> Any:
    if _number(other):
        return _scaled(self, -1.0, float(other))
    return math.combine("elementwise_sub", other, self, "") if _operand(other) else NotImplemented


def _div(self: Tensor, other: Any) -> Any:
    if _number(other):
        if float(other) == 0.0:
            return math.combine("elementwise_div", self, float(other), "")
        x = cast_to(self, "float32", "") if self._stored == "i64" else self
        return _scaled(x, 1.0 / float(other), 0.0)
    return math.combine("elementwise_div", self, other, "") if _operand(other) else NotImplemented


def _rdiv(self: Tensor, other: Any) -> Any:
    return math.combine("elementwise_div", other, self, "") if _operand(other) else NotImplemented


def _pow(self: Tensor, other: Any) -> Any:
    if _number(other):
        whole = self._stored == "i64" and float(other) == int(other)
        return math.power(self, int(other) if whole else float(other), "")
    return math.power(self, other, "") if _operand(other) else NotImplemented


def _rpow(self: Tensor, other: Any) -> Any:
    if _number(other):
        return math.power(float(other), self, "")
    return math.combine("elementwise_pow", other, self, "") if _operand(other) else NotImplemented


def _matmul(self: Tensor, other: Any) -> Any:
    if not _operand(other) or _number(other):
        return NotImplemented
    return linalg.product_of(self, math.as_operand(other, self, ""), False, False, "")


def _rmatmul(self: Tensor, other: Any) -> Any:
    if not _operand(other) or _number(other):
        return NotImplemented
    return linalg.product_of(math.as_operand(other, self, ""), self, False, False, "")


def _neg(self: Tensor) -> Tensor:
    return _scaled(self, -1.0, 0.0)


def _turned(function: Callable[..., Any]) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        return function(other, self) if _operand(other) else NotImplemented

    return method


def _plain(function: Callable[..., Any]) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        return function(self, other) if _operand(other) else NotImplemented

    return method


def _compared(kind: str) -> Callable[[Tensor, Any], Any]:
    def method(self: Tensor, other: Any) -> Any:
        return logic.compare(kind, self, other, "") if _operand(other) else NotImplemented

    return method


def _invert(self: Tensor) -> Tensor:
    return logic.bitwise_not(self)


# Functions that have an in-place form with an underscore behind the name.
_IN_PLACE = {
    math: [
        "abs", "acos", "add", "asin", "atan", "ceil", "clip", "cos", "cumprod", "cumsum", "divide",
        "erf", "exp", "expm1", "floor", "floor_divide", "floor_mod", "lerp", "log", "log10",
        "log1p", "log2", "mod", "multiply", "nan_to_num", "neg", "pow", "reciprocal", "remainder",
        "round", "rsqrt", "scale", "sigmoid", "sin", "sqrt", "square", "subtract", "tan", "tanh",
        "trunc",
    ],
    manipulation: ["cast", "flatten"],
    linalg: ["t", "transpose"],
    creation: ["tril", "triu"],
    logic: ["logical_and", "logical_not", "logical_or", "logical_xor"],
    search: ["index_add", "masked_fill", "put_along_axis", "scatter"],
    composed: ["index_fill", "index_put"],
}


def _in_place(function: Callable[..., Any]) -> Callable[..., Tensor]:
    def method(self: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        return manipulation.in_place(self, function(self, *args, **kwargs))

    method.__name__ = function.__name__ + "_"
    method.__doc__ = f"As :func:`{function.__name__}`, in place."
    return method


def _uniform(
    self: Tensor, min: float = -1.0, max: float = 1.0, seed: int = 0, name: Any = None
) -> Tensor:
    """Uniform random numbers, in place."""
    from .random import uniform

    self._set(uniform(self.shape, self.dtype, min, max, seed))
    return self


def _normal(self: Tensor, mean: float = 0.0, std: float = 1.0, name: Any = None) -> Tensor:
    """Gaussian random numbers, in place."""
    from .random import gaussian

    self._set(gaussian(self.shape, mean, std, dtype=self.dtype))
    return self


_METHODS: Dict[str, Any] = {
    "dtype": property(_dtype), "name": property(_get_name, _set_name), "place": property(_place),
    "T": property(_transposed), "mT": property(_matrix_transposed), "persistable": False,
    "inplace_version": property(lambda self: self._version), "type": "LOD_TENSOR",
    "nbytes": property(lambda self: self.numpy().nbytes),
    "__repr__": _repr, "__str__": _repr, "__len__": _len, "__iter__": _iter,
    "__contains__": _contains, "__bool__": _bool, "__float__": _float, "__int__": _int,
    "__index__": _index, "__format__": _format, "__array__": _array, "__dlpack__": _dlpack,
    "__dlpack_device__": _dlpack_device, "__getitem__": get_item, "__setitem__": set_item,
    "__deepcopy__": _deepcopy, "__reduce_ex__": _reduce, "__hash__": lambda self: id(self),
    "__array_priority__": 100,
    "item": _item, "tolist": manipulation.tolist, "astype": _astype, "cast": _astype,
    "cpu": _same, "cuda": _cuda, "pin_memory": _same, "contiguous": _same, "value": _same,
    "get_tensor": _same, "is_contiguous": lambda self: True, "to": _to, "set_value": _set_value,
    "copy_": _copy_from, "set": _copy_from, "fill_": _fill, "zero_": _zero, "clone": _clone,
    "get_value": lambda self: self.numpy(), "dim": lambda self: self.ndim,
    "ndimension": lambda self: self.ndim, "uniform_": _uniform, "normal_": _normal,
    "element_size": lambda self: self.numpy().itemsize,
    "backward": _backward, "gradient": _gradient, "clear_grad": _clear_gradient,
    "clear_gradient": _clear_gradient, "zero_grad": _clear_gradient,
    "_set_grad_ivar": _set_gradient,
    "register_hook": _register_hook, "retain_grads": _retain_grads, "detach_": _detach_,
    "__add__": _add, "__radd__": _add, "__sub__": _sub, "__rsub__": _rsub, "__mul__": _mul,
    "__rmul__": _mul, "__truediv__": _div, "__rtruediv__": _rdiv, "__pow__": _pow,
    "__rpow__": _rpow, "__matmul__": _matmul, "__rmatmul__": _rmatmul, "__neg__": _neg,
    "__pos__": _same, "__abs__": math.abs, "__invert__": _invert,
    "__floordiv__": _plain(math.floor_divide), "__rfloordiv__": _turned(math.floor_divide),
    "__mod__": _plain(math.mod), "__rmod__": _turned(math.mod),
    "__and__": _plain(logic.bitwise_and), "__or__": _plain(logic.bitwise_or),
    "__xor__": _plain(logic.bitwise_xor), "__rand__": _plain(logic.bitwise_and),
    "__lt__": _compared("less_than"), "__le__": _compared("less_equal"),
    "__gt__": _compared("greater_than"), "__ge__": _compared("greater_equal"),
    "__eq__": _compared("equal"), "__ne__": _compared("not_equal"),
}


def attach() -> None:
    """Gives tensors their operators and methods."""
    for name, method in _METHODS.items():
        setattr(Tensor, name, method)
    for module, names in _IN_PLACE.items():
        for name in names:
            setattr(Tensor, name + "_", _in_place(getattr(module, name)))
