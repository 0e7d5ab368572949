"""Activations as functions, for tensors and variables."""
from __future__ import annotations

from typing import Any, Optional

from .. import _core
from ..framework import Tensor, Variable
from ..tensor import manipulation, math
from ..tensor._common import (
    _ERRORS, _PREPARED, axis_of, cast_to, check, filled, located, namer_of, op, part_of, prepared,
    product, to_shape,
)

__all__ = [
    "celu", "elu", "gelu", "glu", "gumbel_softmax", "hardshrink", "hardsigmoid", "hardswish",
    "hardtanh", "leaky_relu", "log_sigmoid", "log_softmax", "maxout", "mish", "prelu", "relu",
    "relu6", "relu_", "selu", "sigmoid", "silu", "softmax", "softmax_", "softplus", "softshrink",
    "softsign", "swish", "tanh", "tanh_", "tanhshrink", "thresholded_relu",
]


def _simple(
    kind: str, x: Any, name: Optional[str], word: Optional[str] = None, **attrs: Any
) -> Variable:
    if isinstance(x, Tensor):
        key = (kind, *attrs.values()) if attrs else kind
        made = _PREPARED.get(key) or prepared(key, kind, ("X",), attrs)
        try:
            return made(x)
        except _ERRORS as error:
            raise located(error) from None
    word = word or kind
    return op(kind, {"X": check(x, f"{word}: x")}, namer_of(x, word, name).tmp(), attrs)


_RELU = _core.Op("relu", ("X",), {})


def relu(x: Variable, name: Optional[str] = None) -> Variable:
    """``max(x, 0)``."""
    if isinstance(x, Tensor):
        try:
            return _RELU(x)
        except _ERRORS as error:
            raise located(error) from None
    return _simple("relu", x, name)


def sigmoid(x: Variable, name: Optional[str] = None) -> Variable:
    """Logistic function."""
    return _simple("sigmoid", x, name)


def tanh(x: Variable, name: Optional[str] = None) -> Variable:
    """Hyperbolic tangent."""
    return _simple("tanh", x, name)


def gelu(x: Variable, approximate: bool = False, name: Optional[str] = None) -> Variable:
    """``x * Phi(x)`` with the Gaussian distribution function, or with its approximation by a
    hyperbolic tangent."""
    if not approximate:
        return _simple("gelu", x, name)
    out = namer_of(x, "gelu", name).tmp()
    x = check(x, "gelu: x")
    cube = op("pow", {"X": x}, part_of(out), {"factor": 3.0})
    bent = op("scale", {"X": cube}, part_of(out), {"scale": 0.044715})
    total = op("elementwise_add", {"X": x, "Y": bent}, part_of(out))
    inner = op("scale", {"X": total}, part_of(out), {"scale": 0.7978845608028654})
    half = op("scale", {"X": op("tanh", {"X": inner}, part_of(out))}, part_of(out),
              {"scale": 0.5, "bias": 0.5})
    return op("elementwise_mul", {"X": x, "Y": half}, out)


def leaky_relu(
    x: Variable, negative_slope: float = 0.01, name: Optional[str] = None,
    alpha: Optional[float] = None,
) -> Variable:
    """``x`` where positive, ``negative_slope * x`` elsewhere."""
    slope = negative_slope if alpha is None else alpha
    return _simple("leaky_relu", x, name, alpha=float(slope))


def relu6(x: Variable, threshold: float = 6.0, name: Optional[str] = None) -> Variable:
    """``x`` limited to ``[0, 6]``."""
    return _simple("clip", x, name, "relu6", min=0.0, max=float(threshold))


def hardtanh(
    x: Variable, min: float = -1.0, max: float = 1.0, name: Optional[str] = None
) -> Variable:
    """``x`` limited to ``[min, max]``."""
    return _simple("clip", x, name, "hardtanh", min=float(min), max=float(max))


def hardsigmoid(
    x: Variable, slope: float = 0.1666667, offset: float = 0.5, name: Optional[str] = None
) -> Variable:
    """``slope * x + offset`` limited to ``[0, 1]``."""
    if isinstance(x, Tensor):
        return _simple("hardsigmoid", x, name, slope=float(slope), offset=float(offset))
    out = namer_of(x, "hardsigmoid", name).tmp()
    attrs = {"scale": float(slope), "bias": float(offset)}
    line = op("scale", {"X": check(x, "hardsigmoid: x")}, part_of(out), attrs)
    return op("clip", {"X": line}, out, {"min": 0.0, "max": 1.0})


def hardswish(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * relu6(x + 3) / 6``."""
    if isinstance(x, Tensor):
        return _simple("hardswish", x, name)
    out = namer_of(x, "hardswish", name).tmp()
    line = op("scale", {"X": check(x, "hardswish: x")}, part_of(out), {"scale": 1 / 6, "bias": 0.5})
    gate = op("clip", {"X": line}, part_of(out), {"min": 0.0, "max": 1.0})
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def _gated(x: Any, word: str, name: Optional[str], beta: float = 1.0) -> Variable:
    if isinstance(x, Tensor) and beta == 1.0:
        return _simple("silu", x, name)
    out = namer_of(x, word, name).tmp()
    x = check(x, f"{word}: x")
    inner = x if beta == 1.0 else op("scale", {"X": x}, part_of(out), {"scale": beta})
    gate = op("sigmoid", {"X": inner}, part_of(out))
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def silu(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * sigmoid(x)``."""
    return _gated(x, "silu", name)


def swish(x: Variable, name: Optional[str] = None, beta: float = 1.0) -> Variable:
    """``x * sigmoid(beta * x)``."""
    return _gated(x, "swish", name, float(beta))


def _soft_plus(x: Variable, out: str) -> Variable:
    """``log(1 + exp(x))``: the loss of a logit whose label is 0."""
    zero = filled(x, 0.0, part_of(out))
    return op("sigmoid_cross_entropy", {"X": x, "Label": zero}, out)


def softplus(
    x: Variable, beta: float = 1, threshold: float = 20, name: Optional[str] = None
) -> Variable:
    """``log(1 + exp(beta * x)) / beta``. Beyond ``threshold`` that is ``x`` in float32 anyway."""
    if isinstance(x, Tensor):
        return _simple("softplus", x, name, beta=float(beta), threshold=float(threshold))
    out = namer_of(x, "softplus", name).tmp()
    x = check(x, "softplus: x")
    if beta == 1:
        return _soft_plus(x, out)
    grown = op("scale", {"X": x}, part_of(out), {"scale": float(beta)})
    return op("scale", {"X": _soft_plus(grown, part_of(out))}, out, {"scale": 1.0 / beta})


def log_sigmoid(x: Variable, name: Optional[str] = None) -> Variable:
    """``log(sigmoid(x))``, which no element overflows."""
    if isinstance(x, Tensor):
        return _simple("logsigmoid", x, name)
    out = namer_of(x, "log_sigmoid", name).tmp()
    turned = op("scale", {"X": check(x, "log_sigmoid: x")}, part_of(out), {"scale": -1.0})
    return op("scale", {"X": _soft_plus(turned, part_of(out))}, out, {"scale": -1.0})


def mish(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * tanh(softplus(x))``."""
    if isinstance(x, Tensor):
        return _simple("mish", x, name)
    out = namer_of(x, "mish", name).tmp()
    gate = op("tanh", {"X": _soft_plus(check(x, "mish: x"), part_of(out))}, part_of(out))
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def elu(x: Variable, alpha: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    if isinstance(x, Tensor):
        return _simple("elu", x, name, alpha=float(alpha))
    out = namer_of(x, "elu", name).tmp()
    x = check(x, "elu: x")
    below = op("exp", {"X": op("clip", {"X": x}, part_of(out), {"max": 0.0})}, part_of(out))
    bent = op("scale", {"X": below}, part_of(out), {"scale": float(alpha), "bias": -float(alpha)})
    return op("elementwise_add", {"X": op("relu", {"X": x}, part_of(out)), "Y": bent}, out)


def softsign(x: Variable, name: Optional[str] = None) -> Variable:
    """``x / (1 + |x|)``."""
    return _simple("softsign", x, name)


def tanhshrink(x: Variable, name: Optional[str] = None) -> Variable:
    """``x - tanh(x)``."""
    if isinstance(x, Tensor):
        return _simple("tanhshrink", x, name)
    out = namer_of(x, "tanh_shrink", name).tmp()
    curve = op("tanh", {"X": check(x, "tanhshrink: x")}, part_of(out))
    return op("elementwise_sub", {"X": x, "Y": curve}, out)


def prelu(
    x: Variable, weight: Variable, data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """``x`` where positive, ``weight * x`` elsewhere; one weight, or one for each channel."""
    out = namer_of(x, "prelu", name).tmp()
    x = check(x, "prelu: x")
    if product(weight.shape) > 1 and len(x.shape) > 2 and data_format[1] == "C":
        weight = to_shape(weight, [product(weight.shape)] + [1] * (len(x.shape) - 2), part_of(out))
    if isinstance(x, Tensor):
        return op("prelu", {"X": x, "Y": weight}, out)
    above = op("relu", {"X": x}, part_of(out))
    below = op("clip", {"X": x}, part_of(out), {"max": 0.0})
    bent = op("elementwise_mul", {"X": below, "Y": weight}, part_of(out))
    return op("elementwise_add", {"X": above, "Y": bent}, out)


def glu(x: Variable, axis: int = -1, name: Optional[str] = None) -> Variable:
    """The first half of a dimension times the sigmoid of the second."""
    first, second = manipulation.split(x, 2, axis)
    return math.multiply(first, sigmoid(second), name=name)


def softmax(
    x: Optional[Variable] = None, axis: int = -1, dtype: Any = None, name: Optional[str] = None,
    input: Optional[Variable] = None, use_cudnn: bool = False,
) -> Variable:
    """Positive numbers that add up to 1 along a dimension."""
    x = check(x if x is not None else input, "softmax: x")
    namer = namer_of(x, "softmax", name)
    if dtype is not None:
        x = cast_to(x, dtype, namer.tmp())
    if isinstance(x, Tensor):
        return _eager_softmax(x, axis)
    at = axis_of(axis, len(x.shape), "softmax")
    attrs = {} if at == len(x.shape) - 1 else {"axis": at}
    return op("softmax", {"X": x}, namer.tmp(), attrs)


def _eager_softmax(x: Tensor, axis: int) -> Tensor:
    rank = x.ndim
    key = ("softmax", axis, rank)
    made = _PREPARED.get(key)
    if made is None:
        at = axis_of(axis, rank, "softmax")
        made = prepared(key, "softmax", ("X",), {} if at == rank - 1 else {"axis": at})
    try:
        return made(x)
    except _ERRORS as error:
        raise located(error) from None


def log_softmax(
    x: Variable, axis: int = -1, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """The logarithm of :func:`softmax`, also where that underflows."""
    x = check(x, "log_softmax: x")
    namer = namer_of(x, "log_softmax", name)
    if dtype is not None:
        x = cast_to(x, dtype, namer.tmp())
    if isinstance(x, Tensor):
        return _simple("log_softmax", x, name, axis=axis_of(axis, x.ndim, "log_softmax"))
    out = namer.tmp()
    at = axis_of(axis, len(x.shape), "log_softmax")
    level = math.log_sum_exp(x, [at], True, part_of(out))
    return op("elementwise_sub", {"X": x, "Y": level}, out)


def selu(
    x: Variable, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772,
    name: Optional[str] = None,
) -> Variable:
    """``scale * x`` where positive, ``scale * alpha * (exp(x) - 1)`` elsewhere."""
    return _simple("selu", x, name, scale=float(scale), alpha=float(alpha))


def celu(x: Variable, alpha: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x`` where positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere."""
    if alpha == 0:
        raise ZeroDivisionError("celu: alpha is 0")
    return _simple("celu", x, name, alpha=float(alpha))


def softshrink(x: Variable, threshold: float = 0.5, name: Optional[str] = None) -> Variable:
    """``x`` moved towards 0 by a bound; 0 within it."""
    return _simple("softshrink", x, name, threshold=float(threshold))


def hardshrink(x: Variable, threshold: float = 0.5, name: Optional[str] = None) -> Variable:
    """``x`` beyond a bound, 0 within it."""
    return _simple("hardshrink", x, name, threshold=float(threshold))


def thresholded_relu(x: Variable, threshold: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x`` above a bound, 0 elsewhere."""
    return _simple("thresholded_relu", x, name, threshold=float(threshold))


def maxout(x: Variable, groups: int, axis: int = 1, name: Optional[str] = None) -> Variable:
    """The largest of each group of channels."""
    x = check(x, "maxout: x")
    at = axis_of(axis, len(x.shape), "maxout")
    dims = list(x.shape)
    if dims[at] % groups:
        raise ValueError(f"maxout: {dims[at]} channels cannot be divided into groups of {groups}")
    parts = manipulation.reshape(x, dims[:at] + [dims[at] // groups, groups] + dims[at + 1:])
    return math.max(parts, at + 1, name=name)


def gumbel_softmax(
    x: Variable, temperature: float = 1.0, hard: bool = False, axis: int = -1,
    name: Optional[str] = None,
) -> Variable:
    """A sample of a distribution by its logits that passes a gradient; with ``hard`` a row with a
    single one."""
    import numpy as np

    from ..tensor.random import generator

    if not isinstance(x, Tensor):
        raise NotImplementedError("gumbel_softmax of variables of a program")
    noise = -np.log(-np.log(generator().random(x.shape) * (1 - 2e-7) + 1e-7))
    soft = softmax((x + Tensor(noise, x._dtype)) / temperature, axis)
    if not hard:
        return soft
    best = soft.argmax(axis, keepdim=True).numpy()
    one = np.zeros(soft.shape, "float32")
    np.put_along_axis(one, best, 1.0, axis)
    return Tensor(one, x._dtype) - soft.detach() + soft


def relu_(x: Tensor, name: Optional[str] = None) -> Tensor:
    """As :func:`relu`, in place."""
    return manipulation.in_place(x, relu(x))


def tanh_(x: Tensor, name: Optional[str] = None) -> Tensor:
    """As :func:`tanh`, in place."""
    return manipulation.in_place(x, tanh(x))


def softmax_(x: Tensor, axis: int = -1, dtype: Any = None, name: Optional[str] = None) -> Tensor:
    """As :func:`softmax`, in place."""
    return manipulation.in_place(x, softmax(x, axis, dtype))
