"""Values with any number of elements per example, as Fluid passes them."""
from __future__ import annotations

from typing import Any, List, Optional, Sequence

__all__ = ["LoDTensor", "LoDTensorArray", "create_lod_tensor", "create_random_int_lodtensor"]


class LoDTensor:
    """An array, and optionally how its rows are divided into examples.

    >>> t = LoDTensor()
    >>> t.set([[1], [2], [3]], None)
    >>> t.set_recursive_sequence_lengths([[2, 1]])
    >>> t.lod()
    [[0, 2, 3]]
    """

    def __init__(self, value: Any = None) -> None:
        self._array: Any = None
        self._offsets: Optional[List[int]] = None
        if value is not None:
            self.set(value)

    def set(self, value: Any, place: Any = None) -> None:
        """Takes an array."""
        import numpy as np

        self._array = np.ascontiguousarray(value)

    def set_lod(self, lod: Sequence[Sequence[int]]) -> None:
        """Takes offsets: of every example the number of its first row, and the number of rows."""
        if not lod:
            self._offsets = None
            return
        if len(lod) != 1:
            raise NotImplementedError(
                f"a LoD tensor of {len(lod)} levels: only one level of examples is supported"
            )
        offsets = [int(i) for i in lod[0]]
        if not offsets or offsets[0] != 0 or any(a > b for a, b in zip(offsets, offsets[1:])):
            raise ValueError(f"offsets should begin with 0 and not fall, but are {offsets}")
        self._offsets = offsets

    def lod(self) -> List[List[int]]:
        """Offsets."""
        return [] if self._offsets is None else [list(self._offsets)]

    def set_recursive_sequence_lengths(self, lengths: Sequence[Sequence[int]]) -> None:
        """Takes the number of rows of every example."""
        if not lengths:
            self._offsets = None
            return
        offsets = [0]
        for length in lengths[0]:
            offsets.append(offsets[-1] + int(length))
        self.set_lod([offsets] + [list(level) for level in lengths[1:]])

    def recursive_sequence_lengths(self) -> List[List[int]]:
        """The number of rows of every example."""
        return [[b - a for a, b in zip(level, level[1:])] for level in self.lod()]

    def has_valid_recursive_sequence_lengths(self) -> bool:
        """Whether the offsets fit the rows."""
        return self._offsets is None or (
            self._array is not None and self._offsets[-1] == len(self._array)
        )

    def shape(self) -> List[int]:
        """Dimensions."""
        return [] if self._array is None else list(self._array.shape)

    _get_dims = shape

    def numpy(self) -> Any:
        """The array."""
        if self._array is None:
            raise ValueError("this LoDTensor has no value: call set first")
        return self._array

    def __array__(self, dtype: Any = None, copy: Optional[bool] = None) -> Any:
        array = self.numpy()
        return array if dtype is None else array.astype(dtype)

    def __len__(self) -> int:
        return len(self.numpy())

    def _as_feed(self) -> Any:
        """What an executor takes: an array, or its elements and the offsets of examples."""
        import numpy as np

        array = self.numpy()
        if self._offsets is None:
            return array
        if not self.has_valid_recursive_sequence_lengths():
            raise ValueError(
                f"a LoDTensor has {len(array)} rows, but its offsets end with {self._offsets[-1]}"
            )
        if array.size != len(array):
            raise NotImplementedError(
                f"a LoDTensor of rows of {array.shape[1:]}: inputs with any number of values per "
                "example hold ids, one per row"
            )
        return array.reshape(-1), np.asarray(self._offsets, np.int64)

    def __repr__(self) -> str:
        return f"LoDTensor(lod={self.lod()}, {self._array!r})"


class LoDTensorArray(list):
    """A list of :class:`LoDTensor`."""


def create_lod_tensor(data: Any, recursive_seq_lens: Sequence[Sequence[int]], place: Any = None) -> LoDTensor:
    """A tensor of lists or of an array, with the number of rows of every example.

    >>> create_lod_tensor([[1, 2], [3]], [[2, 1]]).shape()
    [3, 1]
    """
    import numpy as np

    tensor = LoDTensor()
    if isinstance(data, LoDTensor):
        data = data.numpy()
    if isinstance(data, list):
        lengths = [len(item) for item in data]
        if list(recursive_seq_lens[-1]) != lengths:
            raise ValueError(
                f"the lists have the lengths {lengths}, but recursive_seq_lens has "
                f"{list(recursive_seq_lens[-1])}"
            )
        array = np.array([value for item in data for value in item])
        if array.dtype.kind in "iub":
            array = array.astype(np.int64)
        data = array.reshape(-1, 1)
    tensor.set(data, place)
    tensor.set_recursive_sequence_lengths(recursive_seq_lens)
    if not tensor.has_valid_recursive_sequence_lengths():
        raise ValueError(
            f"the data has {len(data)} rows, but recursive_seq_lens {list(recursive_seq_lens)} "
            "describes another number"
        )
    return tensor


def create_random_int_lodtensor(
    recursive_seq_lens: Sequence[Sequence[int]], base_shape: Sequence[int], place: Any, low: int,
    high: int,
) -> LoDTensor:
    """Random integers in ``[low, high]``."""
    import numpy as np

    shape = [sum(recursive_seq_lens[-1])] + list(base_shape)
    data = np.random.randint(low, high + 1, shape).astype(np.int64)
    return create_lod_tensor(data, recursive_seq_lens, place)
