"""Layers that normalise."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from ..framework import Variable
from .._missing import missing
from ..tensor._common import Namer, activate, check, constant, int_list, part_of, product
from . import functional as F
from .initializer import Constant
from .layers import Layer

__all__ = ["BatchNorm", "BatchNorm1D", "LayerNorm"]


class BatchNorm1D(Layer):
    """Normalises each channel of ``[n, channels]`` or ``[n, channels, length]`` over the batch;
    keeps running statistics for prediction."""

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCL",
        use_global_stats: Optional[bool] = None, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        if data_format not in ("NC", "NCL", "NLC"):
            raise ValueError(f"BatchNorm1D: data_format should be NC, NCL or NLC, but is "
                             f"{data_format!r}")
        self._num_features, self._momentum, self._epsilon = num_features, momentum, epsilon
        self._data_format, self._use_global_stats = data_format, use_global_stats
        self._name = name
        self.weight = self.create_parameter(
            [num_features], weight_attr, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)
        self.register_buffer("_mean", self._state(None, [num_features], 0.0))
        self.register_buffer("_variance", self._state(None, [num_features], 1.0))

    def forward(self, input: Variable) -> Variable:
        """``input`` with mean 0 and variance 1, scaled and shifted by what is learned."""
        x = check(input, "BatchNorm1D: input")
        if len(x.shape) not in (2, 3):
            raise ValueError(f"BatchNorm1D: '{x.name}' {list(x.shape)} should have 2 or 3 "
                             "dimensions")
        return F.batch_norm(
            x, self._mean, self._variance, self.weight, self.bias, self.training, self._momentum,
            self._epsilon, self._data_format, self._use_global_stats, self._name,
        )

    def extra_repr(self) -> str:
        return (f"num_features={self._num_features}, momentum={self._momentum}, "
                f"epsilon={self._epsilon}, data_format={self._data_format}")


class BatchNorm(Layer):
    """Batch normalization with an activation, of the dimension after the batch."""

    def __init__(
        self, num_channels: int, act: Optional[str] = None, is_test: bool = False,
        momentum: float = 0.9, epsilon: float = 1e-5, param_attr: Any = None,
        bias_attr: Any = None, dtype: Any = "float32", data_layout: str = "NCHW",
        in_place: bool = False, moving_mean_name: Optional[str] = None,
        moving_variance_name: Optional[str] = None,
        do_model_average_for_mean_and_var: bool = True, use_global_stats: bool = False,
        trainable_statistics: bool = False,
    ) -> None:
        super().__init__()
        self._act, self._is_test, self._use_global_stats = act, is_test, use_global_stats
        self._momentum, self._epsilon, self._data_layout = momentum, epsilon, data_layout
        self.weight = self.create_parameter(
            [num_channels], param_attr, dtype, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([num_channels], bias_attr, dtype, is_bias=True)
        self.register_buffer("_mean", self._state(moving_mean_name, [num_channels], 0.0))
        self.register_buffer("_variance", self._state(moving_variance_name, [num_channels], 1.0))

    def forward(self, input: Variable) -> Variable:
        """``input`` with mean 0 and variance 1, scaled and shifted by what is learned."""
        predicts = self._is_test or not self.training
        return batch_norm_with(
            check(input, "BatchNorm: input"), self._mean, self._variance, self.weight, self.bias,
            self._momentum, self._epsilon, predicts, self._use_global_stats, self._data_layout,
            self._act, Namer("batch_norm", self._full_name),
        )


def batch_norm_with(
    x: Variable, mean: Variable, variance: Variable, scale: Optional[Variable],
    bias: Optional[Variable], momentum: float, epsilon: float, is_test: bool, global_stats: bool,
    layout: str, act: Optional[str], namer: Namer,
) -> Variable:
    """Batch normalization whose results are named after the layer."""
    saved = [namer.tmp(), namer.tmp()]
    if not is_test:
        namer.skip()
    out = namer.tmp()
    width = list(mean.shape)
    if scale is None:
        scale = constant(1.0, "float32", part_of(out), width)
    if bias is None:
        bias = constant(0.0, "float32", part_of(out), width)
    made = F.batch_norm_op(
        x, mean, variance, scale, bias, momentum, epsilon, is_test or global_stats,
        layout[-1] == "C", saved + [out],
    )
    return activate(made, act, namer)


class LayerNorm(Layer):
    """Normalises each example over its last dimensions."""

    def __init__(
        self, normalized_shape: Union[int, Sequence[int]], epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._normalized_shape = int_list(normalized_shape, "LayerNorm: normalized_shape")
        self._epsilon, self._name = epsilon, name
        width = product(self._normalized_shape)
        self.weight = self.create_parameter(
            [width], weight_attr, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([width], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """``input`` with mean 0 and variance 1, scaled and shifted by what is learned."""
        return F.layer_norm(
            input, self._normalized_shape, self.weight, self.bias, self._epsilon, self._name
        )

    def extra_repr(self) -> str:
        return f"normalized_shape={self._normalized_shape}, epsilon={self._epsilon}"


__getattr__ = missing(__name__)
