"""``paddle.X.Y`` is ``regatta.X.Y``: the same module objects under two names.

The top level is a module of its own (``_path/paddle/__init__.py``), because versions differ.
"""
from __future__ import annotations

import importlib
import importlib.util
import os
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, Dict, List, Optional, Sequence

_SHIM = os.path.join(os.path.dirname(os.path.abspath(__file__)), "_path", "paddle", "__init__.py")

# Modules that have another place here, unless there is one of the same name.
_MOVED = {
    "paddle.core": "regatta.base.core",
    "paddle.fluid.core": "regatta.base.core",
    "paddle.base.framework": "regatta.framework",
    "paddle.fluid.framework": "regatta.framework",
    "paddle.base.unique_name": "regatta.utils.unique_name",
    "paddle.fluid.unique_name": "regatta.utils.unique_name",
    "paddle.base.executor": "regatta.executor",
    "paddle.fluid.executor": "regatta.executor",
}
# What Regatta has at its top level and Paddle has not, or means otherwise.
_OWN = {"TrainReport", "op_kinds", "paddle", "reset_default_programs", "train"}


def real_name(name: str) -> Optional[str]:
    """The module that a name of Paddle's stands for; None if it stands for none."""
    parts = name.split(".")
    if len(parts) > 1 and (parts[1] in _OWN or parts[1].startswith("_")):
        return None
    if name in _MOVED and not _exists(name):
        return _MOVED[name]
    return ".".join(["regatta", *parts[1:]])


def _exists(name: str) -> bool:
    try:
        return importlib.util.find_spec("regatta" + name[len("paddle"):]) is not None
    except ModuleNotFoundError:
        return False


class Finder:
    """Finds ``paddle`` and everything below it, before anybody else can."""

    @staticmethod
    def find_spec(
        name: str, path: Optional[Sequence[str]] = None, target: Optional[ModuleType] = None
    ) -> Optional[ModuleSpec]:
        if name == "paddle":
            return importlib.util.spec_from_file_location(
                "paddle", _SHIM, submodule_search_locations=[]
            )
        if not name.startswith("paddle."):
            return None
        real = real_name(name)
        found = _spec(real) if real is not None else None
        if real is None or found is None:
            raise ModuleNotFoundError(
                f"{name} is not in Regatta; see docs/python.md (\"What is absent\")", name=name
            )
        is_package = found.submodule_search_locations is not None
        return ModuleSpec(
            name, Loader(real, found), origin=found.origin, is_package=is_package
        )


def _spec(real: str) -> Optional[ModuleSpec]:
    module = sys.modules.get(real)
    if module is not None and getattr(module, "__spec__", None) is not None:
        return module.__spec__
    try:
        return importlib.util.find_spec(real)
    except ModuleNotFoundError as error:
        if error.name is not None and real.startswith(error.name):
            return None
        raise


class Loader:
    """Gives the module of another name."""

    def __init__(self, real: str, spec: ModuleSpec) -> None:
        self._real, self._spec = real, spec

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        # The import system returns what is here afterwards, and leaves its attributes alone.
        sys.modules[module.__name__] = importlib.import_module(self._real)

    # For `python -m paddle.x`, which runs the code once more under the name __main__.
    def get_code(self, name: str) -> Any:
        return self._spec.loader.get_code(self._real)  # type: ignore[union-attr]

    def get_source(self, name: str) -> Any:
        return self._spec.loader.get_source(self._real)  # type: ignore[union-attr]

    def get_filename(self, name: str) -> Optional[str]:
        return self._spec.origin

    def is_package(self, name: str) -> bool:
        return self._spec.submodule_search_locations is not None


def add_finder() -> None:
    """Puts the finder before all others, once."""
    remove_finder()
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def remove_finder() -> None:
    """Takes the finder away, and the names it has made."""
    sys.meta_path[:] = [f for f in sys.meta_path if not isinstance(f, Finder)]
    top = sys.modules.get("paddle")
    if getattr(top, "_is_regatta", False):
        for name in [n for n in sys.modules if n == "paddle" or n.startswith("paddle.")]:
            del sys.modules[name]


def top_level(module: Dict[str, Any]) -> None:
    """Fills in the module ``paddle``: its version, and names that are looked up in ``regatta``."""
    import regatta

    if not any(isinstance(f, Finder) for f in sys.meta_path):
        add_here()
    version = f"2.6.2+regatta.{regatta.__version__}"
    module.update(
        __version__=version, full_version=version, __path__=[], _is_regatta=True,
        __getattr__=_get, __dir__=_names,
        __doc__=f"Regatta {regatta.__version__} under the name of Paddle.",
    )


def add_here() -> None:
    """Puts the finder first while ``paddle`` itself is being imported."""
    sys.meta_path.insert(0, Finder())  # type: ignore[arg-type]


def _get(name: str) -> Any:
    import regatta
    from regatta._missing import absent

    if name in ("__all__",):
        return [n for n in regatta.__all__ if n not in _OWN]
    if name.startswith("__"):
        raise AttributeError(f"module 'paddle' has no attribute '{name}'")
    if name in _OWN or name.startswith("_"):
        raise absent("regatta", name)
    return getattr(regatta, name)


def _names() -> List[str]:
    import regatta

    return [n for n in dir(regatta) if n not in _OWN]
