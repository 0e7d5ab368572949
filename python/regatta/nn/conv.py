"""Layers of convolutions and pooling."""
from __future__ import annotations

from typing import Any, List, Optional

from .._missing import missing
from ..framework import Tensor, Variable
from ..tensor._common import product
from . import _conv as F
from ._conv import Size, sizes
from .initializer import Normal
from .layers import Layer

__all__ = [
    "AdaptiveAvgPool1D", "AdaptiveAvgPool2D", "AdaptiveMaxPool1D", "AdaptiveMaxPool2D",
    "AvgPool1D", "AvgPool2D", "Conv1D", "Conv1DTranspose", "Conv2D", "Conv2DTranspose",
    "MaxPool1D", "MaxPool2D",
]


class _Conv(Layer):
    """What convolutions share: filters, bias and their settings."""

    _dims = 2
    _transposed = False

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size, padding: Any,
        padding_mode: str, output_padding: Size, dilation: Size, groups: int, weight_attr: Any,
        bias_attr: Any, data_format: str,
    ) -> None:
        super().__init__()
        what = type(self).__name__
        if in_channels % groups or out_channels % groups:
            raise ValueError(f"{what}: {in_channels} and {out_channels} channels cannot be divided "
                             f"into {groups} groups")
        if padding_mode not in ("zeros", "reflect", "replicate", "circular"):
            raise ValueError(f"{what}: padding_mode {padding_mode!r}")
        self._in_channels, self._out_channels, self._groups = in_channels, out_channels, groups
        self._kernel_size = sizes(kernel_size, self._dims, f"{what}: kernel_size")
        self._stride, self._padding, self._dilation = stride, padding, dilation
        self._padding_mode, self._data_format = padding_mode, data_format
        self.output_padding = output_padding
        first, second = (in_channels, out_channels // groups)
        if not self._transposed:
            first, second = out_channels, in_channels // groups
        shape = [first, second] + self._kernel_size
        std = (2.0 / (product(self._kernel_size) * in_channels)) ** 0.5
        init = None if self._transposed else Normal(0.0, std)
        self.weight = self.create_parameter(shape, weight_attr, default_initializer=init)
        self.bias = self.create_parameter([out_channels], bias_attr, is_bias=True)

    def _edges(self) -> List[int]:
        """Elements before and after each dimension, the last dimension first."""
        pads = F.paddings(self._padding, [1] * self._dims, self._kernel_size, [1] * self._dims,
                          [1] * self._dims, type(self).__name__)
        pairs = [pads[2 * i:2 * i + 2] for i in range(self._dims)]
        return [n for pair in reversed(pairs) for n in pair]

    def _padded(self, x: Any) -> Any:
        """``x`` and the padding that is left to the op."""
        if self._padding_mode == "zeros":
            return x, self._padding
        from .functional import pad

        return pad(x, self._edges(), self._padding_mode, data_format=self._data_format), 0

    def extra_repr(self) -> str:
        text = f"{self._in_channels}, {self._out_channels}, kernel_size={self._kernel_size}"
        for name, value, usual in (
            ("stride", self._stride, 1), ("padding", self._padding, 0),
            ("dilation", self._dilation, 1), ("groups", self._groups, 1),
        ):
            if value != usual and value != [usual] * self._dims:
                text += f", {name}={value}"
        if self._padding_mode != "zeros":
            text += f", padding_mode={self._padding_mode}"
        return text + f", data_format={self._data_format}"


class Conv2D(_Conv):
    """Slides filters over images."""

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
        padding: Any = 0, dilation: Size = 1, groups: int = 1, padding_mode: str = "zeros",
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCHW",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, padding_mode, 0,
                         dilation, groups, weight_attr, bias_attr, data_format)
        self._fast: Any = None

    def forward(self, x: Variable) -> Variable:
        """The images that the filters make."""
        fast = self._fast
        if fast is not None and isinstance(x, Tensor):
            return F._convolve("conv2d", x, self.weight, self.bias, fast, "")
        given, padding = self._padded(x)
        if isinstance(x, Tensor) and self._padding_mode == "zeros":
            self._note_fast(padding)
        return F.conv2d(given, self.weight, self.bias, self._stride, padding, self._dilation,
                        self._groups, self._data_format)

    def _note_fast(self, padding: Any) -> None:
        """Keeps the attributes of the op where they do not follow from the image."""
        if isinstance(padding, str) or self._data_format != "NCHW":
            return
        strides, dilations = sizes(self._stride, 2, "stride"), sizes(self._dilation, 2, "dilation")
        self._fast = {
            "strides": strides,
            "paddings": F.paddings(padding, [1, 1], self._kernel_size, strides, dilations, ""),
            "dilations": dilations, "groups": int(self._groups),
        }


class Conv1D(_Conv):
    """Slides filters over sequences."""

    _dims = 1

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
        padding: Any = 0, dilation: Size = 1, groups: int = 1, padding_mode: str = "zeros",
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCL",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, padding_mode, 0,
                         dilation, groups, weight_attr, bias_attr, data_format)

    def forward(self, x: Variable) -> Variable:
        """The sequences that the filters make."""
        given, padding = self._padded(x)
        return F.conv1d(given, self.weight, self.bias, self._stride, padding, self._dilation,
                        self._groups, self._data_format)


class Conv2DTranspose(_Conv):
    """The transposed convolution."""

    _transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
        padding: Any = 0, output_padding: Size = 0, dilation: Size = 1, groups: int = 1,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCHW",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, "zeros",
                         output_padding, dilation, groups, weight_attr, bias_attr, data_format)

    def forward(self, x: Variable, output_size: Any = None) -> Variable:
        """The larger images."""
        return F.conv2d_transpose(
            x, self.weight, self.bias, self._stride, self._padding, self.output_padding,
            self._dilation, self._groups, output_size, self._data_format,
        )


class Conv1DTranspose(_Conv):
    """The transposed convolution over sequences."""

    _dims = 1
    _transposed = True

    def __init__(
        self, in_channels: int, out_channels: int, kernel_size: Size, stride: Size = 1,
        padding: Any = 0, output_padding: Size = 0, groups: int = 1, dilation: Size = 1,
        weight_attr: Any = None, bias_attr: Any = None, data_format: str = "NCL",
    ) -> None:
        super().__init__(in_channels, out_channels, kernel_size, stride, padding, "zeros",
                         output_padding, dilation, groups, weight_attr, bias_attr, data_format)

    def forward(self, x: Variable, output_size: Any = None) -> Variable:
        """The longer sequences."""
        return F.conv1d_transpose(
            x, self.weight, self.bias, self._stride, self._padding, self.output_padding,
            self._groups, self._dilation, output_size, self._data_format,
        )


# --- pooling -------------------------------------------------------------------------------------


class _Pool(Layer):
    """Windows and how they move."""

    def __init__(self, **settings: Any) -> None:
        super().__init__()
        self._settings = settings
        self.ksize = settings["kernel_size"]

    def extra_repr(self) -> str:
        kept = ("kernel_size", "stride", "padding")
        return ", ".join(f"{k}={self._settings[k]}" for k in kept)


class MaxPool2D(_Pool):
    """The largest element of windows."""

    def __init__(
        self, kernel_size: Size, stride: Any = None, padding: Any = 0, return_mask: bool = False,
        ceil_mode: bool = False, data_format: str = "NCHW", name: Optional[str] = None,
    ) -> None:
        super().__init__(kernel_size=kernel_size, stride=stride, padding=padding,
                         return_mask=return_mask, ceil_mode=ceil_mode, data_format=data_format,
                         name=name)

    def forward(self, x: Variable) -> Any:
        """The largest elements."""
        return F.max_pool2d(x, **self._settings)


class AvgPool2D(_Pool):
    """The mean of windows."""

    def __init__(
        self, kernel_size: Size, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        exclusive: bool = True, divisor_override: Optional[float] = None,
        data_format: str = "NCHW", name: Optional[str] = None,
    ) -> None:
        super().__init__(kernel_size=kernel_size, stride=stride, padding=padding,
                         ceil_mode=ceil_mode, exclusive=exclusive,
                         divisor_override=divisor_override, data_format=data_format, name=name)

    def forward(self, x: Variable) -> Variable:
        """The means."""
        return F.avg_pool2d(x, **self._settings)


class MaxPool1D(_Pool):
    """The largest element of windows over sequences."""

    def __init__(
        self, kernel_size: Size, stride: Any = None, padding: Any = 0, return_mask: bool = False,
        ceil_mode: bool = False, name: Optional[str] = None,
    ) -> None:
        super().__init__(kernel_size=kernel_size, stride=stride, padding=padding,
                         return_mask=return_mask, ceil_mode=ceil_mode, name=name)

    def forward(self, x: Variable) -> Any:
        """The largest elements."""
        return F.max_pool1d(x, **self._settings)


class AvgPool1D(_Pool):
    """The mean of windows over sequences."""

    def __init__(
        self, kernel_size: Size, stride: Any = None, padding: Any = 0, exclusive: bool = True,
        ceil_mode: bool = False, name: Optional[str] = None,
    ) -> None:
        super().__init__(kernel_size=kernel_size, stride=stride, padding=padding,
                         exclusive=exclusive, ceil_mode=ceil_mode, name=name)

    def forward(self, x: Variable) -> Variable:
        """The means."""
        return F.avg_pool1d(x, **self._settings)


class _AdaptivePool(Layer):
    """Pooling to a given size."""

    _function: Any = None

    def __init__(
        self, output_size: Any, return_mask: bool = False, name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._output_size, self._return_mask, self._name = output_size, return_mask, name

    def forward(self, x: Variable) -> Any:
        """The pooled elements."""
        return type(self)._function(x, self._output_size, self._return_mask, self._name)

    def extra_repr(self) -> str:
        return f"output_size={self._output_size}, return_mask={self._return_mask}"


class AdaptiveMaxPool2D(_AdaptivePool):
    """Largest elements of as many windows as the result has elements."""

    _function = staticmethod(F.adaptive_max_pool2d)


class AdaptiveMaxPool1D(_AdaptivePool):
    """Largest elements of as many windows of a sequence as the result has elements."""

    _function = staticmethod(F.adaptive_max_pool1d)


class AdaptiveAvgPool2D(Layer):
    """Means of as many windows as the result has elements."""

    def __init__(
        self, output_size: Any, data_format: str = "NCHW", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._output_size, self._data_format, self._name = output_size, data_format, name

    def forward(self, x: Variable) -> Variable:
        """The means."""
        return F.adaptive_avg_pool2d(x, self._output_size, self._data_format, self._name)

    def extra_repr(self) -> str:
        return f"output_size={self._output_size}"


class AdaptiveAvgPool1D(Layer):
    """Means of as many windows of a sequence as the result has elements."""

    def __init__(self, output_size: Any, name: Optional[str] = None) -> None:
        super().__init__()
        self._output_size, self._name = output_size, name

    def forward(self, x: Variable) -> Variable:
        """The means."""
        return F.adaptive_avg_pool1d(x, self._output_size, self._name)

    def extra_repr(self) -> str:
        return f"output_size={self._output_size}"


__getattr__ = missing(__name__)
