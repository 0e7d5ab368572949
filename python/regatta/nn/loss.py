"""Losses as layers."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing
from ..framework import Tensor, Variable
from . import functional as F
from ._losses import usual_cross_entropy
from .layers import Layer

__all__ = [
    "BCELoss", "BCEWithLogitsLoss", "CosineEmbeddingLoss", "CrossEntropyLoss",
    "HingeEmbeddingLoss", "KLDivLoss", "L1Loss", "MSELoss", "MarginRankingLoss", "NLLLoss",
    "SmoothL1Loss", "SoftMarginLoss", "TripletMarginLoss",
]


class CrossEntropyLoss(Layer):
    """Cross entropy of logits."""

    def __init__(
        self, weight: Optional[Variable] = None, ignore_index: int = -100, reduction: str = "mean",
        soft_label: bool = False, axis: int = -1, use_softmax: bool = True,
        label_smoothing: float = 0.0, name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._arguments = {
            "weight": weight, "ignore_index": ignore_index, "reduction": reduction,
            "soft_label": soft_label, "axis": axis, "use_softmax": use_softmax,
            "label_smoothing": label_smoothing, "name": name,
        }
        usual = (None, -100, "mean", False, -1, True, 0.0)
        self._is_usual = (weight, ignore_index, reduction, soft_label, axis, use_softmax,
                          label_smoothing) == usual if weight is None else False

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        if self._is_usual and isinstance(input, Tensor) and isinstance(label, Tensor):
            made = usual_cross_entropy(input, label)
            if made is not None:
                return made
        return F.cross_entropy(input, label, **self._arguments)


class BCELoss(Layer):
    """Cross entropy of probabilities against labels in ``[0, 1]``."""

    def __init__(
        self, weight: Optional[Variable] = None, reduction: str = "mean",
        name: Optional[str] = None,
    ) -> None:
        super().__init__("bce_loss")
        self._weight, self._reduction, self._name = weight, reduction, name

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.binary_cross_entropy(input, label, self._weight, self._reduction, self._name)


class BCEWithLogitsLoss(Layer):
    """Cross entropy of logits against labels in ``[0, 1]``."""

    def __init__(
        self, weight: Optional[Variable] = None, reduction: str = "mean",
        pos_weight: Optional[Variable] = None, name: Optional[str] = None,
    ) -> None:
        super().__init__("bce_with_logits_loss")
        self._weight, self._reduction = weight, reduction
        self._pos_weight, self._name = pos_weight, name

    def forward(self, logit: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.binary_cross_entropy_with_logits(
            logit, label, self._weight, self._reduction, self._pos_weight, self._name
        )


class _OfTwo(Layer):
    """A loss of a prediction and a label with a reduction."""

    _function: Any = None

    def __init__(self, reduction: str = "mean", name: Optional[str] = None) -> None:
        super().__init__()
        self._reduction, self._name = reduction, name

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        return type(self)._function(input, label, self._reduction, name=self._name)


class MSELoss(_OfTwo):
    """The squared difference."""

    _function = staticmethod(F.mse_loss)


class L1Loss(_OfTwo):
    """The absolute difference."""

    _function = staticmethod(F.l1_loss)


class KLDivLoss(_OfTwo):
    """The Kullback-Leibler divergence of logarithms of probabilities."""

    _function = staticmethod(F.kl_div)


class SoftMarginLoss(_OfTwo):
    """``log(1 + exp(-label * input))``."""

    _function = staticmethod(F.soft_margin_loss)


class HingeEmbeddingLoss(Layer):
    """``input`` for label 1, ``max(0, margin - input)`` for label -1."""

    def __init__(
        self, margin: float = 1.0, reduction: str = "mean", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self.margin, self.reduction, self.name = margin, reduction, name

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.hinge_embedding_loss(input, label, self.margin, self.reduction, self.name)


class CosineEmbeddingLoss(Layer):
    """``1 - cos`` for label 1, ``max(0, cos - margin)`` for label -1."""

    def __init__(
        self, margin: float = 0.0, reduction: str = "mean", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self.margin, self.reduction, self.name = margin, reduction, name

    def forward(self, input1: Variable, input2: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.cosine_embedding_loss(input1, input2, label, self.margin, self.reduction,
                                       self.name)


class TripletMarginLoss(Layer):
    """``max(0, |input - positive| - |input - negative| + margin)``."""

    def __init__(
        self, margin: float = 1.0, p: float = 2.0, epsilon: float = 1e-6, swap: bool = False,
        reduction: str = "mean", name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._settings = (margin, p, epsilon, swap, reduction, name)

    def forward(self, input: Variable, positive: Variable, negative: Variable) -> Variable:
        """The loss."""
        return F.triplet_margin_loss(input, positive, negative, *self._settings)


class SmoothL1Loss(Layer):
    """Quadratic near zero, linear beyond ``delta``."""

    def __init__(
        self, reduction: str = "mean", delta: float = 1.0, name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._reduction, self._delta, self._name = reduction, delta, name

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.smooth_l1_loss(input, label, self._reduction, self._delta, self._name)


class NLLLoss(Layer):
    """The negative of the score at the label."""

    def __init__(
        self, weight: Optional[Variable] = None, ignore_index: int = -100, reduction: str = "mean",
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        self._weight, self._ignore_index = weight, ignore_index
        self._reduction, self._name = reduction, name

    def forward(self, input: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.nll_loss(
            input, label, self._weight, self._ignore_index, self._reduction, self._name
        )


class MarginRankingLoss(Layer):
    """``max(0, -label * (input - other) + margin)``."""

    def __init__(
        self, margin: float = 0.0, reduction: str = "mean", name: Optional[str] = None
    ) -> None:
        super().__init__()
        self._margin, self._reduction, self._name = margin, reduction, name

    def forward(self, input: Variable, other: Variable, label: Variable) -> Variable:
        """The loss."""
        return F.margin_ranking_loss(
            input, other, label, self._margin, self._reduction, self._name
        )


__getattr__ = missing(__name__)
