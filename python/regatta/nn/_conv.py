"""Convolutions and pooling as functions, for tensors and variables."""
from __future__ import annotations

from typing import Any, Dict, List, Optional, Sequence, Tuple, Union

from ..framework import Tensor, Variable
from ..tensor._common import (
    _ERRORS, _PREPARED, check, int_list, located, namer_of, op, part_of, prepared, several,
    to_shape,
)

__all__ = [
    "adaptive_avg_pool1d", "adaptive_avg_pool2d", "adaptive_max_pool1d", "adaptive_max_pool2d",
    "avg_pool1d", "avg_pool2d", "conv1d", "conv1d_transpose", "conv2d", "conv2d_transpose",
    "max_pool1d", "max_pool2d",
]

Size = Union[int, Sequence[int]]


# --- sizes ---------------------------------------------------------------------------------------


def sizes(value: Any, count: int, what: str) -> List[int]:
    """One number for each of ``count`` dimensions."""
    given = int_list(value, what)
    given = given * count if len(given) == 1 else given
    if len(given) != count:
        raise ValueError(f"{what} should be one number or {count}, but is {value!r}")
    return given


def paddings(
    padding: Any, image: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], what: str,
) -> List[int]:
    """Numbers before and after each dimension: ``[top, bottom, left, right]``."""
    count = len(image)
    if isinstance(padding, str):
        return _named_padding(padding.upper(), image, kernel, strides, dilations, what)
    if isinstance(padding, (list, tuple)) and padding and isinstance(padding[0], (list, tuple)):
        pairs = [int_list(p, what) for p in padding]
        return [n for pair in pairs[-count:] for n in pair]
    given = int_list(padding, what)
    if len(given) == 1:
        return given * (2 * count)
    if len(given) == count:
        return [n for n in given for _ in range(2)]
    if len(given) == 2 * count:
        return given
    raise ValueError(f"{what}: padding {padding!r} for {count} dimensions")


def _named_padding(
    name: str, image: Sequence[int], kernel: Sequence[int], strides: Sequence[int],
    dilations: Sequence[int], what: str,
) -> List[int]:
    if name == "VALID":
        return [0] * (2 * len(image))
    if name != "SAME":
        raise ValueError(f"{what}: padding should be numbers, 'SAME' or 'VALID', but is {name!r}")
    out = []
    for size, k, s, _ in zip(image, kernel, strides, dilations):
        if size < 0:
            raise ValueError(f"{what}: padding 'SAME' of a dimension of unknown size")
        total = max((-(-size // s) - 1) * s + k - size, 0)
        out += [total // 2, total - total // 2]
    return out


def _channels_first(x: Any, data_format: str, out: str) -> Tuple[Any, bool]:
    """``x`` with the channels behind the batch, and whether that moved them."""
    if data_format in ("NCHW", "NCL"):
        return x, False
    if data_format not in ("NHWC", "NLC"):
        raise ValueError(f"data_format should be NCHW or NHWC (NCL or NLC), but is {data_format!r}")
    rank = len(x.shape)
    perm = [0, rank - 1] + list(range(1, rank - 1))
    return op("transpose", {"X": x}, part_of(out), {"perm": perm}), True


def _channels_last(x: Any, out: str) -> Any:
    rank = len(x.shape)
    perm = [0] + list(range(2, rank)) + [1]
    return op("transpose", {"X": x}, out, {"perm": perm})


def _tall(x: Any, out: str) -> Any:
    """``[n, c, length]`` as an image of height 1."""
    n, c, length = x.shape
    return to_shape(x, [n, c, 1, length], part_of(out))


def _flat(x: Any, out: str) -> Any:
    n, c, _, length = x.shape
    return to_shape(x, [n, c, length], out)


# --- convolutions --------------------------------------------------------------------------------


def _hashable(attrs: Dict[str, Any]) -> List[Any]:
    return [tuple(v) if isinstance(v, list) else v for v in attrs.values()]


def _convolve(
    kind: str, x: Any, weight: Any, bias: Any, attrs: Dict[str, Any], out: str
) -> Any:
    inputs = {"X": x, "W": weight, "Bias": bias}
    if isinstance(x, Tensor):
        key = (kind, bias is None, *_hashable(attrs))
        made = _PREPARED.get(key)
        if made is None:
            slots = ("X", "W") if bias is None else ("X", "W", "Bias")
            made = prepared(key, kind, slots, attrs)
        try:
            return made(x, weight) if bias is None else made(x, weight, bias)
        except _ERRORS as error:
            raise located(error) from None
    return op(kind, inputs, out, attrs)


def conv2d(
    x: Variable, weight: Variable, bias: Optional[Variable] = None, stride: Size = 1,
    padding: Any = 0, dilation: Size = 1, groups: int = 1, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Variable:
    """Slides filters ``[out, in / groups, height, width]`` over images."""
    x = check(x, "conv2d: x")
    namer = namer_of(x, "conv2d", name)
    out = namer.tmp()
    image, turned = _channels_first(x, data_format, out)
    strides, dilations = sizes(stride, 2, "conv2d: stride"), sizes(dilation, 2, "conv2d: dilation")
    attrs = {
        "strides": strides,
        "paddings": paddings(padding, image.shape[2:], weight.shape[2:], strides, dilations,
                             "conv2d"),
        "dilations": dilations, "groups": int(groups),
    }
    if bias is not None:
        out = namer.tmp()
    made = _convolve("conv2d", image, weight, bias, attrs, part_of(out) if turned else out)
    return _channels_last(made, out) if turned else made


def conv1d(
    x: Variable, weight: Variable, bias: Optional[Variable] = None, stride: Size = 1,
    padding: Any = 0, dilation: Size = 1, groups: int = 1, data_format: str = "NCL",
    name: Optional[str] = None,
) -> Variable:
    """Slides filters ``[out, in / groups, width]`` over sequences."""
    x = check(x, "conv1d: x")
    out = namer_of(x, "squeeze", name).tmp()
    line, turned = _channels_first(x, data_format, out)
    strides, dilations = sizes(stride, 1, "conv1d: stride"), sizes(dilation, 1, "conv1d: dilation")
    kernel = list(weight.shape)
    pads = paddings(padding, line.shape[2:], kernel[2:], strides, dilations, "conv1d")
    attrs = {
        "strides": [1] + strides, "paddings": [0, 0] + pads, "dilations": [1] + dilations,
        "groups": int(groups),
    }
    wide = to_shape(weight, kernel[:2] + [1] + kernel[2:], part_of(out))
    made = _convolve("conv2d", _tall(line, out), wide, bias, attrs, part_of(out))
    made = _flat(made, part_of(out) if turned else out)
    return _channels_last(made, out) if turned else made


def _more_at_the_end(
    output_size: Any, output_padding: Any, image: Sequence[int], kernel: Sequence[int],
    strides: Sequence[int], pads: Sequence[int], dilations: Sequence[int], what: str,
) -> List[int]:
    """What the result of a transposed convolution has beyond its smallest size."""
    count = len(image)
    if output_size is None:
        return sizes(output_padding, count, f"{what}: output_padding")
    wanted = sizes(output_size, count, f"{what}: output_size")
    more = []
    for i in range(count):
        least = (image[i] - 1) * strides[i] - pads[2 * i] - pads[2 * i + 1]
        least += dilations[i] * (kernel[i] - 1) + 1
        if not 0 <= wanted[i] - least < max(strides[i], dilations[i]):
            raise ValueError(f"{what}: output_size {wanted[i]} of dimension {i} should be in "
                             f"[{least}, {least + strides[i]})")
        more.append(wanted[i] - least)
    return more


def conv2d_transpose(
    x: Variable, weight: Variable, bias: Optional[Variable] = None, stride: Size = 1,
    padding: Any = 0, output_padding: Size = 0, dilation: Size = 1, groups: int = 1,
    output_size: Any = None, data_format: str = "NCHW", name: Optional[str] = None,
) -> Variable:
    """The transposed convolution; filters are ``[in, out / groups, height, width]``."""
    x = check(x, "conv2d_transpose: x")
    namer = namer_of(x, "conv2d_transpose", name)
    out = namer.tmp()
    image, turned = _channels_first(x, data_format, out)
    what = "conv2d_transpose"
    strides = sizes(stride, 2, f"{what}: stride")
    dilations = sizes(dilation, 2, f"{what}: dilation")
    pads = paddings(padding, image.shape[2:], weight.shape[2:], strides, dilations, what)
    attrs = {
        "strides": strides, "paddings": pads, "dilations": dilations, "groups": int(groups),
        "output_padding": _more_at_the_end(output_size, output_padding, image.shape[2:],
                                           weight.shape[2:], strides, pads, dilations, what),
    }
    if bias is not None:
        out = namer.tmp()
    made = _convolve(what, image, weight, bias, attrs, part_of(out) if turned else out)
    return _channels_last(made, out) if turned else made


def conv1d_transpose(
    x: Variable, weight: Variable, bias: Optional[Variable] = None, stride: Size = 1,
    padding: Any = 0, output_padding: Size = 0, groups: int = 1, dilation: Size = 1,
    output_size: Any = None, data_format: str = "NCL", name: Optional[str] = None,
) -> Variable:
    """The transposed convolution over sequences; filters are ``[in, out / groups, width]``."""
    what = "conv1d_transpose"
    x = check(x, f"{what}: x")
    out = namer_of(x, "squeeze", name).tmp()
    line, turned = _channels_first(x, data_format, out)
    strides = sizes(stride, 1, f"{what}: stride")
    dilations = sizes(dilation, 1, f"{what}: dilation")
    kernel = list(weight.shape)
    pads = paddings(padding, line.shape[2:], kernel[2:], strides, dilations, what)
    more = _more_at_the_end(output_size, output_padding, line.shape[2:], kernel[2:], strides, pads,
                            dilations, what)
    attrs = {
        "strides": [1] + strides, "paddings": [0, 0] + pads, "dilations": [1] + dilations,
        "groups": int(groups), "output_padding": [0] + more,
    }
    wide = to_shape(weight, kernel[:2] + [1] + kernel[2:], part_of(out))
    made = _convolve("conv2d_transpose", _tall(line, out), wide, bias, attrs, part_of(out))
    made = _flat(made, part_of(out) if turned else out)
    return _channels_last(made, out) if turned else made


# --- pooling -------------------------------------------------------------------------------------


def _pooled(x: Any, attrs: Dict[str, Any], out: str) -> Any:
    if isinstance(x, Tensor):
        key = ("pool2d", *_hashable(attrs))
        made = _PREPARED.get(key) or prepared(key, "pool2d", ("X",), attrs)
        try:
            return made(x)
        except _ERRORS as error:
            raise located(error) from None
    return op("pool2d", {"X": x}, out, attrs)


def _pool(
    x: Any, word: str, dims: int, attrs: Dict[str, Any], data_format: str, mask: bool, namer: Any
) -> Any:
    """Pooling over ``dims`` dimensions, with the positions of the largest elements if wanted."""
    out = namer.tmp()
    first, turned = _channels_first(x, data_format, out)
    image = _tall(first, out) if dims == 1 else first
    plain = dims == 2 and not turned
    if mask:
        given = {k: v for k, v in attrs.items() if k not in ("pooling_type", "exclusive")}
        names = {"Out": out if plain else part_of(out), "Mask": namer.tmp()}
        found = several("max_pool2d_with_index", {"X": image}, names, given)[:2]
        if isinstance(found[1], Tensor):
            found[1] = found[1]._as("int32")
    else:
        found = [_pooled(image, attrs, out if plain else part_of(out))]
    if dims == 1:
        found = [_flat(v, part_of(out) if turned else out) for v in found]
        out = namer.tmp() if mask else out
    if turned:
        found = [_channels_last(v, out) for v in found]
    return tuple(found) if mask else found[0]


def _window(
    x: Any, dims: int, kind: str, kernel_size: Size, stride: Any, padding: Any, ceil_mode: bool,
    exclusive: bool, data_format: str, what: str,
) -> Dict[str, Any]:
    kernel = sizes(kernel_size, dims, f"{what}: kernel_size")
    strides = kernel if stride is None else sizes(stride, dims, f"{what}: stride")
    space = x.shape[2:] if data_format in ("NCHW", "NCL") else x.shape[1:-1]
    pads = paddings(padding, space, kernel, strides, [1] * dims, what)
    if dims == 1:
        kernel, strides, pads = [1] + kernel, [1] + strides, [0, 0] + pads
    return {
        "pooling_type": kind, "ksize": kernel, "strides": strides, "paddings": pads,
        "ceil_mode": bool(ceil_mode), "exclusive": bool(exclusive),
    }


def max_pool2d(
    x: Variable, kernel_size: Size, stride: Any = None, padding: Any = 0,
    return_mask: bool = False, ceil_mode: bool = False, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Any:
    """The largest element of windows; with ``return_mask`` also its position in the image."""
    x = check(x, "max_pool2d: x")
    attrs = _window(x, 2, "max", kernel_size, stride, padding, ceil_mode, True, data_format,
                    "max_pool2d")
    return _pool(x, "max", 2, attrs, data_format, return_mask, namer_of(x, "pool2d", name))


def avg_pool2d(
    x: Variable, kernel_size: Size, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
    exclusive: bool = True, divisor_override: Optional[float] = None, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Variable:
    """The mean of windows."""
    x = check(x, "avg_pool2d: x")
    exclusive = exclusive and divisor_override is None
    attrs = _window(x, 2, "avg", kernel_size, stride, padding, ceil_mode, exclusive, data_format,
                    "avg_pool2d")
    made = _pool(x, "avg", 2, attrs, data_format, False, namer_of(x, "pool2d", name))
    if divisor_override is None:
        return made
    window = attrs["ksize"][0] * attrs["ksize"][1]
    return made * (window / float(divisor_override))


def max_pool1d(
    x: Variable, kernel_size: Size, stride: Any = None, padding: Any = 0,
    return_mask: bool = False, ceil_mode: bool = False, name: Optional[str] = None,
) -> Any:
    """The largest element of windows over sequences."""
    x = check(x, "max_pool1d: x")
    attrs = _window(x, 1, "max", kernel_size, stride, padding, ceil_mode, True, "NCL",
                    "max_pool1d")
    return _pool(x, "max", 1, attrs, "NCL", return_mask, namer_of(x, "squeeze", name))


def avg_pool1d(
    x: Variable, kernel_size: Size, stride: Any = None, padding: Any = 0, exclusive: bool = True,
    ceil_mode: bool = False, name: Optional[str] = None,
) -> Variable:
    """The mean of windows over sequences."""
    x = check(x, "avg_pool1d: x")
    attrs = _window(x, 1, "avg", kernel_size, stride, padding, ceil_mode, exclusive, "NCL",
                    "avg_pool1d")
    return _pool(x, "avg", 1, attrs, "NCL", False, namer_of(x, "squeeze", name))


def _adaptive(
    x: Any, dims: int, kind: str, output_size: Any, mask: bool, data_format: str,
    name: Optional[str], what: str,
) -> Any:
    x = check(x, f"{what}: x")
    given = list(output_size) if isinstance(output_size, (list, tuple)) else [output_size]
    given = given * dims if len(given) == 1 else given
    space = x.shape[2:] if data_format in ("NCHW", "NCL") else x.shape[1:-1]
    wanted = [space[i] if n is None else int(n) for i, n in enumerate(given)]
    attrs = {
        "pooling_type": kind, "ksize": [1] + wanted if dims == 1 else wanted, "adaptive": True,
    }
    word = "squeeze" if dims == 1 else "pool2d"
    return _pool(x, kind, dims, attrs, data_format, mask, namer_of(x, word, name))


def adaptive_avg_pool2d(
    x: Variable, output_size: Any, data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """Means of as many windows as the result has elements."""
    return _adaptive(x, 2, "avg", output_size, False, data_format, name, "adaptive_avg_pool2d")


def adaptive_max_pool2d(
    x: Variable, output_size: Any, return_mask: bool = False, name: Optional[str] = None
) -> Any:
    """Largest elements of as many windows as the result has elements."""
    return _adaptive(x, 2, "max", output_size, return_mask, "NCHW", name, "adaptive_max_pool2d")


def adaptive_avg_pool1d(x: Variable, output_size: Any, name: Optional[str] = None) -> Variable:
    """Means of as many windows of a sequence as the result has elements."""
    return _adaptive(x, 1, "avg", output_size, False, "NCL", name, "adaptive_avg_pool1d")


def adaptive_max_pool1d(
    x: Variable, output_size: Any, return_mask: bool = False, name: Optional[str] = None
) -> Any:
    """Largest elements of as many windows of a sequence as the result has elements."""
    return _adaptive(x, 1, "max", output_size, return_mask, "NCL", name, "adaptive_max_pool1d")
