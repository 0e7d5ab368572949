"""Functions that layers are made of: activations, convolutions, lookups, normalization, losses."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable, current_seed
from ..tensor import linalg, manipulation, math
from ..tensor._common import (
    _ERRORS, _PREPARED, axes_of, cast_to, check, constant, filled, fresh, int_list, is_integer,
    located, namer_of, op, part_of, prepared, product, run, several, to_shape,
)
from ..tensor.math import combine
from . import _activations, _conv, _images, _losses
from ._activations import *  # noqa: F401,F403
from ._activations import softmax
from ._conv import *  # noqa: F401,F403
from ._images import *  # noqa: F401,F403
from ._losses import *  # noqa: F401,F403

__all__ = sorted(_activations.__all__ + _conv.__all__ + _images.__all__ + _losses.__all__ + [
    "alpha_dropout", "batch_norm", "bilinear", "cosine_similarity", "diag_embed", "dropout",
    "dropout2d", "embedding", "group_norm", "instance_norm", "layer_norm", "linear", "normalize",
    "one_hot", "pairwise_distance", "scaled_dot_product_attention", "sequence_mask",
])


def dropout_seed(name: str, seed: Optional[int] = None) -> int:
    """The seed of a dropout: given, or made of that of the program and the name of the result, so
    that layers differ."""
    if seed:
        return int(seed)
    import zlib

    return (zlib.crc32(name.encode()) ^ (current_seed() * 0x9E3779B1)) & 0x7FFFFFFF


def dropout(
    x: Variable, p: float = 0.5, axis: Any = None, training: bool = True,
    mode: str = "upscale_in_train", name: Optional[str] = None, seed: Optional[int] = None,
) -> Variable:
    """Zeroes a share ``p`` of the elements while training. The others are scaled up by
    ``1 / (1 - p)``; with the mode 'downscale_in_infer' all are scaled down by ``1 - p`` when
    predicting instead."""
    if not isinstance(p, (int, float)) or not 0 <= p <= 1:
        raise ValueError(f"dropout: p should be in [0, 1], but is {p!r}")
    if mode == "downgrade_in_infer":
        mode = "downscale_in_infer"
    if mode not in ("upscale_in_train", "downscale_in_infer"):
        raise ValueError(f"dropout: the mode should be 'upscale_in_train' or 'downscale_in_infer', "
                         f"but is {mode!r}")
    x = check(x, "dropout: x")
    if p == 0:
        return x
    if isinstance(x, Tensor):
        return _eager_dropout(x, float(p), axis, bool(training), mode)
    if axis is not None and axes_of(axis, len(x.shape), "dropout") != list(range(len(x.shape))):
        raise NotImplementedError("dropout of whole rows or columns (axis): every element is "
                                  "dropped by itself")
    namer = namer_of(x, "dropout", name)
    out, mask = namer.tmp(), namer.tmp()
    if p == 1:
        if training:
            return op("scale", {"X": x}, out, {"scale": 0.0})
        return op("scale", {"X": x}, out, {"scale": 1.0 if mode == "upscale_in_train" else 0.0})
    scaled = mode == "downscale_in_infer"
    to = part_of(out) if scaled else out
    attrs = {"prob": float(p), "seed": dropout_seed(out, seed), "is_test": not training}
    made = several("dropout", {"X": x}, {"Out": to, "Mask": mask}, attrs)[0]
    return op("scale", {"X": made}, out, {"scale": 1.0 - p}) if scaled else made


def _eager_dropout(x: Tensor, p: float, axis: Any, training: bool, mode: str) -> Tensor:
    upscaled = mode == "upscale_in_train"
    if not training:
        return x if upscaled else x * (1.0 - p)
    if p == 1.0:
        return x * 0.0
    if axis is not None:
        kept = axes_of(axis, x.ndim, "dropout")
        dims = [d if i in kept else 1 for i, d in enumerate(x.shape)]
        return x * _eager_dropout(manipulation.reshape(_ones(dims), dims), p, None, True, mode)
    key = ("dropout", p)
    made = _PREPARED.get(key) or prepared(key, "dropout", ("X",), {"prob": p})
    out = made(x)[0]
    return out if upscaled else out * (1.0 - p)


def _ones(dims: Sequence[int]) -> Tensor:
    return run("fill_constant", {}, {"shape": list(dims), "value": 1.0})


_FC = _core.Op("fc", ("X", "W", "Bias"), {})
_FC_PLAIN = _core.Op("fc", ("X", "W"), {})


def linear(
    x: Variable, weight: Variable, bias: Optional[Variable] = None, name: Optional[str] = None
) -> Variable:
    """``x @ weight + bias`` over the last dimension."""
    if isinstance(x, Tensor) and isinstance(weight, Tensor):
        try:
            if bias is None:
                return _FC_PLAIN(x, weight)
            return _FC(x, weight, bias)
        except _ERRORS as error:
            return _other_linear(x, weight, bias, error)
    namer = namer_of(x, "linear", name)
    x, weight = check(x, "linear: x"), check(weight, "linear: weight")
    out = namer.tmp()
    if bias is None:
        return op("fc", {"X": x, "W": weight}, out)
    if list(bias.shape) != [weight.shape[-1]]:
        made = op("fc", {"X": x, "W": weight}, out)
        return combine("elementwise_add", made, bias, namer.tmp())
    return op("fc", {"X": x, "W": weight, "Bias": bias}, namer.tmp())


def _other_linear(x: Tensor, weight: Tensor, bias: Any, error: Exception) -> Any:
    """A bias of another shape; otherwise the error."""
    if bias is not None and bias.shape != weight.shape[-1:]:
        try:
            return _FC_PLAIN(x, weight) + bias
        except _ERRORS as other:
            error = other
    raise located(error) from None


def padding_row(padding_idx: Optional[int], rows: int, what: str) -> int:
    """The attribute of the op: an id, or -1 for none."""
    if padding_idx is None:
        return -1
    if not -rows <= padding_idx < rows:
        raise ValueError(f"{what}: padding_idx {padding_idx} is not in [-{rows}, {rows})")
    return padding_idx + rows if padding_idx < 0 else int(padding_idx)


class Vectors:
    """The vectors of ids of which every example has any number. They have to be pooled to one
    vector per example, by ``sequence_pool``."""

    def __init__(self, ids: Variable, table: Variable, attrs: Any, name: str) -> None:
        self.ids, self.table, self.attrs, self.name = ids, table, attrs, name
        self.stop_gradient = False

    @property
    def shape(self) -> Tuple[int, int]:
        """Vectors, and floats per vector."""
        return (-1, self.table.shape[1])

    def pool(self, kind: str, out: str) -> Variable:
        """One vector per example: 'sum', 'mean', 'max' or 'sqrtn' of its vectors."""
        inputs = {"W": self.table, "Ids": [self.ids]}
        made = op("embedding", inputs, part_of(out), {**self.attrs, "pool": kind})
        if self.stop_gradient:
            made.stop_gradient = True
        return to_shape(made, [-1, self.table.shape[1]], out)

    def __repr__(self) -> str:
        return f"vectors of '{self.ids.name}' in '{self.table.name}', to be pooled per example"


def lookup(
    ids: Variable, table: Variable, padding: int, sparse: bool, out: str
) -> Union[Variable, Vectors]:
    """Rows of a table by id."""
    if isinstance(ids, Tensor) and isinstance(table, Tensor):
        return _eager_lookup(ids, table, padding, sparse)
    attrs = {"padding_idx": padding, "is_sparse": bool(sparse)}
    if check(ids, "embedding: ids").lod_level:
        return Vectors(ids, table, attrs, out)
    if not is_integer(ids):
        raise TypeError(f"embedding: '{ids.name}' is {ids.dtype}, but ids are integers")
    return op("embedding", {"W": table, "Ids": [ids]}, out, attrs)


def _eager_lookup(ids: Tensor, table: Tensor, padding: int, sparse: bool) -> Tensor:
    key = ("embedding", padding, sparse)
    made = _PREPARED.get(key)
    if made is None:
        attrs = {"padding_idx": padding, "is_sparse": sparse}
        made = prepared(key, "embedding", ("W", "Ids"), attrs)
    try:
        if ids._stored != "i64":
            raise TypeError(f"embedding: ids are integers, but these are {ids.dtype}")
        return made(table, ids)
    except _ERRORS as error:
        raise located(error) from None


def embedding(
    x: Variable, weight: Variable, padding_idx: Optional[int] = None, sparse: bool = False,
    name: Optional[str] = None,
) -> Any:
    """Rows of ``weight`` by id: the shape of ``x`` with the width of the table behind it. The row
    ``padding_idx`` counts as zeros and is not learned."""
    if padding_idx is None:
        padding = -1
    else:
        rows = check(weight, "embedding: weight").shape[0]
        padding = padding_row(padding_idx, rows, "embedding")
    return lookup(x, weight, padding, sparse, namer_of(x, "embedding", name).tmp())


def one_hot(x: Variable, num_classes: int, name: Optional[str] = None) -> Variable:
    """Rows of zeros with a one at the position of the id: the shape of ``x`` with ``num_classes``
    behind it."""
    out = namer_of(x, "one_hot_v2", name).tmp()
    column = to_shape(check(x, "one_hot: x"), list(x.shape) + [1], part_of(out))
    return op("one_hot", {"X": column}, out, {"depth": int(num_classes)})


def sequence_mask(
    x: Variable, maxlen: Optional[int] = None, dtype: Any = "int64", name: Optional[str] = None
) -> Variable:
    """Lengths ``[n]`` or ``[n, 1]`` to rows of ones for positions before the length."""
    if isinstance(x, Tensor) and (maxlen is None or isinstance(maxlen, Tensor)):
        maxlen = int((x if maxlen is None else maxlen).max().item())
    if maxlen is None or isinstance(maxlen, Variable):
        raise NotImplementedError("sequence_mask: maxlen should be a number")
    namer = namer_of(x, "sequence_mask", name)
    out = namer.tmp()
    x = check(x, "sequence_mask: x")
    if len(x.shape) == 1:
        x = to_shape(x, [x.shape[0], 1], part_of(out))
    made = op("sequence_mask", {"Lengths": x}, part_of(out), {"maxlen": int(maxlen)})
    return cast_to(made, dtype, out)


def normalize(
    x: Variable, p: float = 2, axis: int = 1, epsilon: float = 1e-12, name: Optional[str] = None
) -> Variable:
    """Vectors of the given dimension, divided by their length."""
    length = linalg.p_norm(
        check(x, "normalize: x"), float(p), axes_of(axis, len(x.shape), "normalize"), True,
        namer_of(x, "p_norm").tmp(),
    )
    for word in ("fill_constant", "fill_constant"):
        fresh(x, word)
    floor = fresh(x, "elementwise_max")
    length = op("clip", {"X": length}, floor, {"min": float(epsilon)})
    return math.divide(x, length, name=name)


def cosine_similarity(x1: Variable, x2: Variable, axis: int = 1, eps: float = 1e-8) -> Variable:
    """The cosine of the angle between vectors of the given dimension."""
    both = math.sum(math.multiply(x1, x2), axis=axis)
    first = math.sum(math.multiply(x1, x1), axis=axis)
    second = math.sum(math.multiply(x2, x2), axis=axis)
    lengths = math.sqrt(math.clip(first * second, min=eps * eps))
    return both / lengths


def batch_norm_op(
    x: Variable, mean: Variable, variance: Variable, scale: Variable, bias: Variable,
    momentum: float, epsilon: float, is_test: bool, channel_last: bool, names: List[str],
) -> Variable:
    """Normalises each channel. ``names``: saved mean, saved deviation, result."""
    saved_mean, saved_std, out = names
    inputs = {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    attrs = {"momentum": float(momentum), "epsilon": float(epsilon), "is_test": bool(is_test)}
    if len(x.shape) > 2 and not channel_last:
        attrs["data_layout"] = "NCHW"
    if isinstance(x, Tensor):
        return _eager_batch_norm(inputs, attrs)
    outputs = {
        "Y": out, "MeanOut": mean, "VarianceOut": variance, "SavedMean": saved_mean,
        "SavedInvStd": saved_std,
    }
    return several("batch_norm", inputs, {"Y": out} if is_test else outputs, attrs)[0]


def _eager_batch_norm(inputs: Any, attrs: Any) -> Tensor:
    if not attrs["is_test"] and inputs["X"].size == inputs["Mean"].size:
        # One value per channel has no variance; Paddle gives it back as it is.
        return inputs["X"].clone()
    key = ("batch_norm", *attrs.values())
    made = _PREPARED.get(key)
    if made is None:
        kept = 0 if attrs["is_test"] else 1
        counts = {"MeanOut": kept, "VarianceOut": kept, "SavedMean": 1, "SavedInvStd": 1}
        if len(_PREPARED) > 4000:
            _PREPARED.clear()
        made = _PREPARED[key] = _core.Op("batch_norm", tuple(inputs), attrs, counts)
    try:
        return made(*inputs.values())[0]
    except _ERRORS as error:
        raise located(error) from None


def batch_norm(
    x: Variable, running_mean: Variable, running_var: Variable, weight: Optional[Variable] = None,
    bias: Optional[Variable] = None, training: bool = False, momentum: float = 0.9,
    epsilon: float = 1e-5, data_format: str = "NCHW", use_global_stats: Optional[bool] = None,
    name: Optional[str] = None,
) -> Variable:
    """Normalises each channel over the batch, or by running statistics when predicting."""
    x = check(x, "batch_norm: x")
    namer = namer_of(x, "batch_norm", name)
    names = [namer.tmp() for _ in range(3)]
    global_stats = not training if use_global_stats is None else use_global_stats
    if training:
        namer.skip()
    width = list(running_mean.shape)
    if weight is None:
        weight = constant(1.0, "float32", part_of(names[2]), width)
    if bias is None:
        bias = constant(0.0, "float32", part_of(names[2]), width)
    return batch_norm_op(
        x, running_mean, running_var, weight, bias, momentum, epsilon, global_stats,
        data_format[-1] == "C", names,
    )


def layer_norm_op(
    x: Variable, begin: int, scale: Optional[Variable], bias: Optional[Variable], epsilon: float,
    names: List[str],
) -> Variable:
    """Normalises what lies from dimension ``begin`` on. ``names``: mean, deviation, result."""
    mean, std, out = names
    dims = list(x.shape)
    width = product(dims[begin:])
    flat = begin == len(dims) - 1
    if -1 in dims[begin:]:
        raise ValueError(f"layer_norm: '{x.name}' {dims} has dimensions of unknown size from "
                         f"{begin} on")
    if not flat:
        x = to_shape(x, dims[:begin] + [width], part_of(out))
    if scale is None:
        scale = constant(1.0, "float32", part_of(out), [width])
    if bias is None:
        bias = constant(0.0, "float32", part_of(out), [width])
    scale, bias = (
        v if list(v.shape) == [width] else to_shape(v, [width], part_of(out))
        for v in (scale, bias)
    )
    to = out if flat else part_of(out)
    inputs = {"X": x, "Scale": scale, "Bias": bias}
    outputs = {"Y": to, "Mean": mean, "InvStd": std}
    made = several("layer_norm", inputs, outputs, {"epsilon": float(epsilon)})[0]
    return made if flat else to_shape(made, dims, out)


def layer_norm(
    x: Variable, normalized_shape: Union[int, Sequence[int]], weight: Optional[Variable] = None,
    bias: Optional[Variable] = None, epsilon: float = 1e-5, name: Optional[str] = None,
) -> Variable:
    """Normalises each example over its last dimensions."""
    x = check(x, "layer_norm: x")
    shape = int_list(normalized_shape, "layer_norm: normalized_shape")
    begin = len(x.shape) - len(shape)
    if isinstance(x, Tensor) and len(shape) == 1 and weight is not None and bias is not None:
        key = ("layer_norm", epsilon)
        made = _PREPARED.get(key)
        if made is None:
            made = prepared(key, "layer_norm", ("X", "Scale", "Bias"), {"epsilon": float(epsilon)})
        try:
            return made(x, weight, bias)[0]
        except _ERRORS as error:
            raise located(error) from None
    if begin < 1 or list(x.shape[begin:]) != shape:
        raise ValueError(f"layer_norm: '{x.name}' {list(x.shape)} does not end with {shape}")
    namer = namer_of(x, "layer_norm", name)
    return layer_norm_op(x, begin, weight, bias, epsilon, [namer.tmp() for _ in range(3)])


def group_norm(
    x: Variable, num_groups: int, epsilon: float = 1e-5, weight: Optional[Variable] = None,
    bias: Optional[Variable] = None, data_format: str = "NCHW", name: Optional[str] = None,
) -> Variable:
    """Normalises groups of channels of each example."""
    if data_format[-1] == "C":
        raise NotImplementedError("group_norm: data_format NHWC; channels come after the batch")
    x = check(x, "group_norm: x")
    return _normed(x, int(num_groups), epsilon, weight, bias, namer_of(x, "group_norm", name))


def _normed(
    x: Variable, groups: int, epsilon: float, weight: Any, bias: Any, namer: Any
) -> Variable:
    mean, std, out = namer.tmp(), namer.tmp(), namer.tmp()
    inputs = {"X": x, "Scale": weight, "Bias": bias}
    attrs = {"groups": groups, "epsilon": float(epsilon)}
    return several("group_norm", inputs, {"Y": out, "Mean": mean, "InvStd": std}, attrs)[0]


def instance_norm(
    x: Variable, running_mean: Any = None, running_var: Any = None,
    weight: Optional[Variable] = None, bias: Optional[Variable] = None,
    use_input_stats: bool = True, momentum: float = 0.9, eps: float = 1e-5,
    data_format: str = "NCHW", name: Optional[str] = None,
) -> Variable:
    """Normalises each channel of each example."""
    if not use_input_stats:
        raise NotImplementedError("instance_norm: running statistics; those of the input are used")
    x = check(x, "instance_norm: x")
    return _normed(x, x.shape[1], eps, weight, bias, namer_of(x, "instance_norm", name))


# --- further layers ------------------------------------------------------------------------------


def dropout2d(
    x: Variable, p: float = 0.5, training: bool = True, data_format: str = "NCHW",
    name: Optional[str] = None,
) -> Variable:
    """Zeroes a share ``p`` of whole channels while training."""
    return dropout(x, p, [0, 1] if data_format == "NCHW" else [0, 3], training, name=name)


def alpha_dropout(
    x: Variable, p: float = 0.5, training: bool = True, name: Optional[str] = None
) -> Variable:
    """Dropout that keeps mean and variance, for SELU."""
    if not 0 <= p <= 1:
        raise ValueError(f"alpha_dropout: p should be in [0, 1], but is {p}")
    if not training or p == 0:
        return x
    if p == 1:
        return math.scale(x, 0.0)
    low = -1.7580993408473766
    a = ((1 - p) * (1 + p * low ** 2)) ** -0.5
    ones = filled(check(x, "alpha_dropout: x"), 1.0, namer_of(x, "full_like").tmp())
    keep = math.scale(dropout(ones, p), 1.0 - p)
    kept = math.multiply(x, keep)
    dropped = math.scale(keep, -low, low)
    return math.scale(math.add(kept, dropped), a, -a * low * p)


def bilinear(
    x1: Variable, x2: Variable, weight: Variable, bias: Optional[Variable] = None,
    name: Optional[str] = None,
) -> Variable:
    """``x1 W x2 + b`` for each of the features of the result."""
    from ..tensor.einsum import einsum

    made = einsum("bi,oij,bj->bo", x1, weight, x2)
    return made if bias is None else math.add(made, bias)


def pairwise_distance(
    x: Variable, y: Variable, p: float = 2.0, epsilon: float = 1e-6, keepdim: bool = False,
    name: Optional[str] = None,
) -> Variable:
    """The distance of vectors of the last dimension."""
    apart = math.scale(math.subtract(x, y), 1.0, float(epsilon))
    return linalg.norm(apart, p, -1, keepdim)


def scaled_dot_product_attention(
    query: Variable, key: Variable, value: Variable, attn_mask: Any = None, dropout_p: float = 0.0,
    is_causal: bool = False, training: bool = True, name: Optional[str] = None,
) -> Variable:
    """Attention of ``[n, length, heads, size]``."""
    import numpy as np

    q, k, v = (linalg.transpose(t, [0, 2, 1, 3]) for t in (query, key, value))
    scores = linalg.matmul(math.scale(q, query.shape[-1] ** -0.5), k, transpose_y=True)
    if attn_mask is not None:
        scores = scores + attn_mask
    if is_causal:
        hidden = np.triu(np.full([query.shape[1], key.shape[1]], -1e9, "float32"), 1)
        scores = scores + hidden
    weights = softmax(scores)
    if dropout_p:
        weights = dropout(weights, dropout_p, training=training)
    return linalg.transpose(linalg.matmul(weights, v), [0, 2, 1, 3])


def diag_embed(
    input: Variable, offset: int = 0, dim1: int = -2, dim2: int = -1
) -> Variable:
    """Matrices with the last dimension on their diagonal."""
    from ..tensor.creation import eye

    if offset or (dim1, dim2) != (-2, -1):
        raise NotImplementedError("diag_embed: other diagonals than that of the last dimensions")
    return math.multiply(manipulation.unsqueeze(input, -1), eye(input.shape[-1]))


__getattr__ = missing(__name__)
