"""Times one epoch of every PaddleRec folder and writes the table of docs/paddlerec.md.

    PADDLEREC=/path/to/PaddleRec python table.py measure SYSTEM [--only FOLDER ...] [--form FORM]
    python table.py write

SYSTEM is `regatta` or `paddle`; the interpreter that runs this script must have it, with the
packages that PaddleRec's readers import. `measure` trains every model of folders.py for one epoch
with PaddleRec's own tools, one after the other, and keeps in times.json the seconds that the
trainer prints, as processor time of one thread (cpu_clock.py); `write` replaces the table between
the two marks of the document.
"""
from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Dict, List

sys.dont_write_bytecode = True

import cases_dynamic  # noqa: E402
import folders  # noqa: E402
import workspace  # noqa: E402
from cases import file_name  # noqa: E402

HERE = Path(__file__).resolve().parent
TIMES = HERE / "times.json"
DOCUMENT = HERE.parents[2] / "docs" / "paddlerec.md"
BEGIN, END = "<!-- table: begin -->", "<!-- table: end -->"
TIMEOUT_S = 600
MEMORY = 14 << 30
SYSTEMS = {"regatta": ["-m", "regatta.paddle"], "paddle": []}


def command(folder: folders.Folder, model: str, form: str) -> List[str]:
    """The arguments of one epoch, for a start in the folder.

    >>> command(folders.by_name("rank/autofis"), "rank/autofis", "dynamic")[:3]
    ['trainer.py', '-m', 'config.yaml']
    """
    tool = folder.trainer if form == "dynamic" else "../../../tools/static_trainer.py"
    inside = os.path.relpath(model, folder.name)
    config = os.path.normpath(os.path.join(inside, "config.yaml"))
    options = {"runner.epochs": 1, "runner.model_save_path": "saved", **folder.options}
    return [tool, "-m", config, "-o", *(f"{key}={value}" for key, value in options.items())]


def limit_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))


def epoch_seconds(text: str) -> float:
    """The time that the trainer printed, or -1.

    >>> epoch_seconds("epoch: 0 done, auc: 0.5, epoch time: 1.41 s")
    1.41
    """
    found = re.findall(r"epoch time: ([0-9.]+) s", text)
    return float(found[-1]) if found else -1.0


def measure_one(paddlerec: Path, system: str, folder: folders.Folder, model: str,
                form: str) -> Dict[str, Any]:
    """Seconds of one epoch, or the last line of what went wrong."""
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        place = workspace.copy(paddlerec, folder.name, root)
        environment = dict(workspace.environment(root), OMP_NUM_THREADS="1")
        start = [sys.executable, *SYSTEMS[system], str(HERE / "cpu_clock.py")]
        try:
            done = subprocess.run(
                start + command(folder, model, form), cwd=place, env=environment, text=True,
                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, errors="replace",
                timeout=TIMEOUT_S, preexec_fn=limit_memory, check=False)
        except subprocess.TimeoutExpired:
            return {"error": f"more than {TIMEOUT_S} s"}
    seconds = epoch_seconds(done.stdout)
    if done.returncode != 0 or seconds < 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()] or [""]
        return {"error": f"exit code {done.returncode}: {lines[-1][:200]}"}
    return {"epoch_s": seconds}


def measure(args: argparse.Namespace) -> None:
    paddlerec = workspace.checkout()
    if paddlerec is None:
        raise SystemExit("set PADDLEREC to the root of a PaddleRec checkout")
    for folder in folders.FOLDERS:
        if args.only and folder.name not in args.only:
            continue
        for form in [args.form] if args.form else ["dynamic", "static"]:
            for model in folders.models(folder, form):
                runs = [measure_one(paddlerec, args.system, folder, model, form)
                        for _ in range(args.repeat)]
                result = min(runs, key=lambda run: run.get("epoch_s", -1.0))
                print(model, form, args.system, result, flush=True)
                times = json.loads(TIMES.read_text()) if TIMES.exists() else {}
                times.setdefault(model, {}).setdefault(form, {})[args.system] = result
                text = ",\n".join(f" {json.dumps(name)}: {json.dumps(times[name])}"
                                  for name in sorted(times))
                TIMES.write_text("{\n" + text + "\n}\n")


def cell(times: Dict[str, Any], models: List[str], form: str, system: str) -> str:
    """Seconds of the models of a folder together; a dash where one did not run."""
    found = [times.get(model, {}).get(form, {}).get(system, {}) for model in models]
    if not models or any("epoch_s" not in one for one in found):
        return "–"
    return f"{sum(one['epoch_s'] for one in found):.2f}"


def compared(folder: folders.Folder) -> str:
    """Which losses of the folder are compared with recorded ones."""
    forms = []
    dynamic = folders.models(folder, "dynamic")
    if any(case.model in dynamic for case in cases_dynamic.cases()):
        forms.append("dynamic")
    if (HERE / "losses" / file_name(folder.name)).exists():
        forms.append("static")
    return ", ".join(forms)


def row(folder: folders.Folder, times: Dict[str, Any]) -> str:
    cells = [f"`{folder.name}`"]
    for form in ("dynamic", "static"):
        models = folders.models(folder, form)
        cells += [cell(times, models, form, system) for system in ("regatta", "paddle")]
    cells += [compared(folder), folder.refused or folder.note]
    return "| " + " | ".join(cells) + " |"


def write() -> None:
    times = json.loads(TIMES.read_text())
    lines = ["| folder | dynamic | Paddle | static | Paddle | losses compared | note |",
             "|---|---:|---:|---:|---:|---|---|"]
    lines += [row(folder, times) for folder in folders.FOLDERS]
    text = DOCUMENT.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    DOCUMENT.write_text(f"{before}{BEGIN}\n" + "\n".join(lines) + f"\n{END}{after}")


def main() -> None:
    parser = argparse.ArgumentParser(description="times of PaddleRec's folders")
    parts = parser.add_subparsers(dest="what", required=True)
    timing = parts.add_parser("measure")
    timing.add_argument("system", choices=sorted(SYSTEMS))
    timing.add_argument("--only", nargs="*", default=[])
    timing.add_argument("--form", choices=["dynamic", "static"])
    timing.add_argument("--repeat", type=int, default=2)
    parts.add_parser("write")
    args = parser.parse_args()
    if args.what == "write":
        write()
    else:
        measure(args)


if __name__ == "__main__":
    main()
