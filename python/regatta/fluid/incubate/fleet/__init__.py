"""The fleet of Paddle 1.x, which 2.0 has removed: importing it raises ImportError."""
from .._removed import REMOVED

raise ImportError(REMOVED, name=__name__)
