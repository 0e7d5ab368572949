"""Lists of examples become feeds of an executor."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence

from ..framework import Program, Variable, default_main_program
from .lod_tensor import LoDTensor

__all__ = ["DataFeeder"]

_NUMPY = {"bfloat16": "float32"}


class DataFeeder:
    """Puts the fields of examples under the names of variables.

    >>> import regatta.fluid as fluid
    >>> main, startup = fluid.Program(), fluid.Program()
    >>> with fluid.program_guard(main, startup):
    ...     x = fluid.layers.data("x", [2])
    ...     y = fluid.layers.data("y", [1], dtype="int64")
    >>> batch = fluid.DataFeeder([x, y], fluid.CPUPlace()).feed([([1.0, 2.0], 3), ([4.0, 5.0], 6)])
    >>> batch["x"].shape, batch["y"].tolist()
    ((2, 2), [[3], [6]])
    """

    def __init__(
        self, feed_list: Sequence[Any], place: Any = None, program: Optional[Program] = None
    ) -> None:
        program = program or default_main_program()
        self.place = place
        self._fields: List[Variable] = []
        for item in feed_list:
            if isinstance(item, str):
                item = program.global_block().var(item)
            if not isinstance(item, Variable):
                raise TypeError(
                    f"DataFeeder: feed_list holds variables or their names, not {item!r}"
                )
            self._fields.append(item)

    @property
    def feed_names(self) -> List[str]:
        """Names of the variables."""
        return [field.name for field in self._fields]

    def feed(self, iterable: Iterable[Any]) -> Dict[str, Any]:
        """The feed of a batch: for every variable an array, or a
        :class:`~regatta.fluid.LoDTensor` if it has a lod_level."""
        columns: List[List[Any]] = [[] for _ in self._fields]
        for at, example in enumerate(iterable):
            if len(example) != len(columns):
                raise ValueError(
                    f"DataFeeder: example {at} has {len(example)} fields, but the feed list has "
                    f"{len(columns)}: {', '.join(self.feed_names)}"
                )
            for column, value in zip(columns, example):
                column.append(value)
        return {
            field.name: _column(field, values) for field, values in zip(self._fields, columns)
        }

    def feed_parallel(
        self, iterable: Iterable[Any], num_places: Optional[int] = None
    ) -> Iterator[Dict[str, Any]]:
        """The feeds of several batches, one for each device."""
        batches = list(iterable)
        if num_places is not None and len(batches) != num_places:
            raise ValueError(f"{len(batches)} batches for {num_places} devices")
        return iter([self.feed(batch) for batch in batches])

    def decorate_reader(
        self,
        reader: Callable[[], Iterator[Any]],
        multi_devices: bool = False,
        num_places: Optional[int] = None,
        drop_last: bool = True,
    ) -> Callable[[], Iterator[Any]]:
        """A reader of feeds from a reader of batches; with ``multi_devices`` of lists of feeds."""
        many = (num_places or 1) if multi_devices else None

        def feeds() -> Iterator[Any]:
            group: List[Any] = []
            for batch in reader():
                if many is None:
                    yield self.feed(batch)
                    continue
                group.append(batch)
                if len(group) == many:
                    yield list(self.feed_parallel(group, many))
                    group = []
            if group and not drop_last:
                raise ValueError(
                    f"{len(group)} batches are left for {many} devices: pass drop_last=True"
                )

        return feeds


def _dtype(field: Variable) -> str:
    return _NUMPY.get(str(field.dtype), str(field.dtype))


def _column(field: Variable, values: List[Any]) -> Any:
    import numpy as np

    if field.lod_level > 0:
        lengths = [len(value) for value in values]
        flat = [np.asarray(value, _dtype(field)).reshape(-1, 1) for value in values]
        tensor = LoDTensor(np.concatenate(flat) if flat else np.zeros((0, 1), _dtype(field)))
        tensor.set_recursive_sequence_lengths([lengths])
        return tensor
    try:
        array = np.asarray(values, _dtype(field))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"DataFeeder: the values of '{field.name}' do not make an array of {field.dtype}: "
            f"{error}. If their lengths differ, declare it with lod_level=1"
        ) from None
    shape = field.shape
    wanted = [len(values)] + [int(d) for d in shape[1:]]
    fits = len(shape) == array.ndim and all(w in (-1, a) for w, a in zip(wanted, array.shape))
    if fits or -1 in wanted[1:]:
        return array
    size = 1
    for d in wanted:
        size *= d
    if array.size != size:
        raise ValueError(
            f"DataFeeder: '{field.name}' has the shape {list(shape)}, but {len(values)} examples "
            f"have {list(array.shape)}"
        )
    return array.reshape(wanted)
