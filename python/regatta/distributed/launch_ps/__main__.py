"""``python -m regatta.distributed.launch_ps``."""
import sys

from . import launch

if __name__ == "__main__":
    sys.exit(launch())
