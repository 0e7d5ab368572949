"""Loaders whose batches a function gives, as Fluid had them."""
from __future__ import annotations

from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence


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
        self._names = [name_of(each) for each in self._variables]
        self._iterable, self._return_list = iterable, return_list
        self._source: Optional[Callable[[], Iterable[Any]]] = None
        self._running: Optional[Iterator[Any]] = None

    def set_sample_generator(
        self, reader: Callable[[], Iterable[Any]], batch_size: int, drop_last: bool = True,
        places: Any = None,
    ) -> "GeneratorLoader":
        """``reader()`` yields examples, each a list of fields."""
        from ..batch import batch

        return self.set_sample_list_generator(batch(lambda: iter(reader()), batch_size, drop_last), places)

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


def name_of(variable: Any) -> str:
    return variable if isinstance(variable, str) else variable.name
