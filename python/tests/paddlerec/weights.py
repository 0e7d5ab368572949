"""Initial weights that both sides of a parity test can make without sharing a file.

The value of a parameter depends on its name and shape only:

    seed  = crc32 of the name in UTF-8
    scale = 1 / sqrt(rows)  for a matrix of at most 4096 rows, otherwise 0.1
    value = RandomState(seed).uniform(-scale, scale, shape), rounded to float32

`VERSION` changes when the formula does; the recorded losses name the version they were made with.
"""
from __future__ import annotations

import math
import zlib
from typing import Callable, Iterable, Sequence, Tuple

import numpy as np

VERSION = 1
MATRIX_ROWS = 4096
CHUNK = 1 << 20


def scale(shape: Sequence[int]) -> float:
    """The half width of the interval that the values of a parameter are drawn from.

    >>> scale([64, 32]), scale([32]), scale([1000001, 9])
    (0.125, 0.1, 0.1)
    """
    if len(shape) == 2 and shape[0] <= MATRIX_ROWS:
        return 1.0 / math.sqrt(shape[0])
    return 0.1


def value(name: str, shape: Sequence[int]) -> np.ndarray:
    """The initial value of the parameter `name`.

    >>> value("linear_0.b_0", [2]).tolist()
    [0.01080450601875782, -0.08145401626825333]
    """
    draw = np.random.RandomState(zlib.crc32(name.encode("utf-8")))
    half = scale(shape)
    out = np.empty(int(np.prod(shape, dtype=np.int64)), dtype=np.float32)
    # Drawn in chunks: the same numbers as one draw, without a float64 copy of a whole table.
    for start in range(0, out.size, CHUNK):
        part = out[start:start + CHUNK]
        part[:] = draw.uniform(-half, half, part.size)
    return out.reshape(tuple(shape))


def set_all(parameters: Iterable[Tuple[str, Sequence[int]]],
            put: Callable[[str, np.ndarray], None]) -> int:
    """Gives every (name, shape) its value through `put(name, array)`; returns how many there were.

    >>> got = {}
    >>> set_all([("fc_0.w_0", [4, 2]), ("fc_0.b_0", [2])], got.__setitem__)
    2
    >>> got["fc_0.w_0"].shape, got["fc_0.w_0"].dtype
    ((4, 2), dtype('float32'))
    """
    count = 0
    for name, shape in parameters:
        put(name, value(name, shape))
        count += 1
    return count
