"""Functions on images: arrays of height, width and channels, or Tensors with channels first."""
from __future__ import annotations

from typing import Any, Callable, List, Sequence, Tuple, Union

from ..._files import is_tensor
from ..._missing import missing

__all__ = [
    "center_crop", "crop", "hflip", "normalize", "pad", "resize", "to_grayscale", "to_tensor",
    "vflip",
]

Size = Union[int, Sequence[int]]


def _array(image: Any) -> Any:
    import numpy as np

    return image.numpy() if is_tensor(image) else np.asarray(image)


def _on_pixels(image: Any, change: Callable[[Any], Any]) -> Any:
    """Applies a function of arrays of height, width and channels to an image of either kind."""
    if not is_tensor(image):
        array = _array(image)
        if array.ndim not in (2, 3):
            raise ValueError(
                f"an image has 2 or 3 dimensions, but this array has the shape {array.shape}")
        return change(array)
    from ...tensor import to_tensor as make

    array = image.numpy()
    if array.ndim == 3:
        return make(change(array.transpose(1, 2, 0)).transpose(2, 0, 1).copy())
    return make(change(array))


def _in_a_worker() -> bool:
    from ...io.worker import _here

    return getattr(_here, "info", None) is not None


def to_tensor(pic: Any, data_format: str = "CHW") -> Any:
    """An image as a Tensor of floats with channels first; bytes become numbers from 0 to 1. In a
    worker process of a loader it is an array, of which the loader makes a Tensor."""
    import numpy as np

    if data_format not in ("CHW", "HWC"):
        raise ValueError(f"to_tensor: data_format should be CHW or HWC, but is {data_format!r}")
    array = _array(pic)
    if array.ndim == 2:
        array = array[:, :, None]
    if array.ndim != 3:
        raise ValueError(f"to_tensor: an image has 2 or 3 dimensions, not {array.ndim}")
    if data_format == "CHW":
        array = array.transpose(2, 0, 1)
    is_bytes = array.dtype == np.uint8
    array = np.ascontiguousarray(array, "float32")
    if is_bytes:
        array /= 255.0
    from ..._mode import in_dynamic_mode

    if _in_a_worker() or not in_dynamic_mode():
        return array
    from ...tensor import to_tensor as make

    return make(array)


def normalize(
    img: Any, mean: Union[float, Sequence[float]], std: Union[float, Sequence[float]],
    data_format: str = "CHW", to_rgb: bool = False,
) -> Any:
    """``(img - mean) / std`` for each channel."""
    import numpy as np

    if data_format not in ("CHW", "HWC"):
        raise ValueError(f"normalize: data_format should be CHW or HWC, but is {data_format!r}")
    array = _array(img).astype("float32")
    if to_rgb:
        array = array[::-1] if data_format == "CHW" else array[..., ::-1]
    shape = (-1, 1, 1) if data_format == "CHW" else (1, 1, -1)
    centre = np.asarray(mean, "float32").reshape(shape)
    spread = np.asarray(std, "float32").reshape(shape)
    if (spread == 0).any():
        raise ValueError(f"normalize: std ({std}) must not be 0")
    out = (array - centre) / spread
    if not is_tensor(img):
        return out
    from ...tensor import to_tensor as make

    return make(out)


def _target(size: Size, height: int, width: int) -> Tuple[int, int]:
    if not isinstance(size, int):
        high, wide = size
        return int(high), int(wide)
    # The shorter side gets the size.
    if height < width:
        return size, int(size * width / height)
    return int(size * height / width), size


def _positions(n: int, target: int) -> Any:
    """Where the centres of the new pixels are among the old ones."""
    import numpy as np

    return np.clip((np.arange(target) + 0.5) * n / target - 0.5, 0, n - 1)


def _bilinear(array: Any, height: int, width: int) -> Any:
    import numpy as np

    values = array.astype("float32")
    for axis, target in ((0, height), (1, width)):
        at = _positions(values.shape[axis], target)
        low = np.floor(at).astype(int)
        high = np.minimum(low + 1, values.shape[axis] - 1)
        share = (at - low).astype("float32")
        share = share.reshape([-1 if d == axis else 1 for d in range(values.ndim)])
        values = values.take(low, axis) * (1 - share) + values.take(high, axis) * share
    if array.dtype.kind in "iu":
        values = np.rint(values)
    return values.astype(array.dtype)


def _nearest(array: Any, height: int, width: int) -> Any:
    import numpy as np

    rows = np.arange(height) * array.shape[0] // height
    columns = np.arange(width) * array.shape[1] // width
    return array[rows][:, columns]


def resize(img: Any, size: Size, interpolation: str = "bilinear") -> Any:
    """An image of another size: ``(height, width)``, or the length of the shorter side."""
    methods = {"bilinear": _bilinear, "nearest": _nearest}
    if interpolation not in methods:
        raise NotImplementedError(
            f"resize: interpolation '{interpolation}' is not in Regatta, only "
            f"{' and '.join(methods)}")

    def change(array: Any) -> Any:
        height, width = _target(size, *array.shape[:2])
        if (height, width) == array.shape[:2]:
            return array
        return methods[interpolation](array, height, width)

    return _on_pixels(img, change)


def hflip(img: Any) -> Any:
    """Left and right exchanged."""
    return _on_pixels(img, lambda array: array[:, ::-1].copy())


def vflip(img: Any) -> Any:
    """Top and bottom exchanged."""
    return _on_pixels(img, lambda array: array[::-1].copy())


def crop(img: Any, top: int, left: int, height: int, width: int) -> Any:
    """A part of an image."""
    def change(array: Any) -> Any:
        if top < 0 or left < 0 or top + height > array.shape[0] or left + width > array.shape[1]:
            raise ValueError(
                f"crop: {height} x {width} at ({top}, {left}) does not fit into an image of "
                f"{array.shape[0]} x {array.shape[1]}")
        return array[top:top + height, left:left + width]

    return _on_pixels(img, change)


def center_crop(img: Any, output_size: Size) -> Any:
    """The middle of an image."""
    high, wide = pair(output_size)
    height, width = size_of(img)
    return crop(img, int(round((height - high) / 2)), int(round((width - wide) / 2)), high, wide)


def pad(img: Any, padding: Size, fill: float = 0, padding_mode: str = "constant") -> Any:
    """An image with a border: one width, ``(left and right, top and bottom)``, or
    ``(left, top, right, bottom)``."""
    import numpy as np

    modes = ("constant", "edge", "reflect", "symmetric")
    if padding_mode not in modes:
        raise ValueError(f"pad: padding_mode should be one of {modes}, but is {padding_mode!r}")
    left, top, right, bottom = _borders(padding)

    def change(array: Any) -> Any:
        widths = [(top, bottom), (left, right)] + [(0, 0)] * (array.ndim - 2)
        more: Any = {"constant_values": fill} if padding_mode == "constant" else {}
        return np.pad(array, widths, mode=padding_mode, **more)  # type: ignore[call-overload]

    return _on_pixels(img, change)


def _borders(padding: Size) -> List[int]:
    if isinstance(padding, int):
        return [padding] * 4
    given = [int(each) for each in padding]
    if len(given) == 2:
        return given * 2
    if len(given) != 4:
        raise ValueError(f"pad: padding has {len(given)} numbers; expected 1, 2 or 4")
    return given


def to_grayscale(img: Any, num_output_channels: int = 1) -> Any:
    """Brightness, with the weights of ITU-R 601; one channel or three equal ones."""
    import numpy as np

    def change(array: Any) -> Any:
        if array.ndim == 3 and array.shape[2] == 3:
            values = array.astype("float32") @ np.array([0.299, 0.587, 0.114], "float32")
            array = (np.rint(values) if array.dtype.kind in "iu" else values).astype(array.dtype)
        array = array.reshape(*array.shape[:2], 1)
        return np.repeat(array, num_output_channels, axis=2)

    return _on_pixels(img, change)


def size_of(img: Any) -> Tuple[int, int]:
    """Height and width."""
    shape = list(_array(img).shape)
    return (shape[-2], shape[-1]) if is_tensor(img) else (shape[0], shape[1])


def pair(size: Size) -> Tuple[int, int]:
    """Height and width of what users write for a size."""
    if isinstance(size, int):
        return size, size
    high, wide = size
    return int(high), int(wide)


__getattr__ = missing(__name__)
