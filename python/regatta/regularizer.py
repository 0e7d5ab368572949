"""Regularization of parameters: part of the gradient, ``coeff * w`` or ``coeff * sign(w)``."""
from __future__ import annotations

from typing import Optional, Tuple

from ._missing import missing

__all__ = [
    "L1Decay", "L1DecayRegularizer", "L2Decay", "L2DecayRegularizer", "WeightDecayRegularizer",
]


class WeightDecayRegularizer:
    """A penalty on parameters."""

    _kind = ""

    def __init__(
        self, coeff: float = 0.0, regularization_coeff: Optional[float] = None
    ) -> None:
        value = coeff if regularization_coeff is None else regularization_coeff
        if not isinstance(value, (int, float)):
            raise TypeError(f"{type(self).__name__}: the coefficient is {value!r}, not a number")
        self._coeff = self._regularization_coeff = float(value)

    def _regularizer_spec(self) -> Tuple[str, float]:
        if not self._kind:
            raise NotImplementedError(f"{type(self).__name__} is no penalty of the op set")
        return self._kind, self._coeff

    def __repr__(self) -> str:
        return f"{type(self).__name__}(coeff={self._coeff})"

    def __str__(self) -> str:
        return f"{self._kind.upper()}Decay, coeff={self._coeff:f}"


class L1Decay(WeightDecayRegularizer):
    """``coeff`` times the sum of absolute values.

    >>> L1Decay(0.001)
    L1Decay(coeff=0.001)
    """

    _kind = "l1"


class L2Decay(WeightDecayRegularizer):
    """``coeff / 2`` times the sum of squares: the gradient gets ``coeff * w``."""

    _kind = "l2"


L1DecayRegularizer = L1Decay
L2DecayRegularizer = L2Decay

__getattr__ = missing(__name__)
