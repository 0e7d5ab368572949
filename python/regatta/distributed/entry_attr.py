"""Which ids of a sparse table get a row: passed to ``static.nn.sparse_embedding(entry=...)``."""
from __future__ import annotations

from typing import Any

from .._missing import missing

__all__ = ["CountFilterEntry", "ProbabilityEntry", "ShowClickEntry"]

__getattr__ = missing(__name__)


class EntryAttr:
    """A rule of admission."""

    _name = ""

    def _to_attr(self) -> str:
        """The rule as text."""
        raise NotImplementedError

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._to_attr().split(':', 1)[1]})"

    def __eq__(self, other: object) -> bool:
        return type(self) is type(other) and vars(self) == vars(other)

    def __hash__(self) -> int:
        return hash(self._to_attr())


class ProbabilityEntry(EntryAttr):
    """An id gets a row with this probability each time it is seen.

    >>> ProbabilityEntry(0.1)._to_attr()
    'probability_entry:0.1'
    """

    def __init__(self, probability: float) -> None:
        if isinstance(probability, bool) or not isinstance(probability, float):
            raise ValueError(f"probability should be a float between 0 and 1, not {probability!r}")
        if not 0 < probability < 1:
            raise ValueError(f"probability should be between 0 and 1, but is {probability}")
        self._name, self._probability = "probability_entry", probability

    def _to_attr(self) -> str:
        return f"{self._name}:{self._probability}"


class CountFilterEntry(EntryAttr):
    """An id gets a row when it has been seen this often.

    >>> CountFilterEntry(10)._to_attr()
    'count_filter_entry:10'
    """

    def __init__(self, count_filter: int) -> None:
        if isinstance(count_filter, bool) or not isinstance(count_filter, int):
            raise ValueError(f"count_filter should be an integer, not {count_filter!r}")
        if count_filter < 0:
            raise ValueError(f"count_filter should be at least 0, but is {count_filter}")
        self._name, self._count_filter = "count_filter_entry", count_filter

    def _to_attr(self) -> str:
        return f"{self._name}:{self._count_filter}"


class ShowClickEntry(EntryAttr):
    """Rows count shows and clicks, which are read from the variables of these names.

    >>> ShowClickEntry("show", "click")._to_attr()
    'show_click_entry:show:click'
    """

    def __init__(self, show_name: Any, click_name: Any) -> None:
        names = [getattr(n, "name", n) for n in (show_name, click_name)]
        for name in names:
            if not isinstance(name, str):
                raise ValueError(f"a ShowClickEntry takes names of variables, not {name!r}")
        self._name, (self._show_name, self._click_name) = "show_click_entry", names

    def _to_attr(self) -> str:
        return f"{self._name}:{self._show_name}:{self._click_name}"
