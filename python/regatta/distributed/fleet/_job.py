"""A job as this process sees it: the native fleet, the programs that it runs, and how it ends.

A worker that reaches the end of its script leaves its job in order, so that servers and other
workers end too. One that ends by an exception does not: the others hear that it is lost.
"""
from __future__ import annotations

import os
import sys
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

from ... import _core
from ... import framework
from .._exit import at_end

# Jobs of this process that have something to train, in the order of their minimize.
_jobs: List["Job"] = []


class Job:
    """What one ``fleet.init`` has begun."""

    def __init__(self, native: _core.Fleet) -> None:
        self.core = native
        self.main: Optional[framework.Program] = None
        self.startup: Optional[framework.Program] = None
        self.scope: Optional[framework.Scope] = None
        self.process = os.getpid()
        self.stopped = False
        self._prepared: Optional[Tuple[int, int]] = None
        self._options: Optional[Tuple[int, bool]] = None
        # Whether a step was made since values were last pulled into the scope.
        self._stale = {"dense": True, "tables": True}

    # Programs
    def attach(self, main: framework.Program, startup: framework.Program) -> None:
        """Takes over the programs of a distributed minimize: the executor runs them here."""
        self.main, self.startup = main, startup
        main._runner = self.run_main
        startup._runner = self.run_startup
        if self not in _jobs:
            _jobs.append(self)
            at_end(_leave_all)
            framework.refreshers.append(self.refresh)

    def prepare(self) -> None:
        """Plans this process's part, if the programs have changed."""
        if self.main is None or self.startup is None:
            return  # the native fleet says what is missing
        versions = (self.main._core.version, self.startup._core.version)
        if versions != self._prepared:
            self.core.prepare(self.main._core, self.startup._core)
            self._prepared = versions

    def ensure_prepared(self) -> None:
        """The same, for calls that use what is running: a program may have grown since."""
        if self._prepared is None:
            self.prepare()

    # What the executor calls
    def run_startup(
        self, executor: Any, feed: Dict[str, Any], fetch: Sequence[str], scope: framework.Scope,
        kind: Any = "run",
    ) -> List[Any]:
        """Makes the initial values that this process needs."""
        if kind != "run":
            raise ValueError("a startup program is run with Executor.run")
        if fetch:
            raise ValueError(f"the startup program of a job has nothing to fetch ({fetch[0]})")
        self.prepare()
        self.core.run_startup(scope._core)
        self.scope = scope
        return []

    def run_main(
        self, executor: Any, feed: Dict[str, Any], fetch: Sequence[str], scope: framework.Scope,
        kind: Any = "run",
    ) -> Any:
        """A step, or a data pass."""
        self.begin(executor, scope)
        if kind == "run":
            return self.core.run(scope._core, feed, fetch)
        if kind[0] == "train":
            return self.train(scope, fetch, *kind[1:])
        raise ValueError(f"the training program of a job cannot be run for '{kind[0]}': clone it "
                         "with for_test=True before minimize, and run the clone")

    def begin(self, executor: Any, scope: framework.Scope) -> None:
        """Before steps."""
        self.prepare()
        options = (getattr(executor, "_threads", 1), getattr(executor, "_check", False))
        if options != self._options:
            self.core.set_options(*options)
            self._options = options
        self.scope = scope
        self._stale = {"dense": True, "tables": True}

    def train(
        self, scope: framework.Scope, fetch: Sequence[str], dataset: Any, every: int = 100,
        on_step: Optional[Callable[[int, List[Any]], None]] = None,
    ) -> Tuple[int, int]:
        """A data pass over a dataset."""
        return self.core.train(scope._core, dataset, fetch, every, on_step)

    # Values
    def refresh(self, program: framework.Program, scope: framework.Scope) -> None:
        """Takes the latest values of the servers into the scope before another program reads them
        there, such as a clone of the training program for tests."""
        if scope is not self.scope or self.stopped or self.process != os.getpid():
            return
        if program is self.main or self.core.server_num() == 0 or self.core.is_server():
            return
        shared = {p.name for p in self.main.all_parameters()} if self.main is not None else set()
        read = shared.intersection(program._core.var_names())
        if not read:
            return
        if self._stale["dense"]:
            self.core.pull_parameters(scope._core)
            self._stale["dense"] = False
        if self._stale["tables"] and any(_reads_table(program, name) for name in read):
            self.core.pull_tables(scope._core)
            self._stale["tables"] = False

    def the_scope(self) -> framework.Scope:
        """The scope that holds this job's values."""
        return self.scope if self.scope is not None else framework.global_scope()

    # The end
    def has_peers(self) -> bool:
        """Whether this is a worker that others wait for."""
        return self.core.is_worker() and self.core.worker_num() + self.core.server_num() > 1

    def stop(self) -> None:
        """Leaves the job."""
        if self.stopped:
            return
        self.ensure_prepared()
        self.core.stop_worker(self.the_scope()._core)
        self.stopped = True

    def abandon(self) -> None:
        """Makes sure that this worker does not leave the job in order when the interpreter ends:
        its connections break, and the others hear of it."""
        import ctypes

        if not self.stopped:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self.core))


def _reads_table(program: framework.Program, name: str) -> bool:
    """Whether a lookup of a program reads a parameter."""
    ops = program._core.ops()
    return any("embedding" in kind and [name] in inputs.values() for kind, inputs, *_ in ops)


# --- the end of the interpreter ------------------------------------------------------------------

def _leave_all(failed: bool) -> None:
    """The script has ended."""
    mine = [j for j in _jobs if j.process == os.getpid() and not j.stopped and j.has_peers()]
    if failed:
        for job in mine:
            job.abandon()
        return
    errors = []
    for job in mine:
        try:
            job.stop()
        except Exception as error:  # noqa: BLE001 - the interpreter ends; nobody else can report it
            errors.append(error)
            job.abandon()
    if errors:
        for error in errors:
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
        # The other end of `atexit`: the exit code must say that the job has failed.
        import logging

        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
