"""Losses as functions, for tensors and variables."""
from __future__ import annotations

from typing import Any, Optional, Tuple

from .. import _core
from ..framework import Tensor, Variable
from ..tensor import manipulation, math
from ..tensor._common import (
    _ERRORS, axis_of, cast_to, check, fresh, is_integer, located, namer_of, op, part_of, several,
    to_shape,
)
from ..tensor.math import TO_SCALAR, combine

__all__ = [
    "binary_cross_entropy", "binary_cross_entropy_with_logits", "cosine_embedding_loss",
    "cross_entropy", "hinge_embedding_loss", "hinge_loss", "huber_loss", "kl_div", "l1_loss",
    "label_smooth", "log_loss", "margin_ranking_loss", "mse_loss", "nll_loss",
    "sigmoid_cross_entropy_with_logits", "sigmoid_focal_loss", "smooth_l1_loss",
    "soft_margin_loss", "softmax_with_cross_entropy", "square_error_cost", "triplet_margin_loss",
]


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
    use_softmax: bool, namer: Any,
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
    if isinstance(probability, Tensor):
        probability = probability.detach()
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
_LEAST = _core.Op("reduce_min", ("X",), {})


def usual_cross_entropy(scores: Tensor, label: Tensor) -> Optional[Tensor]:
    """The usual case of a step: the mean over hard labels of which none is ignored. None if this
    is another case."""
    shape = label.shape
    if shape[-1:] != [1] or len(shape) != scores.ndim:
        label = manipulation.reshape(label, [*shape, 1])
    try:
        if label._stored != "i64" or _LEAST(label)._number() < 0:
            return None
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
        plain = not soft_label and not label_smoothing and use_softmax and reduction == "mean"
        if plain and ignore_index == -100 and axis in (-1, input.ndim - 1):
            made = usual_cross_entropy(input, label)
            if made is not None:
                return made
    scores, label = check(input, "cross_entropy: input"), check(label, "cross_entropy: label")
    at = axis_of(axis, len(scores.shape), "cross_entropy")
    if label_smoothing:
        if not soft_label:
            flat = label
            if len(label.shape) == len(scores.shape):
                flat = manipulation.squeeze(label, axis=axis)
            label, soft_label = _one_hot(flat, scores.shape[at]), True
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
    if factors is None and (soft_label or (ignore_index < 0 and not isinstance(loss, Tensor))):
        return math.mean(loss, name=name)
    return _mean_of_valid(loss, factors, label, ignore_index, soft_label)


def _one_hot(label: Variable, classes: int) -> Variable:
    from .functional import one_hot

    return one_hot(label, classes)


def _mean_of_valid(
    loss: Variable, factors: Optional[Variable], label: Variable, ignore_index: int,
    soft_label: bool,
) -> Variable:
    """The sum of losses by the sum of weights (1 if there are none) of labels that count."""
    total = math.sum(loss)
    out = fresh(loss, "tmp")
    counts = factors
    if not soft_label and (ignore_index >= 0 or isinstance(loss, Tensor)):
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
    plain = reduction == "none" and weight is None
    namer = namer_of(input, "binary_cross_entropy", name if plain else None)
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
    if isinstance(at, Tensor):
        total = at.sum()
        return -total if reduction == "sum" else -(total / chosen.sum())
    total = op("reduce_sum", {"X": at}, part_of(out), every)
    if reduction == "sum":
        return op("scale", {"X": total}, out, {"scale": -1.0})
    share = op("reduce_sum", {"X": chosen}, part_of(out), every)
    mean = op("elementwise_div", {"X": total, "Y": share}, part_of(out))
    return op("scale", {"X": mean}, out, {"scale": -1.0})


def soft_margin_loss(
    input: Variable, label: Variable, reduction: str = "mean", name: Optional[str] = None
) -> Variable:
    """``log(1 + exp(-label * input))`` for labels -1 and 1."""
    from ._activations import softplus

    _check_reduction(reduction, "soft_margin_loss")
    signed = math.multiply(input, _labels(input, label, "soft_margin_loss", fresh(input, "cast")))
    return _reduction(softplus(math.scale(signed, -1.0)), reduction, "soft_margin_loss", name)


def hinge_embedding_loss(
    input: Variable, label: Variable, margin: float = 1.0, reduction: str = "mean",
    name: Optional[str] = None,
) -> Variable:
    """``input`` for label 1, ``max(0, margin - input)`` for label -1."""
    from ..tensor.logic import equal, where
    from ._activations import relu

    _check_reduction(reduction, "hinge_embedding_loss")
    near = where(equal(label, 1.0), input, math.scale(input, 0.0))
    far = where(equal(label, -1.0), relu(math.scale(input, -1.0, margin)), math.scale(input, 0.0))
    return _reduction(math.add(near, far), reduction, "hinge_embedding_loss", name)


def cosine_embedding_loss(
    input1: Variable, input2: Variable, label: Variable, margin: float = 0.0,
    reduction: str = "mean", name: Optional[str] = None,
) -> Variable:
    """``1 - cos`` for label 1, ``max(0, cos - margin)`` for label -1."""
    from ..tensor.logic import equal, where
    from ._activations import relu
    from .functional import cosine_similarity

    _check_reduction(reduction, "cosine_embedding_loss")
    cosine = cosine_similarity(input1, input2, axis=-1)
    loss = where(equal(label, 1), math.scale(cosine, -1.0, 1.0),
                 relu(math.scale(cosine, 1.0, -float(margin))))
    return _reduction(loss, reduction, "cosine_embedding_loss", name)


def triplet_margin_loss(
    input: Variable, positive: Variable, negative: Variable, margin: float = 1.0, p: float = 2.0,
    epsilon: float = 1e-6, swap: bool = False, reduction: str = "mean",
    name: Optional[str] = None,
) -> Variable:
    """``max(0, |input - positive| - |input - negative| + margin)``."""
    from ._activations import relu
    from .functional import pairwise_distance

    _check_reduction(reduction, "triplet_margin_loss")
    near = pairwise_distance(input, positive, p, epsilon)
    far = pairwise_distance(input, negative, p, epsilon)
    if swap:
        far = math.minimum(far, pairwise_distance(positive, negative, p, epsilon))
    loss = relu(math.scale(math.subtract(near, far), 1.0, float(margin)))
    return _reduction(loss, reduction, "triplet_margin_loss", name)


def sigmoid_focal_loss(
    logit: Variable, label: Variable, normalizer: Any = None, alpha: float = 0.25,
    gamma: float = 2.0, reduction: str = "sum", name: Optional[str] = None,
) -> Variable:
    """Cross entropy of a sigmoid with less weight for what is predicted well."""
    from ._activations import sigmoid

    _check_reduction(reduction, "sigmoid_focal_loss")
    loss = binary_cross_entropy_with_logits(logit, label, reduction="none")
    p = sigmoid(logit)
    right = p * label + (1.0 - p) * (1.0 - label)
    weight = label * alpha + (1.0 - label) * (1.0 - alpha)
    loss = weight * loss * ((1.0 - right) ** gamma)
    loss = loss if normalizer is None else loss / normalizer
    return _reduction(loss, reduction, "sigmoid_focal_loss", name)
