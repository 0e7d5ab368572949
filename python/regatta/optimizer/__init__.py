"""How gradients update parameters, and how the learning rate changes."""
from __future__ import annotations

from .._missing import missing
from . import lr, schedules
from .optimizer import (
    SGD, Adadelta, Adagrad, Adam, AdamW, Ftrl, Lamb, LarsMomentum, Momentum, Optimizer, RMSProp,
)

__all__ = [
    "Adadelta", "Adagrad", "Adam", "AdamW", "Ftrl", "Lamb", "LarsMomentum", "Momentum", "Optimizer",
    "RMSProp", "SGD", "lr", "schedules",
]

# The names of Fluid.
SGDOptimizer, MomentumOptimizer, AdagradOptimizer = SGD, Momentum, Adagrad
AdamOptimizer, RMSPropOptimizer, AdadeltaOptimizer = Adam, RMSProp, Adadelta
FtrlOptimizer, LambOptimizer, LarsMomentumOptimizer = Ftrl, Lamb, LarsMomentum

__getattr__ = missing(__name__)
