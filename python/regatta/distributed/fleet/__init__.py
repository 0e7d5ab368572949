"""Training on one machine or many, by a few lines in a script that trains on one.

    from regatta.distributed import fleet

    fleet.init()                                             # what is this process?
    optimizer = fleet.distributed_optimizer(optimizer, fleet.DistributedStrategy())
    optimizer.minimize(loss)
    if fleet.is_server():
        fleet.run_server()
    else:
        exe.run(startup_program)
        exe.run(main_program, feed=..., fetch_list=[loss])

The functions act on one :class:`Fleet`, ``fleet.fleet``. Everything is loaded when it is first
used: scripts that read data import this module once per file.
"""
from ..._missing import missing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .base.distributed_strategy import DistributedStrategy as DistributedStrategy
    from .base.fleet_base import DistributedOptimizer as DistributedOptimizer
    from .base.fleet_base import Fleet as Fleet
    from .base.role_maker import PaddleCloudRoleMaker as PaddleCloudRoleMaker
    from .base.role_maker import Role as Role
    from .base.role_maker import UserDefinedRoleMaker as UserDefinedRoleMaker
    from .base.util_factory import UtilBase as UtilBase
    from .data_generator import MultiSlotDataGenerator as MultiSlotDataGenerator
    from .data_generator import MultiSlotStringDataGenerator as MultiSlotStringDataGenerator
    from .dataset import DatasetBase as DatasetBase
    from .dataset import InMemoryDataset as InMemoryDataset
    from .dataset import QueueDataset as QueueDataset

# Where a class is.
_PLACES = {
    "DistributedOptimizer": "base.fleet_base",
    "DistributedStrategy": "base.distributed_strategy",
    "Fleet": "base.fleet_base",
    "set_log_level": "base.fleet_base",
    "PaddleCloudRoleMaker": "base.role_maker",
    "Role": "base.role_maker",
    "UserDefinedCollectiveRoleMaker": "base.role_maker",
    "UserDefinedRoleMaker": "base.role_maker",
    "UtilBase": "base.util_factory",
    "DataGenerator": "data_generator",
    "MultiSlotDataGenerator": "data_generator",
    "MultiSlotStringDataGenerator": "data_generator",
    "DatasetBase": "dataset",
    "DatasetFactory": "dataset",
    "InMemoryDataset": "dataset",
    "QueueDataset": "dataset",
}

# What the one fleet does.
_CALLS = frozenset((
    "_final_strategy", "all_reduce", "amp_init", "barrier_worker", "begin_pass",
    "distributed_model", "distributed_optimizer", "end_pass", "init", "init_server", "init_worker", "is_coordinator",
    "is_first_worker", "is_server", "is_worker", "load_inference_model", "load_model",
    "load_one_table", "local_device_ids", "local_rank", "minimize", "node_num", "nranks", "rank",
    "rank_in_node", "run_server", "save", "save_cache_model", "save_cache_table",
    "save_dense_params", "save_inference_model", "save_one_table", "save_persistables",
    "server_endpoints", "server_index", "server_num", "shrink", "stop_worker", "util",
    "worker_endpoints", "worker_index", "worker_num", "world_device_ids", "world_size",
))

__all__ = sorted([*_PLACES, *(name for name in _CALLS if not name.startswith("_")), "fleet"])

_missing = missing(__name__)


def __getattr__(name):  # type: ignore[no-untyped-def]
    if name in _PLACES:
        from importlib import import_module

        found = getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)
    elif name == "fleet":
        from .base.fleet_base import Fleet

        found = Fleet()
    elif name in _CALLS:
        found = getattr(__getattr__("fleet") if "fleet" not in globals() else fleet, name)
    elif name in ("main_program", "_origin_program", "startup_program"):
        from .base.fleet_base import gone

        raise gone(name)
    else:
        return _missing(name)
    globals()[name] = found
    return found


def __dir__():  # type: ignore[no-untyped-def]
    return sorted({*globals(), *__all__})
