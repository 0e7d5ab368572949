"""Examples become a batch: numbers and arrays are stacked, lists and dictionaries go field by
field."""
from __future__ import annotations

from typing import Any, List, Sequence


def default_collate_fn(batch: Sequence[Any]) -> Any:
    """One batch of a list of examples.

    >>> default_collate_fn([{"x": 1, "y": [2.0]}, {"x": 3, "y": [4.0]}])
    {'x': array([1, 3]), 'y': [array([2., 4.], dtype=float32)]}
    """
    import numpy as np

    first = batch[0]
    if isinstance(first, (np.ndarray, np.generic)):
        return _stack(batch)
    if isinstance(first, bool):
        return np.array(batch, "bool")
    if isinstance(first, int):
        return np.array(batch, "int64")
    if isinstance(first, float):
        return np.array(batch, "float32")
    if isinstance(first, (str, bytes)):
        return list(batch)
    if isinstance(first, dict):
        return {key: default_collate_fn([example[key] for example in batch]) for key in first}
    if isinstance(first, (list, tuple)):
        lengths = {len(example) for example in batch}
        if len(lengths) > 1:
            raise ValueError(f"examples of one batch have {sorted(lengths)} fields")
        return [default_collate_fn(field) for field in zip(*batch)]
    if hasattr(first, "__array__"):
        return _stack([np.asarray(example) for example in batch])
    raise TypeError(
        f"examples hold {type(first).__name__}, but should hold arrays, numbers, texts, lists or "
        "dictionaries of them; or pass collate_fn"
    )


default_collate = default_collate_fn


def _stack(arrays: Sequence[Any]) -> Any:
    import numpy as np

    shapes: List[Any] = []
    for array in arrays:
        if array.shape not in shapes:
            shapes.append(array.shape)
    if len(shapes) > 1:
        listed = ", ".join(str(list(shape)) for shape in shapes[:4])
        raise ValueError(
            f"examples of one batch have arrays of different shapes ({listed}): pad them, or pass "
            "collate_fn"
        )
    return np.stack(arrays)


def default_convert_fn(batch: Any) -> Any:
    """Without batches: an example as arrays."""
    import numpy as np

    if isinstance(batch, (str, bytes, np.ndarray)):
        return batch
    if isinstance(batch, dict):
        return {key: default_convert_fn(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [default_convert_fn(value) for value in batch]
    return np.asarray(batch)
