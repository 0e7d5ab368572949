"""Transforms of images as objects. Random ones draw from Python's ``random``."""
from __future__ import annotations

import math
import random
from typing import Any, Callable, List, Optional, Sequence, Tuple, Union

from ..._missing import missing
from . import functional as F

__all__ = [
    "BaseTransform", "CenterCrop", "Compose", "Grayscale", "Normalize", "Pad", "RandomCrop",
    "RandomHorizontalFlip", "RandomResizedCrop", "RandomVerticalFlip", "Resize", "ToTensor",
    "Transpose",
]


class Compose:
    """Transforms one after the other."""

    def __init__(self, transforms: Sequence[Callable[[Any], Any]]) -> None:
        self.transforms = list(transforms)

    def __call__(self, data: Any) -> Any:
        for transform in self.transforms:
            try:
                data = transform(data)
            except Exception as error:
                name = getattr(transform, "__name__", type(transform).__name__)
                shape = getattr(data, "shape", None)
                what = f"an image of shape {list(shape)}" if shape is not None else repr(data)[:60]
                error.args = (f"{error} (in the transform {name}, on {what})", *error.args[1:])
                raise
        return data

    def __repr__(self) -> str:
        return "Compose([" + ", ".join(map(repr, self.transforms)) + "])"


class BaseTransform:
    """A transform. Subclasses define ``_apply_image``. Of a tuple, with ``keys`` such as
    ``("image", "label")``, fields called ``image`` are changed and others stay."""

    def __init__(self, keys: Optional[Sequence[str]] = None) -> None:
        self.keys = tuple(keys) if keys is not None else ("image",)
        self.params: Any = None

    def _get_params(self, inputs: Any) -> Any:
        """Random choices of one call, the same for all fields."""

    def _apply_image(self, image: Any) -> Any:
        raise NotImplementedError(f"{type(self).__name__} has no _apply_image")

    def __call__(self, inputs: Any) -> Any:
        if not isinstance(inputs, (list, tuple)):
            self.params = self._get_params((inputs,))
            return self._apply_image(inputs)
        self.params = self._get_params(inputs)
        out: List[Any] = []
        for at, value in enumerate(inputs):
            key = self.keys[at] if at < len(self.keys) else None
            apply = getattr(self, f"_apply_{key}", None) if key is not None else None
            out.append(apply(value) if apply is not None else value)
        return tuple(out)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


class ToTensor(BaseTransform):
    """:func:`regatta.vision.transforms.to_tensor`."""

    def __init__(self, data_format: str = "CHW", keys: Optional[Sequence[str]] = None) -> None:
        super().__init__(keys)
        self.data_format = data_format

    def _apply_image(self, image: Any) -> Any:
        return F.to_tensor(image, self.data_format)


class Normalize(BaseTransform):
    """``(image - mean) / std`` for each channel."""

    def __init__(
        self, mean: Union[float, Sequence[float]] = 0.0, std: Union[float, Sequence[float]] = 1.0,
        data_format: str = "CHW", to_rgb: bool = False, keys: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__(keys)
        self.mean = [mean] if isinstance(mean, (int, float)) else list(mean)
        self.std = [std] if isinstance(std, (int, float)) else list(std)
        self.data_format, self.to_rgb = data_format, to_rgb

    def _apply_image(self, image: Any) -> Any:
        return F.normalize(image, self.mean, self.std, self.data_format, self.to_rgb)


class Transpose(BaseTransform):
    """Dimensions in another order; by default channels first."""

    def __init__(
        self, order: Sequence[int] = (2, 0, 1), keys: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(keys)
        self.order = tuple(order)

    def _apply_image(self, image: Any) -> Any:
        if F.is_tensor(image):
            return image.transpose(list(self.order))
        array = F._array(image)
        return (array[..., None] if array.ndim == 2 else array).transpose(self.order)


class Resize(BaseTransform):
    """Another size: ``(height, width)``, or the length of the shorter side."""

    def __init__(
        self, size: F.Size, interpolation: str = "bilinear", keys: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(keys)
        self.size, self.interpolation = size, interpolation

    def _apply_image(self, image: Any) -> Any:
        return F.resize(image, self.size, self.interpolation)


class _RandomFlip(BaseTransform):
    def __init__(self, prob: float = 0.5, keys: Optional[Sequence[str]] = None) -> None:
        super().__init__(keys)
        if not 0 <= prob <= 1:
            raise ValueError(f"prob ({prob}) must be between 0 and 1")
        self.prob = prob

    def _get_params(self, inputs: Any) -> bool:
        return random.random() < self.prob


class RandomHorizontalFlip(_RandomFlip):
    """Exchanges left and right with a probability."""

    def _apply_image(self, image: Any) -> Any:
        return F.hflip(image) if self.params else image


class RandomVerticalFlip(_RandomFlip):
    """Exchanges top and bottom with a probability."""

    def _apply_image(self, image: Any) -> Any:
        return F.vflip(image) if self.params else image


class CenterCrop(BaseTransform):
    """The middle of an image."""

    def __init__(self, size: F.Size, keys: Optional[Sequence[str]] = None) -> None:
        super().__init__(keys)
        self.size = F.pair(size)

    def _apply_image(self, image: Any) -> Any:
        return F.center_crop(image, self.size)


class Pad(BaseTransform):
    """A border."""

    def __init__(
        self, padding: F.Size, fill: float = 0, padding_mode: str = "constant",
        keys: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__(keys)
        self.padding, self.fill, self.padding_mode = padding, fill, padding_mode

    def _apply_image(self, image: Any) -> Any:
        return F.pad(image, self.padding, self.fill, self.padding_mode)


class RandomCrop(BaseTransform):
    """A part of an image at a random position, after padding."""

    def __init__(
        self, size: F.Size, padding: Optional[F.Size] = None, pad_if_needed: bool = False,
        fill: float = 0, padding_mode: str = "constant", keys: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__(keys)
        self.size, self.padding, self.pad_if_needed = F.pair(size), padding, pad_if_needed
        self.fill, self.padding_mode = fill, padding_mode

    def _get_params(self, inputs: Any) -> Tuple[float, float]:
        return random.random(), random.random()

    def _apply_image(self, image: Any) -> Any:
        if self.padding is not None:
            image = F.pad(image, self.padding, self.fill, self.padding_mode)
        high, wide = self.size
        height, width = F.size_of(image)
        if self.pad_if_needed and (height < high or width < wide):
            more = (max(0, wide - width), max(0, high - height))
            image = F.pad(image, more, self.fill, self.padding_mode)
            height, width = F.size_of(image)
        if height < high or width < wide:
            raise ValueError(
                f"RandomCrop: {high} x {wide} does not fit into an image of {height} x {width}")
        top = int(self.params[0] * (height - high + 1))
        left = int(self.params[1] * (width - wide + 1))
        return F.crop(image, top, left, high, wide)


class RandomResizedCrop(BaseTransform):
    """A part of random area and aspect ratio, resized."""

    def __init__(
        self, size: F.Size, scale: Sequence[float] = (0.08, 1.0),
        ratio: Sequence[float] = (3 / 4, 4 / 3), interpolation: str = "bilinear",
        keys: Optional[Sequence[str]] = None,
    ) -> None:
        super().__init__(keys)
        self.size, self.interpolation = F.pair(size), interpolation
        self.scale, self.ratio = tuple(scale), tuple(ratio)

    def _get_params(self, inputs: Any) -> Tuple[int, int, int, int]:
        height, width = F.size_of(inputs[0])
        logs = [math.log(each) for each in self.ratio]
        for _ in range(10):
            area = height * width * random.uniform(*self.scale)
            ratio = math.exp(random.uniform(*logs))
            wide, high = int(round(math.sqrt(area * ratio))), int(round(math.sqrt(area / ratio)))
            if 0 < wide <= width and 0 < high <= height:
                return (random.randint(0, height - high), random.randint(0, width - wide), high,
                        wide)
        side = min(height, width)
        return (height - side) // 2, (width - side) // 2, side, side

    def _apply_image(self, image: Any) -> Any:
        return F.resize(F.crop(image, *self.params), self.size, self.interpolation)


class Grayscale(BaseTransform):
    """Brightness only."""

    def __init__(
        self, num_output_channels: int = 1, keys: Optional[Sequence[str]] = None
    ) -> None:
        super().__init__(keys)
        self.num_output_channels = num_output_channels

    def _apply_image(self, image: Any) -> Any:
        return F.to_grayscale(image, self.num_output_channels)


__getattr__ = missing(__name__)
