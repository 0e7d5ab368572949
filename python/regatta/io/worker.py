"""Worker processes of a loader: who they are, and what they do.

A worker forks from the process that trains. It runs the dataset and ``collate_fn`` and sends
arrays; it does not compute with the engine, whose threads do not exist in it.
"""
from __future__ import annotations

import os
import pickle
import queue
import signal
import sys
import threading
import time
import traceback
from typing import Any, Callable, Iterator, List, Optional

from . import transport

_here = threading.local()
#: How long a worker that is busy outlives the process it works for.
_GRACE_S = 1.0


class WorkerInfo:
    """A worker: its number, how many there are, its copy of the dataset and its seed."""

    def __init__(self, id: int, num_workers: int, dataset: Any, seed: int = 0) -> None:
        self.id, self.num_workers, self.dataset, self.seed = id, num_workers, dataset, seed

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers}, seed={self.seed})"


def get_worker_info() -> Optional[WorkerInfo]:
    """The worker that calls; None outside of workers.

    An :class:`IterableDataset` that asks before its first example is read by all workers, each of
    which gives what ``__iter__`` decides."""
    info = getattr(_here, "info", None)
    if info is not None:
        _here.asked = True
    return info


def _become(info: WorkerInfo) -> None:
    _here.info, _here.asked = info, False


class Job:
    """What a worker needs to know. With other start methods than fork it is pickled."""

    def __init__(self, reader: Any, init: Optional[Callable[[int], Any]], number: int, of: int,
                 seed: int, share: bool) -> None:
        self.reader, self.init, self.number, self.of = reader, init, number, of
        self.seed, self.share = seed, share


class Failure:
    """An exception of a worker: the exception if it can be pickled, and its traceback as text."""

    def __init__(self, error: BaseException, where: str) -> None:
        self.text = "".join(traceback.format_exception(type(error), error, error.__traceback__))
        self.where, self.kind = where, type(error).__name__
        self.error: Optional[bytes] = None
        try:
            pickle.loads(pickle.dumps(error))
            self.error = pickle.dumps(error)
        except Exception:  # whatever classes of users do when they are copied
            self.error = None

    def exception(self) -> BaseException:
        """The exception, with the traceback of the worker as its cause."""
        cause = WorkerTraceback(f"\n{self.where}\n{self.text.rstrip()}")
        error: Optional[BaseException] = None
        if self.error is not None:
            try:
                error = pickle.loads(self.error)
            except Exception:
                error = None
        if error is None:
            error = RuntimeError(f"{self.where}: {self.kind}\n{self.text.rstrip()}")
        error.__cause__ = cause
        return error


class WorkerTraceback(Exception):
    """Where in a worker an exception was raised."""


class Ended:
    """A worker has given all examples of an epoch."""


class Begun:
    """Worker 0 knows whether the dataset asked which worker it is."""

    def __init__(self, asked: bool) -> None:
        self.asked = asked


class _Gone(Exception):
    """The process that trains does not read any more."""


class _Line:
    """The connection to the process that trains. Tasks arrive in a thread: so the other side never
    waits for a worker that is sending itself, and a worker notices at once that it is alone."""

    def __init__(self, connection: Any, share: bool) -> None:
        self._connection, self._share = connection, share
        self._tasks: "queue.Queue[Any]" = queue.Queue()
        self._room = threading.Semaphore(0)
        self._gone = False
        threading.Thread(target=self._receive, name="regatta-tasks", daemon=True).start()

    def _receive(self) -> None:
        try:
            while True:
                kind, what = self._connection.recv()
                if kind == "more":
                    for _ in range(what):
                        self._room.release()
                else:
                    self._tasks.put((kind, what))
        except (EOFError, OSError):
            self._gone = True
            self._tasks.put(None)
            self._room.release()
        # The main thread leaves when it is done with its batch, but not much later.
        time.sleep(_GRACE_S)
        os._exit(0)

    def next(self) -> Any:
        """The next task; None when there are no more."""
        return self._tasks.get()

    def wait_for_room(self) -> None:
        """Waits until one more batch of an epoch is wanted."""
        self._room.acquire()
        if self._gone:
            raise _Gone

    def send(self, value: Any) -> None:
        """Sends a result."""
        try:
            transport.send(self._connection, value, self._share)
        except (BrokenPipeError, ConnectionResetError):
            raise _Gone from None


def _set_up(job: Job, inherited: List[Any]) -> None:
    # Ctrl-C reaches all processes of a terminal: the one that trains ends the workers.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    for other in inherited:
        # Held here, they would hide from other workers that the process that trains is gone.
        try:
            other.close()
        except OSError:
            pass
    _one_thread()
    _seed(job.seed + job.number)


def _one_thread() -> None:
    """A dataset that makes tensors does so in this thread: those of the engine stayed behind."""
    core = sys.modules.get("regatta._core")
    set_threads = getattr(core, "set_num_threads", None)
    if set_threads is not None:
        set_threads(1)


def _seed(seed: int) -> None:
    import random

    import numpy as np

    random.seed(seed)
    np.random.seed(seed % 2**32)


def work(job: Job, connection: Any, inherited: List[Any]) -> None:
    """The life of a worker process."""
    _set_up(job, inherited)
    line = _Line(connection, job.share)
    try:
        info = WorkerInfo(job.number, job.of, job.reader.dataset, job.seed + job.number)
        _become(info)
        if not _begin(job, line):
            return
        for kind, what in iter(line.next, None):
            _become(info)
            if kind == "epoch":
                _read_epoch(job, line, bool(what))
            else:
                _read_batch(job, line, *what)
    except _Gone:
        return


def _begin(job: Job, line: _Line) -> bool:
    try:
        if job.init is not None:
            job.init(job.number)
        return True
    except Exception as error:
        where = f"worker {job.number} of the loader failed in worker_init_fn:"
        line.send(Failure(error, where))
        return False


def _read_batch(job: Job, line: _Line, number: int, indices: Any) -> None:
    try:
        value = job.reader.fetch(indices)
    except Exception as error:
        at = job.reader.at
        example = f"example {at} of batch {number}" if at is not None else f"batch {number}"
        where = f"worker {job.number} of the loader failed at {example}:"
        line.send(Failure(error, where))
        return
    line.send((value,))


def _read_epoch(job: Job, line: _Line, decides: bool) -> None:
    """All batches of an iterable dataset. Worker 0 first says whether the dataset asks which
    worker it is; if it does not, this worker reads alone, and who asks later hears that."""
    begun = not decides

    def decide() -> None:
        nonlocal begun
        if not begun:
            begun = True
            asked = bool(_here.asked)
            if not asked:
                _become(WorkerInfo(0, 1, job.reader.dataset, job.seed))
            line.send(Begun(asked))

    def examples() -> Iterator[Any]:
        for example in job.reader.examples():
            decide()
            yield example

    batches = job.reader.batches(examples())
    while True:
        line.wait_for_room()
        try:
            batch = next(batches, None)
        except _Gone:
            raise
        except Exception as error:
            decide()
            where = f"worker {job.number} of the loader failed at example {job.reader.at}:"
            line.send(Failure(error, where))
            return
        decide()
        if batch is None:
            line.send(Ended())
            return
        line.send((batch[0],))
