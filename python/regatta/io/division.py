"""How ranks divide an iterable dataset: each takes its part of the examples, none comes twice.

A dataset that divides itself is left alone. It is known by one of these: ``divides_itself`` of the
dataset is True; a method of the dataset, such as ``__init__`` or ``__iter__``, asks for the rank or
the number of ranks; or the process has asked ``fleet.util.get_file_shard`` for its files.
"""
from __future__ import annotations

import sys
from typing import Any, Tuple

_noted = {"files": False, "warned": False}


def note_rank_asked() -> None:
    """Somebody asks for the rank: if that is a dataset, it divides itself."""
    if "regatta.io.dataset" not in sys.modules:
        return
    from .dataset import IterableDataset

    frame = sys._getframe(1)
    while frame is not None:
        code = frame.f_code
        if code.co_argcount:
            first = frame.f_locals.get(code.co_varnames[0])
            if isinstance(first, IterableDataset):
                vars(first)["divides_itself"] = True
                return
        frame = frame.f_back  # type: ignore[assignment]


def note_files_divided() -> None:
    """The process has asked for its part of the files."""
    _noted["files"] = True


def ranks() -> Tuple[int, int]:
    """The rank of this process and the number of ranks, for loaders: in dynamic mode only."""
    from .._mode import in_dynamic_mode

    if not in_dynamic_mode():
        return 0, 1
    from ..distributed import parallel

    return parallel.get_rank(), parallel.get_world_size()


def divides_itself(dataset: Any) -> bool:
    """Whether a dataset gives what this rank is to read."""
    return _noted["files"] or bool(getattr(dataset, "divides_itself", False))


def warn_once(dataset: Any, world: int) -> None:
    """Says once per process that examples are divided."""
    if _noted["warned"]:
        return
    _noted["warned"] = True
    import warnings

    warnings.warn(
        f"{type(dataset).__name__} is divided: each of {world} ranks takes every {world}th "
        "example. If it gives different examples on every rank already, set divides_itself = True in the "
        "class", UserWarning, stacklevel=3)
