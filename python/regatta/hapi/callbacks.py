"""What is called while a :class:`regatta.Model` trains, is measured or predicts."""
from __future__ import annotations

import os
import sys
import time
import warnings
from typing import Any, Dict, List, Optional, Sequence

from .._missing import missing

__all__ = ["Callback", "EarlyStopping", "LRScheduler", "ModelCheckpoint", "ProgBarLogger"]

Logs = Optional[Dict[str, Any]]


class Callback:
    """Methods that subclasses may define. ``self.model`` and ``self.params`` are set before."""

    def __init__(self) -> None:
        self.model: Any = None
        self.params: Dict[str, Any] = {}

    def set_params(self, params: Dict[str, Any]) -> None:
        """``epochs``, ``steps``, ``verbose`` and names of ``metrics``."""
        self.params = params

    def set_model(self, model: Any) -> None:
        """The model that is trained."""
        self.model = model

    def on_train_begin(self, logs: Logs = None) -> None:
        """Before training."""

    def on_train_end(self, logs: Logs = None) -> None:
        """After training."""

    def on_eval_begin(self, logs: Logs = None) -> None:
        """Before measuring."""

    def on_eval_end(self, logs: Logs = None) -> None:
        """After measuring, with the results."""

    def on_predict_begin(self, logs: Logs = None) -> None:
        """Before predicting."""

    def on_predict_end(self, logs: Logs = None) -> None:
        """After predicting."""

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        """Before an epoch."""

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        """After an epoch."""

    def on_train_batch_begin(self, step: int, logs: Logs = None) -> None:
        """Before a batch is trained on."""

    def on_train_batch_end(self, step: int, logs: Logs = None) -> None:
        """After a batch was trained on."""

    def on_eval_batch_begin(self, step: int, logs: Logs = None) -> None:
        """Before a batch is measured."""

    def on_eval_batch_end(self, step: int, logs: Logs = None) -> None:
        """After a batch was measured."""

    def on_predict_batch_begin(self, step: int, logs: Logs = None) -> None:
        """Before outputs of a batch are computed."""

    def on_predict_batch_end(self, step: int, logs: Logs = None) -> None:
        """After outputs of a batch were computed."""


class CallbackList:
    """Calls all callbacks in order."""

    def __init__(self, callbacks: Sequence[Callback]) -> None:
        self.callbacks = list(callbacks)

    def __getattr__(self, name: str) -> Any:
        if not name.startswith("on_"):
            raise AttributeError(name)

        def call(*args: Any) -> None:
            for callback in self.callbacks:
                getattr(callback, name)(*args)

        return call


def with_defaults(
    callbacks: Any, model: Any, log_freq: int, verbose: int, save_dir: Optional[str],
    save_freq: int, params: Dict[str, Any],
) -> CallbackList:
    """The callbacks of a call, with those that are always there: a progress display, checkpoints
    if there is a folder for them, and steps of the learning rate."""
    given: List[Callback] = list(callbacks) if isinstance(callbacks, (list, tuple)) else (
        [] if callbacks is None else [callbacks])
    if not any(isinstance(each, ProgBarLogger) for each in given):
        given = [ProgBarLogger(log_freq, verbose), *given]
    if not any(isinstance(each, LRScheduler) for each in given):
        given.append(LRScheduler())
    if save_dir is not None and not any(isinstance(each, ModelCheckpoint) for each in given):
        given.append(ModelCheckpoint(save_freq, save_dir))
    for each in given:
        each.set_model(model)
        each.set_params(params)
        if isinstance(each, EarlyStopping) and each.save_dir is None:
            each.save_dir = save_dir
    return CallbackList(given)


def _is_first_rank() -> bool:
    from ..distributed import get_rank

    return get_rank() == 0


def _shown(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return " ".join(_shown(each) for each in value)
    return f"{float(value):.4f}"


class ProgBarLogger(Callback):
    """Prints losses and metrics every ``log_freq`` batches: with ``verbose=1`` over the same line
    of a terminal, with 2 line by line, with 0 not at all."""

    def __init__(self, log_freq: int = 1, verbose: int = 2) -> None:
        super().__init__()
        self.log_freq, self.verbose = max(1, log_freq), verbose
        self._began, self._open = 0.0, False

    def _is_first(self) -> bool:
        return self.verbose > 0 and _is_first_rank()

    def _print(self, text: str, end: bool) -> None:
        over = self.verbose == 1 and sys.stdout.isatty()
        start = "\r\033[K" if over and self._open else ""
        print(start + text, end="\n" if end or not over else "", flush=True)
        self._open = over and not end

    def _show(self, step: int, logs: Logs) -> None:
        n_steps = self.params.get("steps")
        done = n_steps is not None and step + 1 == n_steps
        if not self._is_first() or (step + 1) % self.log_freq and not done:
            return
        logs = logs or {}
        parts = [f"step {step + 1}" + (f"/{n_steps}" if n_steps is not None else "")]
        parts += [f"{name}: {_shown(logs[name])}" for name in self._names if name in logs]
        parts.append(f"{(time.monotonic() - self._began) * 1000 / (step + 1):.0f}ms/step")
        self._print(" - ".join(parts), done)

    def _begin(self, logs: Logs) -> None:
        self._began = time.monotonic()
        if logs and "steps" in logs:
            self.params = {**self.params, "steps": logs["steps"]}

    @property
    def _names(self) -> List[str]:
        return list(self.params.get("metrics", []))

    def on_train_begin(self, logs: Logs = None) -> None:
        self._train_steps = self.params.get("steps")

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        self._begin({"steps": self._train_steps})
        if self._is_first():
            self._print(f"Epoch {epoch + 1}/{self.params.get('epochs')}", True)

    def on_train_batch_end(self, step: int, logs: Logs = None) -> None:
        self._show(step, logs)

    def on_eval_begin(self, logs: Logs = None) -> None:
        self._begin(logs)
        if self._is_first():
            self._print("Eval begin...", True)

    def on_eval_batch_end(self, step: int, logs: Logs = None) -> None:
        self._show(step, logs)

    def on_predict_begin(self, logs: Logs = None) -> None:
        self._begin(logs)
        if self._is_first():
            self._print("Predict begin...", True)

    def on_predict_batch_end(self, step: int, logs: Logs = None) -> None:
        self._show(step, logs)


class ModelCheckpoint(Callback):
    """Saves the model every ``save_freq`` epochs as ``save_dir/EPOCH``, at the end as
    ``save_dir/final``."""

    def __init__(self, save_freq: int = 1, save_dir: Optional[str] = None) -> None:
        super().__init__()
        self.save_freq, self.save_dir = save_freq, save_dir

    def _save(self, name: str) -> None:
        if self.save_dir is not None and _is_first_rank():
            self.model.save(os.path.join(self.save_dir, name))

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if epoch % self.save_freq == 0:
            self._save(str(epoch))

    def on_train_end(self, logs: Logs = None) -> None:
        self._save("final")


class EarlyStopping(Callback):
    """Ends training when a result of the evaluation has not become better ``patience`` times. The
    best model is saved as ``best_model`` if ``fit`` has ``save_dir``."""

    def __init__(
        self, monitor: str = "loss", mode: str = "auto", patience: int = 0, verbose: int = 1,
        min_delta: float = 0, baseline: Optional[float] = None, save_best_model: bool = True,
    ) -> None:
        super().__init__()
        if mode not in ("auto", "min", "max"):
            raise ValueError(f"EarlyStopping: mode should be auto, min or max, but is {mode!r}")
        self.monitor, self.patience, self.verbose = monitor, patience, verbose
        self.min_delta, self.baseline = abs(min_delta), baseline
        self.save_best_model = save_best_model
        self.save_dir: Optional[str] = None
        larger = mode == "max" or mode == "auto" and "acc" in monitor
        self._sign = 1.0 if larger else -1.0
        self.best_value, self.wait_epoch, self.stopped_epoch = baseline, 0, 0

    def on_train_begin(self, logs: Logs = None) -> None:
        self.best_value, self.wait_epoch = self.baseline, 0

    def on_eval_end(self, logs: Logs = None) -> None:
        value = (logs or {}).get(self.monitor)
        if value is None:
            warnings.warn(
                f"EarlyStopping: the evaluation has no '{self.monitor}', only {sorted(logs or {})}")
            return
        value = float(value[0] if isinstance(value, (list, tuple)) else value)
        if self.best_value is None or self._sign * (value - self.best_value) > self.min_delta:
            self.best_value, self.wait_epoch = value, 0
            if self.save_best_model and self.save_dir is not None and _is_first_rank():
                self.model.save(os.path.join(self.save_dir, "best_model"))
            return
        self.wait_epoch += 1
        if self.wait_epoch > self.patience:
            self.model.stop_training = True
            if self.verbose:
                print(f"Early stopping: '{self.monitor}' was best at {self.best_value:.5f}",
                      flush=True)


class LRScheduler(Callback):
    """Steps of the learning rate's schedule, after every batch or every epoch."""

    def __init__(self, by_step: bool = True, by_epoch: bool = False) -> None:
        super().__init__()
        if by_step and by_epoch:
            raise ValueError("LRScheduler: by_step and by_epoch exclude each other")
        self.by_step, self.by_epoch = by_step, by_epoch

    def _step(self) -> None:
        from ..optimizer.lr import LRScheduler as Schedule

        rate = getattr(self.model._optimizer, "_learning_rate", None)
        if isinstance(rate, Schedule):
            rate.step()

    def on_train_batch_end(self, step: int, logs: Logs = None) -> None:
        if self.by_step:
            self._step()

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.by_epoch:
            self._step()


__getattr__ = missing(__name__)
