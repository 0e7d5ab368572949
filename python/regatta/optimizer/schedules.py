"""Schedules of the learning rate that are part of the program: the rate follows from the number of
the step, on every process alike. The functions of ``fluid.layers``.

>>> import regatta as rg
>>> rate = exponential_decay(0.1, decay_steps=1000, decay_rate=0.9)
>>> rg.optimizer.SGD(learning_rate=rate)._spec()["schedule"]["schedule"]
'exponential'
"""
from __future__ import annotations

from typing import Any, Dict, Sequence, Union

from .._missing import missing

__all__ = [
    "ProgramSchedule", "cosine_decay", "exponential_decay", "inverse_time_decay",
    "linear_lr_warmup", "natural_exp_decay", "noam_decay", "piecewise_decay", "polynomial_decay",
]


class ProgramSchedule:
    """A base rate, and how the rate of a step follows from it."""

    def __init__(self, base: float, schedule: Dict[str, Any]) -> None:
        self.base = float(base)
        self.schedule = schedule

    def __repr__(self) -> str:
        return f"ProgramSchedule({self.base}, {self.schedule})"


def _steps(value: Any, name: str) -> int:
    if int(value) != value or value < 1:
        raise ValueError(f"{name} ({value!r}) must be a whole number above 0")
    return int(value)


def _decay(kind: str, rate: float, steps: Any, factor: float, stairs: bool) -> ProgramSchedule:
    return ProgramSchedule(rate, {
        "schedule": kind, "decay_steps": _steps(steps, "decay_steps"), "decay_rate": float(factor),
        "staircase": bool(stairs),
    })


def exponential_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> ProgramSchedule:
    """``learning_rate * decay_rate^(step / decay_steps)``."""
    return _decay("exponential", learning_rate, decay_steps, decay_rate, staircase)


def natural_exp_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> ProgramSchedule:
    """``learning_rate * exp(-decay_rate * step / decay_steps)``."""
    return _decay("natural_exp", learning_rate, decay_steps, decay_rate, staircase)


def inverse_time_decay(
    learning_rate: float, decay_steps: int, decay_rate: float, staircase: bool = False
) -> ProgramSchedule:
    """``learning_rate / (1 + decay_rate * step / decay_steps)``."""
    return _decay("inverse_time", learning_rate, decay_steps, decay_rate, staircase)


def polynomial_decay(
    learning_rate: float,
    decay_steps: int,
    end_learning_rate: float = 0.0001,
    power: float = 1.0,
    cycle: bool = False,
) -> ProgramSchedule:
    """``(learning_rate - end) * (1 - step / decay_steps)^power + end``."""
    return ProgramSchedule(learning_rate, {
        "schedule": "polynomial", "decay_steps": _steps(decay_steps, "decay_steps"),
        "end_lr": float(end_learning_rate), "power": float(power), "cycle": bool(cycle),
    })


def piecewise_decay(boundaries: Sequence[int], values: Sequence[float]) -> ProgramSchedule:
    """``values[i]`` until step ``boundaries[i]``."""
    if len(values) != len(boundaries) + 1:
        raise ValueError(
            f"piecewise_decay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, "
            f"not {len(values)}"
        )
    return ProgramSchedule(values[0], {
        "schedule": "piecewise", "boundaries": [int(b) for b in boundaries],
        "values": [float(v) for v in values],
    })


def cosine_decay(learning_rate: float, step_each_epoch: int, epochs: int) -> ProgramSchedule:
    """``learning_rate / 2 * (cos(epoch * pi / epochs) + 1)``."""
    return ProgramSchedule(learning_rate, {
        "schedule": "cosine", "step_each_epoch": _steps(step_each_epoch, "step_each_epoch"),
        "epochs": _steps(epochs, "epochs"),
    })


def noam_decay(d_model: int, warmup_steps: int, learning_rate: float = 1.0) -> ProgramSchedule:
    """``learning_rate * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5)``."""
    return ProgramSchedule(learning_rate, {
        "schedule": "noam", "d_model": _steps(d_model, "d_model"),
        "warmup_steps": _steps(warmup_steps, "warmup_steps"),
    })


def linear_lr_warmup(
    learning_rate: Union[float, ProgramSchedule], warmup_steps: int, start_lr: float, end_lr: float
) -> ProgramSchedule:
    """From ``start_lr`` to ``end_lr`` in ``warmup_steps``, then a rate or another schedule."""
    inner: Dict[str, Any] = {"schedule": "constant"}
    base = learning_rate
    if isinstance(learning_rate, ProgramSchedule):
        base, inner = learning_rate.base, learning_rate.schedule
    return ProgramSchedule(base, {  # type: ignore[arg-type]
        "schedule": "linear_warmup", "inner": inner,
        "warmup_steps": _steps(warmup_steps, "warmup_steps"),
        "start_lr": float(start_lr), "end_lr": float(end_lr),
    })


__getattr__ = missing(__name__)
