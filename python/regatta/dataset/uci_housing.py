"""Prices of houses: 506 rows of 13 features and a price.

The table is read from ``housing.data`` (14 columns with blanks between them) in the folder
``uci_housing`` below ``~/.cache/paddle/dataset`` or below the folder of the variable REGATTA_DATA.
Without such a file a built-in table of the same shape is used, and a warning says so.

The built-in table is that of ``regatta quickstart``. Every feature is uniform within its range in
the real table. A price is 22.5, plus for every feature its weight times (its position within the
range - 0.5), plus twice a bell-shaped noise of variance 1, within 5 and 50. Linear regression
cannot get below a mean squared error of 4.
"""
from __future__ import annotations

import warnings
from typing import Any, Callable, Iterator, Optional, Tuple

from . import common

__all__ = [
    "built_in", "feature_names", "feature_num", "feature_range", "fetch", "load_data", "test",
    "train",
]

#: Names of the features.
feature_names = [
    "CRIM", "ZN", "INDUS", "CHAS", "NOX", "RM", "AGE", "DIS", "RAD", "TAX", "PTRATIO", "B", "LSTAT",
]
#: Number of features; the price comes after them.
feature_num = 13

_WEIGHTS = (-9.0, 4.5, -1.0, 3.0, -7.5, 12.0, 1.5, -8.0, 6.5, -5.0, -6.0, 3.5, -11.0)
_BIAS = 22.5
_RANGES = (
    (0.0, 89.0), (0.0, 100.0), (0.5, 27.7), (0.0, 1.0), (0.39, 0.87), (3.6, 8.8), (2.9, 100.0),
    (1.1, 12.1), (1.0, 24.0), (187.0, 711.0), (12.6, 22.0), (0.3, 396.9), (1.7, 38.0),
)
_STEP = 0x9E3779B97F4A7C15
_BITS = (1 << 64) - 1

_tables: dict = {}
_warned = False


def _mix(x: int) -> int:
    """SplitMix64's finaliser."""
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _BITS
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _BITS
    return x ^ (x >> 31)


def _draws(seed: int, row: int) -> Iterator[int]:
    """The random 64-bit numbers of a row."""
    key = _mix((seed + _STEP) & _BITS)
    key = _mix(key ^ _mix((row + _STEP) & _BITS))
    counter = 0
    while True:
        counter = (counter + _STEP) & _BITS
        yield _mix((key + counter) & _BITS)


def built_in(seed: int = 1) -> Any:
    """The built-in table before scaling, 506 x 14."""
    import numpy as np

    f32 = np.float32
    rows = np.zeros((506, feature_num + 1), f32)
    for i, row in enumerate(rows):
        draws = _draws(seed, i)
        price = f32(_BIAS)
        for at, ((low, high), weight) in enumerate(zip(_RANGES, _WEIGHTS)):
            unit = f32((next(draws) >> 11) / (1 << 53))
            row[at] = f32(low) + unit * (f32(high) - f32(low))
            price += f32(weight) * (unit - f32(0.5))
        bits = next(draws)
        total = sum((bits >> (16 * part)) & 0xFFFF for part in range(4))
        noise = f32((total - 131070.0) * (1.7320508075688772 / 65536.0))
        row[feature_num] = np.clip(price + f32(2.0) * noise, f32(5.0), f32(50.0))
    return rows


def _scaled(rows: Any) -> Any:
    """Features minus their mean, divided by their range, over all rows."""
    import numpy as np

    rows = np.array(rows, np.float32)
    for at in range(rows.shape[1] - 1):
        column = rows[:, at].astype(np.float64)
        span = column.max() - column.min()
        scale = 1.0 / span if span > 0.0 else 0.0
        # `cumsum` adds one after the other, as the Rust quickstart does.
        rows[:, at] = ((column - column.cumsum()[-1] / len(rows)) * scale).astype(np.float32)
    return rows


def _read(path: str, columns: int) -> Any:
    import numpy as np

    rows = []
    with open(path, encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            words = line.split()
            if not words:
                continue
            try:
                row = [float(word) for word in words]
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from None
            if len(row) != columns or not np.all(np.isfinite(row)):
                raise ValueError(
                    f"{path}:{number}: expected {columns} finite numbers, found {len(row)}: "
                    f"{line.strip()!r}"
                )
            rows.append(row)
    if len(rows) < 2:
        raise ValueError(f"{path}: {len(rows)} rows are too few: at least 2 are needed")
    return np.array(rows, np.float32)


def _table(path: str, columns: int = feature_num + 1) -> Any:
    """The scaled table of a file, or the built-in one."""
    key = (path, columns)
    if key not in _tables:
        _tables[key] = _scaled(_read(path, columns) if path else built_in())
    return _tables[key]


def _found() -> str:
    global _warned
    path = common.find("uci_housing", "housing.data")
    if not path and not _warned:
        _warned = True
        warnings.warn(
            "uci_housing: no file housing.data in the folder of REGATTA_DATA or in "
            f"{common.DATA_HOME}/uci_housing: the built-in, synthetic table of the same shape is "
            "used",
            stacklevel=5,
        )
    return path


def load_data(filename: Optional[str] = None, feature_num: int = 14, ratio: float = 0.8) -> Any:
    """The rows to train and to test of a file, scaled; ``feature_num`` counts the price too."""
    rows = _table(filename, feature_num) if filename else _table(_found())
    at = int(len(rows) * ratio)
    return rows[:at], rows[at:]


def feature_range(maximums: Any, minimums: Any) -> None:
    """Paddle draws the ranges of features here."""
    raise NotImplementedError("uci_housing.feature_range draws a picture: nothing here draws")


def _reader(part: int) -> Callable[[], Iterator[Tuple[Any, Any]]]:
    rows = load_data()[part]

    def reader() -> Iterator[Tuple[Any, Any]]:
        for row in rows:
            yield row[:-1], row[-1:]

    return reader


def train() -> Callable[[], Iterator[Tuple[Any, Any]]]:
    """Reads 13 scaled features and a price: the first 80 % of the rows."""
    return _reader(0)


def test() -> Callable[[], Iterator[Tuple[Any, Any]]]:
    """Reads 13 scaled features and a price: the last 20 % of the rows."""
    return _reader(1)


def fetch() -> None:
    """Says whether the file is there; nothing is downloaded."""
    _found()
