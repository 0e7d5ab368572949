"""Optimizers under the names of Fluid.

They are those of :mod:`regatta.optimizer`, which take Fluid's ``regularization`` and
``parameter_list`` too. A clip that :func:`regatta.fluid.clip.set_gradient_clip` has set for a
program is used if the optimizer has none.
"""
from __future__ import annotations

from typing import Any

from .. import optimizer as _optimizers
from .._missing import missing
from ..framework import Variable

__all__ = [
    "Adadelta", "AdadeltaOptimizer", "Adagrad", "AdagradOptimizer", "Adam", "AdamOptimizer", "Ftrl",
    "FtrlOptimizer", "Lamb", "LambOptimizer", "LarsMomentum", "LarsMomentumOptimizer", "Momentum",
    "MomentumOptimizer", "Optimizer", "RMSProp", "RMSPropOptimizer", "SGD", "SGDOptimizer",
]

Optimizer = _optimizers.Optimizer


class _Clipped:
    """Uses the clip of the program."""

    _grad_clip: Any

    def minimize(self, loss: Any, *args: Any, **kwargs: Any) -> Any:
        """As :meth:`regatta.optimizer.Optimizer.minimize`."""
        if self._grad_clip is None and isinstance(loss, Variable):
            self._grad_clip = getattr(loss.program, "_gradient_clip", None)
        return super().minimize(loss, *args, **kwargs)  # type: ignore[misc]


class SGDOptimizer(_Clipped, _optimizers.SGD):
    """Gradient descent."""


class MomentumOptimizer(_Clipped, _optimizers.Momentum):
    """Gradient descent with momentum."""


class AdagradOptimizer(_Clipped, _optimizers.Adagrad):
    """Steps shrink with the sum of squared gradients."""


class AdamOptimizer(_Clipped, _optimizers.Adam):
    """Adam."""


class RMSPropOptimizer(_Clipped, _optimizers.RMSProp):
    """Steps shrink with the mean of squared gradients."""


class AdadeltaOptimizer(_Clipped, _optimizers.Adadelta):
    """Steps in the units of the weights."""


class FtrlOptimizer(_Clipped, _optimizers.Ftrl):
    """Follow the regularized leader."""


class LambOptimizer(_Clipped, _optimizers.Lamb):
    """Adam with a trust ratio per parameter."""


class LarsMomentumOptimizer(_Clipped, _optimizers.LarsMomentum):
    """Momentum with a learning rate per parameter."""


SGD, Momentum, Adagrad, Adam = SGDOptimizer, MomentumOptimizer, AdagradOptimizer, AdamOptimizer
RMSProp, Adadelta, Ftrl = RMSPropOptimizer, AdadeltaOptimizer, FtrlOptimizer
Lamb, LarsMomentum = LambOptimizer, LarsMomentumOptimizer

__getattr__ = missing(__name__)
