"""Functions over readers. A reader is a function without arguments that returns an iterator of
examples; each call begins anew.

>>> list(firstn(chain(lambda: iter([1, 2]), lambda: iter([3])), 2)())
[1, 2]
"""
from __future__ import annotations

from . import creator  # noqa: F401
from .decorator import (  # noqa: F401
    ComposeNotAligned, Fake, PipeReader, buffered, cache, chain, compose, firstn, map_readers,
    multiprocess_reader, shuffle, xmap_readers,
)
from .._missing import missing

__all__ = [
    "ComposeNotAligned", "Fake", "PipeReader", "buffered", "cache", "chain", "compose", "creator",
    "firstn", "map_readers", "multiprocess_reader", "shuffle", "xmap_readers",
]

__getattr__ = missing(__name__)
