"""Versions."""
from __future__ import annotations

from . import _core
from ._missing import missing

__all__ = ["full_version", "major", "minor", "patch", "rc", "show", "cuda", "cudnn"]

regatta = _core.__version__
#: The version of Paddle whose interface this is, with ours behind it.
full_version = f"2.6.2+regatta.{regatta}"
major, minor, patch, rc = "2", "6", "2", "0"
istaged = False
commit = "regatta"
with_mkl = "OFF"
with_gpu = "OFF"


def cuda() -> str:
    """'False': there is no CUDA here."""
    return "False"


cudnn = xpu = xpu_xccl = cinn = cuda


def show() -> None:
    """Prints the versions."""
    print(f"full_version: {full_version}")
    print(f"regatta: {regatta}")


__getattr__ = missing(__name__)
