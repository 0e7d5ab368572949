"""What Paddle 2.6 keeps of Fluid under ``paddle.base``."""
from __future__ import annotations

import sys
from typing import Any

from .._missing import missing
from ..device import CPUPlace, CUDAPinnedPlace, CUDAPlace, XPUPlace, cpu_places, cuda_places
from ..framework import (
    ParamAttr, Program, Scope, Variable, default_main_program, default_startup_program,
    global_scope, name_scope, program_guard, scope_guard, unique_name,
)
from . import core

__all__ = [
    "CPUPlace", "CUDAPinnedPlace", "CUDAPlace", "CompiledProgram", "DataFeeder", "Executor",
    "ParamAttr", "Program", "Scope", "Variable", "XPUPlace", "core", "cpu_places", "cuda_places",
    "data_feeder", "default_main_program", "default_startup_program", "dygraph", "executor",
    "framework",
    "global_scope", "io", "layers", "name_scope", "program_guard", "scope_guard", "unique_name",
]

# Names of other modules: loaded when they are first used.
_ELSEWHERE = {
    "CompiledProgram": "static", "Executor": "static", "DataFeeder": "fluid",
    "data_feeder": "fluid.data_feeder.", "dygraph": "fluid.dygraph.", "executor": "executor.", "framework": "framework.",
    "io": "fluid.io.", "layers": "fluid.layers.",
}


def __getattr__(name: str) -> Any:
    import importlib

    where = _ELSEWHERE.get(name)
    if where is None:
        return missing(__name__)(name)
    module = importlib.import_module(f"regatta.{where.rstrip('.')}")
    value = module if where.endswith(".") else getattr(module, name)
    setattr(sys.modules[__name__], name, value)
    return value
