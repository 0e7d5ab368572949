"""Layers, losses, initializers and clips.

>>> import regatta as rg
>>> rg.nn.Sequential(rg.nn.Linear(4, 8), rg.nn.ReLU(), rg.nn.Linear(8, 1))(rg.ones([2, 4])).shape
[2, 1]
>>> with rg.static.program_guard(rg.static.Program(), rg.static.Program()), rg.unique_name.guard():
...     net = rg.nn.Sequential(rg.nn.Linear(4, 8), rg.nn.ReLU(), rg.nn.Linear(8, 1))
...     y = net(rg.static.data("x", [None, 4]))
>>> y.name, y.shape
('linear_3.tmp_1', (-1, 1))
"""
from __future__ import annotations

from .. import tensor as _tensor  # noqa: F401  (operators of variables)
from .._missing import missing
from . import (
    activation, clip, common, container, conv, functional, initializer, layers, loss, norm, rnn,
    transformer, utils,
)
from ._absent import ABSENT as _ABSENT
from ._absent import placeholder as _placeholder
from .activation import *  # noqa: F401,F403
from .clip import *  # noqa: F401,F403
from .common import *  # noqa: F401,F403
from .container import *  # noqa: F401,F403
from .conv import *  # noqa: F401,F403
from .layers import *  # noqa: F401,F403
from .loss import *  # noqa: F401,F403
from .norm import *  # noqa: F401,F403
from .rnn import *  # noqa: F401,F403
from .transformer import *  # noqa: F401,F403

__all__ = sorted(
    activation.__all__ + clip.__all__ + common.__all__ + container.__all__ + conv.__all__
    + layers.__all__ + loss.__all__ + norm.__all__ + rnn.__all__ + transformer.__all__
    + ["functional", "initializer", "utils"]
)

_missing = missing(__name__)


def __getattr__(name: str):  # type: ignore[no-untyped-def]
    if name == "embedding":  # as documents of version 2.0 call it
        from ..static.nn import embedding

        return embedding
    if name in _ABSENT:
        return _placeholder(name)
    return _missing(name)
