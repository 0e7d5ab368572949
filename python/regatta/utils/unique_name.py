"""Names of variables: ``generate``, ``guard`` and ``switch`` of :data:`regatta.unique_name`."""
from __future__ import annotations

from .._missing import missing
from ..framework import unique_name as _names

__all__ = ["generate", "guard", "switch"]

generate = _names.generate
generate_with_ignorable_key = _names.generate_with_ignorable_key
guard = _names.guard
switch = _names.switch

__getattr__ = missing(__name__)
