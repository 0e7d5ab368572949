"""What the tests of this folder share: skipping, and starting scripts on Regatta.

PADDLEREC         root of a PaddleRec checkout; the tests are skipped without it
PADDLEREC_RUNNER  command that runs a script, instead of `python -m regatta.paddle`; with the
                  interpreter of real PaddlePaddle the tests check themselves
"""
from __future__ import annotations

import importlib.util
import math
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import List, Optional, Sequence

import pytest

import workspace

HERE = Path(__file__).resolve().parent
PACKAGE = HERE.parent.parent
OWN_RUNNER = "PADDLEREC_RUNNER" not in os.environ
# What the readers of some folders import; the pickles of metaheac are of pandas 1.
PACKAGES = {"multitask/maml": ["cv2"], "multitask/metaheac": ["pandas.core.indexes.numeric"],
            "rank/deeprec": ["scipy"], "rank/dsin": ["pandas"], "rank/fgcnn": ["h5py"],
            "recall/ensfm": ["scipy"], "recall/mhcn": ["scipy"],
            "recall/tisas": ["scipy", "tqdm"]}


def missing() -> Optional[str]:
    """Why the tests cannot run here, or None."""
    if workspace.checkout() is None:
        return "PADDLEREC is not set (root of a PaddleRec checkout)"
    # Packages that PaddleRec's tools import.
    absent = [name for name in ("yaml", "six") if importlib.util.find_spec(name) is None]
    if absent and OWN_RUNNER:
        return f"PaddleRec needs the packages {', '.join(absent)} (pip install pyyaml six)"
    return None


def need_packages(model: str) -> None:
    """Skips the test if the reader of the model cannot be imported here."""
    absent = [name for name in PACKAGES.get(model, []) if not _importable(name)]
    if absent and OWN_RUNNER:
        pytest.skip(f"the reader of {model} needs {', '.join(absent)}")


def _importable(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of the package that it is in
        return False


def runner() -> List[str]:
    """The command that a script and its arguments are appended to."""
    if OWN_RUNNER:
        return [sys.executable, "-m", "regatta.paddle"]
    return shlex.split(os.environ["PADDLEREC_RUNNER"])


def run(arguments: Sequence[str], cwd: Path, timeout_s: float = 300,
        root: Optional[Path] = None) -> str:
    """Runs a script and returns what it printed, errors included; fails if it does not end with 0.

    `root` is the copy of PaddleRec, if it is not `cwd`.
    """
    environment = workspace.environment(root or cwd, *([PACKAGE] if OWN_RUNNER else []))
    command = [*runner(), *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, timeout=timeout_s, text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, (
        f"exit code {done.returncode} of {shlex.join(command)}:\n{done.stdout[-3000:]}")
    return done.stdout


def printed(text: str, name: str) -> List[float]:
    """The values printed for a metric as `name: 0.5`, `name: [0.5]` or `name[1]:[0.5]`.

    >>> printed("epoch: 0, batch_id: 1, cost: 0.5, auc: 1.0, ips: 3", "cost")
    [0.5]
    >>> printed("batch: [1], Epoch 0 Var cost[1]:[0.25], Epoch 0 Var auc[1]:[0.5]", "auc")
    [0.5]
    """
    found = re.findall(r"\b%s(?:\[1\])?:\s*\[?([^\s,\]]+)" % re.escape(name), text)
    return [float(value) for value in found]


def assert_finite(values: List[float], what: str) -> None:
    assert values, f"no value of {what} was printed"
    assert all(math.isfinite(value) for value in values), f"{what}: {values}"
