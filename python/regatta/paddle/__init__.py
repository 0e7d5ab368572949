"""Scripts that say ``import paddle``, run by Regatta.

``python -m regatta.paddle script.py`` runs a script; ``-m module`` and ``-c code`` work as they do
for ``python``. Processes that the script starts see the same ``paddle``. In a notebook,
``%load_ext regatta.paddle`` or :func:`install` does it for the notebook's process.

The names are those of Paddle 2.x and Fluid. What is absent raises an error that says so: an
installed Paddle is never used instead.
"""
from __future__ import annotations

import os
import sys
from typing import Any, Optional

__all__ = ["install", "is_installed", "uninstall"]

_PATH = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_path")
#: Set in processes where ``paddle`` is Regatta.
ENV = "REGATTA_PADDLE"


def installed_paddle() -> Optional[str]:
    """Name and version of a Paddle that is installed here, if there is one."""
    from importlib import metadata

    for name in ("paddlepaddle", "paddlepaddle-gpu"):
        try:
            return f"{name} {metadata.version(name)}"
        except metadata.PackageNotFoundError:
            pass
    return None


def is_installed() -> bool:
    """Whether ``import paddle`` gives Regatta in this process."""
    from . import _alias

    return any(isinstance(finder, _alias.Finder) for finder in sys.meta_path)


def install(quiet: bool = False) -> None:
    """Makes ``import paddle`` give Regatta, in this process and in those it starts.

    Raises RuntimeError if another Paddle was imported already."""
    from . import _alias

    there = sys.modules.get("paddle")
    if there is not None and not getattr(there, "_is_regatta", False):
        raise RuntimeError(
            f"paddle was imported already, from {getattr(there, '__file__', None)}: call "
            "regatta.paddle.install() before the first `import paddle`"
        )
    _alias.add_finder()
    if _PATH not in sys.path:
        sys.path.insert(1 if sys.path else 0, _PATH)
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != _PATH]
    os.environ["PYTHONPATH"] = os.pathsep.join([_PATH, *paths])
    if os.environ.get(ENV) != "1":
        os.environ[ENV] = "1"
        if not quiet:
            print(_notice(), file=sys.stderr, flush=True)


def uninstall() -> None:
    """Undoes :func:`install`; modules that were imported stay as they are for who holds them."""
    from . import _alias

    _alias.remove_finder()
    if _PATH in sys.path:
        sys.path.remove(_PATH)
    paths = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != _PATH]
    if paths:
        os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    else:
        os.environ.pop("PYTHONPATH", None)
    os.environ.pop(ENV, None)


def _notice() -> str:
    from .. import __version__

    line = f"paddle is Regatta {__version__} in this process and its children"
    shadowed = installed_paddle()
    return f"{line}; {shadowed} is installed and not used" if shadowed else line


def load_ipython_extension(shell: Any) -> None:
    """For ``%load_ext regatta.paddle``."""
    install()


def unload_ipython_extension(shell: Any) -> None:
    """For ``%unload_ext regatta.paddle``."""
    uninstall()
