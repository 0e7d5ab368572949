"""Layers with and without parameters."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from .._missing import missing
from ..framework import Tensor, Variable
from ..tensor import manipulation
from ..tensor._common import _ERRORS, located
from . import functional as F
from .layers import Layer

__all__ = [
    "AlphaDropout", "Bilinear", "ChannelShuffle", "CosineSimilarity", "Dropout", "Dropout2D",
    "Embedding", "Flatten", "Identity", "Linear", "Pad1D", "Pad2D", "PairwiseDistance",
    "PixelShuffle", "Unflatten", "Upsample", "UpsamplingNearest2D", "ZeroPad2D",
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
        # Layers that derive from this one hand it to F.embedding, where -1 is the last row.
        self._padding_idx = None if padding_idx is None else padding
        self._padding = padding
        self.weight = self.create_parameter([num_embeddings, embedding_dim], weight_attr)
        if padding >= 0 and isinstance(self.weight, Tensor):
            value = self.weight.numpy()
            value[padding] = 0.0
            self.weight._set(value)

    def forward(self, x: Variable) -> Any:
        """The rows of the ids."""
        if isinstance(x, Tensor):
            return F.lookup(x, self.weight, self._padding, self._sparse, "")
        return F.embedding(x, self.weight, self._padding_idx, self._sparse, self._name)

    def extra_repr(self) -> str:
        text = f"{self._num_embeddings}, {self._embedding_dim}"
        if self._padding_idx is not None:
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


class Dropout2D(Layer):
    """Zeroes a share ``p`` of whole channels while training."""

    def __init__(
        self, p: float = 0.5, data_format: str = "NCHW", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self.p, self.data_format, self.name = p, data_format, name

    def forward(self, input: Variable) -> Variable:
        """Some of the channels while training, all of them otherwise."""
        return F.dropout2d(input, self.p, self.training, self.data_format, self.name)

    def extra_repr(self) -> str:
        return f"p={self.p}, data_format={self.data_format}"


class AlphaDropout(Layer):
    """Dropout that keeps mean and variance, for SELU."""

    def __init__(self, p: float = 0.5, name: Optional[str] = None) -> None:
        super().__init__()
        self.p, self.name = p, name

    def forward(self, input: Variable) -> Variable:
        """A part of ``input`` while training, all of it otherwise."""
        return F.alpha_dropout(input, self.p, self.training, self.name)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class _Pad(Layer):
    """Adds a border."""

    _dims = 2

    def __init__(
        self, padding: Any, mode: str = "constant", value: float = 0.0, data_format: str = "NCHW",
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._pad = [padding] * (2 * self._dims) if isinstance(padding, int) else list(padding)
        self._mode, self._value, self._data_format = mode, value, data_format
        self._name = name

    def forward(self, x: Variable) -> Variable:
        """``x`` with a border."""
        return F.pad(x, self._pad, self._mode, self._value, self._data_format, self._name)

    def extra_repr(self) -> str:
        return (f"padding={self._pad}, mode={self._mode}, value={self._value}, "
                f"data_format={self._data_format}")


class Pad2D(_Pad):
    """Adds a border to images: left, right, top, bottom."""


class ZeroPad2D(_Pad):
    """Adds a border of zeros to images."""

    def __init__(
        self, padding: Any, data_format: str = "NCHW", name: Optional[str] = None
    ) -> None:
        super().__init__(padding, "constant", 0.0, data_format, name)


class Pad1D(_Pad):
    """Adds elements before and after sequences."""

    _dims = 1

    def __init__(
        self, padding: Any, mode: str = "constant", value: float = 0.0, data_format: str = "NCL",
        name: Optional[str] = None,
    ) -> None:
        super().__init__(padding, mode, value, data_format, name)


class Upsample(Layer):
    """Larger images, by repeating elements."""

    def __init__(
        self, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
        align_corners: bool = False, align_mode: int = 0, data_format: str = "NCHW",
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self.size, self.scale_factor, self.mode = size, scale_factor, mode
        self.align_corners, self.align_mode = align_corners, align_mode
        self.data_format, self.name = data_format, name

    def forward(self, x: Variable) -> Variable:
        """The larger images."""
        return F.interpolate(x, self.size, self.scale_factor, self.mode, self.align_corners,
                             self.align_mode, self.data_format, self.name)

    def extra_repr(self) -> str:
        what = f"scale_factor={self.scale_factor}" if self.size is None else f"size={self.size}"
        return (f"{what}, mode={self.mode}, align_corners={self.align_corners}, "
                f"align_mode={self.align_mode}, data_format={self.data_format}")


class UpsamplingNearest2D(Upsample):
    """Larger images, by repeating elements."""

    def __init__(
        self, size: Any = None, scale_factor: Any = None, data_format: str = "NCHW",
        name: Optional[str] = None,
    ) -> None:
        super().__init__(size, scale_factor, "nearest", data_format=data_format, name=name)


class PixelShuffle(Layer):
    """Channels as pixels of a larger image."""

    def __init__(
        self, upscale_factor: int, data_format: str = "NCHW", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._upscale_factor, self._data_format = upscale_factor, data_format

    def forward(self, x: Variable) -> Variable:
        """The larger image."""
        return F.pixel_shuffle(x, self._upscale_factor, self._data_format)

    def extra_repr(self) -> str:
        return f"upscale_factor={self._upscale_factor}"


class ChannelShuffle(Layer):
    """Channels of groups in turn."""

    def __init__(
        self, groups: int, data_format: str = "NCHW", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._groups = groups

    def forward(self, x: Variable) -> Variable:
        """The channels in another order."""
        return F.channel_shuffle(x, self._groups)

    def extra_repr(self) -> str:
        return f"groups={self._groups}"


class Bilinear(Layer):
    """``x1 W x2 + b`` for each of the features of the result."""

    def __init__(
        self, in1_features: int, in2_features: int, out_features: int, weight_attr: Any = None,
        bias_attr: Any = None, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._sizes = (in1_features, in2_features, out_features)
        self.weight = self.create_parameter([out_features, in1_features, in2_features], weight_attr)
        self.bias = self.create_parameter([1, out_features], bias_attr, is_bias=True)

    def forward(self, x1: Variable, x2: Variable) -> Variable:
        """The features."""
        return F.bilinear(x1, x2, self.weight, self.bias)

    def extra_repr(self) -> str:
        first, second, out = self._sizes
        return f"in1_features={first}, in2_features={second}, out_features={out}"


class PairwiseDistance(Layer):
    """The distance of vectors."""

    def __init__(
        self, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False,
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self.p, self.epsilon, self.keepdim = p, epsilon, keepdim

    def forward(self, x: Variable, y: Variable) -> Variable:
        """The distances."""
        return F.pairwise_distance(x, y, self.p, self.epsilon, self.keepdim)

    def extra_repr(self) -> str:
        return f"p={self.p}"


class Unflatten(Layer):
    """Divides a dimension into several."""

    def __init__(self, axis: int, shape: Sequence[int], name: Optional[str] = None) -> None:
        super().__init__()
        self.axis, self.shape = axis, shape

    def forward(self, x: Variable) -> Variable:
        """``x`` with more dimensions."""
        at = self.axis + len(x.shape) if self.axis < 0 else self.axis
        dims = list(x.shape[:at]) + list(self.shape) + list(x.shape[at + 1:])
        return manipulation.reshape(x, dims)


__getattr__ = missing(__name__)
