"""The worker processes of a loader, as the process that trains sees them."""
from __future__ import annotations

import multiprocessing
import os
import signal
import time
import warnings
import weakref
from multiprocessing import connection as connections
from typing import Any, Callable, Iterator, List, Optional

from . import transport
from .reader import Reader
from .worker import Begun, Ended, Failure, Job, work

#: How long workers may take to leave by themselves before they are killed.
_LEAVE_S = 0.2

# The ends of all pools that this process holds. A process that forks later must not keep them open.
_held: "weakref.WeakSet[Any]" = weakref.WeakSet()


class Pool:
    """Workers that read batches of a dataset.

    They are forked: a dataset needs no pickling and starts at once. That is safe although the
    engine has threads: a worker has none of them and computes with numpy only. ``start`` names
    another method of ``multiprocessing``, which pickles dataset and functions."""

    def __init__(self, reader: Reader, count: int, init: Optional[Callable[[int], Any]],
                 timeout_s: Optional[float], share: bool, start: Optional[str]) -> None:
        import numpy as np

        self._reader, self._count, self._init = reader, count, init
        self._timeout_s, self._share = timeout_s, share
        self._context: Any = multiprocessing.get_context(start or "fork")
        self._seed = int(np.random.randint(2**31 - count))
        self._workers: List[Any] = []
        self._lines: List[Any] = []
        # Whatever happens to this object, its processes end.
        self._finalizer = weakref.finalize(self, _end, os.getpid(), self._workers, self._lines)

    # Batches
    def by_number(self, numbers: Iterator[Any], ahead: int) -> Iterator[Any]:
        """Batches of a dataset by number, in order: batch ``k`` is read by worker ``k`` modulo the
        number of workers. Each has up to ``ahead`` batches to read."""
        self._start(self._count)
        asked, given, of = 0, 0, self._count
        waiting: List[Any] = []
        for indices in numbers:
            self._give(asked % of, ("batch", (asked, indices)))
            waiting.append((asked, indices))
            asked += 1
            if asked - given >= ahead * of:
                yield self._batch(given, waiting)
                given += 1
        while given < asked:
            yield self._batch(given, waiting)
            given += 1

    def _batch(self, number: int, waiting: List[Any]) -> Any:
        _, indices = waiting.pop(0)
        shown = indices if not hasattr(indices, "__len__") or len(indices) < 9 else (
            f"[{', '.join(map(str, indices[:8]))}, ...]")
        return self._receive(number % self._count, f"batch {number} (examples {shown})")[0]

    def epoch(self, ahead: int) -> Iterator[Any]:
        """Batches of an iterable dataset. Worker 0 begins. If the dataset asks which worker it is,
        the others begin too, and workers take turns; otherwise the first reads everything."""
        self._start(1)
        self._give(0, ("epoch", True))
        self._give(0, ("more", ahead))
        begun = self._receive(0, "the first example")
        live = [0]
        if begun.asked:
            self._start(self._count)
            live = list(range(self._count))
            for worker in live[1:]:
                self._give(worker, ("epoch", False))
                self._give(worker, ("more", ahead))
        number = 0
        while live:
            for worker in list(live):
                found = self._receive(worker, f"batch {number}")
                if isinstance(found, Ended):
                    live.remove(worker)
                    continue
                self._give(worker, ("more", 1))
                number += 1
                yield found[0]

    # Messages
    def _give(self, worker: int, task: Any) -> None:
        try:
            self._lines[worker].send(task)
        except OSError:
            pass  # the worker died: what it has sent is read first, then its end is reported

    def _receive(self, worker: int, what: str) -> Any:
        line = self._lines[worker]
        if not connections.wait([line], self._timeout_s):
            raise TimeoutError(
                f"DataLoader: worker {worker} (process {self._workers[worker].pid}) did not give "
                f"{what} within {self._timeout_s:g} s (timeout)")
        try:
            found = transport.receive(line)
        except (EOFError, OSError):
            raise RuntimeError(self._death(worker, what)) from None
        if isinstance(found, Failure):
            raise found.exception()
        return found

    def _death(self, worker: int, what: str) -> str:
        process = self._workers[worker]
        process.join(1)
        code = process.exitcode
        how = f"ended with exit code {code}"
        if code is not None and code < 0:
            known = -code in list(signal.Signals)
            name = signal.Signals(-code).name if known else f"signal {-code}"
            how = f"was killed by {name}"
            if name == "SIGKILL":
                how += " (by a user, or by the system for lack of memory)"
        return f"DataLoader: worker {worker} (process {process.pid}) {how} while it read {what}"

    # Processes
    def _start(self, count: int) -> None:
        while len(self._workers) < count:
            number = len(self._workers)
            ours, theirs = self._context.Pipe()
            job = Job(self._reader, self._init, number, self._count, self._seed, self._share)
            forks = self._context.get_start_method() == "fork"
            inherited = [*_held, ours] if forks else []
            process = self._context.Process(
                target=work, args=(job, theirs, inherited), name=f"regatta-loader-{number}",
                daemon=True)
            _begin(process)
            theirs.close()
            _held.add(ours)
            self._workers.append(process)
            self._lines.append(ours)

    def close(self) -> None:
        """Ends the workers."""
        self._finalizer()


def _begin(process: Any) -> None:
    """Starts a process that ignores Ctrl-C from its first moment on."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        with warnings.catch_warnings():
            # Python warns of forks beside threads; Pool says why these are safe.
            warnings.simplefilter("ignore", DeprecationWarning)
            process.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def _end(owner: int, workers: List[Any], lines: List[Any]) -> None:
    if os.getpid() != owner:
        return  # a copy of the pool in a process that was forked later
    for line in lines:
        _held.discard(line)
        line.close()
    deadline = time.monotonic() + _LEAVE_S
    for process in workers:
        process.join(max(0.0, deadline - time.monotonic()))
    for process in workers:
        if process.is_alive():
            process.kill()
    for process in workers:
        process.join()
        process.close()
