"""Which worker of a loader a thread is."""
from __future__ import annotations

import threading
from typing import Any, Optional

_here = threading.local()


class WorkerInfo:
    """A worker: its number, how many there are, and its copy of the dataset."""

    def __init__(self, id: int, num_workers: int, dataset: Any) -> None:
        self.id, self.num_workers, self.dataset = id, num_workers, dataset
        self.seed = id

    def __repr__(self) -> str:
        return f"WorkerInfo(id={self.id}, num_workers={self.num_workers})"


def get_worker_info() -> Optional[WorkerInfo]:
    """The worker that calls; None outside of workers.

    An :class:`IterableDataset` that asks before its first example is read by all workers, each of
    which gives what ``__iter__`` decides."""
    info = getattr(_here, "info", None)
    if info is not None:
        _here.asked = True
    return info


def become(info: Optional[WorkerInfo]) -> None:
    """Makes the calling thread a worker."""
    _here.info, _here.asked = info, False


def was_asked() -> bool:
    """Whether the calling thread's worker has asked who it is."""
    return getattr(_here, "asked", False)
