"""``python -m regatta.distributed.launch``."""
import sys

from . import launch

if __name__ == "__main__":
    sys.exit(launch())
