"""``python -m regatta.distributed.launch_ps train.py``: a script with parameter servers."""
from ..launch import launch_ps as launch

__all__ = ["launch"]
