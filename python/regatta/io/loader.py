"""Batches of a dataset, read here or ahead of use in threads."""
from __future__ import annotations

import copy
import queue
import threading
from collections import deque
from typing import Any, Callable, Deque, Dict, Iterable, Iterator, List, Optional, Sequence

from .collate import default_collate_fn, default_convert_fn
from .dataset import IterableDataset
from .sampler import BatchSampler
from .worker import WorkerInfo, become, was_asked


class DataLoader:
    """Batches of a dataset, as lists of arrays, one for each field.

    ``loader()`` and ``iter(loader)`` begin anew. ``num_workers`` are threads that read ahead: for
    a dataset by number they share the batches, which come in the same order as without; for an
    :class:`IterableDataset` see there. With ``return_list=False`` and ``feed_list`` a batch is a
    list of one dictionary for ``Executor.run(feed=...)``.

    ``places``, ``use_shared_memory``, ``use_buffer_reader`` and ``persistent_workers`` are accepted
    and change nothing: arrays are where everything is, and threads cost little to start.
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
    ) -> None:
        if num_workers < 0 or prefetch_factor < 1 or timeout < 0:
            raise ValueError(
                "num_workers and timeout must not be negative, prefetch_factor must be above 0")
        if not return_list and feed_list is None:
            raise ValueError("DataLoader: return_list=False needs feed_list, for names")
        self.dataset, self.return_list = dataset, return_list
        self.feed_list = None if feed_list is None else [_name(each) for each in feed_list]
        self.num_workers, self.prefetch_factor = int(num_workers), int(prefetch_factor)
        self.timeout, self.worker_init_fn = timeout or None, worker_init_fn
        self.is_iterable = isinstance(dataset, IterableDataset) or not hasattr(
            dataset, "__getitem__")
        self._set_batches(batch_sampler, batch_size, shuffle, drop_last)
        self.collate_fn = collate_fn or (
            default_convert_fn if self._single else default_collate_fn)

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
        self.batch_sampler: Any = sampler
        if sampler is None and not self.is_iterable and not self._single:
            self.batch_sampler = BatchSampler(
                self.dataset, shuffle=shuffle, batch_size=size, drop_last=drop_last)
        elif sampler is not None:
            self.batch_size = getattr(sampler, "batch_size", None)

    def __len__(self) -> int:
        if self.is_iterable:
            raise TypeError("a loader of an IterableDataset has no length")
        return len(self.dataset) if self._single else len(self.batch_sampler)

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def __iter__(self) -> Iterator[Any]:
        if self.is_iterable:
            batches = self._iterable()
        else:
            batches = self._by_number()
        return map(self._shaped, batches) if not self.return_list else batches

    def _shaped(self, batch: Any) -> List[Dict[str, Any]]:
        if isinstance(batch, dict):
            return [batch]
        fields = batch if isinstance(batch, (list, tuple)) else [batch]
        if len(fields) != len(self.feed_list):  # type: ignore[arg-type]
            raise ValueError(
                f"examples have {len(fields)} fields, but feed_list names {self.feed_list}"
            )
        return [dict(zip(self.feed_list, fields))]  # type: ignore[arg-type]

    # Datasets by number
    def _numbers(self) -> Iterator[Any]:
        return iter(range(len(self.dataset))) if self._single else iter(self.batch_sampler)

    def _fetch(self, numbers: Any) -> Any:
        if self._single:
            return self.collate_fn(self.dataset[numbers])
        return self.collate_fn([self.dataset[i] for i in numbers])

    def _by_number(self) -> Iterator[Any]:
        if self.num_workers == 0:
            for numbers in self._numbers():
                yield self._fetch(numbers)
            return
        from concurrent.futures import ThreadPoolExecutor

        ids = iter(range(self.num_workers))
        pool = ThreadPoolExecutor(
            self.num_workers, "regatta-loader", initializer=lambda: self._begin(next(ids)))
        ahead: Deque[Any] = deque()
        try:
            for numbers in self._numbers():
                ahead.append(pool.submit(self._fetch, numbers))
                if len(ahead) > self.num_workers * self.prefetch_factor:
                    yield ahead.popleft().result(self.timeout)
            while ahead:
                yield ahead.popleft().result(self.timeout)
        finally:
            for future in ahead:
                future.cancel()
            pool.shutdown(wait=False)

    def _begin(self, number: int) -> None:
        become(WorkerInfo(number, self.num_workers, self.dataset))
        if self.worker_init_fn is not None:
            self.worker_init_fn(number)

    # Datasets that are iterated over
    def _batches(self, examples: Iterable[Any]) -> Iterator[Any]:
        if self._single:
            for example in examples:
                yield self.collate_fn(example)
            return
        batch: List[Any] = []
        for example in examples:
            batch.append(example)
            if len(batch) == self.batch_size:
                yield self.collate_fn(batch)
                batch = []
        if batch and not self.drop_last:
            yield self.collate_fn(batch)

    def _iterable(self) -> Iterator[Any]:
        if self.num_workers == 0:
            return self._batches(self.dataset)
        return _Workers(self).batches()

    @staticmethod
    def from_generator(
        feed_list: Optional[Sequence[Any]] = None,
        capacity: Optional[int] = None,
        use_double_buffer: bool = True,
        iterable: bool = True,
        return_list: bool = False,
        use_multiprocess: bool = False,
        drop_last: bool = True,
    ) -> "GeneratorLoader":
        """A loader whose batches a function gives; see :class:`GeneratorLoader`."""
        return GeneratorLoader(feed_list, capacity, iterable, return_list)

    @staticmethod
    def from_dataset(dataset: Any, places: Any, drop_last: bool = True) -> Any:
        """Raises: files are read by ``Executor.train_from_dataset``."""
        raise NotImplementedError(
            "DataLoader.from_dataset: pass the dataset to Executor.train_from_dataset"
        )


class _Workers:
    """Threads that iterate over a dataset. The first begins; if the dataset asks which worker it
    is, the others begin too, otherwise the first reads everything."""

    _END = object()

    def __init__(self, loader: DataLoader) -> None:
        self._loader = loader
        self._stop = threading.Event()
        room = loader.prefetch_factor
        self._queues: List["queue.Queue[Any]"] = [
            queue.Queue(room) for _ in range(loader.num_workers)]
        self._decided = threading.Event()
        self._alone = False

    def batches(self) -> Iterator[Any]:
        self._start(0)
        try:
            while not self._decided.wait(0.2):
                pass  # so that Ctrl-C is heard
            live = [self._queues[0]]
            if not self._alone:
                for number in range(1, len(self._queues)):
                    self._start(number)
                live = list(self._queues)
            # Workers take turns, so that the order is always the same.
            while live:
                for each in list(live):
                    item = self._next(each)
                    if item is self._END:
                        live.remove(each)
                    elif isinstance(item, BaseException):
                        raise item
                    else:
                        yield item[0]
        finally:
            self._stop.set()

    def _next(self, source: "queue.Queue[Any]") -> Any:
        waited, tick = 0.0, 0.2
        while True:
            try:
                return source.get(timeout=tick)
            except queue.Empty:
                waited += tick
                if self._loader.timeout is not None and waited >= self._loader.timeout:
                    raise TimeoutError(
                        f"DataLoader: no batch for {self._loader.timeout} s (timeout)") from None

    def _start(self, number: int) -> None:
        threading.Thread(
            target=self._work, args=(number,), name=f"regatta-loader-{number}", daemon=True
        ).start()

    def _put(self, number: int, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queues[number].put(item, timeout=0.2)
                return True
            except queue.Full:
                pass
        return False

    def _work(self, number: int) -> None:
        last: Any = self._END
        try:
            dataset = copy.copy(self._loader.dataset)
            become(WorkerInfo(number, self._loader.num_workers, dataset))
            if self._loader.worker_init_fn is not None:
                self._loader.worker_init_fn(number)
                become(WorkerInfo(number, self._loader.num_workers, dataset))
            for batch in self._loader._batches(self._examples(number, dataset)):
                if not self._put(number, (batch,)):
                    return
        except BaseException as error:  # the consumer raises it
            last = error
        finally:
            self._decide(number)
            self._put(number, last)

    def _examples(self, number: int, dataset: Any) -> Iterator[Any]:
        examples = iter(dataset)
        for at, example in enumerate(examples):
            if at == 0:
                self._decide(number)
            yield example

    def _decide(self, number: int) -> None:
        if number == 0 and not self._decided.is_set():
            self._alone = not was_asked()
            if self._alone:
                # Who asks from now on hears that it reads alone.
                become(WorkerInfo(0, 1, self._loader.dataset))
            self._decided.set()


class GeneratorLoader:
    """A loader whose batches a function gives.

    ``set_sample_generator(f, batch_size)``, ``set_sample_list_generator(f)`` or
    ``set_batch_generator(f)`` say what ``f()`` yields: examples, lists of examples, or arrays by
    field. Iterated over, it gives what ``Executor.run(feed=...)`` takes, or lists of arrays with
    ``return_list``. With ``iterable=False``, ``start()`` begins, ``Executor.run`` without ``feed``
    takes the next batch, and raises ``EOFException`` at the end; then ``reset()``.
    """

    def __init__(
        self,
        feed_list: Optional[Sequence[Any]] = None,
        capacity: Optional[int] = None,
        iterable: bool = True,
        return_list: bool = False,
    ) -> None:
        if feed_list is None and not return_list:
            raise ValueError("from_generator: feed_list is needed, for names of inputs")
        if capacity is not None and capacity <= 0:
            raise ValueError(f"capacity ({capacity}) must be above 0")
        self._variables = list(feed_list or [])
        self._names = [_name(each) for each in self._variables]
        self._iterable, self._return_list = iterable, return_list
        self._source: Optional[Callable[[], Iterable[Any]]] = None
        self._running: Optional[Iterator[Any]] = None

    def set_sample_generator(
        self, reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = True,
        places: Any = None,
    ) -> "GeneratorLoader":
        """``reader()`` yields examples, each a list of fields."""
        from ..batch import batch

        return self.set_sample_list_generator(batch(reader, batch_size, drop_last), places)

    def set_sample_list_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """``reader()`` yields lists of examples."""
        def batches() -> Iterator[Any]:
            for examples in reader():
                yield self._stack(examples)

        return self.set_batch_generator(batches, places)

    def set_batch_generator(
        self, reader: Callable[[], Iterable[Any]], places: Any = None
    ) -> "GeneratorLoader":
        """``reader()`` yields batches: a list of arrays, one for each field."""
        self._source = reader
        return self

    def _stack(self, examples: Sequence[Any]) -> List[Any]:
        import numpy as np

        fields = []
        for i, field in enumerate(zip(*examples)):
            value = np.stack([np.asarray(each) for each in field])
            if i < len(self._variables) and hasattr(self._variables[i], "shape"):
                value = _fitted(value, self._variables[i])
            fields.append(value)
        return fields

    def _batches(self) -> Iterator[Any]:
        import numpy as np

        if self._source is None:
            raise RuntimeError(
                "the loader has no source: call set_sample_generator, set_sample_list_generator or "
                "set_batch_generator"
            )
        for batch in self._source():
            if isinstance(batch, dict):
                yield [batch[name] for name in self._names]
                continue
            fields = batch if isinstance(batch, (list, tuple)) else [batch]
            if self._names and len(fields) != len(self._names):
                raise ValueError(
                    f"a batch has {len(fields)} fields, but feed_list names {self._names}"
                )
            yield [np.asarray(field) for field in fields]

    def __iter__(self) -> Iterator[Any]:
        if not self._iterable:
            raise RuntimeError("a loader with iterable=False is started with start()")
        for fields in self._batches():
            yield fields if self._return_list else [dict(zip(self._names, fields))]

    def __call__(self) -> Iterator[Any]:
        return iter(self)

    def start(self) -> None:
        """Begins; ``Executor.run`` of the program of ``feed_list`` takes batches from here."""
        if self._iterable:
            raise RuntimeError("a loader with iterable=True is iterated over")
        if self._running is not None:
            raise RuntimeError("the loader was started already: call reset() first")
        self._running = self._batches()
        for variable in self._variables:
            if hasattr(variable, "program"):
                variable.program._loader = self

    def reset(self) -> None:
        """Ends, so that ``start`` can begin anew."""
        self._running = None
        for variable in self._variables:
            if getattr(getattr(variable, "program", None), "_loader", None) is self:
                variable.program._loader = None

    def next_feed(self) -> Dict[str, Any]:
        """What the next run is fed. Raises EOFException at the end."""
        from ..base.core import EOFException

        if self._running is None:
            raise RuntimeError("the loader was not started: call start() before Executor.run")
        try:
            return dict(zip(self._names, next(self._running)))
        except StopIteration:
            raise EOFException(
                "the loader has no more batches: call reset(), then start()") from None


def _fitted(value: Any, variable: Any) -> Any:
    """An array with the type, and if only that differs the shape, of a variable."""
    name = str(variable.dtype)
    value = value.astype(name if name not in ("bfloat16",) else "float32", copy=False)
    shape = [len(value), *variable.shape[1:]]
    if value.ndim != len(shape) and all(d > 0 for d in shape[1:]):
        size = 1
        for d in shape:
            size *= d
        if value.size == size:
            value = value.reshape(shape)
    return value


def _name(variable: Any) -> str:
    return variable if isinstance(variable, str) else variable.name
