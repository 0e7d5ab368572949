"""Profiles of Fluid: what takes time is measured by the tools of Python and of the system."""
from __future__ import annotations

import contextlib
import time
from typing import Any, Iterator

from .._missing import missing

__all__ = ["profiler", "reset_profiler", "start_profiler", "stop_profiler"]

_started = 0.0


def start_profiler(state: str = "All", tracer_option: str = "Default") -> None:
    """Begins to measure."""
    global _started
    if state not in ("CPU", "GPU", "All"):
        raise ValueError(f"start_profiler: state should be CPU, GPU or All, not {state!r}")
    _started = time.perf_counter()


def stop_profiler(sorted_key: Any = None, profile_path: str = "/tmp/profile") -> None:
    """Prints the time since :func:`start_profiler`. Times of single ops are not measured."""
    print(f"profiler: {time.perf_counter() - _started:.3f} s (times of single ops: not measured)")


def reset_profiler() -> None:
    """Begins anew."""
    global _started
    _started = time.perf_counter()


@contextlib.contextmanager
def profiler(
    state: str = "All", sorted_key: Any = None, profile_path: str = "/tmp/profile",
    tracer_option: str = "Default",
) -> Iterator[None]:
    """Prints the time that the block took."""
    start_profiler(state, tracer_option)
    try:
        yield
    finally:
        stop_profiler(sorted_key, profile_path)


__getattr__ = missing(__name__)
