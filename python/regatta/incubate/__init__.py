"""Paddle's place for what is new: messages along edges of graphs, sums over segments, and
``distributed.fleet.fleet_util``."""
from __future__ import annotations

from typing import Any, Optional

from .._missing import missing

__all__ = [
    "graph_send_recv", "segment_max", "segment_mean", "segment_min", "segment_sum",
]

_SEGMENTS = ("segment_max", "segment_mean", "segment_min", "segment_sum")
_missing = missing(__name__)


def graph_send_recv(
    x: Any, src_index: Any, dst_index: Any, pool_type: str = "sum", out_size: Any = None,
    name: Optional[str] = None,
) -> Any:
    """As :func:`regatta.geometric.send_u_recv`."""
    from ..geometric import send_u_recv

    return send_u_recv(x, src_index, dst_index, pool_type, out_size, name)


def __getattr__(name: str) -> Any:
    if name in _SEGMENTS:
        from .. import geometric

        return getattr(geometric, name)
    return _missing(name)
