"""Losses. Those of Fluid are per example: ``mean`` makes a number of them."""
from __future__ import annotations

from typing import Any, Optional

from ...framework import Variable
from ...nn import functional as _functional
from ...static import nn as _static
from ...tensor._common import Namer, check, op
from ... import tensor as _tensor

__all__ = [
    "cross_entropy", "hinge_loss", "huber_loss", "log_loss", "mse_loss",
    "sigmoid_cross_entropy_with_logits", "softmax_with_cross_entropy", "square_error_cost",
]


def cross_entropy(
    input: Variable, label: Variable, soft_label: bool = False, ignore_index: int = -100
) -> Variable:
    """The negative logarithm of the probability of the label, per example. ``input`` holds
    probabilities, such as those of softmax."""
    return _static.cross_entropy(
        input=input, label=label, soft_label=soft_label, ignore_index=ignore_index
    )


def softmax_with_cross_entropy(
    logits: Variable,
    label: Variable,
    soft_label: bool = False,
    ignore_index: int = -100,
    numeric_stable_mode: bool = True,
    return_softmax: bool = False,
    axis: int = -1,
) -> Any:
    """:func:`cross_entropy` of softmax, from scores."""
    return _functional.softmax_with_cross_entropy(
        logits, label, soft_label=soft_label, ignore_index=ignore_index,
        return_softmax=return_softmax, axis=axis,
    )


def sigmoid_cross_entropy_with_logits(
    x: Variable,
    label: Variable,
    ignore_index: int = -100,
    name: Optional[str] = None,
    normalize: bool = False,
) -> Variable:
    """The cross entropy of every element, from scores and labels between 0 and 1."""
    if normalize or ignore_index != -100:
        raise NotImplementedError(
            "sigmoid_cross_entropy_with_logits: ignore_index and normalize: multiply by a mask"
        )
    return _functional.binary_cross_entropy_with_logits(x, label, reduction="none", name=name)


def square_error_cost(input: Variable, label: Variable) -> Variable:
    """The square of the difference of every element."""
    return _functional.square_error_cost(input, label)


def mse_loss(input: Variable, label: Variable) -> Variable:
    """The mean of :func:`square_error_cost`."""
    return _tensor.mean(square_error_cost(input, label))


def log_loss(
    input: Variable, label: Variable, epsilon: float = 1e-4, name: Optional[str] = None
) -> Variable:
    """The cross entropy of every element, from probabilities."""
    return _functional.log_loss(input, label, epsilon, name)


def huber_loss(input: Variable, label: Variable, delta: float) -> Variable:
    """Half the square of small differences, ``delta`` times large ones."""
    x, y = check(input, "huber_loss: input"), check(label, "huber_loss: label")
    return op("huber_loss", {"X": x, "Label": y}, Namer("huber_loss").tmp(), {"delta": float(delta)})


def hinge_loss(input: Variable, label: Variable, name: Optional[str] = None) -> Variable:
    """``max(0, 1 - input * (2 * label - 1))`` of every element."""
    x, y = check(input, "hinge_loss: input"), check(label, "hinge_loss: label")
    return op("hinge_loss", {"X": x, "Label": y}, Namer("hinge_loss", name).tmp())
