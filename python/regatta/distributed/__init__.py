"""Several processes that train together.

:mod:`regatta.distributed.fleet` makes a script distributed, and
``python -m regatta.distributed.launch`` starts it as the processes of a job. Everything is loaded
when it is first used.
"""
from .._missing import missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from . import fleet as fleet
    from .collective import ReduceOp as ReduceOp
    from ._spawn import spawn as spawn
    from .collective import all_gather as all_gather
    from .collective import all_reduce as all_reduce
    from .collective import barrier as barrier
    from .collective import broadcast as broadcast
    from .collective import recv as recv
    from .collective import reduce as reduce
    from .collective import send as send
    from .data_parallel import DataParallel as DataParallel
    from .entry_attr import CountFilterEntry as CountFilterEntry
    from .entry_attr import ProbabilityEntry as ProbabilityEntry
    from .entry_attr import ShowClickEntry as ShowClickEntry
    from .fleet.dataset import InMemoryDataset as InMemoryDataset
    from .fleet.dataset import QueueDataset as QueueDataset
    from .parallel import ParallelEnv as ParallelEnv
    from .parallel import get_rank as get_rank
    from .parallel import get_world_size as get_world_size
    from .parallel import init_parallel_env as init_parallel_env

_PLACES = {
    **dict.fromkeys(("CountFilterEntry", "ProbabilityEntry", "ShowClickEntry"), "entry_attr"),
    **dict.fromkeys(("DatasetFactory", "InMemoryDataset", "QueueDataset"), "fleet.dataset"),
    **dict.fromkeys(
        (
            "ParallelEnv", "get_rank", "get_world_size", "init_parallel_env", "is_available",
            "is_initialized",
        ),
        "parallel",
    ),
    "DataParallel": "data_parallel",
    "spawn": "_spawn",
    **dict.fromkeys(
        (
            "Group", "ReduceOp", "all_gather", "all_gather_object", "all_reduce", "alltoall",
            "alltoall_single", "barrier", "broadcast", "broadcast_object_list",
            "destroy_process_group", "gather", "get_backend", "get_group", "new_group", "recv",
            "reduce", "reduce_scatter", "scatter", "scatter_object_list", "send", "wait",
        ),
        "collective",
    ),
}

__all__ = sorted([*_PLACES, "fleet", "launch"])

_missing = missing(__name__)


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name not in _PLACES:
        return _missing(name)
    from importlib import import_module

    found = globals()[name] = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    return found


def __dir__():  # type: ignore[no-untyped-def]
    return sorted({*globals(), *__all__})
