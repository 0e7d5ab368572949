"""Calls by which Fluid shares memory between variables."""
from __future__ import annotations

from typing import Any, Optional, Set

from ...framework import Program
from ..compiler import say_once

__all__ = ["memory_optimize", "release_memory"]


def memory_optimize(
    input_program: Program,
    skip_opt_set: Optional[Set[str]] = None,
    print_log: bool = False,
    level: int = 0,
    skip_grads: bool = False,
) -> None:
    """Accepts a program whose temporaries may share memory. The executor shares it anyway when the
    program runs, and never what is sent or fetched: the program stays as it is.

    Raises ValueError for a program of a job: Fluid shares memory before ``transpile``, and not on
    servers.
    """
    if not isinstance(input_program, Program):
        raise TypeError(f"memory_optimize takes a Program, not {type(input_program).__name__}")
    if level not in (0, 1):
        raise ValueError(f"memory_optimize: level should be 0 or 1, but is {level!r}")
    for name in skip_opt_set or ():
        name = name if isinstance(name, str) else name.name
        if not input_program.global_block().has_var(name):
            raise ValueError(f"memory_optimize: skip_opt_set has '{name}', which the program lacks")
    _refuse_jobs("memory_optimize", input_program)
    say_once("memory_optimize: the executor shares the memory of temporaries anyway")
    if print_log:
        print("memory_optimize: the executor shares the memory of temporaries anyway")


def release_memory(input_program: Program, skip_opt_set: Optional[Set[str]] = None) -> None:
    """As :func:`memory_optimize`."""
    if not isinstance(input_program, Program):
        raise TypeError(f"release_memory takes a Program, not {type(input_program).__name__}")
    _refuse_jobs("release_memory", input_program)
    say_once("release_memory: the executor shares the memory of temporaries anyway")


def _refuse_jobs(call: str, program: Program) -> None:
    job: Any = getattr(program, "_job", None)
    if job is None:
        return
    if getattr(program, "_is_server_program", False):
        raise ValueError(f"{call}: this is the program of a parameter server; leave the call out")
    raise ValueError(
        f"{call}: this program was transpiled already; call {call} before transpile (with "
        "skip_grads=True)"
    )
