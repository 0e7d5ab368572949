"""The layers under a second path that scripts use: ``nn.layer.Sigmoid`` is ``nn.Sigmoid``.

>>> import regatta as rg
>>> rg.nn.layer.Sigmoid is rg.nn.Sigmoid
True
"""
from __future__ import annotations

from .._missing import missing
from . import activation, common, container, conv, layers, loss, norm, rnn, transformer
from .activation import *  # noqa: F401,F403
from .common import *  # noqa: F401,F403
from .container import *  # noqa: F401,F403
from .conv import *  # noqa: F401,F403
from .layers import *  # noqa: F401,F403
from .loss import *  # noqa: F401,F403
from .norm import *  # noqa: F401,F403
from .rnn import *  # noqa: F401,F403
from .transformer import *  # noqa: F401,F403

__all__ = sorted(
    activation.__all__ + common.__all__ + container.__all__ + conv.__all__ + layers.__all__
    + loss.__all__ + norm.__all__ + rnn.__all__ + transformer.__all__
)
__getattr__ = missing(__name__)
