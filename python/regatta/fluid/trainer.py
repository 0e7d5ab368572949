"""``Trainer``: a training loop that reports events and continues after an interruption."""
from __future__ import annotations

import json
import os
import shutil
import warnings
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from ..framework import (
    Program, Scope, Variable, program_guard, scope_guard, unique_name,
)
from . import io
from .data_feeder import DataFeeder

__all__ = [
    "BeginEpochEvent", "BeginStepEvent", "CheckpointConfig", "EndEpochEvent", "EndStepEvent",
    "Trainer",
]


class BeginEpochEvent:
    """An epoch begins."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class EndEpochEvent:
    """An epoch has ended."""

    def __init__(self, epoch_id: int) -> None:
        self.epoch = epoch_id


class BeginStepEvent:
    """A step begins. Set ``fetch_metrics`` to False to have no metrics after it."""

    def __init__(self, epoch_id: int, step_id: int) -> None:
        self.epoch, self.step = epoch_id, step_id
        self.fetch_metrics = True


class EndStepEvent:
    """A step has ended; ``metrics`` has the values of what ``train_func`` returned."""

    def __init__(self, epoch_id: int, step_id: int, metrics: List[Any]) -> None:
        self.epoch, self.step, self.metrics = epoch_id, step_id, metrics


class CheckpointConfig:
    """When and where a :class:`Trainer` saves checkpoints.

    In every ``epoch_interval``-th epoch, after every ``step_interval``-th step, to a new folder
    ``checkpoint_N`` in ``checkpoint_dir``; the latest ``max_num_checkpoints`` stay. A trainer that
    finds checkpoints there continues from the latest."""

    def __init__(
        self,
        checkpoint_dir: Optional[str] = None,
        max_num_checkpoints: int = 3,
        epoch_interval: int = 1,
        step_interval: int = 10,
    ) -> None:
        for name, value in (
            ("max_num_checkpoints", max_num_checkpoints), ("epoch_interval", epoch_interval),
            ("step_interval", step_interval),
        ):
            if not isinstance(value, int) or value < 1:
                raise ValueError(f"CheckpointConfig: {name} should be 1 or more, but is {value!r}")
        self.checkpoint_dir = os.path.abspath(checkpoint_dir or os.getcwd())
        self.max_num_checkpoints = max_num_checkpoints
        self.epoch_interval = epoch_interval
        self.step_interval = step_interval

    def is_due(self, epoch: int, step: int) -> bool:
        """Whether a checkpoint follows this step."""
        return epoch % self.epoch_interval == 0 and step % self.step_interval == 0


class _Checkpoints:
    """The folders of a :class:`CheckpointConfig`.

    ``checkpoint_N`` holds the values of the program, published whole by a rename. The position of
    trainer ``i`` is in ``trainer_i.N.json`` beside it: every trainer of a job writes its own, and
    trainer 0 the values."""

    def __init__(self, config: CheckpointConfig, trainer_id: int) -> None:
        self.config, self.trainer_id = config, trainer_id
        os.makedirs(config.checkpoint_dir, exist_ok=True)

    def _path(self, name: str) -> str:
        return os.path.join(self.config.checkpoint_dir, name)

    def folder(self, number: int) -> str:
        """The values of a checkpoint."""
        return self._path(f"checkpoint_{number}")

    def _position(self, number: int) -> str:
        return self._path(f"trainer_{self.trainer_id}.{number}.json")

    def _numbers(self) -> List[int]:
        """Complete checkpoints that this trainer has a position of, oldest first."""
        numbers = []
        for name in os.listdir(self.config.checkpoint_dir):
            head, _, number = name.rpartition("_")
            if head == "checkpoint" and number.isdigit() and os.path.isfile(
                self._position(int(number))
            ):
                numbers.append(int(number))
        return sorted(numbers)

    def latest(self) -> Optional[Dict[str, int]]:
        """The position of the latest checkpoint."""
        numbers = self._numbers()
        if not numbers:
            return None
        path = self._position(numbers[-1])
        with open(path, encoding="utf-8") as file:
            try:
                position = json.load(file)
                return {key: int(position[key]) for key in ("number", "epoch", "step")}
            except (ValueError, KeyError, TypeError) as error:
                raise ValueError(
                    f"{path} is not the position of a trainer ({error}): delete it to continue from "
                    "the checkpoint before"
                ) from None

    def save(self, position: Dict[str, int], save_values: Optional[Callable[[str], None]]) -> None:
        """Writes a checkpoint and removes those that are too many. ``save_values`` writes the values
        to a folder; only trainer 0 has it."""
        number = position["number"]
        _publish(self._position(number), json.dumps(position) + "\n")
        if save_values is not None:
            draft = self._path(f".checkpoint_{number}.draft")
            shutil.rmtree(draft, ignore_errors=True)
            save_values(draft)
            shutil.rmtree(self.folder(number), ignore_errors=True)
            os.rename(draft, self.folder(number))
        self._rotate(number, save_values is not None)

    def _rotate(self, latest: int, is_first: bool) -> None:
        oldest = latest - self.config.max_num_checkpoints + 1
        mine = f"trainer_{self.trainer_id}."
        for name in os.listdir(self.config.checkpoint_dir):
            if is_first and name.startswith("checkpoint_"):
                number = name[len("checkpoint_"):]
                if number.isdigit() and int(number) < oldest:
                    shutil.rmtree(self._path(name), ignore_errors=True)
            elif name.startswith(mine) and name.endswith(".json"):
                number = name[len(mine):-len(".json")]
                if number.isdigit() and int(number) < oldest:
                    os.remove(self._path(name))


def _publish(path: str, text: str) -> None:
    draft = f"{path}.draft"
    with open(draft, "w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


def build_feed_order(program: Program, feed_order: Any) -> List[Variable]:
    """The variables that the fields of an example go to: the inputs in order of declaration, the
    names of a list, or the names of a dict in the order of its numbers."""
    if feed_order is None:
        return [var for var in program.list_vars() if var.is_data]
    if isinstance(feed_order, dict):
        if sorted(feed_order.values()) != list(range(len(feed_order))):
            raise ValueError(
                f"feed_order: the values should be 0 to {len(feed_order) - 1}, each once, but are "
                f"{sorted(feed_order.values())}"
            )
        feed_order = sorted(feed_order, key=feed_order.__getitem__)
    return [program.global_block().var(name) for name in feed_order]


class Trainer:
    """Trains what ``train_func`` builds with the optimizer that ``optimizer_func`` returns.

    ``train_func`` returns the loss, or a list with the loss first and metrics after it. With
    ``param_path`` parameters are loaded from there; with ``checkpoint_config`` checkpoints are
    saved, and training continues from the latest.

    The variables of Fluid's cluster guide (PADDLE_TRAINING_ROLE, PADDLE_PSERVER_IPS,
    PADDLE_PSERVER_PORT, PADDLE_TRAINERS, PADDLE_TRAINER_ID, PADDLE_CURRENT_IP) make this process a
    trainer or a server of a job; PADDLE_TRAINER_IPS makes it a rank."""

    def __init__(
        self,
        train_func: Callable[[], Any],
        optimizer_func: Callable[[], Any],
        param_path: Optional[str] = None,
        place: Any = None,
        parallel: bool = False,
        checkpoint_config: Optional[CheckpointConfig] = None,
    ) -> None:
        if not callable(train_func) or not callable(optimizer_func):
            raise TypeError("Trainer takes train_func and optimizer_func, two functions")
        if checkpoint_config is not None and not isinstance(checkpoint_config, CheckpointConfig):
            raise TypeError("checkpoint_config should be a CheckpointConfig")
        from .executor import Executor

        self.place, self.parallel = place, parallel
        self.scope = Scope()
        self.startup_program, self.train_program = Program(), Program()
        self.trainer_id = int(os.environ.get("PADDLE_TRAINER_ID", "0") or 0)
        self._stopped = False
        self._build(train_func, optimizer_func)
        self.exe = Executor(place)
        self._job = self._join()
        self._is_server = self._job is not None and self._job.is_server
        self._checkpoints = None
        self._position: Dict[str, int] = {"number": -1, "epoch": 0, "step": 0}
        if self._is_server:
            return
        with scope_guard(self.scope):
            self.exe.run(self.startup_program)
            if param_path:
                io.load_persistables(self.exe, param_path, self.train_program)
            if checkpoint_config is not None:
                self._checkpoints = _Checkpoints(checkpoint_config, self.trainer_id)
                self._resume()

    def _build(self, train_func: Callable[[], Any], optimizer_func: Callable[[], Any]) -> None:
        from ..optimizer import Optimizer

        with program_guard(self.train_program, self.startup_program), unique_name.guard():
            outputs = train_func()
            outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
            if not outputs or not isinstance(outputs[0], Variable):
                raise TypeError("train_func should return the loss, or a list that begins with it")
            self.train_func_outputs: List[Variable] = outputs
            self.test_program = self.train_program.clone(for_test=True)
            optimizer = optimizer_func()
            if not isinstance(optimizer, Optimizer):
                raise TypeError("optimizer_func should return an optimizer")
            optimizer.minimize(outputs[0])

    def _join(self) -> Any:
        """The job that the environment names, if any."""
        from .transpiler import DistributeTranspiler, DistributeTranspilerConfig

        env = os.environ
        port = env.get("PADDLE_PSERVER_PORT", "6174")
        if env.get("PADDLE_TRAINER_IPS"):
            config = DistributeTranspilerConfig()
            config.mode = "nccl2"
            transpiler = DistributeTranspiler(config)
            endpoints = ",".join(f"{ip.strip()}:{port}" for ip in env["PADDLE_TRAINER_IPS"].split(","))
            transpiler.transpile(
                self.trainer_id, program=self.train_program, startup_program=self.startup_program,
                trainers=endpoints,
            )
            return self.train_program._job  # type: ignore[attr-defined]
        role = env.get("PADDLE_TRAINING_ROLE")
        if not role or not env.get("PADDLE_PSERVER_IPS"):
            return None
        if role not in ("TRAINER", "PSERVER"):
            raise ValueError(f"PADDLE_TRAINING_ROLE should be TRAINER or PSERVER, but is {role!r}")
        endpoints = ",".join(f"{ip.strip()}:{port}" for ip in env["PADDLE_PSERVER_IPS"].split(","))
        transpiler = DistributeTranspiler()
        transpiler.transpile(
            self.trainer_id, program=self.train_program, startup_program=self.startup_program,
            pservers=endpoints, trainers=int(_required("PADDLE_TRAINERS")),
        )
        if role == "PSERVER":
            current = f"{_required('PADDLE_CURRENT_IP')}:{port}"
            self._server_programs = transpiler.get_pserver_programs(current)
            return self._server_programs[0]._job  # type: ignore[attr-defined]
        transpiler.get_trainer_program()
        return self.train_program._job  # type: ignore[attr-defined]

    # Training
    def stop(self) -> None:
        """Ends training after this step. For event handlers."""
        self._stopped = True

    def train(
        self,
        num_epochs: int,
        event_handler: Callable[[Any], None],
        reader: Optional[Callable[[], Iterator[Any]]] = None,
        feed_order: Any = None,
    ) -> None:
        """Trains ``num_epochs`` epochs over the batches of ``reader``. On a server it serves until
        all trainers have left."""
        with scope_guard(self.scope):
            if self._is_server:
                main, startup = self._server_programs
                self.exe.run(startup)
                self.exe.run(main)
                return
            if reader is None:
                raise ValueError("Trainer.train: no reader was given")
            self._train(num_epochs, event_handler, reader, feed_order)

    def _train(
        self, num_epochs: int, event_handler: Callable[[Any], None],
        reader: Callable[[], Iterator[Any]], feed_order: Any,
    ) -> None:
        feeder = DataFeeder(build_feed_order(self.train_program, feed_order), self.place)
        first, skip = self._position["epoch"], self._position["step"]
        if first >= num_epochs:
            warnings.warn(
                f"the latest checkpoint is of a run that ended after {first} epochs: with "
                f"{num_epochs} epochs nothing is left to train. Ask for more epochs, or remove the "
                "checkpoints to begin anew",
                stacklevel=4,
            )
        for epoch in range(first, num_epochs):
            event_handler(BeginEpochEvent(epoch))
            for step, batch in enumerate(reader()):
                if self._stopped:
                    return
                if epoch == first and step < skip:
                    continue  # This batch was trained before the checkpoint.
                self._step(epoch, step, feeder.feed(batch), event_handler)
            event_handler(EndEpochEvent(epoch))
            if self._stopped:
                return
        if self._checkpoints is not None and first < num_epochs:
            self._save_checkpoint(num_epochs, 0)

    def _step(
        self, epoch: int, step: int, feed: Dict[str, Any], event_handler: Callable[[Any], None]
    ) -> None:
        begin = BeginStepEvent(epoch, step)
        event_handler(begin)
        fetch = self.train_func_outputs if begin.fetch_metrics else []
        metrics = self.exe.run(self._runnable(), feed=feed, fetch_list=fetch)
        if self._checkpoints is not None and self._checkpoints.config.is_due(epoch, step):
            self._save_checkpoint(epoch, step + 1)
        event_handler(EndStepEvent(epoch, step, list(metrics or [])))

    def _runnable(self) -> Any:
        if not self.parallel:
            return self.train_program
        from .compiler import CompiledProgram

        if not hasattr(self, "_compiled"):
            self._compiled = CompiledProgram(self.train_program).with_data_parallel(
                self.train_func_outputs[0].name
            )
        return self._compiled

    def test(self, reader: Callable[[], Iterator[Any]], feed_order: Any = None) -> List[float]:
        """The means of what ``train_func`` returned over the batches of ``reader``, weighted by
        their examples, without training."""
        import numpy as np

        feeder = DataFeeder(build_feed_order(self.test_program, feed_order), self.place)
        totals, examples = [0.0] * len(self.train_func_outputs), 0
        with scope_guard(self.scope):
            for batch in reader():
                values = self.exe.run(
                    self.test_program, feed=feeder.feed(batch), fetch_list=self.train_func_outputs
                )
                examples += len(batch)
                for at, value in enumerate(values):
                    totals[at] += float(np.mean(np.asarray(value, np.float64))) * len(batch)
        if not examples:
            raise ValueError("Trainer.test: the reader gave no batches")
        return [total / examples for total in totals]

    # Saving
    def save_params(self, param_path: str) -> None:
        """Saves everything that the program keeps; ``param_path`` of another trainer reads it."""
        with scope_guard(self.scope):
            io.save_persistables(self.exe, param_path, self.train_program)

    def save_inference_model(
        self, param_path: str, feeded_var_names: Sequence[str], target_var_indexes: Sequence[int]
    ) -> None:
        """Saves the part of the program that makes some of what ``train_func`` returned."""
        targets = [self.train_func_outputs[int(at)] for at in target_var_indexes]
        with scope_guard(self.scope):
            io.save_inference_model(
                param_path, feeded_var_names, targets, self.exe, self.train_program
            )

    def _resume(self) -> None:
        position = self._checkpoints.latest()  # type: ignore[union-attr]
        if position is None:
            return
        folder = self._checkpoints.folder(position["number"])  # type: ignore[union-attr]
        io.load_persistables(self.exe, folder, self.train_program)
        self._position = position

    def _save_checkpoint(self, epoch: int, step: int) -> None:
        position = {"number": self._position["number"] + 1, "epoch": epoch, "step": step}
        writes = self._job is None or self._job.is_first

        def save_values(folder: str) -> None:
            io.save_persistables(self.exe, folder, self.train_program)

        self._checkpoints.save(position, save_values if writes else None)  # type: ignore[union-attr]
        self._position = position


def _required(name: str) -> str:
    value = os.environ.get(name, "")
    if not value:
        raise ValueError(f"the variable {name} is not set, but PADDLE_TRAINING_ROLE is")
    return value
