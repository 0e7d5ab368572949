"""What modules answer when they are asked for a name that they do not have."""
from __future__ import annotations

import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # readers of datasets start a Python per file, and typing is slow to import
    from typing import Any, Callable, Sequence

_SEE = 'see docs/python.md ("What is absent")'


def spelled(module: str, name: str = "") -> str:
    """A dotted name as the script spells it: ``paddle.x`` where ``paddle`` is Regatta."""
    path = f"{module}.{name}" if name else module
    paddle = sys.modules.get("paddle")
    if path.split(".")[0] == "regatta" and getattr(paddle, "_is_regatta", False):
        path = "paddle" + path[len("regatta"):]
    return path


def absent(module: str, name: str, known: Sequence[str] = ()) -> AttributeError:
    """The error for a name that a module does not have."""
    import difflib

    close = difflib.get_close_matches(name, [k for k in known if not k.startswith("_")], n=1)
    hint = f"; did you mean {spelled(module, close[0])}?" if close else ""
    error = AttributeError(f"{spelled(module, name)} is not in Regatta{hint}; {_SEE}")
    # For Python's own messages.
    error.name = name  # type: ignore[attr-defined]
    return error


def missing(module: str) -> Callable[[str], Any]:
    """A ``__getattr__`` for a module: loads submodules when they are first used, and says what is
    not there.

    ``regatta.metric.Acuracy`` raises ``AttributeError: regatta.metric.Acuracy is not in Regatta;
    did you mean regatta.metric.Accuracy?; see docs/python.md ("What is absent")``.
    """

    def __getattr__(name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module '{module}' has no attribute '{name}'")
        here = sys.modules.get(module)
        if not name.startswith("_") and hasattr(here, "__path__"):
            found = submodule(module, name)
            if found is not None:
                return found
        known = getattr(here, "__all__", None) or list(vars(here or sys))
        raise absent(module, name, known)

    return __getattr__


def submodule(package: str, name: str) -> Any:
    """The submodule of a package, imported; None if there is no such file."""
    import importlib.util

    full = f"{package}.{name}"
    if full not in sys.modules and importlib.util.find_spec(full) is None:
        return None
    return importlib.import_module(full)
