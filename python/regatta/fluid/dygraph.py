"""Dynamic graphs of Fluid: not here."""
from __future__ import annotations

from typing import Any

__all__: list = []


class DynamicGraphsMissing(NotImplementedError, AttributeError):
    """Something needs dynamic graphs."""


def __getattr__(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    raise DynamicGraphsMissing(
        f"paddle.fluid.dygraph.{name}: Regatta has no dynamic graphs yet; build a static program "
        "(fluid.layers, fluid.Executor)"
    )
