"""What exchanges are made of: groups, the values of tensors, and how they travel and combine."""
from __future__ import annotations

from typing import Any, Callable, List, Optional, Sequence, Tuple

from .. import _core
from . import _world


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


class Task:
    """An exchange that is complete."""

    def wait(self) -> bool:
        """True at once."""
        return True

    def is_completed(self) -> bool:
        """True."""
        return True

    synchronize = wait


DONE = Task()


def ranks_of(call: str, group: Any = None) -> Optional[_core.Group]:
    """The ranks; None if this process is alone."""
    if group is not None and not isinstance(group, Group):
        raise TypeError(f"{call}: group should be a Group, but is a {type(group).__name__}")
    world = _world.joined()
    if world is None:
        from .parallel import _fleet_joins, get_world_size

        if get_world_size() > 1:
            if not _fleet_joins():
                raise RuntimeError(f"{call}: call paddle.distributed.init_parallel_env() first")
            world = _world.join(compares=True)
    return world


def array_of(call: str, tensor: Any) -> Any:
    """The values of a tensor, or the array itself."""
    import numpy as np

    if isinstance(tensor, np.ndarray):
        return tensor
    if isinstance(tensor, _core.Tensor):
        return tensor.numpy()
    from ..framework import Variable

    if isinstance(tensor, Variable):
        raise NotImplementedError(
            f"{call}: '{tensor.name}' is a variable of a program; ranks exchange gradients of "
            "static programs by fleet.distributed_optimizer, and values by this call"
        )
    raise TypeError(f"{call} takes a tensor or an array, not a {type(tensor).__name__}")


def put(tensor: Any, array: Any) -> None:
    """Changes a tensor or an array in place."""
    if isinstance(tensor, _core.Tensor):
        if tensor._is_rows:
            tensor._share(_core.Tensor(array, tensor._dtype))
        else:
            tensor._set(array)
    else:
        tensor[...] = array


def like(array: Any, tensor: Any) -> Any:
    """An array as what the caller works with."""
    return _core.Tensor(array, tensor._dtype) if isinstance(tensor, _core.Tensor) else array


def stacked(call: str, tensors: Sequence[Any], dtype: Any = None) -> Any:
    import numpy as np

    return np.stack([np.asarray(array_of(call, t), dtype=dtype) for t in tensors])


# Every array travels as float32 of the same bytes.
def words_of(array: Any) -> Any:
    import numpy as np

    raw = np.ascontiguousarray(array).tobytes()
    return np.frombuffer(raw + bytes(-len(raw) % 4), dtype=np.float32).copy()


def from_words(words: Any, like: Any) -> Any:
    import numpy as np

    flat = np.frombuffer(np.ascontiguousarray(words).tobytes()[:like.nbytes], dtype=like.dtype)
    return flat.reshape(like.shape).copy()


def gathered(group: Optional[_core.Group], array: Any) -> List[Any]:
    if group is None:
        return [array.copy()]
    if array.size == 0:
        group.barrier()
        return [array.copy() for _ in range(group.size())]
    import numpy as np

    rows = np.asarray(group.all_gather(words_of(array))).reshape(group.size(), -1)
    return [from_words(row, array) for row in rows]


def combination(op: int) -> Callable[[List[Any]], Any]:
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


def reduced(group: Optional[_core.Group], array: Any, op: int) -> Any:
    import numpy as np

    combine = combination(op)
    if group is not None and array.dtype == np.float32 and op in (ReduceOp.SUM, ReduceOp.AVG):
        flat = np.ascontiguousarray(array).ravel().copy()
        if flat.size:
            group.all_reduce(flat)
        if op == ReduceOp.AVG:
            flat /= group.size()
        return flat.reshape(array.shape)
    return np.asarray(combine(gathered(group, array))).astype(array.dtype)


def size_and_rank(ranks: Optional[_core.Group]) -> Tuple[int, int]:
    return (1, 0) if ranks is None else (ranks.size(), ranks.rank())


def check_rank(call: str, name: str, rank: int, ranks: Optional[_core.Group]) -> None:
    if ranks is None:
        return
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 <= rank < ranks.size():
        raise ValueError(f"{call}: {name} should be a rank below {ranks.size()}, but is {rank!r}")


def other_rank(call: str, name: str, rank: int, group: Any, sync_op: bool) -> _core.Group:
    """The ranks, of which one is named that is not this one."""
    ranks = ranks_of(call, group)
    if not sync_op:
        raise NotImplementedError(f"{call}: sync_op=False is not implemented; {call} blocks")
    check_rank(call, name, rank, ranks)
    if ranks is None or rank == ranks.rank():
        raise ValueError(f"{call}: {name} should be another rank, but is {rank}")
    return ranks
