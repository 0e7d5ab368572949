"""``paddle.fluid.contrib.trainer``."""
from ..trainer import *  # noqa: F401,F403
from ..trainer import __all__  # noqa: F401
