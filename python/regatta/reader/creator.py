"""Readers of arrays and files."""
from __future__ import annotations

from typing import Any, Callable, Iterator

__all__ = ["np_array", "text_file"]


def np_array(x: Any) -> Callable[[], Iterator[Any]]:
    """Reads the rows of an array.

    >>> list(np_array([[1, 2], [3, 4]])())[1].tolist()
    [3, 4]
    """
    import numpy as np

    rows = np.asarray(x)
    if rows.ndim < 1:
        rows = rows.reshape(1)
    return lambda: iter(rows)


def text_file(path: str) -> Callable[[], Iterator[str]]:
    """Reads the lines of a text file, without line ends."""

    def reader() -> Iterator[str]:
        with open(path, encoding="utf-8") as lines:
            for line in lines:
                yield line.rstrip("\n")

    return reader
