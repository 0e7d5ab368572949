"""``paddle.fluid.contrib.layers``."""
from __future__ import annotations

from typing import Any, Optional, Sequence

from ..._missing import missing

__all__ = ["sparse_embedding"]


def sparse_embedding(
    input: Any,
    size: Sequence[int],
    padding_idx: Optional[int] = None,
    is_test: bool = False,
    entry: Any = None,
    table_class: str = "CommonSparseTable",
    param_attr: Any = None,
    dtype: Any = "float32",
) -> Any:
    """Looks up rows of a table that parameter servers hold. As
    :func:`regatta.static.nn.sparse_embedding`."""
    from ...static import nn

    kwargs = {} if table_class == "CommonSparseTable" else {"table_class": table_class}
    return nn.sparse_embedding(
        input=input, size=size, padding_idx=padding_idx, is_test=is_test, entry=entry,
        param_attr=param_attr, dtype=dtype, **kwargs,
    )


__getattr__ = missing(__name__)
