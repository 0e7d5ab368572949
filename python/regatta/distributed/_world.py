"""The ranks that this process has joined, and how it leaves them.

A rank that reaches the end of its script leaves in order, after a look whether all ranks have
trained the same parameters. One that ends by an exception does not wait for anybody: the others
hear that it is lost.
"""
from __future__ import annotations

import os
import sys
from typing import Optional

from .. import _core
from ._exit import at_end

_world: Optional[_core.Group] = None
_process = 0
# Whether ranks look at the end whether they have trained the same parameters.
_compares = False


def joined() -> Optional[_core.Group]:
    """The ranks, if this process has joined them."""
    return _world if _process == os.getpid() else None


def join(compares: bool = False) -> _core.Group:
    """Joins the other ranks, if that was not done. ``compares``: tensors will be trained."""
    global _world, _process, _compares
    world = joined()
    _compares = _compares or compares
    if world is None:
        world = _world = _core.Group.join()
        _process = os.getpid()
        at_end(_end)
    return world


def leave(is_end: bool = False) -> None:
    """Leaves the other ranks, if they were joined."""
    global _world
    world, _world = joined(), None
    if world is None:
        return
    try:
        if is_end and _compares and world.size() > 1:
            from ._replicas import check

            check(world, "end of the script")
        world.leave()
    except BaseException:
        world.abandon()
        raise


def abandon() -> None:
    """The process is about to end because something failed: nobody is waited for."""
    global _world
    world, _world = joined(), None
    if world is not None:
        world.abandon()


def _end(failed: bool) -> None:
    """The script has ended."""
    if failed:
        abandon()
        return
    try:
        leave(is_end=True)
    except Exception as error:  # noqa: BLE001 - the interpreter ends; nobody else can report it
        import logging

        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        # The exit code must say that the job has failed.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
