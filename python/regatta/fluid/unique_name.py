"""``paddle.fluid.unique_name``: the numbering of names."""
from __future__ import annotations

from ..framework import unique_name as _names
from .._missing import missing

__all__ = ["generate", "guard", "switch"]

generate = _names.generate
generate_with_ignorable_key = _names.generate_with_ignorable_key
guard = _names.guard
switch = _names.switch

__getattr__ = missing(__name__)
