"""Ctrl-C: work ends with the call that it interrupts, and the process can continue (a job with
other processes cannot)."""
import os
import signal
import subprocess
import sys

import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))

# A reader that never ends: without the interrupt the values of the scope could not be read again.
PASS = """
import os, sys
import numpy as np
import regatta as rg
from regatta.distributed import fleet

kind, folder = sys.argv[1:]
rg.enable_static()
x = rg.static.data("x", [-1, 2], "float32")
y = rg.static.data("y", [-1, 1], "float32")
loss = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1, bias_attr=False), y))
optimizer = rg.optimizer.SGD(1e-3)
if kind == "fleet":
    fleet.init(is_collective=True)
    optimizer = fleet.distributed_optimizer(optimizer)
optimizer.minimize(loss)
exe = rg.static.Executor()
exe.run(rg.static.default_startup_program())
file = os.path.join(folder, "part-0")
open(file, "w").write("anything")
data = rg.distributed.InMemoryDataset() if kind == "memory" else rg.distributed.QueueDataset()
command = "sleep 1000" if kind in ("memory", "waiting") else "yes '2 0.5 1 1 2'"
data.init(batch_size=4, thread_num=1, use_var=[x, y], pipe_command=command)
data.set_filelist([file])


class Hook(rg.fluid.executor.FetchHandler):
    def handler(self, values):
        print("training", flush=True)


def work():
    if kind == "memory":
        print("training", flush=True)
        data.load_into_memory()
    if kind == "waiting":
        print("training", flush=True)
    main = rg.static.default_main_program()
    if kind == "infer":
        exe.infer_from_dataset(main, data, fetch_handler=Hook({"loss": loss}, 0))
    else:
        exe.train_from_dataset(main, data, fetch_handler=Hook({"loss": loss}, 0))


try:
    work()
except KeyboardInterrupt:
    name = rg.static.default_main_program().all_parameters()[0].name
    value = np.array(rg.static.global_scope().find_var(name).get_tensor())
    if kind != "fleet":
        feed = {"x": np.ones((4, 2), "float32"), "y": np.ones((4, 1), "float32")}
        exe.run(feed=feed, fetch_list=[loss])
    data.set_batch_size(8)
    print("interrupted", np.isfinite(value).all())
"""


def children(pid):
    found = []
    for each in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{each}/stat") as file:
                words = file.read().rsplit(")", 1)[1].split()
        except OSError:
            continue
        # Group or session of the process that was started with a session of its own.
        if int(words[3]) == pid and words[0] != "Z":
            found.append(int(each))
    return found


def interrupted(code, *arguments):
    """The rest of the output of a process that is interrupted after its first line."""
    process = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env={**os.environ, "PYTHONPATH": ROOT}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    seen = [process.stdout.readline()]
    while seen[-1] and not seen[-1].startswith(("training", "Server listening")):
        seen.append(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    try:
        rest, _ = process.communicate(timeout=20)
    finally:
        process.kill()
    return process, "".join(seen) + rest


@pytest.mark.parametrize("kind", ["local", "fleet", "infer", "waiting", "memory"])
def test_a_data_pass_ends(kind, tmp_path):
    process, out = interrupted(PASS, kind, str(tmp_path))
    assert out.endswith("interrupted True\n"), out
    assert process.returncode == 0 and not children(process.pid)


SERVER = """
import socket, sys
import regatta as rg
from regatta.distributed import fleet
from regatta.distributed.fleet.base.role_maker import Role, UserDefinedRoleMaker

with socket.socket() as free:
    free.bind(("127.0.0.1", 0))
    address = free.getsockname()
endpoint = "%s:%d" % address
rg.enable_static()
fleet.init(UserDefinedRoleMaker(
    current_id=0, role=Role.SERVER, worker_num=1, server_endpoints=[endpoint]))
x = rg.static.data("x", [-1, 2], "float32")
loss = rg.mean(rg.static.nn.fc(x, 1))
fleet.distributed_optimizer(rg.optimizer.SGD(0.1)).minimize(loss)
fleet.init_server()
try:
    fleet.run_server()
except KeyboardInterrupt:
    # The server has ended when nobody listens any more.
    while True:
        with socket.socket() as probe:
            if probe.connect_ex(address):
                break
    print("interrupted")
"""


def test_a_server_stops_listening():
    process, out = interrupted(SERVER)
    assert out.endswith("interrupted\n"), out
    assert process.returncode == 0
