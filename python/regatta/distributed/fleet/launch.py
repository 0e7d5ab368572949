"""``python -m regatta.distributed.fleet.launch``: the same as ``regatta.distributed.launch``."""
import sys

from ..launch import launch

__all__ = ["launch"]

if __name__ == "__main__":
    sys.exit(launch())
