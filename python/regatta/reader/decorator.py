"""Readers made of other readers."""
from __future__ import annotations

import random
from typing import Any, Callable, Iterator, List, Optional, Sequence

__all__ = [
    "ComposeNotAligned", "Fake", "PipeReader", "buffered", "cache", "chain", "compose", "firstn",
    "map_readers", "multiprocess_reader", "shuffle", "xmap_readers",
]

Reader = Callable[[], Iterator[Any]]


class ComposeNotAligned(ValueError):
    """Readers that were to be read side by side have different lengths."""


def cache(reader: Reader) -> Reader:
    """Reads once and keeps everything in memory.

    >>> numbers = cache(lambda: iter([1, 2]))
    >>> list(numbers()), list(numbers())
    ([1, 2], [1, 2])
    """
    kept: List[Any] = []
    is_complete = False

    def cached() -> Iterator[Any]:
        nonlocal kept, is_complete
        if not is_complete:
            kept = list(reader())
            is_complete = True
        return iter(kept)

    return cached


def map_readers(func: Callable[..., Any], *readers: Reader) -> Reader:
    """``func`` of one example of each reader.

    >>> list(map_readers(lambda a, b: a * b, lambda: iter([2, 3]), lambda: iter([5, 7]))())
    [10, 21]
    """
    return lambda: map(func, *[reader() for reader in readers])


def shuffle(reader: Reader, buf_size: int) -> Reader:
    """Random order within every ``buf_size`` examples; ``random.seed`` decides which.

    >>> sorted(shuffle(lambda: iter(range(5)), 3)())
    [0, 1, 2, 3, 4]
    """
    if buf_size < 1:
        raise ValueError(f"shuffle: buf_size should be positive, but is {buf_size}")

    def shuffled() -> Iterator[Any]:
        examples: List[Any] = []
        for example in reader():
            examples.append(example)
            if len(examples) >= buf_size:
                random.shuffle(examples)
                yield from examples
                examples = []
        random.shuffle(examples)
        yield from examples

    return shuffled


def chain(*readers: Reader) -> Reader:
    """One reader after the other."""

    def chained() -> Iterator[Any]:
        for reader in readers:
            yield from reader()

    return chained


def _as_tuple(example: Any) -> tuple:
    return example if isinstance(example, tuple) else (example,)


def compose(*readers: Reader, check_alignment: bool = True) -> Reader:
    """Examples of several readers side by side, as one tuple.

    >>> list(compose(lambda: iter([(1, 2), (3, 4)]), lambda: iter([5, 6]))())
    [(1, 2, 5), (3, 4, 6)]
    """

    def composed() -> Iterator[tuple]:
        iterators = [iter(reader()) for reader in readers]
        while True:
            row, ended = [], 0
            for iterator in iterators:
                try:
                    row.append(_as_tuple(next(iterator)))
                except StopIteration:
                    ended += 1
            if ended:
                if check_alignment and ended != len(iterators):
                    raise ComposeNotAligned(
                        "compose: the readers have different lengths; check_alignment=False stops "
                        "at the shortest"
                    )
                return
            yield sum(row, ())

    return composed


def firstn(reader: Reader, n: int) -> Reader:
    """The first ``n`` examples."""

    def first() -> Iterator[Any]:
        # `range` comes first: no example is taken that is not given on.
        for _, example in zip(range(n), reader()):
            yield example

    return first


class _End:
    """What a thread puts into a queue when it ends: why."""

    def __init__(self, error: Optional[BaseException] = None) -> None:
        self.error = error


def _put(queue: Any, item: Any, stop: Any) -> bool:
    """Waits for room, unless nobody reads any more."""
    import queue as queues

    while not stop.is_set():
        try:
            queue.put(item, timeout=0.1)
            return True
        except queues.Full:
            continue
    return False


def buffered(reader: Reader, size: int) -> Reader:
    """A thread reads up to ``size`` examples ahead.

    >>> list(buffered(lambda: iter([1, 2, 3]), 2)())
    [1, 2, 3]
    """
    if size < 1:
        raise ValueError(f"buffered: size should be positive, but is {size}")

    def ahead() -> Iterator[Any]:
        import queue as queues
        import threading

        examples: Any = queues.Queue(maxsize=size)
        stop = threading.Event()

        def read() -> None:
            end = _End()
            try:
                for example in reader():
                    if not _put(examples, example, stop):
                        return
            except BaseException as error:  # raised again where the examples are read
                end = _End(error)
            _put(examples, end, stop)

        threading.Thread(target=read, name="buffered reader", daemon=True).start()
        try:
            while True:
                example = examples.get()
                if isinstance(example, _End):
                    if example.error is not None:
                        raise example.error
                    return
                yield example
        finally:
            stop.set()

    return ahead


def xmap_readers(
    mapper: Callable[[Any], Any],
    reader: Reader,
    process_num: int,
    buffer_size: int,
    order: bool = False,
) -> Reader:
    """``mapper`` of every example, by ``process_num`` threads. ``order`` keeps the order.

    >>> list(xmap_readers(lambda x: x + 1, lambda: iter([1, 2, 3]), 2, 4, order=True)())
    [2, 3, 4]
    """
    if process_num < 1 or buffer_size < 1:
        raise ValueError(
            f"xmap_readers: process_num ({process_num}) and buffer_size ({buffer_size}) should be "
            "positive"
        )

    def mapped() -> Iterator[Any]:
        from collections import deque
        from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait

        pool = ThreadPoolExecutor(process_num, thread_name_prefix="xmap reader")
        waiting: Any = deque()
        try:
            for example in reader():
                waiting.append(pool.submit(mapper, example))
                if len(waiting) < buffer_size:
                    continue
                if not order:
                    done, _ = wait(waiting, return_when=FIRST_COMPLETED)
                    first = next(f for f in waiting if f in done)
                    waiting.remove(first)
                    waiting.appendleft(first)
                yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()
            pool.shutdown(wait=False)

    return mapped


def multiprocess_reader(
    readers: Sequence[Reader], use_pipe: bool = True, queue_size: int = 1000
) -> Reader:
    """Examples of several readers as they come, each read by a thread of its own."""
    if not readers:
        raise ValueError("multiprocess_reader: no readers were given")

    def merged() -> Iterator[Any]:
        streams = [iter(buffered(reader, max(1, queue_size // len(readers)))()) for reader in readers]
        while streams:
            for stream in list(streams):
                try:
                    yield next(stream)
                except StopIteration:
                    streams.remove(stream)

    return merged


class Fake:
    """Repeats the first example, to measure training without reading.

    >>> list(Fake()(lambda: iter([7, 8, 9]), 2)())
    [7, 7]
    """

    def __call__(self, reader: Reader, length: int) -> Reader:
        def repeated() -> Iterator[Any]:
            example = next(iter(reader()))
            for _ in range(length):
                yield example

        return repeated


class PipeReader:
    """The output of a command."""

    def __init__(self, command: str, bufsize: int = 8192, file_type: str = "plain") -> None:
        if not isinstance(command, str):
            raise TypeError(f"PipeReader: the command should be a text, but is {command!r}")
        if file_type not in ("plain", "gzip"):
            raise ValueError(f"PipeReader: file_type should be plain or gzip, not {file_type!r}")
        self.command, self.bufsize, self.file_type = command, bufsize, file_type

    def get_line(self, cut_lines: bool = True, line_break: str = "\n") -> Iterator[str]:
        """Lines of the output, or its text in parts if not ``cut_lines``.

        >>> list(PipeReader("printf 'a b\\nc'").get_line())
        ['a b', 'c']
        """
        import shlex
        import subprocess
        import zlib

        process = subprocess.Popen(
            shlex.split(self.command), bufsize=self.bufsize, stdout=subprocess.PIPE
        )
        unzip = zlib.decompressobj(32 + zlib.MAX_WBITS) if self.file_type == "gzip" else None
        rest = b""
        try:
            while True:
                part = process.stdout.read(self.bufsize)  # type: ignore[union-attr]
                if not part:
                    break
                part = unzip.decompress(part) if unzip is not None else part
                if not cut_lines:
                    yield part.decode("utf-8", "replace")
                    continue
                *lines, rest = (rest + part).split(line_break.encode())
                for line in lines:
                    yield line.decode("utf-8", "replace")
            if rest:
                yield rest.decode("utf-8", "replace")
            if process.wait() != 0:
                raise RuntimeError(f"PipeReader: '{self.command}' ended with {process.returncode}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()  # type: ignore[union-attr]
