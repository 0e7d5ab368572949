"""Tensors as text, in Paddle's way."""
from __future__ import annotations

from typing import Any, Dict, List

OPTIONS: Dict[str, Any] = {
    "precision": 8, "threshold": 1000, "edgeitems": 3, "linewidth": 80, "sci_mode": False,
}


def to_text(tensor: Any, prefix: str = "Tensor") -> str:
    """``Tensor(shape=[2], dtype=float32, place=Place(cpu), stop_gradient=True, ...)``."""
    indent = len(prefix) + 1
    values = _values(tensor.numpy(), indent)
    stop = tensor.stop_gradient
    return (f"{prefix}(shape={list(tensor.shape)}, dtype={tensor._dtype}, place=Place(cpu), "
            f"stop_gradient={stop},\n{' ' * indent}{values})")


def _values(array: Any, indent: int) -> str:
    import numpy as np

    kept = array
    if array.size > OPTIONS["threshold"]:
        kept = _edges(array)
    items = [_item(v) for v in np.asarray(kept).reshape(-1).tolist()]
    signed = any(i.startswith("-") for i in items)
    if signed:
        items = [i if i.startswith("-") else " " + i for i in items]
    width = max((len(i) for i in items), default=0)
    padded = iter([i.ljust(width) for i in items] if array.ndim else items)
    return _nested(array.shape, padded, array.size > OPTIONS["threshold"], indent, width)


def _edges(array: Any) -> Any:
    """The elements that are printed of a large array."""
    import numpy as np

    edge = OPTIONS["edgeitems"]
    for axis, size in enumerate(array.shape):
        if size > 2 * edge:
            keep = list(range(edge)) + list(range(size - edge, size))
            array = np.take(array, keep, axis)
    return array


def _item(value: Any) -> str:
    if isinstance(value, bool) or isinstance(value, int):
        return str(value)
    if value != value or value in (float("inf"), float("-inf")):
        return str(value)
    if OPTIONS["sci_mode"]:
        return f"{value:.{OPTIONS['precision']}e}"
    if value == int(value):
        return f"{value:.0f}."
    return f"{value:.{OPTIONS['precision']}f}"


def _nested(shape: Any, items: Any, cut: bool, indent: int, width: int) -> str:
    if not shape:
        return next(items)
    if 0 in shape:
        return "[]"
    size, edge = shape[0], OPTIONS["edgeitems"]
    dots = cut and size > 2 * edge
    if len(shape) > 1:
        count = 2 * edge if dots else size
        parts = [_nested(shape[1:], items, cut, indent + 1, width) for _ in range(count)]
        if dots:
            parts.insert(edge, "...")
        between = "," + "\n" * (len(shape) - 1) + " " * (indent + 1)
        return "[" + between.join(parts) + "]"
    row = [next(items) for _ in range(2 * edge if dots else size)]
    if dots:
        row.insert(edge, "...")
    return "[" + _lines(row, indent + 1, width) + "]"


def _lines(row: List[str], indent: int, width: int) -> str:
    per_line = max(1, (OPTIONS["linewidth"] - indent) // (width + 2))
    lines = [", ".join(row[i:i + per_line]) for i in range(0, len(row), per_line)]
    return (",\n" + " " * indent).join(lines)
