"""What Fluid files under control flow and that is none."""
from __future__ import annotations

from ...tensor import equal, greater_equal, greater_than, increment, less_equal, less_than, not_equal

__all__ = [
    "equal", "greater_equal", "greater_than", "increment", "less_equal", "less_than", "not_equal",
]
