"""Layers with and without parameters."""
from __future__ import annotations

from typing import Any, Optional

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable
from ..tensor import manipulation
from ..tensor._common import _ERRORS, located
from . import functional as F
from .layers import Layer

__all__ = [
    "CosineSimilarity", "Dropout", "ELU", "Embedding", "Flatten", "GELU", "Hardsigmoid",
    "Hardswish", "Hardtanh", "Identity", "LeakyReLU", "Linear", "LogSigmoid", "LogSoftmax",
    "Mish", "PReLU", "ReLU", "ReLU6", "Sigmoid", "Silu", "Softmax", "Softplus", "Softsign",
    "Swish", "Tanh", "Tanhshrink",
]


class Linear(Layer):
    """``x @ weight + bias`` over the last dimension."""

    def __init__(
        self, in_features: int, out_features: int, weight_attr: Any = None, bias_attr: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self.in_features, self.out_features, self.name = in_features, out_features, name
        self.weight = self.create_parameter([in_features, out_features], weight_attr)
        self.bias = self.create_parameter([out_features], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """``input @ weight + bias``."""
        bias = self.bias
        if isinstance(input, Tensor) and bias is not None:
            try:
                return F._FC(input, self.weight, bias)
            except _ERRORS as error:
                raise located(error) from None
        return F.linear(input, self.weight, bias, self.name)

    def extra_repr(self) -> str:
        named = f", name={self.name}" if self.name else ""
        return (f"in_features={self.in_features}, out_features={self.out_features}, "
                f"dtype={self._dtype}{named}")


class Embedding(Layer):
    """A table of vectors; ids give rows. With ``sparse`` the gradient names only the rows that a
    batch touched. The row ``padding_idx`` counts as zeros and is not learned."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, padding_idx: Optional[int] = None,
        sparse: bool = False, weight_attr: Any = None, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        if num_embeddings <= 0 or embedding_dim <= 0:
            raise ValueError(f"Embedding: {num_embeddings} rows of {embedding_dim} floats")
        self._num_embeddings, self._embedding_dim = num_embeddings, embedding_dim
        self._sparse, self._name = bool(sparse), name
        padding = F.padding_row(padding_idx, num_embeddings, "Embedding")
        self._padding_idx = padding
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)
        if padding >= 0 and isinstance(self.weight, Tensor):
            value = self.weight.numpy()
            value[padding] = 0.0
            self.weight._set(value)

    def forward(self, x: Variable) -> Any:
        """The rows of the ids."""
        if isinstance(x, Tensor):
            return F.lookup(x, self.weight, self._padding_idx, self._sparse, "")
        padding = None if self._padding_idx < 0 else self._padding_idx
        return F.embedding(x, self.weight, padding, self._sparse, self._name)

    def extra_repr(self) -> str:
        text = f"{self._num_embeddings}, {self._embedding_dim}"
        if self._padding_idx >= 0:
            text += f", padding_idx={self._padding_idx}"
        text += f", sparse={self._sparse}"
        return text + (f", name={self._name}" if self._name else "")


class Dropout(Layer):
    """Zeroes a share ``p`` of the elements while training."""

    def __init__(
        self, p: float = 0.5, axis: Any = None, mode: str = "upscale_in_train",
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self.p, self.axis, self.mode, self.name = p, axis, mode, name

    def forward(self, input: Variable) -> Variable:
        """A part of ``input`` while training, all of it otherwise."""
        return F.dropout(input, self.p, self.axis, self.training, self.mode, self.name)

    def extra_repr(self) -> str:
        return f"p={self.p}, axis={self.axis}, mode={self.mode}"


class Flatten(Layer):
    """Joins neighbouring dimensions."""

    def __init__(self, start_axis: int = 1, stop_axis: int = -1) -> None:
        super().__init__()
        self.start_axis, self.stop_axis = start_axis, stop_axis

    def forward(self, input: Variable) -> Variable:
        """``input`` with fewer dimensions."""
        return manipulation.flatten(input, self.start_axis, self.stop_axis)

    def extra_repr(self) -> str:
        return f"start_axis={self.start_axis}, stop_axis={self.stop_axis}"


class Identity(Layer):
    """What comes in."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__()

    def forward(self, input: Any) -> Any:
        """``input``."""
        return input


class CosineSimilarity(Layer):
    """The cosine of the angle between vectors of a dimension."""

    def __init__(self, axis: int = 1, eps: float = 1e-8) -> None:
        super().__init__()
        self._axis, self._eps = axis, eps

    def forward(self, x1: Variable, x2: Variable) -> Variable:
        """The cosines."""
        return F.cosine_similarity(x1, x2, self._axis, self._eps)

    def extra_repr(self) -> str:
        return f"axis={self._axis}, eps={self._eps}"


# --- activations ---------------------------------------------------------------------------------


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


class LinearWith:
    """A Linear and its activation as one op. Hooks of either are called as ever."""

    _NAMES = {ReLU: "relu", Tanh: "tanh", Sigmoid: "sigmoid"}

    def __init__(self, linear: Linear, act: Layer) -> None:
        self._linear, self._act = linear, act
        name = self._NAMES[type(act)]
        self._name = name
        self._op = self._made(linear.bias is not None, name)

    @staticmethod
    def _made(biased: bool, name: str) -> Any:
        slots = ("X", "W", "Bias") if biased else ("X", "W")
        return _core.Op("fc", slots, {"act": name})

    def __call__(self, x: Any) -> Any:
        linear, act = self._linear, self._act
        if linear._hook_count or act._hook_count or not isinstance(x, Tensor):
            return act(linear(x))
        bias = linear.bias
        try:
            if bias is None:
                return self._op(x, linear.weight)
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


__getattr__ = missing(__name__)
