"""``paddle.v2.dataset`` is :mod:`regatta.dataset`."""
import sys

from .. import dataset

sys.modules[__name__] = dataset
