"""Messages along the edges of graphs.

>>> import regatta as rg
>>> x = rg.to_tensor([[1.0], [2.0], [3.0]])
>>> src, dst = rg.to_tensor([0, 1, 2]), rg.to_tensor([1, 1, 0])
>>> rg.geometric.send_u_recv(x, src, dst).tolist()
[[3.0], [3.0], [0.0]]
"""
from __future__ import annotations

from typing import Any, Optional

from ._missing import missing
from .framework import Variable
from .tensor._common import check, namer_of, op

__all__ = [
    "segment_max", "segment_mean", "segment_min", "segment_sum", "send_u_recv", "send_ue_recv",
]


def send_u_recv(
    x: Variable, src_index: Variable, dst_index: Variable, reduce_op: str = "sum",
    out_size: Any = None, name: Optional[str] = None,
) -> Variable:
    """Rows of ``x`` go along edges and are reduced where they arrive: sum, mean, max or min."""
    if reduce_op not in ("sum", "mean", "max", "min"):
        raise ValueError(f"send_u_recv: reduce_op should be sum, mean, max or min, but is "
                         f"{reduce_op!r}")
    size = -1 if out_size is None else int(out_size)
    inputs = {"X": check(x, "send_u_recv: x"), "Src": src_index, "Dst": dst_index}
    attrs = {"reduce": reduce_op, "out_size": size if size > 0 else -1}
    return op("graph_send_recv", inputs, namer_of(x, "graph_send_recv", name).tmp(), attrs)


def send_ue_recv(
    x: Variable, y: Variable, src_index: Variable, dst_index: Variable, message_op: str = "add",
    reduce_op: str = "sum", out_size: Any = None, name: Optional[str] = None,
) -> Variable:
    """Rows of ``x`` go along edges, each with what the edge ``y`` adds or multiplies."""
    from .tensor.creation import arange
    from .tensor.math import add, divide, multiply, subtract
    from .tensor.search import gather

    functions = {"add": add, "sub": subtract, "mul": multiply, "div": divide}
    if message_op not in functions:
        raise ValueError(f"send_ue_recv: message_op should be add, sub, mul or div, but is "
                         f"{message_op!r}")
    sent = functions[message_op](gather(x, src_index), y)
    size = x.shape[0] if out_size is None else int(out_size)
    return send_u_recv(sent, arange(src_index.shape[0]), dst_index, reduce_op, size, name)


def _segment(data: Variable, segment_ids: Variable, kind: str) -> Any:
    from .tensor.creation import arange

    size = int(segment_ids.numpy().max()) + 1
    return send_u_recv(data, arange(data.shape[0]), segment_ids, kind, size)


def segment_sum(data: Variable, segment_ids: Variable, name: Optional[str] = None) -> Variable:
    """Sums of rows with the same number."""
    return _segment(data, segment_ids, "sum")


def segment_mean(data: Variable, segment_ids: Variable, name: Optional[str] = None) -> Variable:
    """Means of rows with the same number."""
    return _segment(data, segment_ids, "mean")


def segment_max(data: Variable, segment_ids: Variable, name: Optional[str] = None) -> Variable:
    """Largest elements of rows with the same number."""
    return _segment(data, segment_ids, "max")


def segment_min(data: Variable, segment_ids: Variable, name: Optional[str] = None) -> Variable:
    """Smallest elements of rows with the same number."""
    return _segment(data, segment_ids, "min")


__getattr__ = missing(__name__)
