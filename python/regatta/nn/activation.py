"""Activations as layers."""
from __future__ import annotations

from typing import Any, Optional

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable
from ..tensor._common import _ERRORS, located
from . import functional as F
from .common import Linear
from .layers import Layer

__all__ = [
    "CELU", "ELU", "GELU", "GLU", "Hardshrink", "Hardsigmoid", "Hardswish", "Hardtanh",
    "LeakyReLU", "LogSigmoid", "LogSoftmax", "Maxout", "Mish", "PReLU", "ReLU", "ReLU6", "SELU",
    "Sigmoid", "Silu", "Softmax", "Softplus", "Softshrink", "Softsign", "Swish", "Tanh",
    "Tanhshrink", "ThresholdedReLU",
]


class _Activation(Layer):
    """An activation without numbers."""

    def __init__(self, name: Optional[str] = None) -> None:
        super().__init__()
        self._name = name

    def extra_repr(self) -> str:
        return f"name={self._name}" if self._name else ""


def _activation(class_name: str, function: Any) -> type:
    def forward(self: Any, x: Variable) -> Variable:
        return function(x, name=self._name)

    forward.__doc__ = function.__doc__
    body = {"__doc__": function.__doc__, "__module__": __name__, "forward": forward}
    return type(class_name, (_Activation,), body)


ReLU = _activation("ReLU", F.relu)
ReLU6 = _activation("ReLU6", F.relu6)
Sigmoid = _activation("Sigmoid", F.sigmoid)
Tanh = _activation("Tanh", F.tanh)
Tanhshrink = _activation("Tanhshrink", F.tanhshrink)
LogSigmoid = _activation("LogSigmoid", F.log_sigmoid)
Silu = _activation("Silu", F.silu)
Swish = _activation("Swish", F.swish)
Mish = _activation("Mish", F.mish)
Softsign = _activation("Softsign", F.softsign)
Hardsigmoid = _activation("Hardsigmoid", F.hardsigmoid)
Hardswish = _activation("Hardswish", F.hardswish)


class Softmax(Layer):
    """Positive numbers that add up to 1 along a dimension."""

    def __init__(self, axis: int = -1, name: Optional[str] = None) -> None:
        super().__init__()
        self._axis, self._name = axis, name

    def forward(self, x: Variable) -> Variable:
        """The softmax."""
        return F.softmax(x, self._axis, name=self._name)

    def extra_repr(self) -> str:
        return f"axis={self._axis}"


class LogSoftmax(Layer):
    """The logarithm of the softmax."""

    def __init__(self, axis: int = -1, name: Optional[str] = None) -> None:
        super().__init__()
        self._axis, self._name = axis, name

    def forward(self, x: Variable) -> Variable:
        """The logarithms."""
        return F.log_softmax(x, self._axis, name=self._name)

    def extra_repr(self) -> str:
        return f"axis={self._axis}"


class GELU(Layer):
    """``x * Phi(x)`` with the Gaussian distribution function."""

    def __init__(self, approximate: bool = False, name: Optional[str] = None) -> None:
        super().__init__()
        self._approximate, self._name = approximate, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.gelu(x, self._approximate, self._name)

    def extra_repr(self) -> str:
        return f"approximate={self._approximate}"


class LeakyReLU(Layer):
    """``x`` where positive, ``negative_slope * x`` elsewhere."""

    def __init__(self, negative_slope: float = 0.01, name: Optional[str] = None) -> None:
        super().__init__()
        self._negative_slope, self._name = negative_slope, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.leaky_relu(x, self._negative_slope, self._name)

    def extra_repr(self) -> str:
        return f"negative_slope={self._negative_slope}"


class ELU(Layer):
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""

    def __init__(self, alpha: float = 1.0, name: Optional[str] = None) -> None:
        super().__init__()
        self._alpha, self._name = alpha, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.elu(x, self._alpha, self._name)

    def extra_repr(self) -> str:
        return f"alpha={self._alpha}"


class Hardtanh(Layer):
    """``x`` limited to ``[min, max]``."""

    def __init__(self, min: float = -1.0, max: float = 1.0, name: Optional[str] = None) -> None:
        super().__init__()
        self._min, self._max, self._name = min, max, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.hardtanh(x, self._min, self._max, self._name)

    def extra_repr(self) -> str:
        return f"min={self._min}, max={self._max}"


class Softplus(Layer):
    """``log(1 + exp(beta * x)) / beta``."""

    def __init__(
        self, beta: float = 1, threshold: float = 20, name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._beta, self._threshold, self._name = beta, threshold, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.softplus(x, self._beta, self._threshold, self._name)

    def extra_repr(self) -> str:
        return f"beta={self._beta}, threshold={self._threshold}"


class PReLU(Layer):
    """``x`` where positive, a learned factor times ``x`` elsewhere."""

    def __init__(
        self, num_parameters: int = 1, init: float = 0.25, weight_attr: Any = None,
        data_format: str = "NCHW", name: Optional[str] = None,
    ) -> None:
        from .initializer import Constant

        super().__init__()
        self._num_parameters, self._init, self._name = num_parameters, init, name
        self._data_format = data_format
        self._weight = self.create_parameter(
            [num_parameters], weight_attr, default_initializer=Constant(init)
        )

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.prelu(x, self._weight, self._data_format, self._name)

    def extra_repr(self) -> str:
        return f"num_parameters={self._num_parameters}, init={self._init}"


class SELU(Layer):
    """``scale * x`` where positive, ``scale * alpha * (exp(x) - 1)`` elsewhere."""

    def __init__(
        self, scale: float = 1.0507009873554805, alpha: float = 1.6732632423543772,
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._scale, self._alpha, self._name = scale, alpha, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.selu(x, self._scale, self._alpha, self._name)

    def extra_repr(self) -> str:
        return f"scale={self._scale}, alpha={self._alpha}"


class CELU(Layer):
    """``x`` where positive, ``alpha * (exp(x / alpha) - 1)`` elsewhere."""

    def __init__(self, alpha: float = 1.0, name: Optional[str] = None) -> None:
        super().__init__()
        self._alpha, self._name = alpha, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.celu(x, self._alpha, self._name)

    def extra_repr(self) -> str:
        return f"alpha={self._alpha}"


class _Threshold(Layer):
    """An activation with one bound."""

    _function: Any = None

    def __init__(self, threshold: float = 0.5, name: Optional[str] = None) -> None:
        super().__init__()
        self._threshold, self._name = threshold, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return type(self)._function(x, self._threshold, self._name)

    def extra_repr(self) -> str:
        return f"threshold={self._threshold}"


class Hardshrink(_Threshold):
    """``x`` beyond a bound, 0 within."""

    _function = staticmethod(F.hardshrink)


class Softshrink(_Threshold):
    """``x`` moved towards 0 by a bound, 0 within."""

    _function = staticmethod(F.softshrink)


class ThresholdedReLU(_Threshold):
    """``x`` above a bound, 0 elsewhere."""

    _function = staticmethod(F.thresholded_relu)

    def __init__(self, threshold: float = 1.0, name: Optional[str] = None) -> None:
        super().__init__(threshold, name)


class Maxout(Layer):
    """The largest of each group of channels."""

    def __init__(self, groups: int, axis: int = 1, name: Optional[str] = None) -> None:
        super().__init__()
        self._groups, self._axis, self._name = groups, axis, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.maxout(x, self._groups, self._axis, self._name)

    def extra_repr(self) -> str:
        return f"groups={self._groups}, axis={self._axis}"


class GLU(Layer):
    """The first half of a dimension times the sigmoid of the second."""

    def __init__(self, axis: int = -1, name: Optional[str] = None) -> None:
        super().__init__()
        self._axis, self._name = axis, name

    def forward(self, x: Variable) -> Variable:
        """The activation."""
        return F.glu(x, self._axis, self._name)

    def extra_repr(self) -> str:
        return f"axis={self._axis}"


# --- joined with the layer before ----------------------------------------------------------------


class LinearWith:
    """A Linear with a bias and its activation as one op. Hooks of either are called as ever."""

    _NAMES = {ReLU: "relu", Tanh: "tanh", Sigmoid: "sigmoid"}

    def __init__(self, linear: Linear, act: Layer) -> None:
        self._linear, self._act = linear, act
        self._op = _core.Op("fc", ("X", "W", "Bias"), {"act": self._NAMES[type(act)]})

    def __call__(self, x: Any) -> Any:
        linear, act = self._linear, self._act
        bias = linear.bias
        if linear._hook_count or act._hook_count or bias is None or not isinstance(x, Tensor):
            return act(linear(x))
        try:
            return self._op(x, linear.weight, bias)
        except _ERRORS as error:
            raise located(error) from None

    def __reduce__(self) -> Any:
        return LinearWith, (self._linear, self._act)

    def __deepcopy__(self, memo: Any) -> "LinearWith":
        import copy

        return LinearWith(copy.deepcopy(self._linear, memo), copy.deepcopy(self._act, memo))


def joined_with(before: Any, layer: Layer) -> Optional[LinearWith]:
    """A Linear with the activation behind it as one op, if they are these."""
    if type(before) is Linear and type(layer) in LinearWith._NAMES:
        return LinearWith(before, layer)
    return None


__getattr__ = missing(__name__)
