"""Layers that normalise."""
from __future__ import annotations

from typing import Any, Optional, Sequence, Union

from .._missing import missing
from ..framework import Variable
from ..tensor._common import activate, check, constant, int_list, namer_of, part_of, product
from . import functional as F
from .initializer import Constant
from .layers import Layer

__all__ = [
    "BatchNorm", "BatchNorm1D", "BatchNorm2D", "BatchNorm3D", "GroupNorm", "InstanceNorm1D",
    "InstanceNorm2D", "LayerNorm", "SyncBatchNorm",
]


class _BatchNormBase(Layer):
    """What batch normalizations share: weights, running statistics, settings."""

    _ranks: Sequence[int] = ()
    _formats: Sequence[str] = ()

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCHW",
        use_global_stats: Optional[bool] = None, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        if data_format not in self._formats:
            raise ValueError(f"{type(self).__name__}: data_format should be "
                             f"{', '.join(self._formats[:-1])} or {self._formats[-1]}, but is "
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
        x = check(input, f"{type(self).__name__}: input")
        if len(x.shape) not in self._ranks:
            ranks = " or ".join(str(r) for r in self._ranks)
            raise ValueError(f"{type(self).__name__}: '{x.name}' {list(x.shape)} should have "
                             f"{ranks} dimensions")
        return F.batch_norm(
            x, self._mean, self._variance, self.weight, self.bias, self.training, self._momentum,
            self._epsilon, self._data_format, self._use_global_stats, self._name,
        )

    def extra_repr(self) -> str:
        text = (f"num_features={self._num_features}, momentum={self._momentum}, "
                f"epsilon={self._epsilon}")
        return text if self._data_format == "NCHW" else f"{text}, data_format={self._data_format}"


class BatchNorm1D(_BatchNormBase):
    """Normalises each channel of ``[n, channels]`` or ``[n, channels, length]`` over the batch;
    keeps running statistics for prediction."""

    _ranks, _formats = (2, 3), ("NC", "NCL", "NLC")

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCL",
        use_global_stats: Optional[bool] = None, name: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format,
                         use_global_stats, name)


class BatchNorm2D(_BatchNormBase):
    """Normalises each channel of images over the batch; keeps running statistics."""

    _ranks, _formats = (4,), ("NCHW", "NHWC")


class BatchNorm3D(_BatchNormBase):
    """Normalises each channel of volumes over the batch; keeps running statistics."""

    _ranks, _formats = (5,), ("NCDHW", "NDHWC")

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCDHW",
        use_global_stats: Optional[bool] = None, name: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format,
                         use_global_stats, name)


class SyncBatchNorm(_BatchNormBase):
    """Batch normalization of any rank. In one process it is a batch normalization."""

    _ranks, _formats = (2, 3, 4, 5), ("NCHW", "NHWC", "NC", "NCL", "NLC", "NCDHW", "NDHWC")

    def __init__(
        self, num_features: int, momentum: float = 0.9, epsilon: float = 1e-5,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCHW",
        name: Optional[str] = None,
    ) -> None:
        super().__init__(num_features, momentum, epsilon, weight_attr, bias_attr, data_format,
                         None, name)

    @classmethod
    def convert_sync_batchnorm(cls, layer: Layer) -> Layer:
        """The layer with every batch normalization in it replaced by one of this class, with the
        same parameters."""
        if isinstance(layer, _BatchNormBase) and not isinstance(layer, SyncBatchNorm):
            made = cls(layer._num_features, layer._momentum, layer._epsilon, False, False,
                       layer._data_format, layer._name)
            made.weight, made.bias = layer.weight, layer.bias
            made._mean, made._variance = layer._mean, layer._variance
            return made
        for name, part in list(layer._sub_layers.items()):
            converted = cls.convert_sync_batchnorm(part)
            if converted is not part:
                layer.add_sublayer(name, converted)
        return layer


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
            self._act, namer_of(input, "batch_norm", self._full_name),
        )


def batch_norm_with(
    x: Variable, mean: Variable, variance: Variable, scale: Optional[Variable],
    bias: Optional[Variable], momentum: float, epsilon: float, is_test: bool, global_stats: bool,
    layout: str, act: Optional[str], namer: Any,
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


class GroupNorm(Layer):
    """Normalises groups of channels of each example."""

    def __init__(
        self, num_groups: int, num_channels: int, epsilon: float = 1e-5, weight_attr: Any = None,
        bias_attr: Any = None, data_format: str = "NCHW", name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._num_groups, self._num_channels, self._epsilon = num_groups, num_channels, epsilon
        self._data_format, self._name = data_format, name
        self.weight = self.create_parameter(
            [num_channels], weight_attr, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([num_channels], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """``input`` with mean 0 and variance 1, scaled and shifted by what is learned."""
        return F.group_norm(input, self._num_groups, self._epsilon, self.weight, self.bias,
                            self._data_format, self._name or self._full_name)

    def extra_repr(self) -> str:
        return (f"num_groups={self._num_groups}, num_channels={self._num_channels}, "
                f"epsilon={self._epsilon}")


class InstanceNorm2D(Layer):
    """Normalises each channel of each example."""

    def __init__(
        self, num_features: int, epsilon: float = 1e-5, momentum: float = 0.9,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCHW",
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._num_features, self._epsilon, self._name = num_features, epsilon, name
        self.scale = self.create_parameter(
            [num_features], weight_attr, default_initializer=Constant(1.0)
        )
        self.bias = self.create_parameter([num_features], bias_attr, is_bias=True)

    def forward(self, input: Variable) -> Variable:
        """``input`` with mean 0 and variance 1, scaled and shifted by what is learned."""
        return F.instance_norm(input, weight=self.scale, bias=self.bias, eps=self._epsilon,
                               name=self._name)

    def extra_repr(self) -> str:
        return f"num_features={self._num_features}, epsilon={self._epsilon}"


class InstanceNorm1D(InstanceNorm2D):
    """Normalises each channel of each sequence."""


__getattr__ = missing(__name__)
