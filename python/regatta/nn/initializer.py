"""Initial values of parameters.

Random values follow from the seed (:func:`regatta.seed`, ``Program.random_seed`` or the
initializer's own), the name of the parameter and the position, and from nothing else.

>>> Constant(0.5)._init_op([2, 3], seed=0)
('fill_constant', {'shape': [2, 3], 'value': 0.5})
"""
from __future__ import annotations

import math
from typing import Any, Dict, List, Optional, Sequence, Tuple

from .._missing import missing

__all__ = [
    "Assign", "Constant", "ConstantInitializer", "Dirac", "Initializer", "KaimingNormal",
    "KaimingUniform", "MSRA", "MSRAInitializer", "Normal", "NormalInitializer",
    "NumpyArrayInitializer", "Orthogonal", "TruncatedNormal", "TruncatedNormalInitializer",
    "Uniform", "UniformInitializer", "Xavier", "XavierInitializer", "XavierNormal", "XavierUniform",
    "calculate_gain", "set_global_initializer",
]

InitOp = Tuple[str, Dict[str, Any]]


class Initializer:
    """How a parameter gets its first values."""

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        """The op without inputs that writes the values: its kind and its attributes."""
        raise NotImplementedError(f"{type(self).__name__} has no initial values")

    def __call__(self, param: Any, block: Any = None) -> Any:
        """Gives a tensor of the dynamic mode the initial values of its name."""
        from .. import framework
        from .._bridge import initial_value

        if not isinstance(param, framework.Tensor):
            raise TypeError(f"{type(self).__name__} fills tensors of the dynamic mode; pass it as "
                            "initializer of a ParamAttr to parameters of programs")
        dims = list(param.shape)
        param._set(initial_value(param.name, dims, self)[0])
        return param

    def __repr__(self) -> str:
        values = ", ".join(f"{k}={v!r}" for k, v in vars(self).items() if not k.startswith("_"))
        return f"{type(self).__name__}({values})"


def _random(kind: str, shape: Sequence[int], seed: int, **attrs: float) -> InitOp:
    return kind, {"shape": list(shape), **attrs, "seed": int(seed)}


def _fans(shape: Sequence[int]) -> Tuple[float, float]:
    """How many values a result depends on, and how many results depend on a value."""
    if not shape:
        return 1.0, 1.0
    if len(shape) == 1:
        return float(shape[0]), float(shape[0])
    if len(shape) == 2:
        return float(shape[0]), float(shape[1])
    field = math.prod(shape[2:])
    return float(shape[1] * field), float(shape[0] * field)


class Constant(Initializer):
    """One value everywhere."""

    def __init__(self, value: float = 0.0, force_cpu: bool = False) -> None:
        if value is None:
            raise ValueError("Constant: the value is missing")
        self.value = float(value)

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        return "fill_constant", {"shape": list(shape), "value": self.value}


class UniformInitializer(Initializer):
    """Uniform in ``[low, high)``."""

    def __init__(
        self, low: float = -1.0, high: float = 1.0, seed: int = 0, diag_num: int = 0,
        diag_step: int = 0, diag_val: float = 1.0,
    ) -> None:
        if diag_num:
            raise NotImplementedError("UniformInitializer: diag_num, values on a diagonal")
        if high < low:
            raise ValueError(f"Uniform: high is {high}, but should be at least low, {low}")
        self.low, self.high, self.seed = float(low), float(high), int(seed)

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        seed = self.seed or seed
        return _random("uniform_random", shape, seed, low=self.low, high=self.high)


class Uniform(UniformInitializer):
    """Uniform in ``[low, high)``."""

    def __init__(
        self, low: float = -1.0, high: float = 1.0, name: Any = None, seed: int = 0
    ) -> None:
        # Fluid's third argument is the seed.
        super().__init__(low, high, name if isinstance(name, int) else seed)


class NormalInitializer(Initializer):
    """Gaussian with a mean (``loc``) and a standard deviation (``scale``)."""

    _kind = "gaussian_random"

    def __init__(self, loc: float = 0.0, scale: float = 1.0, seed: int = 0) -> None:
        if scale < 0:
            raise ValueError(f"{type(self).__name__}: the standard deviation is {scale}")
        self.mean, self.std, self.seed = float(loc), float(scale), int(seed)

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        return _random(self._kind, shape, self.seed or seed, mean=self.mean, std=self.std)


class TruncatedNormalInitializer(NormalInitializer):
    """Gaussian, redrawn beyond two standard deviations."""

    _kind = "truncated_gaussian_random"


def _gaussian_arguments(
    mean: float, std: float, name: Any, seed: int, loc: Optional[float], scale: Optional[float]
) -> Tuple[float, float, int]:
    """Both spellings of the arguments of a Gaussian; Fluid's third one is the seed."""
    mean = mean if loc is None else loc
    std = std if scale is None else scale
    return mean, std, name if isinstance(name, int) else seed


class Normal(NormalInitializer):
    """Gaussian."""

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, name: Any = None, seed: int = 0,
        loc: Optional[float] = None, scale: Optional[float] = None,
    ) -> None:
        super().__init__(*_gaussian_arguments(mean, std, name, seed, loc, scale))


class TruncatedNormal(TruncatedNormalInitializer):
    """Gaussian, redrawn beyond two standard deviations."""

    def __init__(
        self, mean: float = 0.0, std: float = 1.0, name: Any = None, seed: int = 0,
        loc: Optional[float] = None, scale: Optional[float] = None, a: float = -2.0,
        b: float = 2.0,
    ) -> None:
        if (a, b) != (-2.0, 2.0):
            raise NotImplementedError(
                f"TruncatedNormal: cut at {a} and {b}; only -2 and 2 standard deviations"
            )
        super().__init__(*_gaussian_arguments(mean, std, name, seed, loc, scale))


class XavierInitializer(Initializer):
    """Glorot: keeps the variance of activations and gradients across a layer."""

    def __init__(
        self, uniform: bool = True, fan_in: Optional[float] = None,
        fan_out: Optional[float] = None, seed: int = 0, gain: float = 1.0,
    ) -> None:
        self.uniform, self.fan_in, self.fan_out = bool(uniform), fan_in, fan_out
        self.seed, self.gain = int(seed), float(gain)

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        fan_in, fan_out = _fans(shape)
        fan_in = fan_in if self.fan_in is None else float(self.fan_in)
        fan_out = fan_out if self.fan_out is None else float(self.fan_out)
        seed = self.seed or seed
        if self.uniform:
            limit = self.gain * math.sqrt(6.0 / (fan_in + fan_out))
            return _random("uniform_random", shape, seed, low=-limit, high=limit)
        std = self.gain * math.sqrt(2.0 / (fan_in + fan_out))
        return _random("gaussian_random", shape, seed, mean=0.0, std=std)


class XavierUniform(XavierInitializer):
    """Glorot, uniform: the default of weights."""

    def __init__(
        self, fan_in: Optional[float] = None, fan_out: Optional[float] = None, gain: float = 1.0,
        name: Any = None,
    ) -> None:
        super().__init__(True, fan_in, fan_out, 0, gain)


class XavierNormal(XavierInitializer):
    """Glorot, Gaussian."""

    def __init__(
        self, fan_in: Optional[float] = None, fan_out: Optional[float] = None, gain: float = 1.0,
        name: Any = None,
    ) -> None:
        super().__init__(False, fan_in, fan_out, 0, gain)


class MSRAInitializer(Initializer):
    """He: for layers followed by a rectifier."""

    def __init__(
        self, uniform: bool = True, fan_in: Optional[float] = None, seed: int = 0,
        negative_slope: float = 0.0, nonlinearity: str = "relu",
    ) -> None:
        self.uniform, self.fan_in, self.seed = bool(uniform), fan_in, int(seed)
        self.negative_slope, self.nonlinearity = float(negative_slope), nonlinearity

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        fan_in = _fans(shape)[0] if self.fan_in is None else float(self.fan_in)
        seed = self.seed or seed
        gain = calculate_gain(self.nonlinearity, self.negative_slope)
        # Squared first: for a rectifier this is exactly 2.
        squared = 2.0 if gain == math.sqrt(2.0) else gain * gain
        if self.uniform:
            limit = math.sqrt(3.0 * squared / fan_in)
            return _random("uniform_random", shape, seed, low=-limit, high=limit)
        return _random("gaussian_random", shape, seed, mean=0.0, std=math.sqrt(squared / fan_in))


class KaimingUniform(MSRAInitializer):
    """He, uniform."""

    def __init__(
        self, fan_in: Optional[float] = None, negative_slope: float = 0.0,
        nonlinearity: str = "relu",
    ) -> None:
        super().__init__(True, fan_in, 0, negative_slope, nonlinearity)


class KaimingNormal(MSRAInitializer):
    """He, Gaussian."""

    def __init__(
        self, fan_in: Optional[float] = None, negative_slope: float = 0.0,
        nonlinearity: str = "relu",
    ) -> None:
        super().__init__(False, fan_in, 0, negative_slope, nonlinearity)


class Assign(Initializer):
    """Given numbers."""

    def __init__(self, value: Any, name: Any = None) -> None:
        import numpy as np

        if hasattr(value, "numpy") and not isinstance(value, np.ndarray):
            value = value.numpy()
        self.value = np.array(value)
        if self.value.dtype.kind not in "fiub":
            raise TypeError(f"Assign: {type(value).__name__} holds no numbers")

    def _array(self, shape: Sequence[int]) -> Any:
        """The values in the shape of a parameter."""
        if list(self.value.shape) != list(shape) and self.value.size != math.prod(shape):
            raise ValueError(f"Assign: values of shape {list(self.value.shape)} for a parameter "
                             f"of shape {list(shape)}")
        return self.value.astype("float32").reshape(list(shape))

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        from ..tensor._common import array_op

        kind, attrs, _ = array_op(self._array(shape))
        return kind, attrs


class Orthogonal(Initializer):
    """Rows or columns that are at right angles to each other."""

    def __init__(self, gain: float = 1.0, name: Any = None) -> None:
        self.gain = float(gain)

    def _array(self, shape: Sequence[int]) -> Any:
        import numpy as np

        from ..tensor.random import generator

        if len(shape) < 2:
            raise ValueError(f"Orthogonal: a parameter of shape {list(shape)} has no rows")
        rows, columns = shape[0], math.prod(shape[1:])
        drawn = generator().standard_normal([max(rows, columns), min(rows, columns)])
        q, r = np.linalg.qr(drawn)
        q = q * np.sign(np.diagonal(r))
        return (self.gain * (q if rows >= columns else q.T)).reshape(list(shape)).astype("float32")

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        return Assign(self._array(shape))._init_op(shape, seed)


class Dirac(Initializer):
    """Filters that leave their input as it is."""

    def __init__(self, groups: int = 1, name: Any = None) -> None:
        self.groups = int(groups)

    def _array(self, shape: Sequence[int]) -> Any:
        import numpy as np

        if len(shape) not in (3, 4, 5) or shape[0] % self.groups:
            raise ValueError(f"Dirac: filters of shape {list(shape)} in {self.groups} groups")
        value = np.zeros(list(shape), "float32")
        each = shape[0] // self.groups
        middle = tuple(d // 2 for d in shape[2:])
        for group in range(self.groups):
            for i in range(min(each, shape[1])):
                value[(group * each + i, i) + middle] = 1.0
        return value

    def _init_op(self, shape: Sequence[int], seed: int) -> InitOp:
        return Assign(self._array(shape))._init_op(shape, seed)


ConstantInitializer = Constant
Xavier = XavierInitializer
MSRA = MSRAInitializer
NumpyArrayInitializer = Assign


def calculate_gain(nonlinearity: str, param: Any = None) -> float:
    """By how much a nonlinearity shrinks what passes it.

    >>> calculate_gain("tanh")
    1.6666666666666667
    """
    slope = 0.01 if param is None else float(param)
    gains: Dict[str, float] = {
        "sigmoid": 1.0, "linear": 1.0, "conv1d": 1.0, "conv2d": 1.0, "conv3d": 1.0,
        "conv1d_transpose": 1.0, "conv2d_transpose": 1.0, "conv3d_transpose": 1.0,
        "tanh": 5.0 / 3.0, "relu": math.sqrt(2.0), "selu": 0.75,
        "leaky_relu": math.sqrt(2.0 / (1.0 + slope * slope)),
    }
    if nonlinearity not in gains:
        raise ValueError(f"calculate_gain: {nonlinearity!r} is not one of {', '.join(gains)}")
    return gains[nonlinearity]


_global: List[Optional[Initializer]] = [None, None]


def set_global_initializer(weight_init: Any, bias_init: Any = None) -> None:
    """The initial values of parameters that are given none; None brings the defaults back."""
    for init in (weight_init, bias_init):
        if init is not None and not isinstance(init, Initializer):
            raise TypeError(f"set_global_initializer: {init!r} is not an initializer")
    _global[:] = [weight_init, bias_init]


def default_for(is_bias: bool, otherwise: Optional[Initializer] = None) -> Initializer:
    """The initial values of a parameter that is given none."""
    chosen = _global[1 if is_bias else 0]
    if chosen is not None:
        return chosen
    if otherwise is not None:
        return otherwise
    return Constant(0.0) if is_bias else XavierUniform()


__getattr__ = missing(__name__)
