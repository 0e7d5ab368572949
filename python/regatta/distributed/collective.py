"""Exchanges of tensors among ranks. Every rank makes the same calls in the same order.

Tensors are changed in place, and arrays of numpy are taken as well. float32 is added up by the
ranks themselves, with the same bits on all of them; every other type and operation gathers the
values of all ranks and combines them exactly.
"""
from __future__ import annotations

import datetime
from typing import Any, List, Optional, Sequence

from .. import _core
from .._missing import missing
from . import _world
from ._exchange import (
    DONE, Group, ReduceOp, Task, array_of, check_rank, from_words, gathered, like, other_rank, put,
    ranks_of, reduced, size_and_rank, stacked, words_of,
)
from ._world import join

__all__ = [
    "Group", "ReduceOp", "all_gather", "all_gather_object", "all_reduce", "alltoall",
    "alltoall_single", "barrier", "broadcast", "broadcast_object_list", "destroy_process_group",
    "gather", "get_backend", "get_group", "join", "new_group", "recv", "reduce", "reduce_scatter",
    "scatter", "scatter_object_list", "send", "wait",
]

__getattr__ = missing(__name__)


def all_reduce(
    tensor: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> Task:
    """Replaces a tensor by the sum (or another combination) over all ranks, in place."""
    array = array_of("all_reduce", tensor)
    put(tensor, reduced(ranks_of("all_reduce", group), array, op))
    return DONE


def reduce(
    tensor: Any, dst: int, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> Task:
    """As :func:`all_reduce`, on rank ``dst`` only; other ranks keep their tensor."""
    array, ranks = array_of("reduce", tensor), ranks_of("reduce", group)
    check_rank("reduce", "dst", dst, ranks)
    out = reduced(ranks, array, op)
    if ranks is None or ranks.rank() == dst:
        put(tensor, out)
    return DONE


def broadcast(tensor: Any, src: int, group: Any = None, sync_op: bool = True) -> Task:
    """Replaces a tensor by that of rank ``src``."""
    array, ranks = array_of("broadcast", tensor), ranks_of("broadcast", group)
    check_rank("broadcast", "src", src, ranks)
    if ranks is not None and array.size:
        words = words_of(array)
        ranks.broadcast(words, src)
        put(tensor, from_words(words, array))
    return DONE


def all_gather(
    tensor_list: List[Any], tensor: Any, group: Any = None, sync_op: bool = True
) -> Task:
    """Appends the tensors of all ranks, in the order of ranks. They have the same shape. A list
    that has tensors already is filled again."""
    found = [like(a, tensor) for a in
             gathered(ranks_of("all_gather", group), array_of("all_gather", tensor))]
    if len(tensor_list) == len(found) and all(isinstance(t, _core.Tensor) for t in tensor_list):
        tensor_list.clear()
    tensor_list.extend(found)
    return DONE


def all_gather_object(object_list: List[Any], obj: Any, group: Any = None) -> None:
    """Appends the objects of all ranks, which are pickled."""
    import pickle

    ranks = ranks_of("all_gather_object", group)
    if ranks is None:
        object_list.append(pickle.loads(pickle.dumps(obj)))
        return
    parts = ranks.all_gather_bytes(pickle.dumps(obj), "all_gather_object")
    object_list.extend(pickle.loads(part) for part in parts)


def broadcast_object_list(object_list: List[Any], src: int, group: Any = None) -> None:
    """Replaces the objects of a list by those of rank ``src``."""
    ranks = ranks_of("broadcast_object_list", group)
    check_rank("broadcast_object_list", "src", src, ranks)
    everyone: List[Any] = []
    all_gather_object(everyone, object_list if ranks is None or ranks.rank() == src else None)
    object_list[:] = everyone[src if ranks is not None else 0]


def scatter_object_list(
    out_object_list: List[Any], in_object_list: Optional[List[Any]] = None, src: int = 0,
    group: Any = None,
) -> None:
    """Rank ``src`` has an object for every rank; each gets its own, in a list."""
    ranks = ranks_of("scatter_object_list", group)
    check_rank("scatter_object_list", "src", src, ranks)
    size, rank = size_and_rank(ranks)
    if rank == (src if ranks is not None else 0) and len(in_object_list or ()) != size:
        raise ValueError(f"scatter_object_list: rank {rank} should have a list of {size} objects")
    every: List[Any] = [in_object_list]
    broadcast_object_list(every, src)
    out_object_list[:] = [every[0][rank]]


def gather(
    tensor: Any, gather_list: Optional[List[Any]] = None, dst: int = 0, group: Any = None,
    sync_op: bool = True,
) -> Task:
    """As :func:`all_gather`, on rank ``dst`` only."""
    ranks = ranks_of("gather", group)
    check_rank("gather", "dst", dst, ranks)
    found: List[Any] = []
    all_gather(found, tensor)
    if ranks is None or ranks.rank() == dst:
        if gather_list is None:
            raise ValueError(f"gather: rank {dst} should have a list for the tensors")
        gather_list[:] = found
    return DONE


def scatter(
    tensor: Any, tensor_list: Optional[Sequence[Any]] = None, src: int = 0, group: Any = None,
    sync_op: bool = True,
) -> Task:
    """Rank ``src`` has a tensor for every rank; each takes its own."""
    import numpy as np

    array, ranks = array_of("scatter", tensor), ranks_of("scatter", group)
    check_rank("scatter", "src", src, ranks)
    size, rank = size_and_rank(ranks)
    if rank == (src if ranks is not None else 0):
        if tensor_list is None or len(tensor_list) != size:
            raise ValueError(f"scatter: rank {rank} should have a list of {size} tensors")
        all_of_them = stacked("scatter", tensor_list, array.dtype)
    else:
        all_of_them = np.zeros((size, *array.shape), dtype=array.dtype)
    broadcast(all_of_them, src)
    put(tensor, all_of_them[rank])
    return DONE


def reduce_scatter(
    tensor: Any, tensor_list: Sequence[Any], op: int = ReduceOp.SUM, group: Any = None,
    sync_op: bool = True,
) -> Task:
    """Every rank has a tensor for every rank; each takes the sum of those for it."""
    array, ranks = array_of("reduce_scatter", tensor), ranks_of("reduce_scatter", group)
    size, rank = size_and_rank(ranks)
    if len(tensor_list) != size:
        raise ValueError(f"reduce_scatter: there are {size} ranks, but {len(tensor_list)} tensors")
    put(tensor, reduced(ranks, stacked("reduce_scatter", tensor_list, array.dtype), op)[rank])
    return DONE


def alltoall(
    in_tensor_list: Sequence[Any], out_tensor_list: List[Any], group: Any = None,
    sync_op: bool = True,
) -> Task:
    """Every rank has a tensor for every rank; each gets those for it, in the order of ranks."""
    ranks = ranks_of("alltoall", group)
    size, rank = size_and_rank(ranks)
    if len(in_tensor_list) != size:
        raise ValueError(f"alltoall: there are {size} ranks, but {len(in_tensor_list)} tensors")
    rows = gathered(ranks, stacked("alltoall", in_tensor_list))
    out_tensor_list[:] = [like(row[rank].copy(), in_tensor_list[0]) for row in rows]
    return DONE


def alltoall_single(
    in_tensor: Any, out_tensor: Any, in_split_sizes: Optional[Sequence[int]] = None,
    out_split_sizes: Optional[Sequence[int]] = None, group: Any = None, sync_op: bool = True,
) -> Task:
    """Rows of a tensor go to all ranks, the first part to rank 0; each puts what it gets together.
    Parts are equal unless ``in_split_sizes`` says how many rows each rank gets."""
    import numpy as np

    array, ranks = array_of("alltoall_single", in_tensor), ranks_of("alltoall_single", group)
    size, rank = size_and_rank(ranks)
    sizes = list(in_split_sizes or [len(array) // size] * size)
    if len(sizes) != size or sum(sizes) != len(array):
        raise ValueError(f"alltoall_single: {len(array)} rows cannot be divided as {sizes} among "
                         f"{size} ranks")
    parts = np.split(array, np.cumsum(sizes)[:-1])
    everyone: List[Any] = []
    all_gather_object(everyone, parts, group)
    got = [theirs[rank] for theirs in everyone]
    if out_split_sizes and [len(part) for part in got] != list(out_split_sizes):
        raise ValueError(f"alltoall_single: ranks gave {[len(part) for part in got]} rows, not "
                         f"{list(out_split_sizes)}")
    put(out_tensor, np.concatenate(got))
    return DONE


def send(tensor: Any, dst: int = 0, group: Any = None, sync_op: bool = True) -> Task:
    """Sends a tensor to rank ``dst``, which calls :func:`recv`. Two ranks that send much to each
    other wait for each other: let one receive first."""
    array, ranks = array_of("send", tensor), other_rank("send", "dst", dst, group, sync_op)
    if array.size:
        ranks.send(words_of(array), dst)
    return DONE


def recv(tensor: Any, src: int = 0, group: Any = None, sync_op: bool = True) -> Task:
    """Replaces a tensor by that which rank ``src`` sends by :func:`send`."""
    array, ranks = array_of("recv", tensor), other_rank("recv", "src", src, group, sync_op)
    if array.size:
        words = words_of(array)
        ranks.recv(words, src)
        put(tensor, from_words(words, array))
    return DONE


def barrier(group: Any = None) -> None:
    """Waits until all ranks have come this far. A parameter that ranks have trained apart is an
    error."""
    ranks = ranks_of("barrier", group)
    if ranks is not None and ranks.size() > 1:
        from ._replicas import check

        ranks.barrier()
        check(ranks, "barrier")


def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    """Nothing is left to wait for: every exchange is complete when its call returns."""
    array_of("wait", tensor)


def get_group(id: int = 0) -> Group:
    """All ranks, which are group 0."""
    if id != 0:
        raise ValueError(f"get_group: there is no group {id}; 0 has all ranks")
    from .parallel import get_rank, get_world_size

    return Group(get_rank(), get_world_size())


def new_group(
    ranks: Optional[Sequence[int]] = None, backend: Optional[str] = None,
    timeout: datetime.timedelta = datetime.timedelta(seconds=1800),
) -> Group:
    """The group of all ranks. Groups of some of them are not implemented."""
    world = get_group()
    if ranks is not None and sorted(ranks) != world.ranks:
        raise NotImplementedError(
            f"new_group: groups have all {world.nranks} ranks; one of {sorted(ranks)} is not "
            "implemented"
        )
    return world


def get_backend(group: Any = None) -> str:
    """``REGATTA``: sockets, or shared memory between ranks of one machine."""
    return "REGATTA"


def destroy_process_group(group: Any = None) -> None:
    """Leaves the other ranks."""
    _world.leave()
