"""The ranks that this process has joined, and how it leaves them.

A rank that reaches the end of its script leaves in order, after a look whether all ranks have
trained the same parameters. One that ends by an exception does not wait for anybody: the others
hear that it is lost.
"""
from __future__ import annotations

import atexit
import os
import sys
from typing import Any, Optional

from .. import _core

_world: Optional[_core.Group] = None
_process = 0
_watched = False
_failed = False
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
        _watch_exit()
    return world


def leave(at_end: bool = False) -> None:
    """Leaves the other ranks, if they were joined."""
    global _world
    world, _world = joined(), None
    if world is None:
        return
    try:
        if at_end and _compares and world.size() > 1:
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


def _watch_exit() -> None:
    global _watched
    if _watched:
        return
    _watched = True
    before = sys.excepthook

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        global _failed
        _failed = True
        before(kind, value, trace)

    sys.excepthook = excepthook
    atexit.register(_end)


def _end() -> None:
    """The script has ended."""
    if _failed:
        abandon()
        return
    try:
        leave(at_end=True)
    except Exception as error:  # noqa: BLE001 - the interpreter ends; nobody else can report it
        import logging

        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        # The exit code must say that the job has failed.
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)
