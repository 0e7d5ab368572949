"""Lists, tuples and dictionaries of values, as functions take and return them."""
from __future__ import annotations

from typing import Any, Callable, Iterator, List


def replaced(value: Any, change: Callable[[Any, str], Any], path: str = "") -> Any:
    """The same structure with its leaves changed. ``change`` gets a leaf and its path, such as
    ``x_0``."""
    if isinstance(value, dict):
        return {k: replaced(v, change, _joined(path, k)) for k, v in value.items()}
    if isinstance(value, tuple) and hasattr(value, "_fields"):  # a named tuple
        return type(value)(*(replaced(v, change, _joined(path, i)) for i, v in enumerate(value)))
    if isinstance(value, (list, tuple)):
        return type(value)(replaced(v, change, _joined(path, i)) for i, v in enumerate(value))
    return change(value, path)


def _joined(path: str, key: Any) -> str:
    return f"{path}_{key}" if path else str(key)


def leaves(value: Any) -> Iterator[Any]:
    """All values that are neither lists nor dictionaries, in order."""
    found: List[Any] = []
    replaced(value, lambda leaf, _: found.append(leaf))
    return iter(found)
