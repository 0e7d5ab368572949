"""Records the losses of PaddleRec's folders in dynamic form under real PaddlePaddle 2.6.2.

    PADDLEREC=/path/to/PaddleRec python record_dynamic.py [--only MODEL ...]

Run it with an interpreter that has paddlepaddle==2.6.2 and what PaddleRec's readers import:
numpy 1.26, pyyaml, six, pandas 1.5, scipy, scikit-learn and opencv-python-headless. It writes
losses_dynamic/<model>.json: the losses of 20 steps, and `drift`, how far a rounding error on every
weight has moved the loss until a step (relative to the loss where that is above 1).
"""
from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List

sys.dont_write_bytecode = True

import cases_dynamic  # noqa: E402
import folders  # noqa: E402
import weights  # noqa: E402
import workspace  # noqa: E402
from cases import file_name  # noqa: E402
from record import dump  # noqa: E402

HERE = Path(__file__).resolve().parent
NOISES = 3
TIMEOUT_S = 600


def run(root: Path, case: cases_dynamic.Case, perturb: int) -> dict:
    """Runs run_dynamic.py in a fresh process, so that names count from zero."""
    out = root / "out.json"
    command = [sys.executable, "-B", str(HERE / "run_dynamic.py"), str(root), case.model,
               "--steps", str(cases_dynamic.STEPS), "--override", json.dumps(case.overrides),
               "--sgd-rate", str(case.sgd_rate), "--perturb", str(perturb), "--out", str(out)]
    done = subprocess.run(command, cwd=root / "models" / case.model, timeout=TIMEOUT_S, text=True,
                          env=workspace.environment(root), stdout=subprocess.DEVNULL,
                          stderr=subprocess.PIPE, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{case.model} failed:\n{done.stderr[-2000:]}")
    return json.loads(out.read_text())


def drift(base: List[float], noisy: List[List[float]]) -> List[float]:
    """For every step, how far noise has moved the loss until then.

    >>> drift([1.0, 4.0], [[1.5, 4.0], [1.0, 2.0]])
    [0.5, 0.5]
    """
    worst, result = 0.0, []
    for step, value in enumerate(base):
        moved = max(abs(value - one[step]) for one in noisy)
        worst = max(worst, moved / max(1.0, abs(value)))
        result.append(float("%.1e" % worst))
    return result


def record(paddlerec: Path, case: cases_dynamic.Case) -> dict:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        workspace.copy(paddlerec, folders.by_name(case.model).name, root)
        base, *noisy = [run(root, case, perturb) for perturb in range(NOISES + 1)]
    return {
        "model": case.model,
        "overrides": case.overrides,
        "sgd_rate": case.sgd_rate,
        "weights_version": weights.VERSION,
        "paddle": base["paddle"],
        "parameters": base["parameters"],
        "losses": base["losses"],
        "drift": drift(base["losses"], [one["losses"] for one in noisy]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="record losses of dynamic models")
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    paddlerec = workspace.checkout()
    if paddlerec is None:
        raise SystemExit("set PADDLEREC to the root of a PaddleRec checkout")
    failed = []
    for case in cases_dynamic.cases():
        if args.only and case.model not in args.only:
            continue
        try:
            result = record(paddlerec, case)
        except (RuntimeError, subprocess.TimeoutExpired) as error:
            failed.append(case.model)
            print(error, flush=True)
            continue
        place = HERE / "losses_dynamic" / file_name(case.model)
        place.parent.mkdir(exist_ok=True)
        place.write_text(dump(result))
        print(case.model, "loss", result["losses"][0], "to", result["losses"][-1],
              "drift", result["drift"][-1], flush=True)
    if failed:
        raise SystemExit(f"not recorded: {', '.join(failed)}")


if __name__ == "__main__":
    main()
