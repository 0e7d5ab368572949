"""``paddle.v2.reader`` is :mod:`regatta.reader`."""
import sys

from .. import reader

sys.modules[__name__] = reader
