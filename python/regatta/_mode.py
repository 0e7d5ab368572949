"""What decides how scripts run: there are static programs, and no dynamic graphs yet."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Union

from .framework import to_dtype


def enable_static() -> None:
    """Programs are static here, always: nothing changes."""


def disable_static(place: Any = None) -> None:
    """Raises: there are no dynamic graphs yet."""
    raise NotImplementedError(
        "disable_static: Regatta has no dynamic graphs yet. Build a static program "
        "(regatta.static.data, program_guard, Executor); of PaddleRec's tools run static_trainer.py"
    )


def in_dynamic_mode() -> bool:
    """False: programs are static."""
    return False


def disable_signal_handler() -> None:
    """Regatta handles no signals, so there is nothing to disable."""


def get_default_dtype() -> str:
    """``"float32"``, the type of all parameters."""
    return "float32"


def set_default_dtype(d: Any) -> None:
    """Accepts ``"float32"``, the type of all parameters."""
    if to_dtype(d) != "float32":
        raise ValueError(f"set_default_dtype: parameters are of type float32, not {d}")


# Flags of Paddle that mean something here; they are environment variables of the same names.
_FLAGS = {"FLAGS_check_nan_inf": False}


def set_flags(flags: Dict[str, Any]) -> None:
    """Sets flags. ``FLAGS_check_nan_inf`` is known: executors that are made afterwards check every
    result."""
    if not isinstance(flags, dict):
        raise TypeError(f"set_flags takes a dictionary, not {type(flags).__name__}")
    for name in flags:
        _check_flag(name)
    for name, value in flags.items():
        os.environ[name] = "1" if value else "0"


def get_flags(flags: Union[str, List[str]]) -> Dict[str, Any]:
    """Values of flags."""
    names = [flags] if isinstance(flags, str) else list(flags)
    for name in names:
        _check_flag(name)
    return {name: os.environ.get(name, "0").lower() in ("1", "true") for name in names}


def _check_flag(name: str) -> None:
    if name not in _FLAGS:
        raise ValueError(f"flag '{name}' is not in Regatta (known: {', '.join(_FLAGS)})")
