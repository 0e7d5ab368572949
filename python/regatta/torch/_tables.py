"""Embeddings whose rows live on parameter servers, or in this process if it is alone."""
from __future__ import annotations

import os
import weakref
from typing import Any, Callable, Dict, Iterable, List, Optional, Sequence, Tuple

import numpy as np
import torch

from .. import _core, framework
from ..distributed._exit import at_end
from ..distributed.fleet import _job as _exits
from ..errors import PeerLost
from ._declare import Declared, joined, values_of

__all__ = ["Embedding", "Job", "TableOptimizer", "start"]

_MODES = ("sync", "async")

# Distinct ids and the gradients of their rows.
_Gradients = Tuple[np.ndarray, np.ndarray]


class Embedding(torch.nn.Module):
    """As ``torch.nn.Embedding``, with rows that servers keep and update.

    ``optimizer`` is one of :mod:`regatta.optimizer`; servers update the rows of a batch by its
    rule, with state per row. ``initializer`` (:mod:`regatta.nn.initializer`) is a normal
    distribution with the standard deviation 1 if it is not given; values follow from
    :func:`regatta.seed`, the name and the id. The row of ``padding_idx`` is zeros and is not
    trained. All processes must make the same embeddings in the same order, or name them.

    The module has no parameters: ``TableOptimizer`` updates it, ``Job.save`` saves it. In training
    mode rows of new ids are created; after ``eval()`` rows are only read, and take no gradients.

    >>> import regatta as rg, regatta.torch as rt, torch
    >>> table = rt.Embedding(10, 4, optimizer=rg.optimizer.SGD(0.1))
    >>> job = rt.start(table)
    >>> table(torch.tensor([[1, 2], [2, 9]])).shape
    torch.Size([2, 2, 4])
    >>> job.stop()
    """

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        padding_idx: Optional[int] = None,
        *,
        optimizer: Any,
        initializer: Any = None,
        name: Optional[str] = None,
    ) -> None:
        super().__init__()
        for what, value in (("num_embeddings", num_embeddings), ("embedding_dim", embedding_dim)):
            if isinstance(value, bool) or not isinstance(value, int) or value < 1:
                raise ValueError(f"Embedding: {what} should be a positive integer, not {value!r}")
        if padding_idx is not None:
            if not -num_embeddings <= padding_idx < num_embeddings:
                raise ValueError(
                    f"Embedding: padding_idx is {padding_idx}, but there are {num_embeddings} rows"
                )
            padding_idx %= num_embeddings
        if initializer is None:
            from ..nn.initializer import Normal

            initializer = Normal(0.0, 1.0)
        elif not hasattr(initializer, "_init_op"):
            raise TypeError(
                f"Embedding: initializer should be one of regatta.nn.initializer, but is "
                f"{initializer!r}"
            )
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.padding_idx = padding_idx
        self.name = name or framework.unique_name.generate("torch_embedding")
        self._declared = Declared(
            self.name, num_embeddings, embedding_dim, optimizer, initializer,
            framework.current_seed(),
        )
        self._optimizer = repr(optimizer)
        self._job: Optional[Job] = None
        self._gradients: List[_Gradients] = []

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The rows of ids: a tensor with one more dimension."""
        if self._job is None:
            raise RuntimeError(
                f"Embedding '{self.name}' has no rows yet: call regatta.torch.start(model) first"
            )
        distinct, at = self._distinct(ids)
        if distinct.numel() == 0:
            return torch.zeros(*ids.shape, self.embedding_dim, device=ids.device)
        keep = None if self.padding_idx is None else distinct != self.padding_idx
        padding = None
        if keep is not None and bool(keep.all()):
            keep = None
        elif keep is not None:
            padding = int((~keep).nonzero())
        keys = (distinct if keep is None else distinct[keep]).numpy()
        rows = torch.from_numpy(self._job._pull(self, keys, not self.training))
        if keep is not None:
            rows = torch.zeros(len(distinct), self.embedding_dim).index_put_((keep,), rows)
        rows = rows.to(ids.device)
        if self.training and torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(_collector(self, keys, keep))
        out = torch.nn.functional.embedding(at.to(ids.device), rows, padding_idx=padding)
        return out.reshape(*ids.shape, self.embedding_dim)

    def _distinct(self, ids: torch.Tensor) -> Tuple[torch.Tensor, torch.Tensor]:
        """Distinct ids in order, and the place of each id among them."""
        if not isinstance(ids, torch.Tensor) or ids.dtype not in _INTEGERS:
            found = ids.dtype if isinstance(ids, torch.Tensor) else type(ids).__name__
            raise TypeError(
                f"Embedding '{self.name}': ids should be a tensor of integers, but is {found}"
            )
        flat = ids.detach().reshape(-1).to("cpu", torch.int64)
        distinct, at = torch.unique(flat, return_inverse=True)
        if len(distinct) and (distinct[0] < 0 or distinct[-1] >= self.num_embeddings):
            wrong = distinct[0] if distinct[0] < 0 else distinct[-1]
            raise IndexError(
                f"Embedding '{self.name}': id {int(wrong)} is not among its {self.num_embeddings} "
                "rows, which begin with 0"
            )
        return distinct, at

    def _merged(self) -> _Gradients:
        """The gradients of all backward passes since ``zero_grad``, one row per id."""
        if len(self._gradients) == 1:
            return self._gradients[0]
        if not self._gradients:
            return np.empty(0, np.int64), np.empty((0, self.embedding_dim), np.float32)
        keys, at = np.unique(
            np.concatenate([keys for keys, _ in self._gradients]), return_inverse=True
        )
        total = torch.zeros(len(keys), self.embedding_dim)
        grads = np.concatenate([grads for _, grads in self._gradients])
        total.index_add_(0, torch.from_numpy(at.reshape(-1)), torch.from_numpy(grads))
        self._gradients = [(keys, total.numpy())]
        return self._gradients[0]

    def __deepcopy__(self, memo: Any) -> "Embedding":
        raise TypeError(
            f"Embedding '{self.name}' cannot be copied: its rows are not part of the module"
        )

    def __getstate__(self) -> Dict[str, Any]:
        raise TypeError(
            f"Embedding '{self.name}' cannot be pickled: save the rows with Job.save(dir), and "
            "other parameters with torch.save(model.state_dict(), file)"
        )

    def extra_repr(self) -> str:
        """What stands between the brackets of ``repr``."""
        padding = "" if self.padding_idx is None else f", padding_idx={self.padding_idx}"
        return (
            f"{self.num_embeddings}, {self.embedding_dim}{padding}, name={self.name!r}, "
            f"optimizer={self._optimizer}"
        )


_INTEGERS = (torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8)


def _collector(
    table: Embedding, keys: np.ndarray, keep: Optional[torch.Tensor]
) -> Callable[[torch.Tensor], None]:
    """Takes the gradient of pulled rows to their table. The rows own it, so that a graph nobody
    differentiates takes everything with it."""
    owner = weakref.ref(table)

    def collect(gradient: torch.Tensor) -> None:
        table = owner()
        if table is None:
            return
        own = gradient.detach().to("cpu", torch.float32)
        own = own.clone() if keep is None else own[keep]
        table._gradients.append((keys, own.numpy()))

    return collect


# --- where rows are --------------------------------------------------------------------------------


class _Here:
    """The rows of a process without a job."""

    def __init__(self, tables: Sequence[Declared]) -> None:
        self._tables = tables
        self._executor = _core.Executor(1, False)
        # A scope for each: learning rates with a schedule count steps there.
        self._scopes = [_core.Scope() for _ in tables]
        for table, scope in zip(tables, self._scopes):
            self._executor.run(table.startup, scope, {}, [])

    def pull(self, table: int, keys: np.ndarray, test: bool) -> np.ndarray:
        declared, scope = self._tables[table], self._scopes[table]
        feed = {declared.ids: keys}
        (rows,) = self._executor.run(declared.lookup, scope, feed, [f"{declared.name}.rows"])
        return np.asarray(rows)

    def push(self, gradients: Sequence[_Gradients], examples: int) -> None:
        for table, scope, (keys, grads) in zip(self._tables, self._scopes, gradients):
            self._executor.run(table.main, scope, {table.ids: keys, table.grads: grads}, [])

    def reduce(self, values: Sequence[float], op: str) -> List[float]:
        return list(values)

    def save(self, dir: str) -> None:
        everything = _core.Scope()
        for table, scope in zip(self._tables, self._scopes):
            for name in values_of(table):
                everything.set(name, _value(scope, name))
        _core.save_persistables(joined(self._tables)[0], everything, dir)

    def load(self, dir: str) -> None:
        everything = _core.Scope()
        _core.load_persistables(joined(self._tables)[0], everything, dir)
        for table, scope in zip(self._tables, self._scopes):
            for name in values_of(table):
                scope.set(name, _value(everything, name))

    def leave(self) -> List[str]:
        return []


def _value(scope: _core.Scope, name: str) -> np.ndarray:
    value = scope.get(name)
    if value is None:
        raise RuntimeError(f"'{name}' has no value")
    return value


class Job:
    """The tables of a model, and the other workers. :func:`start` makes it.

    It is left by :meth:`stop`, at the end of a ``with`` block, or at the end of the script. A
    worker that ends by an exception leaves it without a word, so that the others fail too.
    """

    def __init__(
        self, fleet: _core.Fleet, rows: Any, tables: Sequence[Embedding], mode: str
    ) -> None:
        self._fleet, self._rows, self.mode = fleet, rows, mode
        self._tables = list(tables)
        self._numbers = {id(table): number for number, table in enumerate(tables)}
        # What the end of the interpreter asks for.
        self.process, self.stopped = os.getpid(), False

    @property
    def worker_index(self) -> int:
        """The number of this worker, from 0."""
        return self._fleet.worker_index()

    @property
    def worker_num(self) -> int:
        """Number of workers."""
        return self._fleet.worker_num()

    @property
    def server_num(self) -> int:
        """Number of servers; 0 if rows are in this process."""
        return self._fleet.server_num()

    @property
    def is_first_worker(self) -> bool:
        """Whether this is worker 0."""
        return self._fleet.is_first_worker()

    def reduce(self, values: Sequence[float], op: str = "sum") -> List[float]:
        """Combines a few numbers of all workers by ``sum``, ``min`` or ``max``: losses, counts."""
        self._check("reduce")
        return self._rows.reduce([float(value) for value in values], op)

    def barrier(self) -> None:
        """Waits until all workers have come this far."""
        self.reduce([0.0])

    def save(self, dir: Any) -> None:
        """Saves all rows with the state of their optimizers; every worker calls it. Servers write
        their parts into the folder, which all of them must see. Dense parameters are saved by
        ``torch.save``."""
        self._together("save", lambda: self._rows.save(_new_folder(dir)))

    def load(self, dir: Any) -> None:
        """Loads what :meth:`save` has written, with any number of servers; every worker calls
        it."""
        self._together("load", lambda: self._rows.load(_folder(dir)))

    def stop(self) -> None:
        """Leaves the job; servers end when all workers have left. The embeddings have no rows any
        more."""
        if self.stopped:
            return
        self.stopped = True
        for table in self._tables:
            table._job = None
        rows, self._rows = self._rows, None  # and with the last reference its connections end
        lost = rows.leave()
        del rows
        if lost:
            raise PeerLost(f"the job has ended without {', '.join(lost)}")

    def __enter__(self) -> "Job":
        return self

    def __exit__(self, kind: Any, value: Any, trace: Any) -> None:
        if kind is None:
            self.stop()

    def __repr__(self) -> str:
        where = f"{self.server_num} servers" if self.server_num else "this process"
        return (
            f"Job(worker {self.worker_index} of {self.worker_num}, {len(self._tables)} tables in "
            f"{where}, mode={self.mode!r})"
        )

    # What embeddings and optimizers ask for
    def _pull(self, table: Embedding, keys: np.ndarray, test: bool) -> np.ndarray:
        if not len(keys):
            return np.empty((0, table.embedding_dim), np.float32)
        return self._rows.pull(self._numbers[id(table)], keys, test)

    def _push(self, examples: int) -> None:
        self._check("step")
        self._rows.push([table._merged() for table in self._tables], examples)

    def _check(self, call: str) -> None:
        if self.stopped:
            raise RuntimeError(f"{call}: this worker has left its job")

    def _together(self, call: str, work: Callable[[], None]) -> None:
        """The first worker does it while the others wait; if it fails, all of them do."""
        self._check(call)
        self.barrier()
        error: Optional[BaseException] = None
        if self.is_first_worker:
            try:
                work()
            except Exception as raised:  # noqa: BLE001 - others must hear of it first
                error = raised
        (failed,) = self.reduce([1.0 if error is not None else 0.0], "max")
        if error is not None:
            raise error
        if failed:
            raise RuntimeError(f"{call}: worker 0 has failed; its own error says why")

    # What the end of the interpreter asks for
    def has_peers(self) -> bool:
        """Whether others wait for this worker."""
        return self.server_num > 0

    def abandon(self) -> None:
        """Nothing: connections that break tell the others."""


def _folder(dir: Any) -> str:
    return os.path.abspath(os.fspath(dir))


def _new_folder(dir: Any) -> str:
    path = _folder(dir)
    os.makedirs(path, exist_ok=True)
    return path


# --- the job ---------------------------------------------------------------------------------------


def start(*models: torch.nn.Module, mode: str = "sync", role: Any = None) -> Job:
    """Begins the job of this process with all embeddings of some models.

    What the process is, the environment says (``regatta launch`` sets it), or ``role``, a
    ``UserDefinedRoleMaker`` of :mod:`regatta.distributed.fleet`. A server serves until all workers
    have left, and then raises ``SystemExit(0)``: nothing after this call runs there. A worker
    connects and goes on; so does a process without a job, which keeps the rows itself.

    ``mode`` is how workers train together. With ``"sync"`` rows change when all workers have
    called ``TableOptimizer.step``, by the mean of their gradients; with ``"async"`` every step of
    a worker changes them at once.
    """
    if mode not in _MODES:
        raise ValueError(f"start: mode should be 'sync' or 'async', but is {mode!r}")
    tables = _embeddings("start", models)
    _check_names(tables)
    fleet = _core.Fleet(_role(role), False, _strategy(mode))
    if fleet.is_collective():
        raise RuntimeError(
            "start: this is a job of ranks without servers, which could not keep the rows of an "
            "Embedding: start it with `regatta launch --server_num N --worker_num N`, or use "
            "torch.nn.Embedding and sync_gradients"
        )
    declared = [table._declared for table in tables]
    if fleet.server_num() == 0:
        rows: Any = _Here(declared)
    else:
        for table in declared:
            table.check_for_servers()
        main, startup = joined(declared)
        fleet.prepare(main, startup, declared[0].loss)
        if fleet.is_server():
            fleet.run_server()
            raise SystemExit(0)
        rows = _core.Tables.connect(fleet)
        _check_order(rows.names(), tables)
    job = Job(fleet, rows, tables, mode)
    for table in tables:
        table._job = job
    _exits._jobs.append(job)  # type: ignore[arg-type]
    at_end(_exits._leave_all)
    return job


def _embeddings(call: str, models: Iterable[Any]) -> List[Embedding]:
    found: List[Embedding] = []
    for model in models:
        if not isinstance(model, torch.nn.Module):
            raise TypeError(f"{call} takes modules, not a {type(model).__name__}")
        new = [m for m in model.modules() if isinstance(m, Embedding)]
        found += [m for m in new if not any(m is other for other in found)]
    if not found:
        raise ValueError(f"{call}: the model has no regatta.torch.Embedding")
    return found


def _check_names(tables: Sequence[Embedding]) -> None:
    names = [table.name for table in tables]
    for table in tables:
        if table._job is not None:
            raise RuntimeError(f"start: Embedding '{table.name}' is part of a job already")
        if names.count(table.name) > 1:
            raise ValueError(
                f"start: two embeddings have the name '{table.name}'; use one module twice to "
                "share its rows"
            )


def _check_order(names: Sequence[str], tables: Sequence[Embedding]) -> None:
    own = [table.name for table in tables]
    if list(names) != own:
        raise RuntimeError(f"start: the tables are {list(names)}, but the model has {own}")


def _role(role: Any) -> Optional[Dict[str, Any]]:
    if role is None or isinstance(role, dict):
        return role
    if not hasattr(role, "_role_dict"):
        raise TypeError(f"start: role should be a UserDefinedRoleMaker, not {role!r}")
    return role._role_dict()


def _strategy(mode: str) -> _core.Strategy:
    return _core.Strategy("a_sync: true\n" if mode == "async" else "a_sync: false\n")


class TableOptimizer:
    """Updates the embeddings of a model, beside the optimizer of its other parameters.

    ``step`` pushes the gradients of all backward passes since ``zero_grad``, of all embeddings of
    the job together. Each embedding has its own update rule and rate, which servers know.
    """

    def __init__(self, *models: torch.nn.Module) -> None:
        self._tables = _embeddings("TableOptimizer", models)

    def _job(self) -> Job:
        jobs = {id(table._job): table._job for table in self._tables}
        job = jobs.popitem()[1] if len(jobs) == 1 else None
        if job is None:
            raise RuntimeError("TableOptimizer: call regatta.torch.start(model) first")
        if len(job._tables) != len(self._tables):
            known = {id(table) for table in self._tables}
            rest = [table.name for table in job._tables if id(table) not in known]
            raise RuntimeError(
                f"TableOptimizer: a step is made for all tables of a job, but {', '.join(rest)} is "
                "not among those of this optimizer; pass all models"
            )
        return job

    def step(self, examples: int = 1) -> None:
        """Makes a step. In a synchronous job all workers do so together, and the gradients of a
        worker count as many times as it has ``examples``: the mean of all workers if they do not
        say, that of all examples if each passes the size of its batch."""
        if examples < 0:
            raise ValueError(f"TableOptimizer.step: {examples} examples")
        self._job()._push(int(examples))

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forgets the gradients."""
        for table in self._tables:
            table._gradients = []

    def __repr__(self) -> str:
        return f"TableOptimizer({', '.join(table.name for table in self._tables)})"
