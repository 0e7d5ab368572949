"""``paddle.fluid.contrib.inferencer``."""
from ..inferencer import Inferencer

__all__ = ["Inferencer"]
