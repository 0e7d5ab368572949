"""Readers of examples become readers of batches."""
from __future__ import annotations

import sys
import types
from typing import Any, Callable, Iterator, List

__all__ = ["batch"]


def batch(
    reader: Callable[[], Iterator[Any]], batch_size: int, drop_last: bool = False
) -> Callable[[], Iterator[List[Any]]]:
    """A reader of lists of ``batch_size`` examples.

    >>> list(batch(lambda: iter(range(5)), 2)())
    [[0, 1], [2, 3], [4]]
    >>> list(batch(lambda: iter(range(5)), 2, drop_last=True)())
    [[0, 1], [2, 3]]
    """
    size = int(batch_size)
    if size <= 0 or size != batch_size:
        raise ValueError(f"batch: batch_size should be a positive number, but is {batch_size!r}")
    if not callable(reader):
        raise TypeError(
            f"batch: the reader should be a function that returns an iterator, but is {reader!r}"
        )

    def batch_reader() -> Iterator[List[Any]]:
        examples: List[Any] = []
        for example in reader():
            examples.append(example)
            if len(examples) == size:
                yield examples
                examples = []
        if examples and not drop_last:
            yield examples

    return batch_reader


class _CallableModule(types.ModuleType):
    """``regatta.batch`` is this module once anybody imports it, and must be the function, too."""

    def __call__(self, *args: Any, **kwargs: Any) -> Callable[[], Iterator[List[Any]]]:
        return batch(*args, **kwargs)


sys.modules[__name__].__class__ = _CallableModule
