"""``paddle.incubate.distributed``."""
from __future__ import annotations

from ..._missing import missing

__all__: list = []

__getattr__ = missing(__name__)
