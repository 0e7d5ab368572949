"""File systems."""
from ...._missing import missing

__all__ = ["HDFSClient", "LocalFS"]

_missing = missing(__name__)


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name in __all__:
        from . import fs

        return getattr(fs, name)
    return _missing(name)
