"""Layers, losses, initializers and clips.

>>> import regatta as rg
>>> with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
...     net = rg.nn.Sequential(rg.nn.Linear(4, 8), rg.nn.ReLU(), rg.nn.Linear(8, 1))
...     y = net(rg.static.data("x", [None, 4]))
>>> y.name, y.shape
('linear_3.tmp_1', (-1, 1))
"""
from __future__ import annotations

from .. import tensor as _tensor  # noqa: F401  (operators of variables)
from .._missing import missing
from . import clip, common, container, functional, initializer, layers, loss, norm
from ._absent import ABSENT as _ABSENT
from ._absent import placeholder as _placeholder
from .clip import *  # noqa: F401,F403
from .common import *  # noqa: F401,F403
from .container import *  # noqa: F401,F403
from .layers import *  # noqa: F401,F403
from .loss import *  # noqa: F401,F403
from .norm import *  # noqa: F401,F403

__all__ = sorted(
    clip.__all__ + common.__all__ + container.__all__ + layers.__all__ + loss.__all__
    + norm.__all__ + ["functional", "initializer"]
)

_missing = missing(__name__)


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    if name in _ABSENT:
        return _placeholder(name)
    return _missing(name)
