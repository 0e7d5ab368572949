"""Data sets by name: :mod:`regatta.dataset.uci_housing`.

Nothing is downloaded. A data set reads files that are there, or says where it expects them.
"""
from __future__ import annotations

from typing import Any

__all__ = ["common", "uci_housing"]

# Data sets of Paddle's that have no reader here.
_ABSENT = (
    "cifar", "conll05", "flowers", "image", "imdb", "imikolov", "mnist", "movielens", "mq2007",
    "sentiment", "voc2012", "wmt14", "wmt16",
)


def __getattr__(name: str) -> Any:
    if name in __all__:
        import importlib

        return importlib.import_module(f"{__name__}.{name}")
    if name in _ABSENT:
        raise AttributeError(
            f"paddle.dataset.{name} is not in Regatta: nothing is downloaded. Read your local files "
            "with a reader of your own (a function that yields tuples) and pass it to paddle.batch, "
            "or use a dataset of paddle.io"
        )
    from .._missing import missing

    return missing(__name__)(name)
