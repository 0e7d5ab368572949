"""Exchanges of arrays among ranks. Every rank makes the same calls in the same order.

Arrays are those of numpy. float32 is added up by the ranks themselves, with the same bits on all of
them; every other type and operation gathers the arrays of all ranks and combines them exactly.
"""
from __future__ import annotations

import datetime
from typing import Any, Callable, List, Optional, Sequence

from .. import _core
from .._missing import missing

__all__ = [
    "Group", "ReduceOp", "all_gather", "all_gather_object", "all_reduce", "alltoall", "barrier",
    "broadcast", "broadcast_object_list", "destroy_process_group", "get_backend", "get_group",
    "join", "new_group", "reduce", "reduce_scatter", "scatter", "wait",
]

__getattr__ = missing(__name__)

_world: Optional[_core.Group] = None


class ReduceOp:
    """How arrays of several ranks become one."""

    SUM = 0
    MAX = 1
    MIN = 2
    PROD = 3
    AVG = 4


class Group:
    """Ranks that exchange arrays: all of them."""

    def __init__(self, rank: int, nranks: int) -> None:
        self.rank, self.nranks, self.id = rank, nranks, 0

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.nranks

    @property
    def ranks(self) -> List[int]:
        """Their numbers."""
        return list(range(self.nranks))

    @property
    def name(self) -> str:
        """``_default_pg``."""
        return "_default_pg"

    def is_member(self) -> bool:
        """True."""
        return True

    def get_group_rank(self, rank: int) -> int:
        """The same number, or -1 if there is no such rank."""
        return rank if 0 <= rank < self.nranks else -1

    def __repr__(self) -> str:
        return f"Group(rank={self.rank}, nranks={self.nranks})"


def join() -> None:
    """Joins the other ranks, if that was not done."""
    global _world
    if _world is None:
        _world = _core.Group.join()


def _group(call: str, group: Any = None) -> Optional[_core.Group]:
    """The ranks; None if this process is alone."""
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"{call}: group should be a Group, but is a {type(group).__name__}")
    if _world is None:
        from .parallel import get_world_size

        if get_world_size() > 1:
            raise RuntimeError(f"{call}: call paddle.distributed.init_parallel_env() first")
    return _world


def _array(call: str, tensor: Any) -> Any:
    import numpy as np

    if isinstance(tensor, np.ndarray):
        return tensor
    from ..framework import Variable

    if isinstance(tensor, Variable):
        raise NotImplementedError(
            f"{call}: '{tensor.name}' is a variable of a program; ranks exchange gradients of "
            "static programs by fleet.distributed_optimizer, and arrays by this call"
        )
    raise TypeError(f"{call} takes an array of numpy, not a {type(tensor).__name__}")


# Every array travels as float32 of the same bytes.
def _words(array: Any) -> Any:
    import numpy as np

    raw = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % 4), dtype=np.float32).copy()


def _array_of(words: Any, like: Any) -> Any:
    import numpy as np

    flat = np.frombuffer(np.ascontiguousarray(words).tobytes()[:like.nbytes], dtype=like.dtype)
    return flat.reshape(like.shape).copy()


def _gather(group: Optional[_core.Group], array: Any) -> List[Any]:
    if group is None:
        return [array.copy()]
    if array.size == 0:
        group.barrier()
        return [array.copy() for _ in range(group.size())]
    import numpy as np

    rows = np.asarray(group.all_gather(_words(array))).reshape(group.size(), -1)
    return [_array_of(row, array) for row in rows]


def _combine(op: int) -> Callable[[List[Any]], Any]:
    import numpy as np

    rules = {
        ReduceOp.SUM: lambda a: np.sum(a, axis=0),
        ReduceOp.MAX: lambda a: np.max(a, axis=0),
        ReduceOp.MIN: lambda a: np.min(a, axis=0),
        ReduceOp.PROD: lambda a: np.prod(a, axis=0),
        ReduceOp.AVG: lambda a: np.mean(a, axis=0),
    }
    if op not in rules:
        raise ValueError(f"op should be one of ReduceOp.SUM, MAX, MIN, PROD, AVG, but is {op!r}")
    return rules[op]


def _reduced(group: Optional[_core.Group], array: Any, op: int) -> Any:
    import numpy as np

    combine = _combine(op)
    if group is not None and array.dtype == np.float32 and op in (ReduceOp.SUM, ReduceOp.AVG):
        flat = np.ascontiguousarray(array).ravel().copy()
        if flat.size:
            group.all_reduce(flat)
        if op == ReduceOp.AVG:
            flat /= group.size()
        return flat.reshape(array.shape)
    return np.asarray(combine(_gather(group, array))).astype(array.dtype)


def all_reduce(
    tensor: Any, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> None:
    """Replaces an array by the sum (or another combination) over all ranks, in place."""
    array = _array("all_reduce", tensor)
    array[...] = _reduced(_group("all_reduce", group), array, op)


def reduce(
    tensor: Any, dst: int, op: int = ReduceOp.SUM, group: Any = None, sync_op: bool = True
) -> None:
    """As :func:`all_reduce`, on rank ``dst`` only; other ranks keep their array."""
    array, ranks = _array("reduce", tensor), _group("reduce", group)
    out = _reduced(ranks, array, op)
    if ranks is None or ranks.rank() == _rank("reduce", "dst", dst, ranks):
        array[...] = out


def broadcast(tensor: Any, src: int, group: Any = None, sync_op: bool = True) -> None:
    """Replaces an array by that of rank ``src``."""
    array, ranks = _array("broadcast", tensor), _group("broadcast", group)
    if ranks is None or array.size == 0:
        return
    words = _words(array)
    ranks.broadcast(words, _rank("broadcast", "src", src, ranks))
    array[...] = _array_of(words, array)


def all_gather(
    tensor_list: List[Any], tensor: Any, group: Any = None, sync_op: bool = True
) -> None:
    """Appends the arrays of all ranks, in the order of ranks. They have the same shape."""
    array = _array("all_gather", tensor)
    tensor_list.extend(_gather(_group("all_gather", group), array))


def all_gather_object(object_list: List[Any], obj: Any, group: Any = None) -> None:
    """Appends the objects of all ranks, which are pickled."""
    import pickle

    import numpy as np

    ranks = _group("all_gather_object", group)
    raw = np.frombuffer(pickle.dumps(obj), dtype=np.uint8)
    sizes = [int(n[0]) for n in _gather(ranks, np.array([raw.size], dtype=np.int64))]
    padded = np.zeros(max(sizes), dtype=np.uint8)
    padded[:raw.size] = raw
    for size, row in zip(sizes, _gather(ranks, padded)):
        object_list.append(pickle.loads(row[:size].tobytes()))


def broadcast_object_list(object_list: List[Any], src: int, group: Any = None) -> None:
    """Replaces the objects of a list by those of rank ``src``."""
    everyone: List[Any] = []
    all_gather_object(everyone, list(object_list), group)
    object_list[:] = everyone[src if len(everyone) > 1 else 0]


def scatter(
    tensor: Any, tensor_list: Optional[Sequence[Any]] = None, src: int = 0, group: Any = None,
    sync_op: bool = True,
) -> None:
    """Rank ``src`` has an array for every rank; each takes its own."""
    import numpy as np

    array, ranks = _array("scatter", tensor), _group("scatter", group)
    size, rank = (1, 0) if ranks is None else (ranks.size(), ranks.rank())
    if rank == (0 if ranks is None else _rank("scatter", "src", src, ranks)):
        if tensor_list is None or len(tensor_list) != size:
            raise ValueError(f"scatter: rank {rank} should have a list of {size} arrays")
        all_of_them = np.stack([np.asarray(t, dtype=array.dtype) for t in tensor_list])
    else:
        all_of_them = np.zeros((size, *array.shape), dtype=array.dtype)
    broadcast(all_of_them, src)
    array[...] = all_of_them[rank]


def reduce_scatter(
    tensor: Any, tensor_list: Sequence[Any], op: int = ReduceOp.SUM, group: Any = None,
    sync_op: bool = True,
) -> None:
    """Every rank has an array for every rank; each takes the sum of those for it."""
    import numpy as np

    array, ranks = _array("reduce_scatter", tensor), _group("reduce_scatter", group)
    size, rank = (1, 0) if ranks is None else (ranks.size(), ranks.rank())
    if len(tensor_list) != size:
        raise ValueError(f"reduce_scatter: there are {size} ranks, but {len(tensor_list)} arrays")
    both = np.stack([np.asarray(t, dtype=array.dtype) for t in tensor_list])
    array[...] = _reduced(ranks, both, op)[rank]


def alltoall(
    in_tensor_list: Sequence[Any], out_tensor_list: List[Any], group: Any = None,
    sync_op: bool = True,
) -> None:
    """Every rank has an array for every rank; each gets those for it, in the order of ranks."""
    import numpy as np

    ranks = _group("alltoall", group)
    size, rank = (1, 0) if ranks is None else (ranks.size(), ranks.rank())
    if len(in_tensor_list) != size:
        raise ValueError(f"alltoall: there are {size} ranks, but {len(in_tensor_list)} arrays")
    rows = _gather(ranks, np.stack([np.asarray(t) for t in in_tensor_list]))
    out_tensor_list.extend(row[rank].copy() for row in rows)


def barrier(group: Any = None) -> None:
    """Waits until all ranks have come this far."""
    ranks = _group("barrier", group)
    if ranks is not None:
        ranks.barrier()


def wait(tensor: Any, group: Any = None, use_calc_stream: bool = True) -> None:
    """Nothing is left to wait for: every exchange is complete when its call returns."""
    _array("wait", tensor)


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
    global _world
    _world = None


def _rank(call: str, name: str, rank: int, ranks: _core.Group) -> int:
    if not isinstance(rank, int) or not 0 <= rank < ranks.size():
        raise ValueError(f"{call}: {name} should be a rank below {ranks.size()}, but is {rank!r}")
    return rank
