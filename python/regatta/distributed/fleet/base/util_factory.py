"""Exchanges of small values among workers."""
from __future__ import annotations

from typing import Any, List, Sequence

from ...._missing import missing
from .. import _dynamic as dynamic

__all__ = ["UtilBase"]

__getattr__ = missing(__name__)


class UtilBase:
    """``fleet.util``. Every worker makes the same calls in the same order."""

    def __init__(self, fleet: Any = None) -> None:
        self._fleet = fleet
        self.fs_client: Any = None

    def _job(self) -> Any:
        if self._fleet is None:
            raise RuntimeError("this UtilBase belongs to no fleet: use fleet.util")
        return self._fleet._job_or_raise("util")

    def _set_file_system(self, fs_client: Any) -> None:
        self.fs_client = fs_client

    def _check_world(self, call: str, comm_world: str) -> None:
        if comm_world not in ("worker", "server", "all"):
            raise ValueError(
                f"{call}: comm_world should be 'worker', 'server' or 'all', but is {comm_world!r}"
            )
        if comm_world == "worker":
            return
        if self._job().core.server_num():
            raise NotImplementedError(
                f"{call}: servers answer workers and take no part in exchanges; use "
                "comm_world='worker'"
            )

    def all_reduce(self, input: Any, mode: str = "sum", comm_world: str = "worker") -> Any:
        """The sum, minimum or maximum over all workers, element by element, as an array of the
        shape and type of ``input``."""
        import numpy as np

        if mode not in ("sum", "min", "max"):
            raise ValueError(f"all_reduce: mode should be 'sum', 'min' or 'max', but is {mode!r}")
        self._check_world("all_reduce", comm_world)
        values = np.asarray(input)
        if dynamic.has_joined():
            return dynamic.all_reduce(values, mode)
        flat = values.astype(np.float64).ravel().tolist()
        out = np.asarray(self._job().core.all_reduce(flat, mode), dtype=np.float64)
        return out.astype(values.dtype).reshape(values.shape)

    def all_gather(self, input: Any, comm_world: str = "worker") -> List[Any]:
        """The values of every worker, in the order of workers."""
        import numpy as np

        self._check_world("all_gather", comm_world)
        values = np.asarray(input)
        if dynamic.has_joined():
            gathered = dynamic.all_gather(values)
        else:
            gathered = self._job().core.all_gather(values.astype(np.float64).ravel().tolist())
        arrays = [np.asarray(v).astype(values.dtype).reshape(values.shape) for v in gathered]
        return [a.item() for a in arrays] if values.ndim == 0 else arrays

    def barrier(self, comm_world: str = "worker") -> None:
        """Waits until all workers have come this far."""
        self._check_world("barrier", comm_world)
        if dynamic.has_joined():
            return dynamic.barrier()
        self._job().core.barrier_worker()

    def get_file_shard(self, files: Sequence[str]) -> List[str]:
        """This worker's part of a list of files: consecutive ones, as many as others have, up to
        one.

        >>> from regatta.distributed import fleet
        >>> fleet.init()
        >>> fleet.util.get_file_shard(["a", "b"])
        ['a', 'b']
        """
        if not isinstance(files, list):
            raise TypeError(f"files should be a list of texts, but is {files!r}")
        core = self._job().core
        if not core.is_worker():
            raise RuntimeError("get_file_shard: only workers read files, and this is a server")
        workers, worker = core.worker_num(), core.worker_index()
        if workers > 1:
            from ....io.division import note_files_divided

            note_files_divided()  # loaders do not divide again
        each, more = divmod(len(files), workers)
        first = worker * each + min(worker, more)
        return files[first:first + each + (worker < more)]

    get_heter_file_shard = get_file_shard

    def print_on_rank(self, message: Any, rank_id: int) -> None:
        """Prints on one worker."""
        core = self._job().core
        if core.is_worker() and core.worker_index() == rank_id:
            print(message)
