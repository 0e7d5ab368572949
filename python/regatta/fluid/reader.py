"""Readers of Fluid that fill feeds: ``PyReader`` and ``DataLoader``."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from ..framework import Variable
from .data_feeder import DataFeeder
from .._missing import missing

__all__ = ["DataLoader", "PyReader"]


class PyReader:
    """Makes feeds of a generator: ``for feed in reader(): exe.run(feed=feed)``.

    A thread reads up to ``capacity`` batches ahead."""

    def __init__(
        self,
        feed_list: Optional[Sequence[Variable]] = None,
        capacity: int = 2,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        if not iterable:
            raise NotImplementedError(
                "PyReader: iterable=False puts the reader into the program; iterate over it and pass "
                "each batch as feed"
            )
        if feed_list is None:
            raise ValueError("PyReader: feed_list, the inputs of the program, is needed")
        self._feed_list, self._return_list = list(feed_list), bool(return_list)
        self._capacity = max(1, int(capacity))
        self._batches: Optional[Callable[[], Iterator[Dict[str, Any]]]] = None

    def decorate_sample_generator(
        self, sample_generator: Callable[[], Iterator[Any]], batch_size: int,
        drop_last: bool = True, places: Any = None,
    ) -> "PyReader":
        """Takes a generator of examples."""
        from ..batch import batch

        reader = batch(sample_generator, batch_size, drop_last)
        return self.decorate_sample_list_generator(reader, places)

    def decorate_sample_list_generator(
        self, reader: Callable[[], Iterator[Any]], places: Any = None
    ) -> "PyReader":
        """Takes a generator of lists of examples."""
        feeder = DataFeeder(self._feed_list)
        self._batches = lambda: map(feeder.feed, reader())
        return self

    def decorate_batch_generator(
        self, reader: Callable[[], Iterator[Any]], places: Any = None
    ) -> "PyReader":
        """Takes a generator of batches: one array for each input."""
        names = [var.name for var in self._feed_list]

        def feeds() -> Iterator[Dict[str, Any]]:
            for arrays in reader():
                if len(arrays) != len(names):
                    raise ValueError(
                        f"a batch has {len(arrays)} arrays, but there are {len(names)} inputs"
                    )
                yield dict(zip(names, arrays))

        self._batches = feeds
        return self

    set_sample_generator = decorate_sample_generator
    set_sample_list_generator = decorate_paddle_reader = decorate_sample_list_generator
    set_batch_generator = decorate_tensor_provider = decorate_batch_generator

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        from ..reader import buffered

        if self._batches is None:
            raise RuntimeError("this reader has no generator: call set_sample_list_generator or so")
        for feed in buffered(self._batches, self._capacity)():
            yield list(feed.values()) if self._return_list else feed

    def _not_in_program(self) -> None:
        raise NotImplementedError(
            "the reader is not part of the program: iterate over it and pass each batch as feed"
        )

    start = reset = _not_in_program


class DataLoader:
    """``DataLoader.from_generator``: as :class:`PyReader`."""

    @staticmethod
    def from_generator(
        feed_list: Optional[Sequence[Variable]] = None,
        capacity: Optional[int] = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> PyReader:
        """A reader that makes feeds of a generator."""
        return PyReader(feed_list, capacity or 2, use_double_buffer, iterable, return_list)

    @staticmethod
    def from_dataset(dataset: Any, places: Any = None, drop_last: bool = True) -> Any:
        """Raises: datasets are read by executors."""
        raise NotImplementedError("DataLoader.from_dataset: use Executor.train_from_dataset")


__getattr__ = missing(__name__)
