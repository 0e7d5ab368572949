"""The end of a script: whoever has peers leaves them, in another way if an exception ended it."""
from __future__ import annotations

import atexit
import sys
from typing import Any, Callable, List

_failed = False
_calls: List[Callable[[bool], None]] = []


def at_end(call: Callable[[bool], None]) -> None:
    """Calls ``call(failed)`` once when the interpreter ends; the same again changes nothing."""
    if call in _calls:
        return
    if not _calls:
        _watch()
    _calls.append(call)
    atexit.register(lambda: call(_failed))


def _watch() -> None:
    before = sys.excepthook

    def excepthook(kind: Any, value: Any, trace: Any) -> None:
        global _failed
        _failed = True
        before(kind, value, trace)

    sys.excepthook = excepthook
