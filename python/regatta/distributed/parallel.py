"""Who this process is among the ranks or workers of a job."""
from __future__ import annotations

import os
from typing import Any, List

from .._missing import missing

__all__ = [
    "ParallelEnv", "get_rank", "get_world_size", "init_parallel_env", "is_available",
    "is_initialized",
]

__getattr__ = missing(__name__)


def _place() -> Any:
    """What the fleet of this process says if it was begun, otherwise what the environment says."""
    import sys

    from .. import _core

    base = sys.modules.get(f"{__package__}.fleet")
    begun = vars(base).get("fleet") if base is not None else None
    if begun is not None and begun._job is not None:
        return begun._job.core
    # Launchers give ranks no servers, and workers of servers always some.
    servers = os.environ.get("PADDLE_PSERVERS_IP_PORT_LIST") or os.environ.get("PADDLE_PSERVER_IPS")
    return _core.Fleet(None, not servers and os.environ.get("PADDLE_SERVER_NUM") is None, None)


def _note_rank_asked() -> None:
    """A dataset that asks for the rank divides itself; see :mod:`regatta.io.division`."""
    import sys

    division = sys.modules.get("regatta.io.division")
    if division is not None:
        division.note_rank_asked()


def get_rank(group: Any = None) -> int:
    """The number of this rank or worker, from 0; 0 in a process without a job."""
    if group is not None:
        return group.rank
    _note_rank_asked()
    return _place().worker_index()


def get_world_size(group: Any = None) -> int:
    """Number of ranks or workers; 1 in a process without a job."""
    if group is not None:
        return group.nranks
    _note_rank_asked()
    return _place().worker_num()


class ParallelEnv:
    """This rank and the others.

    >>> ParallelEnv().nranks
    1
    """

    @property
    def rank(self) -> int:
        """The number of this rank, from 0."""
        return get_rank()

    local_rank = rank

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return get_world_size()

    nranks = world_size

    @property
    def device_id(self) -> int:
        """The first device that the launcher gave to this rank; programs run on processors."""
        devices = os.environ.get("FLAGS_selected_gpus", "") or "0"
        return int(devices.split(",")[0])

    dev_id = device_id

    @property
    def device_type(self) -> str:
        """``cpu``."""
        return "cpu"

    @property
    def trainer_endpoints(self) -> List[str]:
        """Addresses of the ranks as far as they are known."""
        return _place().worker_endpoints()

    @property
    def current_endpoint(self) -> str:
        """The address of this rank."""
        endpoints, rank = self.trainer_endpoints, self.rank
        return endpoints[rank] if rank < len(endpoints) else ""

    @property
    def nrings(self) -> int:
        """1."""
        return 1

    def __repr__(self) -> str:
        return f"ParallelEnv(rank={self.rank}, world_size={self.world_size})"


def init_parallel_env() -> ParallelEnv:
    """Joins the other ranks, for :class:`DataParallel`, :func:`all_reduce` and the like. In a
    process without a job nothing happens.

    Training of static programs needs no such call: ``fleet.init(is_collective=True)`` and
    ``fleet.distributed_optimizer`` do it."""
    env = ParallelEnv()
    if env.world_size > 1:
        from . import _world

        _world.join(compares=True)
    return env


def is_initialized() -> bool:
    """Whether :func:`init_parallel_env` has joined other ranks."""
    import sys

    world = sys.modules.get(f"{__package__}._world")
    return world is not None and world.joined() is not None


def _fleet_joins() -> bool:
    """Whether ``fleet.init(is_collective=True)`` has begun a job of tensors: it joins the ranks
    when they are first needed. A static program joins them itself, at the same addresses."""
    import sys

    from .._mode import in_dynamic_mode

    base = sys.modules.get(f"{__package__}.fleet")
    begun = vars(base).get("fleet") if base is not None else None
    job = begun._job if begun is not None else None
    return job is not None and job.core.is_collective() and job.main is None and in_dynamic_mode()


def is_available() -> bool:
    """True."""
    return True
