"""``regatta.train``: the command line in a process of its own, its report as an object."""
from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import deque
from typing import Any, Deque, Dict, Iterator, List, Optional, Tuple, Union

from .errors import RegattaError

# Arguments of `regatta train` that stand beside the keys of the configuration.
_FLAGS = (
    "threads", "servers", "workers", "ranks", "max_restart", "logdir", "checkpoint_dir",
    "checkpoint_steps", "checkpoint_keep", "checkpoint_full_every", "resume", "name", "run_dir",
)
_KEPT_LINES = 20


class TrainReport:
    """What a run of training reports."""

    def __init__(self, report: Dict[str, Any]) -> None:
        self._report = report

    @property
    def config(self) -> Dict[str, Any]:
        """The configuration as resolved."""
        return self._report["config"]

    @property
    def epochs(self) -> List[Dict[str, Any]]:
        """One dictionary for each epoch: loss, auc, examples, seconds, ..."""
        return self._report["epochs"]

    @property
    def losses(self) -> List[Optional[float]]:
        """The mean loss of each epoch."""
        return [epoch["loss"] for epoch in self.epochs]

    @property
    def auc(self) -> Optional[float]:
        """The area under the ROC curve of the last epoch."""
        return self.epochs[-1]["auc"] if self.epochs else None

    @property
    def examples_per_sec(self) -> float:
        """Examples of all epochs by their seconds."""
        seconds = sum(epoch["seconds"] for epoch in self.epochs)
        return sum(epoch["examples"] for epoch in self.epochs) / seconds if seconds else 0.0

    @property
    def model_dir(self) -> Optional[str]:
        """The folder of the model of the last epoch."""
        root = self.config.get("runner", {}).get("model_save_path")
        if not root or not self.epochs:
            return root
        return os.path.join(root, str(self.epochs[-1]["epoch"]))

    def to_dict(self) -> Dict[str, Any]:
        """Everything, as `regatta train --report` writes it."""
        return self._report

    def _table(self) -> Tuple[List[str], List[List[str]]]:
        head = ["epoch", "loss", "auc", "examples", "examples/s", "seconds"]
        extra = sorted({name for epoch in self.epochs for name in epoch.get("metrics", {})})
        rows = []
        for epoch in self.epochs:
            row = [str(epoch["epoch"]), _number(epoch["loss"]), _number(epoch["auc"])]
            row += [str(epoch["examples"]), f"{epoch['examples_per_sec']:.0f}"]
            row += [f"{epoch['seconds']:.2f}"]
            row += [_number(epoch.get("metrics", {}).get(name)) for name in extra]
            rows.append(row)
        return head + extra, rows

    def __repr__(self) -> str:
        head, rows = self._table()
        lines = [f"TrainReport: {self.config.get('model')}, model in {self.model_dir}"]
        widths = [max(len(line[i]) for line in [head, *rows]) for i in range(len(head))]
        for line in [head, *rows]:
            lines.append("  ".join(cell.rjust(width) for cell, width in zip(line, widths)))
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        from html import escape

        head, rows = self._table()
        top = "".join(f"<th>{escape(cell)}</th>" for cell in head)
        body = "".join(
            "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row) + "</tr>" for row in rows
        )
        title = f"{self.config.get('model')}, model in {self.model_dir}"
        return f"<p>{escape(title)}</p><table><tr>{top}</tr>{body}</table>"


def _number(value: Optional[float]) -> str:
    return "" if value is None else f"{value:.6f}"


def train(
    config: Union[str, "os.PathLike[str]"],
    overrides: Optional[Dict[str, Any]] = None,
    progress: bool = True,
    **settings: Any,
) -> TrainReport:
    """Trains the model of a configuration file, as ``regatta train -m CONFIG`` does.

    Keys of the configuration are overridden by a dictionary, dotted or nested:
    ``train("config.yaml", {"runner.epochs": 2})``, ``train("config.yaml", runner={"epochs": 2})``.
    Other settings are flags of the command: threads, servers, workers, ranks, checkpoint_dir,
    checkpoint_steps, checkpoint_keep, resume, logdir, max_restart, name, run_dir. The run has a
    folder, ``runs/<time>-<name>`` below the current directory; ``model_dir`` of the report is in it.

    Training runs in a process of its own; interrupting ends it. Raises ValueError for a wrong
    configuration, FileNotFoundError if there is none, and :class:`RegattaError` with the last lines
    of the output if training fails.
    """
    import tempfile

    if not os.path.exists(config):
        raise FileNotFoundError(f"train: there is no configuration {os.fspath(config)}")

    with tempfile.TemporaryDirectory(prefix="regatta-") as folder:
        report = os.path.join(folder, "report.json")
        command = [sys.executable, "-m", "regatta", "train", "-m", os.fspath(config)]
        command += ["--report", report, *_arguments(dict(overrides or {}), settings)]
        _run(command, progress)
        with open(report, encoding="utf-8") as file:
            return TrainReport(json.load(file))


def _arguments(overrides: Dict[str, Any], settings: Dict[str, Any]) -> List[str]:
    arguments: List[str] = []
    for name, value in settings.items():
        if name in _FLAGS:
            if value is not None:
                arguments += ["--" + name.replace("_", "-"), os.fspath(value)
                              if isinstance(value, os.PathLike) else str(value)]
        elif "." in name or isinstance(value, dict):
            overrides[name] = value
        else:
            known = ", ".join(_FLAGS)
            raise TypeError(
                f"train: '{name}' is neither a section of the configuration, such as "
                f"runner={{...}}, nor a flag ({known})"
            )
    for key, value in _flat("", overrides):
        arguments += ["-o", f"{key}={_yaml(value)}"]
    return arguments


def _flat(prefix: str, tree: Dict[str, Any]) -> Iterator[Tuple[str, Any]]:
    for key, value in tree.items():
        path = f"{prefix}.{key}" if prefix else str(key)
        if isinstance(value, dict):
            yield from _flat(path, value)
        else:
            yield path, value


def _yaml(value: Any) -> str:
    if isinstance(value, str):
        return value
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "tolist"):  # numpy
        value = value.tolist()
    return json.dumps(value)


def child_environment() -> Dict[str, str]:
    """The environment of a process that imports this package, wherever it was imported from."""
    environment = dict(os.environ)
    root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    if os.path.basename(root) not in ("site-packages", "dist-packages"):
        paths = [p for p in environment.get("PYTHONPATH", "").split(os.pathsep) if p]
        if root not in paths:
            environment["PYTHONPATH"] = os.pathsep.join([*paths, root])
    return environment


def _run(command: List[str], progress: bool) -> None:
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, encoding="utf-8", errors="replace", env=child_environment(),
    )
    assert process.stdout is not None
    last: Deque[str] = deque(maxlen=_KEPT_LINES)
    show = _shower() if progress else (lambda line: None)
    try:
        with process.stdout:
            for line in process.stdout:
                last.append(line.rstrip("\n"))
                show(last[-1])
        code = process.wait()
    except BaseException:
        _end(process)
        raise
    if code:
        raise _failure(code, list(last))


# With which the command line ends if flags or the configuration are wrong.
_USAGE = 2


def _failure(code: int, last: List[str]) -> Exception:
    how = f"exit code {code}" if code > 0 else f"signal {signal.Signals(-code).name}"
    told = [line for line in last if line.startswith("error:")]
    if told and code == _USAGE:
        return ValueError(f"train: {told[-1][len('error:'):].strip()}")
    if told:
        return RegattaError(f"training failed: {told[-1][len('error:'):].strip()}")
    return RegattaError("\n".join([f"training failed ({how}); its last lines:", *last]))


def _end(process: "subprocess.Popen[str]") -> None:
    """Ends a process: politely, then for sure."""
    for number, patience in ((signal.SIGINT, 5.0), (signal.SIGTERM, 5.0)):
        if process.poll() is not None:
            return
        process.send_signal(number)
        try:
            process.wait(patience)
            return
        except subprocess.TimeoutExpired:
            pass
    process.kill()
    process.wait()


def _shower() -> Any:
    """Shows lines: in a notebook progress is one line that changes."""
    notebook = _notebook()
    if notebook is None:
        return lambda line: print(line, flush=True)
    handle = notebook({"text/plain": ""}, raw=True, display_id=True)

    def show(line: str) -> None:
        if not line.startswith("epoch:"):
            return
        if " done, " in line:
            print(line, flush=True)
        handle.update({"text/plain": line}, raw=True)

    return show


def _notebook() -> Any:
    """``IPython.display.display`` inside a notebook."""
    if "IPython" not in sys.modules:
        return None
    from IPython import get_ipython  # type: ignore[import-not-found]
    from IPython.display import display  # type: ignore[import-not-found]

    shell = get_ipython()
    return display if shell is not None and hasattr(shell, "kernel") else None
