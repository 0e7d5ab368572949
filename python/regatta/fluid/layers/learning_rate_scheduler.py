"""Learning rates that follow from the number of the step, as part of the program."""
from __future__ import annotations

from ...optimizer.schedules import (  # noqa: F401
    cosine_decay, exponential_decay, inverse_time_decay, linear_lr_warmup, natural_exp_decay,
    noam_decay, piecewise_decay, polynomial_decay,
)

__all__ = [
    "cosine_decay", "exponential_decay", "inverse_time_decay", "linear_lr_warmup",
    "natural_exp_decay", "noam_decay", "piecewise_decay", "polynomial_decay",
]
