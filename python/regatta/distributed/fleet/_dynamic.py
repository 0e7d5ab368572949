"""What a fleet does with tensors: ranks that train a model in the dynamic mode."""
from __future__ import annotations

import sys
from typing import Any, List, Optional

# Options of a strategy that say how gradients travel, or say something about devices and programs
# that changes no value.
_HONOURED = frozenset((
    "a_sync", "calc_comm_same_stream", "conv_workspace_size_limit",
    "cudnn_batchnorm_spatial_persistent", "cudnn_exhaustive_search", "find_unused_parameters",
    "fuse_all_reduce_ops", "fuse_grad_size_in_MB", "fuse_grad_size_in_TFLOPS",
    "fuse_grad_size_in_num", "hybrid_configs.dp_degree", "last_comm_group_size_MB", "mode",
    "nccl_comm_num", "sync_nccl_allreduce", "without_graph_optimization",
))
_PROGRAMS = ("build_strategy.", "execution_strategy.")

_INSTEAD = {
    "amp": "use paddle.amp.auto_cast() and paddle.amp.GradScaler",
    "gradient_merge": "run backward several times in no_sync() before optimizer.step()",
    "lamb": "use paddle.optimizer.Lamb",
}


def has_joined() -> bool:
    """Whether this process has joined other ranks for tensors."""
    world = sys.modules.get("regatta.distributed._world")
    return world is not None and world.joined() is not None


def check_strategy(core: Any, strategy: Optional[Any]) -> None:
    """Raises NotImplementedError if tensors cannot be trained as a strategy says."""
    if core.server_num():
        raise NotImplementedError(
            "fleet: this job has parameter servers, which serve static programs; train tensors as "
            "ranks (fleet.init(is_collective=True), no servers), or call paddle.enable_static()")
    if strategy is None:
        return
    for name, value in strategy._core.changed():
        if name in _HONOURED or name.startswith(_PROGRAMS):
            continue
        instead = _INSTEAD.get(name.split(".")[0].replace("_configs", ""))
        hint = f"; {instead}" if instead else ", but in static programs"
        raise NotImplementedError(
            f"strategy.{name} = {value} is not in the dynamic mode{hint}")
    degree, ranks = strategy.hybrid_configs["dp_degree"], core.worker_num()
    if degree not in (-1, ranks):
        raise NotImplementedError(
            f"strategy.hybrid_configs: dp_degree is {degree}, but there are {ranks} ranks, and all "
            "of them are data parallel")


def distributed_model(core: Any, model: Any, strategy: Optional[Any]) -> Any:
    """The model of all ranks; as it is if it is static, or this process is alone."""
    from ...framework import Tensor
    from ...nn import Layer

    if not isinstance(model, Layer) or isinstance(model, _data_parallel()):
        return model
    if not any(isinstance(p, Tensor) for p in model.parameters()):
        return model
    check_strategy(core, strategy)
    if core.worker_num() < 2:
        return model
    from .. import _world

    _world.join(compares=True)
    if strategy is None:
        return _data_parallel()(model)
    # Buckets of one byte hold one parameter each.
    size = strategy.fuse_grad_size_in_MB if strategy.fuse_all_reduce_ops else 1e-6
    return _data_parallel()(
        model, comm_buffer_size=size, find_unused_parameters=strategy.find_unused_parameters,
        last_comm_buffer_size=min(size, strategy.last_comm_group_size_MB))


def _data_parallel() -> Any:
    from ..data_parallel import DataParallel

    return DataParallel


def barrier() -> None:
    """Waits for all ranks."""
    from .. import collective

    collective.barrier()


def leave() -> None:
    """Leaves the ranks in order."""
    from .. import _world

    _world.leave(is_end=True)


def all_reduce(values: Any, mode: str) -> Any:
    """The sum, minimum or maximum of arrays over ranks."""
    from .. import collective

    out = values.astype("float64")
    ops = collective.ReduceOp
    collective.all_reduce(out, {"sum": ops.SUM, "min": ops.MIN, "max": ops.MAX}[mode])
    return out.astype(values.dtype)


def all_gather(values: Any) -> List[Any]:
    """The arrays of all ranks."""
    from .. import collective

    found: List[Any] = []
    collective.all_gather(found, values.reshape(-1))
    return found
