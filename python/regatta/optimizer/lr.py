"""Schedules of the learning rate that Python computes.

``scheduler.step()`` moves on; executors put the current rate into the program before every run.
Schedules that are part of the program, and need no ``step``, are those of
:mod:`regatta.optimizer.schedules`.
"""
from __future__ import annotations

import math
from typing import Any, Callable, Dict, List, Optional, Sequence, Union

from .._missing import missing

__all__ = [
    "CosineAnnealingDecay", "CosineAnnealingWarmRestarts", "CyclicLR", "ExponentialDecay",
    "InverseTimeDecay", "LRScheduler", "LambdaDecay", "LinearLR", "LinearWarmup", "MultiStepDecay",
    "MultiplicativeDecay", "NaturalExpDecay", "NoamDecay", "OneCycleLR", "PiecewiseDecay",
    "PolynomialDecay", "ReduceOnPlateau", "StepDecay",
]


def _rate(value: Any, name: str = "learning_rate") -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        try:
            value = float(value)
        except (TypeError, ValueError):
            raise TypeError(f"{name} should be a number, but is {value!r}") from None
    return float(value)


class LRScheduler:
    """A learning rate that changes with :meth:`step`. Subclasses define :meth:`get_lr`.

    >>> class Halving(LRScheduler):
    ...     def get_lr(self):
    ...         return self.base_lr * 0.5 ** self.last_epoch
    >>> rate = Halving(0.1)
    >>> rate(), rate.step(), rate()
    (0.1, None, 0.05)
    """

    def __init__(
        self, learning_rate: float = 0.1, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.base_lr = _rate(learning_rate)
        if self.base_lr < 0:
            raise ValueError(f"learning_rate ({self.base_lr}) must not be negative")
        self.last_lr = self.base_lr
        self.last_epoch = last_epoch
        self.verbose = verbose
        # Why the rate cannot change any more, if it cannot.
        self._fixed: Optional[str] = None
        self.step()

    def __call__(self) -> float:
        """The current rate."""
        return self.last_lr

    def get_lr(self) -> float:
        """The rate of ``self.last_epoch``."""
        raise NotImplementedError(f"{type(self).__name__} has no get_lr")

    def step(self, epoch: Optional[int] = None) -> None:
        """Moves to the next epoch (or batch: whatever the script counts), or to the given one."""
        old = self.last_lr
        if epoch is None:
            self.last_epoch += 1
            self.last_lr = self.get_lr()
        else:
            self.last_epoch = int(epoch)
            closed = getattr(self, "_get_closed_form_lr", None)
            self.last_lr = closed() if closed is not None else self.get_lr()
        self._changed(old)

    def _changed(self, old: float) -> None:
        if getattr(self, "_fixed", None) and self.last_lr != old:
            new, self.last_lr = self.last_lr, old
            raise RuntimeError(f"the learning rate cannot become {new}: {self._fixed}")
        if self.verbose:
            print(f"Epoch {self.last_epoch}: {type(self).__name__} set learning rate to "
                  f"{self.last_lr}.")

    def _fix(self, why: str) -> float:
        """The current rate, which stays: who asks cannot be told of changes."""
        self._fixed = why
        return self.last_lr

    def state_keys(self) -> None:
        """Names of what :meth:`state_dict` holds; subclasses may set ``self.keys``."""
        self.keys = ["last_epoch", "last_lr"]

    def state_dict(self) -> Dict[str, Any]:
        """What a later run needs to continue."""
        self.state_keys()
        state: Dict[str, Any] = {}
        for key in self.keys:
            value = getattr(self, key)
            state[key] = value.state_dict() if isinstance(value, LRScheduler) else value
        return state

    def set_state_dict(self, state_dict: Dict[str, Any]) -> None:
        """Continues where :meth:`state_dict` was taken."""
        self.state_keys()
        for key in self.keys:
            if key not in state_dict:
                raise RuntimeError(f"the state of a {type(self).__name__} lacks '{key}'")
            mine = getattr(self, key)
            if isinstance(mine, LRScheduler):
                mine.set_state_dict(state_dict[key])
            else:
                setattr(self, key, state_dict[key])

    set_dict = set_state_dict

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.last_lr} at {self.last_epoch})"


class NoamDecay(LRScheduler):
    """``learning_rate * d_model^-0.5 * min(n^-0.5, n * warmup_steps^-1.5)``."""

    def __init__(
        self,
        d_model: float,
        warmup_steps: int,
        learning_rate: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if d_model <= 0:
            raise ValueError(f"d_model ({d_model}) must be larger than 0")
        self.d_model, self.warmup_steps = d_model, warmup_steps
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        falling = self.last_epoch ** -0.5 if self.last_epoch > 0 else 1.0
        rising = self.last_epoch * self.warmup_steps ** -1.5
        return self.base_lr * self.d_model ** -0.5 * min(falling, rising)


class PiecewiseDecay(LRScheduler):
    """``values[i]`` until ``boundaries[i]``, then the next; the last value stays."""

    def __init__(
        self,
        boundaries: Sequence[int],
        values: Sequence[float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if len(values) != len(boundaries) + 1:
            raise ValueError(
                f"PiecewiseDecay: {len(boundaries)} boundaries need {len(boundaries) + 1} values, "
                f"not {len(values)}"
            )
        self.boundaries = list(boundaries)
        self.values = [_rate(value, "values") for value in values]
        super().__init__(self.values[0], last_epoch, verbose)

    def get_lr(self) -> float:
        for boundary, value in zip(self.boundaries, self.values):
            if self.last_epoch < boundary:
                return value
        return self.values[-1]


class NaturalExpDecay(LRScheduler):
    """``learning_rate * exp(-gamma * epoch)``."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if gamma <= 0:
            raise ValueError(f"gamma ({gamma}) must be larger than 0, else the rate would grow")
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * math.exp(-self.gamma * self.last_epoch)


class InverseTimeDecay(LRScheduler):
    """``learning_rate / (1 + gamma * epoch)``."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr / (1 + self.gamma * self.last_epoch)


class PolynomialDecay(LRScheduler):
    """``(learning_rate - end_lr) * (1 - epoch / decay_steps)^power + end_lr``; with ``cycle`` it
    begins again, stretched."""

    def __init__(
        self,
        learning_rate: float,
        decay_steps: int,
        end_lr: float = 0.0001,
        power: float = 1.0,
        cycle: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(decay_steps, int) or decay_steps <= 0:
            raise ValueError(f"decay_steps ({decay_steps!r}) must be a whole number above 0")
        if power <= 0:
            raise ValueError(f"power ({power}) must be larger than 0")
        self.decay_steps, self.end_lr = decay_steps, end_lr
        self.power, self.cycle = power, cycle
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        at, steps = self.last_epoch, float(self.decay_steps)
        if self.cycle:
            steps *= max(1, math.ceil(at / steps))
        else:
            at = min(at, self.decay_steps)
        return (self.base_lr - self.end_lr) * (1 - at / steps) ** self.power + self.end_lr


class ExponentialDecay(LRScheduler):
    """``learning_rate * gamma^epoch``."""

    def __init__(
        self, learning_rate: float, gamma: float, last_epoch: int = -1, verbose: bool = False
    ) -> None:
        if not 0 < gamma < 1:
            raise ValueError(f"gamma ({gamma}) must be between 0 and 1")
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.gamma ** self.last_epoch


class MultiStepDecay(LRScheduler):
    """The rate is multiplied by ``gamma`` at every milestone."""

    def __init__(
        self,
        learning_rate: float,
        milestones: Sequence[int],
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        self.milestones = list(milestones)
        if any(a >= b for a, b in zip(self.milestones, self.milestones[1:])):
            raise ValueError(f"milestones {self.milestones} must rise")
        if gamma >= 1:
            raise ValueError(f"gamma ({gamma}) must be below 1")
        self.gamma = gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        passed = sum(self.last_epoch >= milestone for milestone in self.milestones)
        return self.base_lr * self.gamma ** passed


class StepDecay(LRScheduler):
    """The rate is multiplied by ``gamma`` every ``step_size`` epochs."""

    def __init__(
        self,
        learning_rate: float,
        step_size: int,
        gamma: float = 0.1,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(step_size, int) or step_size <= 0:
            raise ValueError(f"step_size ({step_size!r}) must be a whole number above 0")
        if gamma >= 1:
            raise ValueError(f"gamma ({gamma}) must be below 1")
        self.step_size, self.gamma = step_size, gamma
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.gamma ** (self.last_epoch // self.step_size)


class LambdaDecay(LRScheduler):
    """``learning_rate * lr_lambda(epoch)``."""

    def __init__(
        self,
        learning_rate: float,
        lr_lambda: Callable[[int], float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not callable(lr_lambda):
            raise TypeError(f"lr_lambda should be a function, but is {lr_lambda!r}")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self.base_lr * self.lr_lambda(self.last_epoch)


class MultiplicativeDecay(LRScheduler):
    """The rate is multiplied by ``lr_lambda(epoch)`` at every step."""

    def __init__(
        self,
        learning_rate: float,
        lr_lambda: Callable[[int], float],
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not callable(lr_lambda):
            raise TypeError(f"lr_lambda should be a function, but is {lr_lambda!r}")
        self.lr_lambda = lr_lambda
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        rate = self.base_lr
        for epoch in range(1, self.last_epoch + 1):
            rate *= self.lr_lambda(epoch)
        return rate


class CosineAnnealingDecay(LRScheduler):
    """Along a cosine from ``learning_rate`` to ``eta_min`` in ``T_max`` epochs, and back."""

    def __init__(
        self,
        learning_rate: float,
        T_max: int,
        eta_min: float = 0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not isinstance(T_max, int) or T_max <= 0:
            raise ValueError(f"T_max ({T_max!r}) must be a whole number above 0")
        self.T_max, self.eta_min = T_max, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        return self._get_closed_form_lr()

    def _get_closed_form_lr(self) -> float:
        wave = 1 + math.cos(math.pi * self.last_epoch / self.T_max)
        return self.eta_min + (self.base_lr - self.eta_min) * wave / 2


class CosineAnnealingWarmRestarts(LRScheduler):
    """Along half a cosine, again after ``T_0`` epochs, then after ``T_0 * T_mult``, ..."""

    def __init__(
        self,
        learning_rate: float,
        T_0: int,
        T_mult: int = 1,
        eta_min: float = 0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        for name, value in (("T_0", T_0), ("T_mult", T_mult)):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"{name} ({value!r}) must be a whole number above 0")
        self.T_0, self.T_mult, self.eta_min = T_0, T_mult, float(eta_min)
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        at, length = self.last_epoch, self.T_0
        while at >= length:
            at -= length
            length *= self.T_mult
        wave = 1 + math.cos(math.pi * at / length)
        return self.eta_min + (self.base_lr - self.eta_min) * wave / 2


class LinearWarmup(LRScheduler):
    """From ``start_lr`` to ``end_lr`` in ``warmup_steps``, then a rate or another schedule, whose
    epochs count from the end of the warm-up."""

    def __init__(
        self,
        learning_rate: Union[float, LRScheduler],
        warmup_steps: int,
        start_lr: float,
        end_lr: float,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if start_lr > end_lr:
            raise ValueError(f"start_lr ({start_lr}) must not exceed end_lr ({end_lr})")
        if not isinstance(warmup_steps, int) or warmup_steps <= 0:
            raise ValueError(f"warmup_steps ({warmup_steps!r}) must be a whole number above 0")
        self.learning_rate = learning_rate
        self.warmup_steps, self.start_lr, self.end_lr = warmup_steps, start_lr, end_lr
        super().__init__(start_lr, last_epoch, verbose)

    def get_lr(self) -> float:
        if self.last_epoch < self.warmup_steps:
            way = self.last_epoch / self.warmup_steps
            return self.start_lr + (self.end_lr - self.start_lr) * way
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.step(self.last_epoch - self.warmup_steps)
            return self.learning_rate()
        return _rate(self.learning_rate)

    def state_dict(self) -> Dict[str, Any]:
        state = super().state_dict()
        if isinstance(self.learning_rate, LRScheduler):
            state["LinearWarmup_LR"] = self.learning_rate.state_dict()
        return state

    def set_state_dict(self, state_dict: Dict[str, Any]) -> None:
        super().set_state_dict(state_dict)
        if isinstance(self.learning_rate, LRScheduler):
            self.learning_rate.set_state_dict(state_dict["LinearWarmup_LR"])

    set_dict = set_state_dict


class LinearLR(LRScheduler):
    """The factor on the rate goes from ``start_factor`` to ``end_factor`` in ``total_steps``."""

    def __init__(
        self,
        learning_rate: float,
        total_steps: int,
        start_factor: float = 1.0 / 3,
        end_factor: float = 1.0,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if not 0 < start_factor <= 1 or not 0 <= end_factor <= 1:
            raise ValueError("start_factor must be above 0 and at most 1, end_factor 0 to 1")
        if total_steps <= 0:
            raise ValueError(f"total_steps ({total_steps}) must be above 0")
        self.start_factor, self.end_factor = start_factor, end_factor
        self.total_steps = total_steps
        super().__init__(learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        way = min(self.last_epoch, self.total_steps) / self.total_steps
        return self.base_lr * (self.start_factor + (self.end_factor - self.start_factor) * way)


class CyclicLR(LRScheduler):
    """Between two rates, up in ``step_size_up`` and down in ``step_size_down`` steps."""

    def __init__(
        self,
        base_learning_rate: float,
        max_learning_rate: float,
        step_size_up: int,
        step_size_down: Optional[int] = None,
        mode: str = "triangular",
        exp_gamma: float = 1.0,
        scale_fn: Optional[Callable[[float], float]] = None,
        scale_mode: str = "cycle",
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if mode not in ("triangular", "triangular2", "exp_range") and scale_fn is None:
            raise ValueError(f"mode '{mode}': expected triangular, triangular2 or exp_range")
        if scale_mode not in ("cycle", "iterations"):
            raise ValueError(f"scale_mode '{scale_mode}': expected cycle or iterations")
        self.max_lr = _rate(max_learning_rate, "max_learning_rate")
        self.step_up = float(step_size_up)
        self.cycle_size = self.step_up + float(step_size_down or step_size_up)
        if scale_fn is None:
            scale_mode = "iterations" if mode == "exp_range" else "cycle"
            scale_fn = {
                "triangular": lambda x: 1.0,
                "triangular2": lambda x: 1 / 2.0 ** (x - 1),
                "exp_range": lambda x: exp_gamma ** x,
            }[mode]
        self.scale_fn, self.scale_mode = scale_fn, scale_mode
        super().__init__(base_learning_rate, last_epoch, verbose)

    def get_lr(self) -> float:
        cycle = self.last_epoch // self.cycle_size
        at = self.last_epoch - cycle * self.cycle_size
        down = self.cycle_size - self.step_up
        height = at / self.step_up if at <= self.step_up else (self.cycle_size - at) / down
        scale = self.scale_fn(cycle + 1 if self.scale_mode == "cycle" else self.last_epoch)
        return self.base_lr + (self.max_lr - self.base_lr) * height * scale


class OneCycleLR(LRScheduler):
    """Up to ``max_learning_rate`` and down to ``end_learning_rate``, once in ``total_steps``."""

    def __init__(
        self,
        max_learning_rate: float,
        total_steps: int,
        divide_factor: float = 25.0,
        end_learning_rate: float = 0.0001,
        phase_pct: float = 0.3,
        anneal_strategy: str = "cos",
        three_phase: bool = False,
        last_epoch: int = -1,
        verbose: bool = False,
    ) -> None:
        if total_steps <= 0 or not 0 <= phase_pct <= 1:
            raise ValueError("OneCycleLR: total_steps must be above 0, phase_pct 0 to 1")
        if anneal_strategy not in ("cos", "linear"):
            raise ValueError(f"anneal_strategy '{anneal_strategy}': expected cos or linear")
        top, first = float(max_learning_rate), float(max_learning_rate) / divide_factor
        self.total_steps, self.anneal = total_steps, anneal_strategy
        up = phase_pct * total_steps - 1
        if three_phase:
            if phase_pct > 0.5:
                raise ValueError("OneCycleLR: phase_pct must not exceed 0.5 with three_phase")
            self.turns = [0, up, 2 * phase_pct * total_steps - 2, total_steps - 1, total_steps - 1]
            self.rates = [first, top, first, end_learning_rate]
        else:
            self.turns = [0, up, total_steps - 1, total_steps - 1]
            self.rates = [first, top, end_learning_rate]
        super().__init__(first, last_epoch, verbose)

    def get_lr(self) -> float:
        at = self.last_epoch
        if at > self.total_steps:
            raise ValueError(f"OneCycleLR: step {at} is after the last one, {self.total_steps}")
        for i in range(len(self.rates) - 1):
            start, end = self.turns[i], self.turns[i + 1]
            if at <= end or i == len(self.rates) - 2:
                way = (at - start) / (end - start) if end > start else 1.0
                return self._between(self.rates[i], self.rates[i + 1], way)
        return self.rates[-1]

    def _between(self, start: float, end: float, way: float) -> float:
        if self.anneal == "cos":
            return end + (start - end) / 2 * (1 + math.cos(math.pi * way))
        return start + (end - start) * way


class ReduceOnPlateau(LRScheduler):
    """The rate falls by ``factor`` when a measure has not improved for ``patience`` steps:
    ``scheduler.step(loss)``."""

    def __init__(
        self,
        learning_rate: float,
        mode: str = "min",
        factor: float = 0.1,
        patience: int = 10,
        threshold: float = 1e-4,
        threshold_mode: str = "rel",
        cooldown: int = 0,
        min_lr: float = 0,
        epsilon: float = 1e-8,
        verbose: bool = False,
    ) -> None:
        if mode not in ("min", "max"):
            raise ValueError(f"mode '{mode}': expected min or max")
        if threshold_mode not in ("rel", "abs"):
            raise ValueError(f"threshold_mode '{threshold_mode}': expected rel or abs")
        if factor >= 1.0:
            raise ValueError(f"factor ({factor}) must be below 1")
        self.mode, self.factor, self.patience = mode, factor, patience
        self.threshold, self.threshold_mode = threshold, threshold_mode
        self.cooldown, self.min_lr, self.epsilon = cooldown, min_lr, epsilon
        self.cooldown_counter = 0
        self.best: Optional[float] = None
        self.num_bad_epochs = 0
        self.base_lr = self.last_lr = _rate(learning_rate)
        self.last_epoch = 0
        self.verbose = verbose
        self._fixed = None

    def state_keys(self) -> None:
        self.keys = ["cooldown_counter", "best", "num_bad_epochs", "last_epoch", "last_lr"]

    def step(self, metrics: Any, epoch: Optional[int] = None) -> None:  # type: ignore[override]
        """Takes the measure of an epoch: a number or an array of one."""
        import numpy as np

        measure = np.asarray(metrics)
        if measure.size != 1:
            raise ValueError(f"step takes one number, not an array of shape {measure.shape}")
        value = float(measure.reshape(()))
        self.last_epoch = self.last_epoch + 1 if epoch is None else epoch
        if self.cooldown_counter > 0:
            self.cooldown_counter -= 1
            return
        if self.best is None or self._is_better(value, self.best):
            self.best, self.num_bad_epochs = value, 0
        else:
            self.num_bad_epochs += 1
        if self.num_bad_epochs > self.patience:
            self.cooldown_counter, self.num_bad_epochs = self.cooldown, 0
            new, old = max(self.last_lr * self.factor, self.min_lr), self.last_lr
            if old - new > self.epsilon:
                self.last_lr = new
                self._changed(old)

    def _is_better(self, value: float, best: float) -> bool:
        sign = 1 if self.mode == "min" else -1
        margin = self.threshold * (best if self.threshold_mode == "rel" else 1)
        return sign * value < sign * best - margin


__getattr__ = missing(__name__)
