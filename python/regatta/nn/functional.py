"""Functions that layers are made of: activations, lookups, normalization, losses."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence, Tuple, Union

from .. import _core
from .._missing import missing
from ..framework import Tensor, Variable, current_seed
from ..tensor import linalg, manipulation, math
from ..tensor._common import (
    _ERRORS, _PREPARED, axes_of, axis_of, cast_to, check, constant, filled, fresh, int_list,
    is_integer, located, namer_of, need_op, op, part_of, prepared, product, run, said, several,
    to_shape,
)
from ..tensor.math import TO_SCALAR, combine

__all__ = [
    "batch_norm", "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_similarity",
    "cross_entropy", "dropout", "elu", "embedding", "gelu", "glu", "hardsigmoid", "hardswish",
    "hardtanh", "hinge_loss", "huber_loss", "kl_div", "l1_loss", "label_smooth", "layer_norm",
    "leaky_relu", "linear", "log_loss", "log_sigmoid", "log_softmax", "margin_ranking_loss",
    "mish", "mse_loss", "nll_loss", "normalize", "one_hot", "pad", "prelu", "relu", "relu6",
    "sequence_mask", "sigmoid", "sigmoid_cross_entropy_with_logits", "silu", "smooth_l1_loss",
    "softmax", "softmax_with_cross_entropy", "softplus", "softsign", "square_error_cost", "swish",
    "tanh", "tanhshrink",
]

# --- activations ---------------------------------------------------------------------------------


def _simple(
    kind: str, x: Any, name: Optional[str], word: Optional[str] = None, **attrs: Any
) -> Variable:
    if isinstance(x, Tensor):
        key = (kind, *attrs.values()) if attrs else kind
        made = _PREPARED.get(key) or prepared(key, kind, ("X",), attrs)
        try:
            return made(x)
        except _ERRORS as error:
            raise located(error) from None
    return op(kind, {"X": check(x, f"{word or kind}: x")}, namer_of(x, word or kind, name).tmp(), attrs)


_RELU = _core.Op("relu", ("X",), {})


def relu(x: Variable, name: Optional[str] = None) -> Variable:
    """``max(x, 0)``."""
    if isinstance(x, Tensor):
        try:
            return _RELU(x)
        except _ERRORS as error:
            raise located(error) from None
    return _simple("relu", x, name)


def sigmoid(x: Variable, name: Optional[str] = None) -> Variable:
    """Logistic function."""
    return _simple("sigmoid", x, name)


def tanh(x: Variable, name: Optional[str] = None) -> Variable:
    """Hyperbolic tangent."""
    return _simple("tanh", x, name)


def gelu(x: Variable, approximate: bool = False, name: Optional[str] = None) -> Variable:
    """``x * Phi(x)`` with the Gaussian distribution function, or with its approximation by a
    hyperbolic tangent."""
    if not approximate:
        return _simple("gelu", x, name)
    out = namer_of(x, "gelu", name).tmp()
    x = check(x, "gelu: x")
    cube = op("pow", {"X": x}, part_of(out), {"factor": 3.0})
    bent = op("scale", {"X": cube}, part_of(out), {"scale": 0.044715})
    total = op("elementwise_add", {"X": x, "Y": bent}, part_of(out))
    inner = op("scale", {"X": total}, part_of(out), {"scale": 0.7978845608028654})
    half = op("scale", {"X": op("tanh", {"X": inner}, part_of(out))}, part_of(out),
              {"scale": 0.5, "bias": 0.5})
    return op("elementwise_mul", {"X": x, "Y": half}, out)


def leaky_relu(
    x: Variable, negative_slope: float = 0.01, name: Optional[str] = None,
    alpha: Optional[float] = None,
) -> Variable:
    """``x`` where positive, ``negative_slope * x`` elsewhere."""
    slope = negative_slope if alpha is None else alpha
    return _simple("leaky_relu", x, name, alpha=float(slope))


def relu6(x: Variable, threshold: float = 6.0, name: Optional[str] = None) -> Variable:
    """``x`` limited to ``[0, 6]``."""
    return _simple("clip", x, name, "relu6", min=0.0, max=float(threshold))


def hardtanh(
    x: Variable, min: float = -1.0, max: float = 1.0, name: Optional[str] = None
) -> Variable:
    """``x`` limited to ``[min, max]``."""
    return _simple("clip", x, name, "hardtanh", min=float(min), max=float(max))


def hardsigmoid(
    x: Variable, slope: float = 0.1666667, offset: float = 0.5, name: Optional[str] = None
) -> Variable:
    """``slope * x + offset`` limited to ``[0, 1]``."""
    out = namer_of(x, "hardsigmoid", name).tmp()
    attrs = {"scale": float(slope), "bias": float(offset)}
    line = op("scale", {"X": check(x, "hardsigmoid: x")}, part_of(out), attrs)
    return op("clip", {"X": line}, out, {"min": 0.0, "max": 1.0})


def hardswish(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * relu6(x + 3) / 6``."""
    out = namer_of(x, "hardswish", name).tmp()
    line = op("scale", {"X": check(x, "hardswish: x")}, part_of(out), {"scale": 1 / 6, "bias": 0.5})
    gate = op("clip", {"X": line}, part_of(out), {"min": 0.0, "max": 1.0})
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def _gated(x: Any, word: str, name: Optional[str], beta: float = 1.0) -> Variable:
    out = namer_of(x, word, name).tmp()
    x = check(x, f"{word}: x")
    inner = x if beta == 1.0 else op("scale", {"X": x}, part_of(out), {"scale": beta})
    gate = op("sigmoid", {"X": inner}, part_of(out))
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def silu(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * sigmoid(x)``."""
    return _gated(x, "silu", name)


def swish(x: Variable, name: Optional[str] = None, beta: float = 1.0) -> Variable:
    """``x * sigmoid(beta * x)``."""
    return _gated(x, "swish", name, float(beta))


def _soft_plus(x: Variable, out: str) -> Variable:
    """``log(1 + exp(x))``: the loss of a logit whose label is 0."""
    zero = filled(x, 0.0, part_of(out))
    return op("sigmoid_cross_entropy", {"X": x, "Label": zero}, out)


def softplus(
    x: Variable, beta: float = 1, threshold: float = 20, name: Optional[str] = None
) -> Variable:
    """``log(1 + exp(beta * x)) / beta``. Beyond ``threshold`` that is ``x`` in float32 anyway."""
    out = namer_of(x, "softplus", name).tmp()
    x = check(x, "softplus: x")
    if beta == 1:
        return _soft_plus(x, out)
    grown = op("scale", {"X": x}, part_of(out), {"scale": float(beta)})
    return op("scale", {"X": _soft_plus(grown, part_of(out))}, out, {"scale": 1.0 / beta})


def log_sigmoid(x: Variable, name: Optional[str] = None) -> Variable:
    """``log(sigmoid(x))``, which no element overflows."""
    out = namer_of(x, "log_sigmoid", name).tmp()
    turned = op("scale", {"X": check(x, "log_sigmoid: x")}, part_of(out), {"scale": -1.0})
    return op("scale", {"X": _soft_plus(turned, part_of(out))}, out, {"scale": -1.0})


def mish(x: Variable, name: Optional[str] = None) -> Variable:
    """``x * tanh(softplus(x))``."""
    out = namer_of(x, "mish", name).tmp()
    gate = op("tanh", {"X": _soft_plus(check(x, "mish: x"), part_of(out))}, part_of(out))
    return op("elementwise_mul", {"X": x, "Y": gate}, out)


def elu(x: Variable, alpha: float = 1.0, name: Optional[str] = None) -> Variable:
    """``x`` where positive, ``alpha * (exp(x) - 1)`` elsewhere."""
    out = namer_of(x, "elu", name).tmp()
    x = check(x, "elu: x")
    below = op("exp", {"X": op("clip", {"X": x}, part_of(out), {"max": 0.0})}, part_of(out))
    bent = op("scale", {"X": below}, part_of(out), {"scale": float(alpha), "bias": -float(alpha)})
    return op("elementwise_add", {"X": op("relu", {"X": x}, part_of(out)), "Y": bent}, out)


def softsign(x: Variable, name: Optional[str] = None) -> Variable:
    """``x / (1 + |x|)``."""
    need_op("softsign", "softsign")
    return _simple("softsign", x, name)


def tanhshrink(x: Variable, name: Optional[str] = None) -> Variable:
    """``x - tanh(x)``."""
    out = namer_of(x, "tanh_shrink", name).tmp()
    curve = op("tanh", {"X": check(x, "tanhshrink: x")}, part_of(out))
    return op("elementwise_sub", {"X": x, "Y": curve}, out)


def prelu(
    x: Variable, weight: Variable, data_format: str = "NCHW", name: Optional[str] = None
) -> Variable:
    """``x`` where positive, ``weight * x`` elsewhere; one weight, or one for each channel."""
    out = namer_of(x, "prelu", name).tmp()
    x = check(x, "prelu: x")
    if product(weight.shape) > 1 and len(x.shape) > 2 and data_format[1] == "C":
        weight = to_shape(weight, [product(weight.shape)] + [1] * (len(x.shape) - 2), part_of(out))
    above = op("relu", {"X": x}, part_of(out))
    below = op("clip", {"X": x}, part_of(out), {"max": 0.0})
    bent = op("elementwise_mul", {"X": below, "Y": weight}, part_of(out))
    return op("elementwise_add", {"X": above, "Y": bent}, out)


def glu(x: Variable, axis: int = -1, name: Optional[str] = None) -> Variable:
    """The first half of a dimension times the sigmoid of the second."""
    first, second = manipulation.split(x, 2, axis)
    return math.multiply(first, sigmoid(second), name=name)


def softmax(
    x: Optional[Variable] = None, axis: int = -1, dtype: Any = None, name: Optional[str] = None,
    input: Optional[Variable] = None, use_cudnn: bool = False,
) -> Variable:
    """Positive numbers that add up to 1 along a dimension."""
    x = check(x if x is not None else input, "softmax: x")
    namer = namer_of(x, "softmax", name)
    if dtype is not None:
        x = cast_to(x, dtype, namer.tmp())
    if isinstance(x, Tensor):
        return _eager_softmax(x, axis)
    at = axis_of(axis, len(x.shape), "softmax")
    attrs = {} if at == len(x.shape) - 1 else {"axis": at}
    return op("softmax", {"X": x}, namer.tmp(), attrs)


def _eager_softmax(x: Tensor, axis: int) -> Tensor:
    rank = x.ndim
    key = ("softmax", axis, rank)
    made = _PREPARED.get(key)
    if made is None:
        at = axis_of(axis, rank, "softmax")
        made = prepared(key, "softmax", ("X",), {} if at == rank - 1 else {"axis": at})
    try:
        return made(x)
    except _ERRORS as error:
        raise located(error) from None


def log_softmax(
    x: Variable, axis: int = -1, dtype: Any = None, name: Optional[str] = None
) -> Variable:
    """The logarithm of :func:`softmax`, also where that underflows."""
    x = check(x, "log_softmax: x")
    namer = namer_of(x, "log_softmax", name)
    if dtype is not None:
        x = cast_to(x, dtype, namer.tmp())
    out = namer.tmp()
    at = axis_of(axis, len(x.shape), "log_softmax")
    level = math.log_sum_exp(x, [at], True, part_of(out))
    return op("elementwise_sub", {"X": x, "Y": level}, out)


# --- layers without their parameters -------------------------------------------------------------


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
    attrs = {"padding_idx": padding, "is_sparse": bool(sparse)}
    if isinstance(ids, Tensor) and isinstance(table, Tensor):
        return _eager_lookup(ids, table, padding, bool(sparse))
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


def pad(
    x: Variable, pad: Sequence[int], mode: str = "constant", value: float = 0.0,
    data_format: str = "NCHW", name: Optional[str] = None,
) -> Variable:
    """Adds a number before and after: ``pad`` has two sizes for each dimension of ``x``, the first
    dimension first."""
    x = check(x, "pad: x")
    sizes = int_list(pad, "pad")
    if mode != "constant" or len(sizes) != 2 * len(x.shape):
        raise NotImplementedError(
            f"pad: mode {mode!r} with {len(sizes)} sizes for '{x.name}' of {len(x.shape)} "
            "dimensions; two sizes for each dimension and the mode 'constant' are possible"
        )
    out = namer_of(x, "pad", name).tmp()
    for axis in range(len(x.shape)):
        for size, front in ((sizes[2 * axis], True), (sizes[2 * axis + 1], False)):
            if size:
                x = _padded(x, axis, size, front, float(value), out)
    return op("assign", {"X": x}, out)


def _padded(x: Variable, axis: int, size: int, front: bool, value: float, out: str) -> Variable:
    if x.shape[axis] < 1 or size < 0:
        raise ValueError(f"pad: dimension {axis} of '{x.name}' {list(x.shape)} by {size}")
    first = op("slice", {"X": x}, part_of(out), {"axis": axis, "start": 0, "end": 1})
    border = filled(first, value, part_of(out))
    values = [border] * size
    values = values + [x] if front else [x] + values
    return op("concat", {"X": values}, part_of(out), {"axis": axis})


def label_smooth(
    label: Variable, prior_dist: Optional[Variable] = None, epsilon: float = 0.1,
    name: Optional[str] = None, dtype: Any = "float32",
) -> Variable:
    """``(1 - epsilon) * label + epsilon / classes``, or with given probabilities of classes."""
    label = check(label, "label_smooth: label")
    out = namer_of(label, "label_smooth", name).tmp()
    keep = 1.0 - epsilon
    if prior_dist is None:
        attrs = {"scale": keep, "bias": epsilon / label.shape[-1]}
        return op("scale", {"X": label}, out, attrs)
    kept = op("scale", {"X": label}, part_of(out), {"scale": keep})
    added = op("scale", {"X": prior_dist}, part_of(out), {"scale": float(epsilon)})
    return combine("elementwise_add", kept, added, out)


def batch_norm_op(
    x: Variable, mean: Variable, variance: Variable, scale: Variable, bias: Variable,
    momentum: float, epsilon: float, is_test: bool, channel_last: bool, names: List[str],
) -> Variable:
    """Normalises each channel. ``names``: saved mean, saved deviation, result."""
    rank = len(x.shape)
    saved_mean, saved_std, out = names
    turn = rank > 2 and not channel_last
    if turn:
        perm = [0] + list(range(2, rank)) + [1]
        x = op("transpose", {"X": x}, part_of(out), {"perm": perm})
    to = part_of(out) if turn else out
    inputs = {"X": x, "Scale": scale, "Bias": bias, "Mean": mean, "Variance": variance}
    outputs = {
        "Y": to, "MeanOut": mean, "VarianceOut": variance, "SavedMean": saved_mean,
        "SavedInvStd": saved_std,
    }
    if is_test:
        outputs = {"Y": to}
    attrs = {"momentum": float(momentum), "epsilon": float(epsilon), "is_test": bool(is_test)}
    made = several("batch_norm", inputs, outputs, attrs)[0]
    if not turn:
        return made
    return op("transpose", {"X": made}, out, {"perm": [0, rank - 1] + list(range(1, rank - 1))})


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
    if begin < 1 or list(x.shape[begin:]) != shape:
        raise ValueError(f"layer_norm: '{x.name}' {list(x.shape)} does not end with {shape}")
    namer = namer_of(x, "layer_norm", name)
    return layer_norm_op(x, begin, weight, bias, epsilon, [namer.tmp() for _ in range(3)])


# --- losses --------------------------------------------------------------------------------------


def _reduction(loss: Variable, reduction: str, what: str, name: Optional[str] = None) -> Variable:
    if reduction == "mean":
        return math.mean(loss, name=name)
    if reduction == "sum":
        return math.sum(loss, name=name)
    if reduction == "none":
        return loss
    raise ValueError(f"{what}: the reduction should be 'mean', 'sum' or 'none', but is "
                     f"{reduction!r}")


def _check_reduction(reduction: str, what: str) -> None:
    if reduction not in ("mean", "sum", "none"):
        raise ValueError(f"{what}: the reduction should be 'mean', 'sum' or 'none', but is "
                         f"{reduction!r}")


def _class_loss(
    scores: Variable, label: Variable, soft_label: bool, ignore_index: int, axis: int,
    use_softmax: bool, namer: Namer,
) -> Tuple[Variable, Variable]:
    """Loss and softmax of scores. Both have the dimensions of the scores, the loss 1 class."""
    rank = len(scores.shape)
    at = axis_of(axis, rank, "cross_entropy")
    softmax_name, loss_name = namer.tmp(), namer.tmp()
    perm = None
    if at != rank - 1:
        perm = [d for d in range(rank) if d != at] + [at]
        scores = op("transpose", {"X": scores}, part_of(loss_name), {"perm": perm})
        if len(label.shape) == rank:
            label = op("transpose", {"X": label}, part_of(loss_name), {"perm": perm})
    attrs = {"soft_label": bool(soft_label), "ignore_index": int(ignore_index)}
    back = [perm.index(d) for d in range(rank)] if perm is not None else None
    first = loss_name if back is None else part_of(loss_name)
    if use_softmax:
        second = softmax_name if back is None else part_of(softmax_name)
        inputs = {"Logits": scores, "Label": label}
        loss, probability = several("softmax_with_cross_entropy", inputs,
                                    {"Loss": first, "Softmax": second}, attrs)
    else:
        loss = op("cross_entropy", {"X": scores, "Label": label}, first, attrs)
        probability = scores
    if back is not None:
        loss = op("transpose", {"X": loss}, loss_name, {"perm": back})
        if use_softmax:
            probability = op("transpose", {"X": probability}, softmax_name, {"perm": back})
    return loss, probability


def softmax_with_cross_entropy(
    logits: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100,
    numeric_stable_mode: bool = True, return_softmax: bool = False, axis: int = -1,
) -> Any:
    """Cross entropy of a softmax, for each example: ``[n, 1]``. With ``return_softmax`` loss and
    softmax, of which only the loss passes a gradient."""
    logits, label = check(logits, "cross entropy: logits"), check(label, "cross entropy: label")
    if len(label.shape) == len(logits.shape) - 1 and not soft_label:
        label = manipulation.unsqueeze(label, axis=axis)
    namer = namer_of(logits, "softmax_with_cross_entropy")
    loss, probability = _class_loss(logits, label, soft_label, ignore_index, axis, True, namer)
    return (loss, probability) if return_softmax else loss


def _valid(label: Variable, ignore_index: int, out: str) -> Variable:
    """1 for labels that count, 0 for those to be ignored."""
    x = cast_to(label, "float32", part_of(out))
    x = op("scale", {"X": x}, part_of(out), {"bias": -float(ignore_index)})
    x = op("abs", {"X": x}, part_of(out))
    return op("clip", {"X": x}, part_of(out), {"min": 0.0, "max": 1.0})


def _weighted(
    loss: Variable, scores: Variable, label: Variable, weight: Variable, soft_label: bool,
    axis: int, out: str,
) -> Tuple[Variable, Variable]:
    """The loss times the weight of its class, and these weights."""
    classes = weight.shape[0]
    if axis not in (-1, len(scores.shape) - 1):
        raise NotImplementedError(f"cross_entropy: weights with classes in dimension {axis}")
    column = to_shape(weight, [classes, 1], part_of(out))
    if soft_label:
        shares = label
    else:
        shares = op("one_hot", {"X": label}, part_of(out), {"depth": classes})
    factors = op("matmul", {"X": shares, "Y": column}, part_of(out))
    return op("elementwise_mul", {"X": loss, "Y": factors}, part_of(out)), factors


_PLAIN_LOSS = _core.Op("softmax_with_cross_entropy", ("Logits", "Label"), {"ignore_index": -100})
_MEAN = _core.Op("mean", ("X",), {})


def _eager_cross_entropy(
    scores: Tensor, label: Tensor, ignore_index: int, reduction: str, soft_label: bool, axis: int,
    use_softmax: bool, label_smoothing: float,
) -> Optional[Tensor]:
    """The usual case of a step, the mean of hard labels; None in other cases."""
    if (
        soft_label or label_smoothing or not use_softmax or ignore_index != -100
        or reduction != "mean" or axis not in (-1, scores.ndim - 1)
    ):
        return None
    shape = label.shape
    if shape[-1:] != [1] or len(shape) != scores.ndim:
        label = manipulation.reshape(label, [*shape, 1])
    try:
        return TO_SCALAR(_MEAN(_PLAIN_LOSS(scores, label)[0]))
    except _ERRORS as error:
        raise located(error) from None


def cross_entropy(
    input: Variable, label: Variable, weight: Optional[Variable] = None, ignore_index: int = -100,
    reduction: str = "mean", soft_label: bool = False, axis: int = -1, use_softmax: bool = True,
    label_smoothing: float = 0.0, name: Optional[str] = None,
) -> Variable:
    """Cross entropy of logits, or with ``use_softmax=False`` of probabilities. Labels are classes
    ``[n]`` or ``[n, 1]``, or with ``soft_label`` a probability for each class."""
    _check_reduction(reduction, "cross_entropy")
    if isinstance(input, Tensor) and isinstance(label, Tensor) and weight is None:
        made = _eager_cross_entropy(
            input, label, ignore_index, reduction, soft_label, axis, use_softmax, label_smoothing
        )
        if made is not None:
            return made
    scores, label = check(input, "cross_entropy: input"), check(label, "cross_entropy: label")
    at = axis_of(axis, len(scores.shape), "cross_entropy")
    if label_smoothing:
        if not soft_label:
            flat = label
            if len(label.shape) == len(scores.shape):
                flat = manipulation.squeeze(label, axis=axis)
            label, soft_label = one_hot(flat, scores.shape[at]), True
        label = label_smooth(label, epsilon=label_smoothing)
    flat_label = len(label.shape) == len(scores.shape) - 1
    if flat_label:
        label = manipulation.unsqueeze(label, axis=axis)
    namer = namer_of(input, "softmax_with_cross_entropy", name)
    loss, _ = _class_loss(scores, label, soft_label, ignore_index, axis, use_softmax, namer)
    factors = None
    if weight is not None:
        weight = check(weight, "cross_entropy: weight")
        name_of = "" if isinstance(loss, Tensor) else loss.name
        loss, factors = _weighted(loss, scores, label, weight, soft_label, axis, name_of)
    if reduction == "sum":
        return math.sum(loss, name=name)
    if reduction == "none":
        return manipulation.squeeze(loss, axis=axis) if flat_label else loss
    if factors is None and (ignore_index < 0 or soft_label):
        return math.mean(loss, name=name)
    return _mean_of_valid(loss, factors, label, ignore_index, soft_label)


def _mean_of_valid(
    loss: Variable, factors: Optional[Variable], label: Variable, ignore_index: int,
    soft_label: bool,
) -> Variable:
    """The sum of losses by the sum of weights (1 if there are none) of labels that count."""
    total = math.sum(loss)
    out = fresh(loss, "tmp")
    counts = factors
    if not soft_label and ignore_index >= 0:
        valid = _valid(label, ignore_index, out)
        counts = valid
        if factors is not None:
            counts = op("elementwise_mul", {"X": valid, "Y": factors}, part_of(out))
    below = op("reduce_sum", {"X": counts}, part_of(out), {"dims": [], "keep_dim": False})
    if isinstance(below, Tensor):
        below = TO_SCALAR(below)
    # If nothing counts the loss is 0, not 0 / 0.
    below = op("clip", {"X": below}, part_of(out), {"min": 1e-30})
    return op("elementwise_div", {"X": total, "Y": below}, out)


def binary_cross_entropy(
    input: Variable, label: Variable, weight: Optional[Variable] = None, reduction: str = "mean",
    name: Optional[str] = None,
) -> Variable:
    """``-label * log(input) - (1 - label) * log(1 - input)`` of probabilities. No logarithm is
    below that of the smallest float, -87."""
    _check_reduction(reduction, "binary_cross_entropy")
    x, label = check(input, "bce: input"), check(label, "bce: label")
    namer = namer_of(input, "binary_cross_entropy", name if reduction == "none" and weight is None else None)
    out = namer.tmp()

    def logarithm(p: Variable) -> Variable:
        p = op("clip", {"X": p}, part_of(out), {"min": 1.2e-38, "max": 1.0})
        return op("log", {"X": p}, part_of(out))

    yes = op("elementwise_mul", {"X": label, "Y": logarithm(x)}, part_of(out))
    other = op("scale", {"X": x}, part_of(out), {"scale": -1.0, "bias": 1.0})
    rest = op("scale", {"X": label}, part_of(out), {"scale": -1.0, "bias": 1.0})
    no = op("elementwise_mul", {"X": rest, "Y": logarithm(other)}, part_of(out))
    both = op("elementwise_add", {"X": yes, "Y": no}, part_of(out))
    loss = op("scale", {"X": both}, out, {"scale": -1.0})
    if weight is not None:
        loss = math.multiply(loss, weight)
    return _reduction(loss, reduction, "binary_cross_entropy", name)


def _sigmoid_loss(x: Variable, label: Variable, out: str) -> Variable:
    if is_integer(label):
        label = cast_to(label, "float32", part_of(out))
    return op("sigmoid_cross_entropy", {"X": x, "Label": label}, out)


def sigmoid_cross_entropy_with_logits(
    x: Variable, label: Variable, ignore_index: int = -100, name: Optional[str] = None,
    normalize: bool = False,
) -> Variable:
    """Cross entropy of a sigmoid against labels in ``[0, 1]``, for each element. Labels equal to
    ``ignore_index`` have no loss."""
    namer = namer_of(x, "sigmoid_cross_entropy_with_logits", name)
    out = namer.tmp()
    x, label = check(x, "sigmoid cross entropy: x"), check(label, "sigmoid cross entropy: label")
    if ignore_index == -100 and not normalize:
        return _sigmoid_loss(x, label, out)
    loss = _sigmoid_loss(x, label, part_of(out))
    valid = _valid(label, ignore_index, out)
    if not normalize:
        return op("elementwise_mul", {"X": loss, "Y": valid}, out)
    loss = op("elementwise_mul", {"X": loss, "Y": valid}, part_of(out))
    count = op("reduce_sum", {"X": valid}, part_of(out), {"dims": [], "keep_dim": False})
    count = op("clip", {"X": count}, part_of(out), {"min": 1e-5})
    return op("elementwise_div", {"X": loss, "Y": count}, out)


def binary_cross_entropy_with_logits(
    logit: Variable, label: Variable, weight: Optional[Variable] = None, reduction: str = "mean",
    pos_weight: Optional[Variable] = None, name: Optional[str] = None,
) -> Variable:
    """Cross entropy of a sigmoid against labels in ``[0, 1]``; ``pos_weight`` is the weight of
    label 1."""
    what = "binary_cross_entropy_with_logits"
    _check_reduction(reduction, what)
    x, label = check(logit, f"{what}: logit"), check(label, f"{what}: label")
    plain = reduction == "none" and weight is None and pos_weight is None
    namer = namer_of(logit, "sigmoid_cross_entropy_with_logits", name if plain else None)
    # A constant that other systems write.
    for _ in range(2):
        fresh(x, "fill_constant")
    loss = _sigmoid_loss(x, label, namer.tmp())
    if pos_weight is not None:
        base = "" if isinstance(loss, Tensor) else loss.name
        more = op("scale", {"X": pos_weight}, part_of(base), {"bias": -1.0})
        factor = combine("elementwise_mul", label, more, part_of(base))
        factor = op("scale", {"X": factor}, part_of(base), {"bias": 1.0})
        loss = math.multiply(loss, factor)
    if weight is not None:
        loss = math.multiply(loss, weight)
    return _reduction(loss, reduction, what, name)


def _labels(x: Variable, label: Any, what: str, out: str) -> Variable:
    label = check(label, f"{what}: label")
    return cast_to(label, "float32", part_of(out)) if is_integer(label) else label


def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: Optional[str] = None
) -> Variable:
    """Negative log likelihood of probabilities against labels 0 and 1, for each example."""
    out = namer_of(input, "log_loss", name).tmp()
    x = check(input, "log_loss: input")
    inputs = {"X": x, "Label": _labels(x, label, "log_loss", out)}
    return op("log_loss", inputs, out, {"epsilon": float(epsilon)})


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """``(input - label)^2`` for each element."""
    namer = namer_of(input, "square_error_cost")
    namer.skip()
    out = namer.tmp()
    x = check(input, "square_error_cost: input")
    label = _labels(x, label, "square_error_cost", out)
    if list(x.shape) == list(label.shape):
        return op("square_error_cost", {"X": x, "Label": label}, out)
    apart = combine("elementwise_sub", x, label, part_of(out))
    return op("square", {"X": apart}, out)


def mse_loss(
    input: Variable, label: Variable, reduction: str = "mean", name: Optional[str] = None
) -> Variable:
    """The squared difference."""
    _check_reduction(reduction, "mse_loss")
    squares = math.square(math.subtract(input, label), name=name if reduction == "none" else None)
    return _reduction(squares, reduction, "mse_loss", name)


def l1_loss(
    input: Variable, label: Variable, reduction: str = "mean", name: Optional[str] = None
) -> Variable:
    """The absolute difference."""
    _check_reduction(reduction, "l1_loss")
    apart = math.abs(math.subtract(input, label), name=name if reduction == "none" else None)
    return _reduction(apart, reduction, "l1_loss", name)


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Quadratic near zero, linear beyond ``delta``, for each element."""
    namer = namer_of(input, "huber_loss")
    namer.skip()
    out = namer.tmp()
    x = check(input, "huber_loss: input")
    inputs = {"X": x, "Label": _labels(x, label, "huber_loss", out)}
    return op("huber_loss", inputs, out, {"delta": float(delta)})


def smooth_l1_loss(
    input: Variable, label: Variable, reduction: str = "mean", delta: float = 1.0,
    name: Optional[str] = None,
) -> Variable:
    """Quadratic near zero, linear beyond ``delta``."""
    _check_reduction(reduction, "smooth_l1_loss")
    return _reduction(huber_loss(input, label, delta), reduction, "smooth_l1_loss", name)


def hinge_loss(input: Variable, label: Variable, name: Optional[str] = None) -> Variable:
    """``max(0, 1 - (2 * label - 1) * input)`` for each element."""
    out = namer_of(input, "hinge_loss", name).tmp()
    x = check(input, "hinge_loss: input")
    return op("hinge_loss", {"X": x, "Label": _labels(x, label, "hinge_loss", out)}, out)


def margin_ranking_loss(
    input: Variable, other: Variable, label: Variable, margin: float = 0.0,
    reduction: str = "mean", name: Optional[str] = None,
) -> Variable:
    """``max(0, -label * (input - other) + margin)`` for labels -1 and 1."""
    _check_reduction(reduction, "margin_ranking_loss")
    out = namer_of(input, "margin_ranking_loss", name if reduction == "none" else None).tmp()
    apart = combine("elementwise_sub", other, input, part_of(out))
    signed = combine("elementwise_mul", apart, label, part_of(out))
    moved = op("scale", {"X": signed}, part_of(out), {"bias": float(margin)})
    loss = op("relu", {"X": moved}, out)
    return _reduction(loss, reduction, "margin_ranking_loss", name)


def kl_div(
    input: Variable, label: Variable, reduction: str = "mean", name: Optional[str] = None
) -> Variable:
    """``label * (log(label) - input)`` of logarithms of probabilities."""
    out = namer_of(input, "kl_div").tmp()
    x, label = check(input, "kl_div: input"), check(label, "kl_div: label")
    safe = op("clip", {"X": label}, part_of(out), {"min": 1e-37})
    known = op("log", {"X": safe}, part_of(out))
    apart = combine("elementwise_sub", known, x, part_of(out))
    loss = combine("elementwise_mul", label, apart, out)
    if reduction == "batchmean":
        by_example = list(range(1, len(x.shape)))
        if by_example:
            loss = math.sum(loss, axis=by_example)
        return math.mean(loss, name=name)
    return _reduction(loss, reduction, "kl_div", name)


def nll_loss(
    input: Variable, label: Variable, weight: Optional[Variable] = None, ignore_index: int = -100,
    reduction: str = "mean", name: Optional[str] = None,
) -> Variable:
    """The negative of the score at the label; scores ``[n, classes]`` are logarithms of
    probabilities."""
    _check_reduction(reduction, "nll_loss")
    x, label = check(input, "nll_loss: input"), check(label, "nll_loss: label")
    if len(x.shape) != 2 or ignore_index >= 0:
        raise NotImplementedError("nll_loss: scores of other shapes than [n, classes], or a class "
                                  "to be ignored")
    namer = namer_of(input, "nll_loss", name)
    out = namer.tmp()
    namer.skip()
    column = label
    if len(label.shape) == 1:
        column = to_shape(label, [label.shape[0], 1], part_of(out))
    classes = x.shape[1]
    chosen = op("one_hot", {"X": column}, part_of(out), {"depth": classes})
    if weight is not None:
        chosen = combine("elementwise_mul", chosen, weight, part_of(out))
    at = combine("elementwise_mul", chosen, x, part_of(out))
    over = {"dims": [1], "keep_dim": False}
    if reduction == "none":
        return op("scale", {"X": op("reduce_sum", {"X": at}, part_of(out), over)}, out,
                  {"scale": -1.0})
    every = {"dims": [], "keep_dim": False}
    total = op("reduce_sum", {"X": at}, part_of(out), every)
    if reduction == "sum":
        return op("scale", {"X": total}, out, {"scale": -1.0})
    share = op("reduce_sum", {"X": chosen}, part_of(out), every)
    mean = op("elementwise_div", {"X": total, "Y": share}, part_of(out))
    return op("scale", {"X": mean}, out, {"scale": -1.0})


__getattr__ = missing(__name__)
