"""Regatta's own programs."""
import os
import subprocess
import sys

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def build(given, *packages):
    """The folder with the programs: the given one, or cargo's after a build for speed."""
    if given:
        return os.path.abspath(given)
    command = ["cargo", "build", "--release"] + [w for p in packages for w in ("-p", p)]
    if subprocess.run(command, cwd=ROOT, stdout=sys.stderr).returncode:
        sys.exit("building Regatta failed")
    return os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "release")


def role(environment):
    """What one of Regatta's processes is, by the variables that its launcher has set."""
    training = environment.get("TRAINING_ROLE")
    if training in ("PSERVER", "TRAINER"):
        return "server" if training == "PSERVER" else "worker"
    return "worker" if "PADDLE_TRAINER_ID" in environment else None
