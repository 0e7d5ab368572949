"""The launcher names the process that went wrong first, not the one that ended first."""
import os
import subprocess
import sys

import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))

# Rank 1 says what is wrong, and ends when rank 0 has ended because of it.
SLOW = """
import fcntl, os, struct, sys, termios, time

def wait(for_what):
    # Leaves the cores to the launcher.
    while not for_what():
        time.sleep(0.001)

def is_read(fd):
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, b"0000"))[0] == 0

def is_gone(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] == "Z"
    except OSError:
        return True

rank = int(os.environ["PADDLE_TRAINER_ID"])
if rank == 0:
    with open("pid.part", "w") as file:
        file.write(str(os.getpid()))
    os.rename("pid.part", "pid")
    wait(lambda: os.path.exists("told"))
    raise ConnectionError("rank 1 is gone")
wait(lambda: os.path.exists("pid"))
print("Traceback (most recent call last):", file=sys.stderr)
print("OSError: a disk is full", file=sys.stderr, flush=True)
wait(lambda: is_read(2))
open("told", "w").close()
pid = int(open("pid").read())
wait(lambda: is_gone(pid))
sys.exit(1)
"""

TRAIN = """
import sys
import numpy as np
import regatta as rg
from regatta.distributed import fleet

collective = sys.argv[1] == "ranks"
x = rg.static.data("x", [None, 2], "float32")
y = rg.static.data("y", [None, 1], "float32")
cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1), y))
fleet.init(is_collective=collective)
strategy = fleet.DistributedStrategy()
if not collective:
    strategy.a_sync = False
fleet.distributed_optimizer(rg.optimizer.SGD(0.1), strategy).minimize(cost)
if fleet.is_server():
    fleet.run_server()
    sys.exit()
exe = rg.static.Executor()
exe.run(rg.static.default_startup_program())
for step in range(1000):
    if step == 3 and fleet.worker_index() == 1:
        raise OSError("a disk is full")
    exe.run(feed={"x": np.ones((4, 2), "float32"), "y": np.ones((4, 1), "float32")})
"""


def launch(folder, code, flags, *arguments):
    (folder / "script.py").write_text(code)
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("PADDLE_", "TRAINING_", "REGATTA_"))}
    done = subprocess.run(
        [sys.executable, "-m", "regatta", "launch", *flags, "script.py", *arguments], cwd=folder,
        env={**clean, "PYTHONPATH": ROOT}, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    return done.stderr


def test_the_process_that_complained_first_is_named(tmp_path):
    said = launch(tmp_path, SLOW, ["--nproc_per_node", "2"])
    assert "rank 1 failed with exit code 1; stopping all processes" in said, said
    assert "OSError: a disk is full" in said


@pytest.mark.parametrize("kind, flags, who", [
    ("ranks", ["--nproc_per_node", "2"], "rank 1"),
    ("servers", ["--server_num", "2", "--worker_num", "2"], "worker 1"),
])
def test_an_exception_in_training_is_named(tmp_path, kind, flags, who):
    said = launch(tmp_path, TRAIN, flags, kind)
    assert f"{who} failed with exit code 1; stopping all processes" in said, said
    assert "OSError: a disk is full" in said
