"""Runs a script whose clock counts the time that processors spend on it, in all threads.

    python cpu_clock.py SCRIPT [ARGUMENT ...]

What the trainer prints as time of an epoch then depends little on what else the machine does.
"""
import logging
import os
import runpy
import sys
import time

if __name__ == "__main__":
    time.time = time.process_time
    # Trainers of single folders leave it to others that their lines are shown.
    logging.getLogger("__main__").setLevel(logging.INFO)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
