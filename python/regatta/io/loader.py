"""Batches of a dataset, read here or ahead of use by worker processes."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence

from . import division
from .collate import default_collate_fn, default_convert_fn
from .dataset import IterableDataset
from .generator import GeneratorLoader, name_of
from .pool import Pool
from .reader import Reader, ToArrays
from .sampler import BatchSampler


class DataLoader:
    """Batches of a dataset: what ``collate_fn`` makes, lists of fields by default. In dynamic mode
    arrays become Tensors. ``loader()`` and ``iter(loader)`` begin anew.

    ``num_workers`` processes read ahead, each up to ``prefetch_factor`` batches. The order is that
    without them. For an :class:`IterableDataset` see there who reads what. Their random numbers
    follow from numpy's; ``worker_init_fn(number)`` may change that. An exception of a worker is
    raised here, with the worker's traceback; Ctrl-C ends them. ``persistent_workers`` are kept
    for the next epoch. ``timeout`` is in seconds for one batch, 0 for ever.
    ``multiprocessing_context`` names another method to start workers than ``"fork"``.

    With ``return_list=False`` and ``feed_list`` a batch is a list of one dictionary of arrays for
    ``Executor.run(feed=...)``. ``places`` and ``use_buffer_reader`` are accepted and change
    nothing: arrays are where everything is. ``use_shared_memory=False`` sends large arrays of
    workers through sockets.
    """

    def __init__(
        self,
        dataset: Any,
        feed_list: Optional[Sequence[Any]] = None,
        places: Any = None,
        return_list: bool = True,
        batch_sampler: Optional[BatchSampler] = None,
        batch_size: Optional[int] = 1,
        shuffle: bool = False,
        drop_last: bool = False,
        collate_fn: Optional[Callable[[List[Any]], Any]] = None,
        num_workers: int = 0,
        use_buffer_reader: bool = True,
        prefetch_factor: int = 2,
        use_shared_memory: bool = True,
        timeout: float = 0,
        worker_init_fn: Optional[Callable[[int], Any]] = None,
        persistent_workers: bool = False,
        multiprocessing_context: Optional[str] = None,
    ) -> None:
        if num_workers < 0 or prefetch_factor < 1 or timeout < 0:
            raise ValueError(
                "num_workers and timeout must not be negative, prefetch_factor must be above 0")
        if not return_list and feed_list is None:
            raise ValueError("DataLoader: return_list=False needs feed_list, for names")
        if multiprocessing_context not in (None, "fork", "spawn", "forkserver"):
            raise ValueError("multiprocessing_context should be 'fork', 'spawn' or 'forkserver', "
                             f"but is {multiprocessing_context!r}")
        self.dataset, self.return_list = dataset, return_list
        self.feed_list = None if feed_list is None else [name_of(each) for each in feed_list]
        self.num_workers, self.prefetch_factor = int(num_workers), int(prefetch_factor)
        self.timeout, self.worker_init_fn = timeout or None, worker_init_fn
        self.use_shared_memory = bool(use_shared_memory)
        self.persistent_workers = bool(persistent_workers)
        self._start_method = multiprocessing_context
        self.is_iterable = isinstance(dataset, IterableDataset) or not hasattr(
            dataset, "__getitem__")
        self._set_batches(batch_sampler, batch_size, shuffle, drop_last)
        self.collate_fn = collate_fn or (
            default_convert_fn if self._single else default_collate_fn)
        self._idle: Optional[Pool] = None
        self._divided = True  # an iterable dataset, among ranks

    def _set_batches(
        self, sampler: Optional[BatchSampler], size: Optional[int], shuffle: bool, drop_last: bool
    ) -> None:
        if sampler is not None and (size not in (1, None) or shuffle or drop_last):
            raise ValueError(
                "DataLoader: batch_sampler decides about batches; leave out batch_size, shuffle "
                "and drop_last"
            )
        if self.is_iterable and (shuffle or sampler is not None):
            raise ValueError(
                "DataLoader: an IterableDataset has its order; leave out shuffle and batch_sampler"
            )
        if size is not None and (not isinstance(size, int) or size <= 0):
            raise ValueError(f"batch_size ({size!r}) must be a whole number above 0")
        self.batch_size, self.drop_last = size, bool(drop_last)
        self._single = size is None and sampler is None
        # drop_last has nothing to drop without batches; PaddleRec's tools always give it.
        if self._single and shuffle:
            raise ValueError(
                "DataLoader: batch_size=None gives examples as they are; leave out shuffle"
            )
        self.batch_sampler: Any = sampler
        if sampler is None and not self.is_iterable and not self._single:
            self.batch_sampler = BatchSampler(
                self.dataset, shuffle=shuffle, batch_size=size or 1, drop_last=drop_last)
        elif sampler is not None:
            self.batch_size = getattr(sampler, "batch_size", None)

    def __len__(self) -> int:
        if self.is_iterable:
            raise TypeError("a loader of an IterableDataset has no length")
        return len(self.dataset) if self._single else len(self.batch_sampler)

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        from .._mode import in_dynamic_mode

        batches = self._read_here() if self.num_workers == 0 else self._read_ahead()
        if not self.return_list:
            return map(self._feed, batches)
        return map(_tensors, batches) if in_dynamic_mode() else batches

    def _feed(self, batch: Any) -> List[Dict[str, Any]]:
        if isinstance(batch, dict):
            return [batch]
        fields = batch if isinstance(batch, (list, tuple)) else [batch]
        if len(fields) != len(self.feed_list):  # type: ignore[arg-type]
            raise ValueError(
                f"examples have {len(fields)} fields, but feed_list names {self.feed_list}"
            )
        return [dict(zip(self.feed_list, fields))]  # type: ignore[arg-type]

    def _reader(self, collate: Callable[[Any], Any]) -> Reader:
        size = None if self._single else self.batch_size or 1
        rank, world = division.ranks() if self.is_iterable and self._divided else (0, 1)
        return Reader(self.dataset, collate, size, self.drop_last, rank, world)

    def _numbers(self) -> Iterator[Any]:
        return iter(range(len(self.dataset))) if self._single else iter(self.batch_sampler)

    def _read_here(self) -> Iterator[Any]:
        reader = self._reader(self.collate_fn)
        if self.is_iterable:
            for batch, in reader.batches(reader.examples()):
                yield batch
            return
        for numbers in self._numbers():
            yield reader.fetch(numbers)

    def _read_ahead(self) -> Iterator[Any]:
        pool, self._idle = self._idle, None
        if pool is None:
            pool = Pool(
                self._reader(ToArrays(self.collate_fn)), self.num_workers, self.worker_init_fn,
                self.timeout, self.use_shared_memory, self._start_method)
        done = False
        try:
            if self.is_iterable:
                yield from pool.epoch(self.prefetch_factor)
            else:
                yield from pool.by_number(self._numbers(), self.prefetch_factor)
            done = True
        finally:
            if done and self.persistent_workers and self._idle is None:
                self._idle = pool
            else:  # a reader that left early leaves batches in flight
                pool.close()

    @staticmethod
    def from_generator(
        feed_list: Optional[Sequence[Any]] = None,
        capacity: Optional[int] = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> GeneratorLoader:
        """A loader whose batches a function gives; see :class:`GeneratorLoader`."""
        return GeneratorLoader(feed_list, capacity, iterable, return_list)

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> Any:
        """Raises: files are read by ``Executor.train_from_dataset``."""
        raise NotImplementedError(
            "DataLoader.from_dataset: pass the dataset to Executor.train_from_dataset"
        )


def _tensors(batch: Any) -> Any:
    """A batch with Tensors in the place of arrays."""
    import numpy as np

    if isinstance(batch, (np.ndarray, np.generic)):
        from ..tensor import to_tensor

        return to_tensor(batch)
    if isinstance(batch, dict):
        return {key: _tensors(value) for key, value in batch.items()}
    if isinstance(batch, (list, tuple)):
        return [_tensors(value) for value in batch]
    return batch
