"""From dynamic networks to programs: by tracing.

A function is called once with variables of a fresh program in the place of tensors. What it does
with them becomes the program; parameters are those of the network. There is no rewriting of source
code: Python's ``if`` and ``for`` run while the program is traced, and one that depends on the value
of a variable is refused with its line.
"""
from __future__ import annotations

from .._missing import missing
from .api import (
    StaticFunction, enable_to_static, ignore_module, not_to_static, set_code_level, set_verbosity,
    to_static,
)
from .saved import TranslatedLayer, load, save

__all__ = [
    "StaticFunction", "TranslatedLayer", "enable_to_static", "ignore_module", "load",
    "not_to_static", "save", "set_code_level", "set_verbosity", "to_static",
]

__getattr__ = missing(__name__)
