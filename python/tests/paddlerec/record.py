"""Records what real PaddlePaddle 2.6.2 does, for the parity tests beside this file.

    PADDLEREC=/path/to/PaddleRec python record.py [losses] [names] [files] [--only FOLDER ...]

Run it with an interpreter that has paddlepaddle==2.6.2, numpy, pyyaml and six (the environment of
bench/compare/setup.sh plus the last two). Without a word all three are recorded:
  losses  losses/<folder>.json: 30 training steps of every variant in cases.py
  names   names.json: names, shapes and printed forms of variables
  files   files/: a tiny model saved by paddle.static.save and save_inference_model
"""
from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.dont_write_bytecode = True

import cases  # noqa: E402
import weights  # noqa: E402
import workspace  # noqa: E402

HERE = Path(__file__).resolve().parent
NAMED = ["rank/dnn", "rank/wide_deep", "rank/deepfm"]


def run(root: Path, case: cases.Case, variant: str, perturb: int = 0) -> dict:
    """Runs run_folder.py in a fresh process, so that names count from zero."""
    out = root / "out.json"
    command = [sys.executable, "-B", str(HERE / "run_folder.py"), str(root), case.folder, variant,
               "--steps", str(cases.STEPS), "--override", json.dumps(case.overrides),
               "--sgd-rate", str(case.sgd_rate), "--perturb", str(perturb), "--out", str(out)]
    done = subprocess.run(command, cwd=root, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True, check=False)
    if done.returncode != 0:
        raise SystemExit(f"{case.folder} {variant} failed:\n{done.stderr[-3000:]}")
    return json.loads(out.read_text())


def loss_of(run: dict) -> str:
    """The output that is the loss.

    >>> loss_of({"values": {"auc": [], "cost": []}})
    'cost'
    """
    return next(key for key in run["values"] if key.lower() in ("cost", "loss"))


def drift(base: dict, noisy: dict) -> list:
    """For every step, how far rounding noise on the weights has moved the loss until then."""
    loss = loss_of(base)
    worst, result = 0.0, []
    for step, value in enumerate(base["values"][loss]):
        moved = abs(value - noisy["values"][loss][step])
        worst = max(worst, moved / max(1.0, abs(value)))
        result.append(float("%.1e" % worst))
    return result


def record_losses(paddlerec: Path, only: list) -> None:
    for case in cases.CASES:
        if only and case.folder not in only:
            continue
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            workspace.copy(paddlerec, case.folder, root)
            variants = {}
            for variant in case.variants:
                base = run(root, case, variant)
                noisy = run(root, case, variant, perturb=1)
                variants[variant] = {
                    "optimizer": f"SGD(learning_rate={case.sgd_rate})" if variant == "sgd"
                    else "the folder's create_optimizer",
                    "values": base["values"],
                    "drift": drift(base, noisy),
                }
                print(case.folder, variant, base["seconds"], "s", flush=True)
        record = {
            "folder": case.folder,
            "overrides": case.overrides,
            "weights_version": weights.VERSION,
            "paddle": base["paddle"],
            "parameters": base["parameters"],
            "loss": loss_of(base),
            "variants": variants,
        }
        (HERE / "losses" / cases.file_name(case.folder)).write_text(dump(record))


def dump(record: dict) -> str:
    """JSON with one line per list of numbers, so that a difference can be read."""
    text = json.dumps(record, indent=1)
    lines, inside = [], None
    for line in text.split("\n"):
        if inside is None and line.endswith("["):
            inside = [line]
        elif inside is not None and line.strip().startswith("]"):
            lines.append(inside[0] + " ".join(inside[1:]) + line.strip())
            inside = None
        elif inside is not None and line.endswith("["):
            lines += inside
            inside = [line]
        elif inside is not None:
            inside.append(line.strip())
        else:
            lines.append(line)
    return "\n".join(lines) + "\n"


def record_names(paddlerec: Path) -> None:
    result = {}
    for folder in NAMED:
        with tempfile.TemporaryDirectory() as scratch:
            root = Path(scratch)
            workspace.copy(paddlerec, folder, root)
            out = root / "names.json"
            subprocess.run([sys.executable, "-B", str(HERE / "run_names.py"), str(root), folder,
                            "--out", str(out)], cwd=root, check=True)
            result[folder] = json.loads(out.read_text())
    (HERE / "names.json").write_text(dump(result))


def main() -> None:
    parser = argparse.ArgumentParser(description="record reference data from PaddlePaddle")
    parser.add_argument("what", nargs="*", choices=["losses", "names", "files"])
    parser.add_argument("--only", nargs="*", default=[])
    args = parser.parse_args()
    what = args.what or ["losses", "names", "files"]
    paddlerec = workspace.checkout()
    if paddlerec is None:
        raise SystemExit("set PADDLEREC to the root of a PaddleRec checkout")
    if "losses" in what:
        record_losses(paddlerec, args.only)
    if "names" in what:
        record_names(paddlerec)
    if "files" in what:
        environment = dict(os.environ, PYTHONDONTWRITEBYTECODE="1")
        subprocess.run([sys.executable, str(HERE / "record_files.py"), str(HERE / "files")],
                       env=environment, check=True)


if __name__ == "__main__":
    main()
