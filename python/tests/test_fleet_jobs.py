"""Jobs of real processes: alone, with parameter servers, as ranks."""
import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

import regatta

TRAIN = """
import json
import os
import sys

import numpy as np

import regatta as rg
import regatta.distributed.fleet as fleet
import regatta.distributed.fleet.base.role_maker as role_maker

options = json.loads(os.environ.get("OPTIONS", "{}"))
steps = options.get("steps", 8)


def mlp(x, y):
    hidden = rg.static.nn.fc(x, 16, activation="tanh")
    hidden = rg.static.nn.fc(hidden, 16, activation="tanh")
    predicted = rg.static.nn.fc(hidden, 1)
    return predicted, rg.mean(rg.nn.functional.square_error_cost(predicted, y))


def batch(step, part, parts):
    rng = np.random.RandomState(step)
    x = rng.rand(16, 8).astype("float32")
    y = x.sum(1, keepdims=True).astype("float32")
    n = 16 // parts
    return {"x": x[part * n:(part + 1) * n], "y": y[part * n:(part + 1) * n]}


rg.seed(7)
input_x = rg.static.data(name="x", shape=[None, 8], dtype="float32")
input_y = rg.static.data(name="y", shape=[None, 1], dtype="float32")
predicted, cost = mlp(input_x, input_y)
main, startup = rg.static.default_main_program(), rg.static.default_startup_program()
test = main.clone(for_test=True)

role = role_maker.PaddleCloudRoleMaker(is_collective=options.get("collective", False))
fleet.init(role)
strategy = fleet.DistributedStrategy()
for name, value in options.get("strategy", {}).items():
    setattr(strategy, name, value)
optimizer = rg.optimizer.SGD(learning_rate=options.get("rate", 0.1))
optimizer = fleet.distributed_optimizer(optimizer, strategy)
optimizer.minimize(cost)

if fleet.is_server():
    fleet.init_server(options.get("load"))
    fleet.run_server()
else:
    exe = rg.static.Executor(rg.CPUPlace())
    if options.get("early"):
        try:
            fleet.init_worker()
        except RuntimeError as error:
            print(json.dumps({"early": str(error)}), flush=True)
    exe.run(startup)
    if options.get("init_worker"):
        fleet.init_worker()
    worker, workers = fleet.worker_index(), fleet.worker_num()
    losses = []
    for step in range(steps):
        if step == options.get("fail_at") and worker == 1:
            raise OSError("a disk is full")
        loss, = exe.run(main, feed=batch(step, worker, workers), fetch_list=[cost.name])
        losses.append(float(loss))
    report = {"worker": worker, "losses": losses}
    if options.get("test"):
        feed = batch(0, 0, 1)
        report["tested"] = exe.run(test, feed=feed, fetch_list=[predicted])[0].tolist()
        scope = rg.static.global_scope()
        values = [scope.find_var(n).get_tensor() for n in ("fc_0.w_0", "fc_2.b_0")]
        report["sum"] = [float(np.asarray(v).sum()) for v in values]
    if workers > 1:
        report["total"] = fleet.util.all_reduce(np.array([worker + 1]), "sum").tolist()
        report["all"] = fleet.util.all_gather(worker)
        fleet.barrier_worker()
    if options.get("save"):
        fleet.save_persistables(exe, options["save"] + "/values")
        fleet.save_inference_model(exe, options["save"] + "/model", ["x"], predicted)
        fleet.barrier_worker()
    if options.get("stop"):
        fleet.stop_worker()
        scope = rg.static.global_scope()
        values = {p.name: scope.find_var(p.name).get_tensor() for p in main.all_parameters()}
        report["params"] = {n: np.asarray(v).ravel().tolist() for n, v in values.items()}
    print(json.dumps(report), flush=True)
"""


def clean_env(**more):
    unwanted = ("PADDLE_", "TRAINING_ROLE", "OMPI_", "PMI_", "SLURM_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    here = os.path.dirname(os.path.dirname(os.path.abspath(regatta.__file__)))
    paths = [p for p in (here, env.get("PYTHONPATH")) if p]
    env.update(REGATTA_START_TIMEOUT="30", PYTHONPATH=os.pathsep.join(paths), **more)
    return env


def ports(n):
    held = [socket.socket() for _ in range(n)]
    for s in held:
        s.bind(("127.0.0.1", 0))
    endpoints = [f"127.0.0.1:{s.getsockname()[1]}" for s in held]
    for s in held:
        s.close()
    return endpoints


class Job:
    """The processes of a job."""

    def __init__(self, tmp_path, script=TRAIN, servers=0, workers=1, **options):
        path = tmp_path / "train.py"
        path.write_text(script)
        self.script, self.folder = str(path), str(tmp_path)
        common = {"OPTIONS": json.dumps(options)}
        endpoints = ports(servers + workers)
        if servers:
            common["PADDLE_PSERVERS_IP_PORT_LIST"] = ",".join(endpoints[:servers])
            common["PADDLE_TRAINERS_NUM"] = str(workers)
        elif workers > 1:
            common["PADDLE_TRAINER_ENDPOINTS"] = ",".join(endpoints)
            common["PADDLE_TRAINERS_NUM"] = str(workers)
        self.servers = [
            self.start(common, TRAINING_ROLE="PSERVER", POD_IP="127.0.0.1",
                       PADDLE_PORT=endpoint.rsplit(":", 1)[1])
            for endpoint in endpoints[:servers]
        ]
        self.workers = []
        for i in range(workers):
            own = {}
            if servers:
                own = {"TRAINING_ROLE": "TRAINER", "PADDLE_TRAINER_ID": str(i)}
            elif workers > 1:
                own = {"PADDLE_TRAINER_ID": str(i), "PADDLE_CURRENT_ENDPOINT": endpoints[i]}
            self.workers.append(self.start(common, **own))

    def start(self, common, **own):
        return subprocess.Popen(
            [sys.executable, self.script], env=clean_env(**common, **own), cwd=self.folder,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )

    def wait(self, limit=60):
        """Exit codes, and what was written, of workers and then servers."""
        out = []
        for process in self.workers + self.servers:
            try:
                text, errors = process.communicate(timeout=limit)
            except subprocess.TimeoutExpired:
                for other in self.workers + self.servers:
                    other.kill()
                raise
            out.append((process.returncode, text, errors))
        return out

    def reports(self):
        out = self.wait()
        assert all(code == 0 for code, _, _ in out), "\n".join(e for _, _, e in out)
        lines = [text.strip().splitlines()[-1] for _, text, _ in out[:len(self.workers)]]
        return [json.loads(line) for line in lines]


def alone(tmp_path, **options):
    folder = tmp_path / "alone"
    folder.mkdir(exist_ok=True)
    return Job(folder, stop=True, **options).reports()[0]


def assert_same_params(a, b, limit=1e-6):
    assert a.keys() == b.keys() and a
    for name in a:
        np.testing.assert_allclose(a[name], b[name], rtol=limit, atol=limit)


def test_alone_without_stop(tmp_path):
    report, = Job(tmp_path).reports()
    assert report["losses"][-1] < report["losses"][0]


def test_sync_servers_equal_one_process_on_the_merged_batch(tmp_path):
    expected = alone(tmp_path)
    job = Job(tmp_path, servers=2, workers=2, strategy={"a_sync": False}, stop=True)
    first, second = job.reports()
    merged = np.mean([first["losses"], second["losses"]], axis=0)
    np.testing.assert_allclose(merged, expected["losses"], rtol=1e-5, atol=1e-6)
    assert_same_params(first["params"], expected["params"])
    assert_same_params(second["params"], expected["params"])
    assert first["total"] == [3] and first["all"] == [0, 1]


@pytest.mark.parametrize("strategy", [
    {"a_sync": True}, {"a_sync": True, "a_sync_configs": {"k_steps": 2}}, {"a_sync": False}])
def test_workers_without_init_and_stop(tmp_path, strategy):
    """The calls of document 004: the first step connects, the end of the script leaves."""
    reports = Job(tmp_path, servers=2, workers=2, strategy=strategy, steps=30, rate=0.02).reports()
    for report in reports:
        # A worker that comes late begins with what others have learned.
        assert report["losses"][-1] < 2.0


def test_ranks_equal_one_process_on_the_merged_batch(tmp_path):
    expected = alone(tmp_path)
    first, second = Job(tmp_path, workers=2, collective=True, stop=True).reports()
    merged = np.mean([first["losses"], second["losses"]], axis=0)
    np.testing.assert_allclose(merged, expected["losses"], rtol=1e-5, atol=1e-6)
    assert first["params"] == second["params"]
    assert_same_params(first["params"], expected["params"])


def test_ranks_leave_at_the_end_of_the_script(tmp_path):
    Job(tmp_path, workers=2, collective=True).reports()


@pytest.mark.parametrize("kind", ["servers", "ranks"])
def test_init_worker_needs_the_startup_program(tmp_path, kind):
    job = {"servers": 1, "workers": 1} if kind == "servers" else {"workers": 2, "collective": True}
    out = Job(tmp_path, early=True, init_worker=True, steps=2, **job).wait()
    for code, text, errors in out[:job["workers"]]:
        assert code == 0, errors
        early = json.loads(text.splitlines()[0])["early"]
        assert "is not initialised: run the startup program first" in early


def test_a_clone_for_tests_sees_the_values_of_the_servers(tmp_path):
    expected = alone(tmp_path, test=True)
    report, = Job(tmp_path, servers=2, workers=1, strategy={"a_sync": False}, test=True).reports()
    np.testing.assert_allclose(report["tested"], expected["tested"], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(report["sum"], expected["sum"], rtol=1e-5, atol=1e-6)


def test_saved_values_are_loaded_by_another_number_of_servers(tmp_path):
    saved = tmp_path / "saved"
    saved.mkdir()
    sync = {"a_sync": False}
    job = Job(tmp_path, servers=2, workers=2, strategy=sync, save=str(saved), stop=True)
    first, _ = job.reports()
    again, = Job(tmp_path, servers=1, workers=1, strategy=sync, load=str(saved / "values"), steps=0,
                 init_worker=True, stop=True).reports()
    assert_same_params(again["params"], first["params"], 1e-7)
    assert (saved / "model").is_dir()


def test_an_exception_of_a_worker_is_heard(tmp_path):
    job = Job(tmp_path, servers=1, workers=2, strategy={"a_sync": False}, fail_at=2, steps=50)
    first, second, server = job.wait()
    assert second[0] == 1 and "a disk is full" in second[2]
    assert first[0] != 0 and "worker 1" in first[2], first[2]
    assert server[0] != 0 and "worker 1" in server[2], server[2]


def test_an_exception_of_a_rank_is_heard(tmp_path):
    first, second = Job(tmp_path, workers=2, collective=True, fail_at=2, steps=50).wait()
    assert second[0] == 1 and "a disk is full" in second[2]
    assert first[0] != 0 and "PeerLost" in first[2] and "rank 1" in first[2], first[2]


def test_ctrl_c_ends_a_server_at_once(tmp_path):
    job = Job(tmp_path, servers=2, workers=1, steps=2)
    server = job.servers[0]
    for line in server.stdout:
        if line.startswith("Server listening on"):
            break
    job.workers[0].send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    server.send_signal(signal.SIGINT)
    began = time.monotonic()
    server.wait(timeout=10)
    took = time.monotonic() - began
    for process in job.workers + job.servers:
        process.kill()
        process.communicate()
    assert took < 0.5
    assert server.returncode != 0


TWICE = """
import numpy as np
import regatta as rg
from regatta.distributed import fleet

for round in range(2):
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        x = rg.static.data("x", [None, 2], "float32")
        y = rg.static.data("y", [None, 1], "float32")
        cost = rg.mean(rg.nn.functional.square_error_cost(rg.static.nn.fc(x, 1), y))
        fleet.init(is_collective=round == 1)
        fleet.distributed_optimizer(rg.optimizer.Adam(0.1))
        ops, pairs = fleet.minimize(cost)
        assert ops and [p.name for p, _ in pairs] == ["fc_0.w_0", "fc_0.b_0"] or len(pairs) == 2
        extra = rg.mean(x)  # programs may grow until they are first run
    scope = rg.static.Scope()
    exe = rg.static.Executor()
    exe.run(startup, scope=scope)
    feed = {"x": np.ones((4, 2), "float32"), "y": np.ones((4, 1), "float32")}
    fetch = [cost, extra]
    losses = [float(exe.run(main, feed=feed, fetch_list=fetch, scope=scope)[0]) for _ in range(40)]
    assert losses[-1] < losses[0] * 0.1, losses
    assert main._fleet_opt == {}
    try:
        fleet.minimize(cost)
    except Exception as error:
        assert "another" in str(error) or "already" in str(error), error
    else:
        raise AssertionError("a second minimize")
print("done")
"""


def test_fleets_one_after_the_other(tmp_path):
    code, text, errors = Job(tmp_path, TWICE).wait()[0]
    assert code == 0, errors
    assert text.endswith("done\n")


ARRAYS = """
import json
import numpy as np
import regatta.distributed as dist

env = dist.init_parallel_env()
rank, out = dist.get_rank(), {}
a = np.array([[1.0, 2.0]], "float32") * (rank + 1)
dist.all_reduce(a)
out["sum"] = a.tolist()
b = np.array([2 ** 60 + rank, -rank], "int64")
dist.all_reduce(b, op=dist.ReduceOp.MAX)
out["max"] = b.tolist()
c = np.full(3, rank, "float64")
dist.broadcast(c, src=1)
out["broadcast"] = c.tolist()
rows = []
dist.all_gather(rows, np.array([rank, 7], "int64"))
out["rows"] = [r.tolist() for r in rows]
objects = []
dist.all_gather_object(objects, {"rank": rank, "text": "x" * rank})
out["objects"] = objects
part = np.zeros(2, "float32")
dist.scatter(part, [np.array([1, 2]), np.array([3, 4])] if rank == 0 else None, src=0)
out["part"] = part.tolist()
dist.reduce_scatter(part, [np.ones(2, "float32"), np.ones(2, "float32") * 5])
out["reduced"] = part.tolist()
got = []
dist.alltoall([np.array([rank * 10]), np.array([rank * 10 + 1])], got)
out["got"] = [int(g[0]) for g in got]
dist.barrier()
out["world"] = [env.nranks, dist.get_world_size(), dist.is_initialized()]
print(json.dumps(out))
"""


def test_arrays_of_ranks(tmp_path):
    first, second = Job(tmp_path, ARRAYS, workers=2).reports()
    for rank, out in enumerate((first, second)):
        assert out["sum"] == [[3.0, 6.0]]
        assert out["max"] == [2 ** 60 + 1, 0]
        assert out["broadcast"] == [1.0, 1.0, 1.0]
        assert out["rows"] == [[0, 7], [1, 7]]
        assert out["objects"] == [{"rank": 0, "text": ""}, {"rank": 1, "text": "x"}]
        assert out["part"] == [[1.0, 2.0], [3.0, 4.0]][rank]
        assert out["reduced"] == [[2.0, 2.0], [10.0, 10.0]][rank]
        assert out["got"] == [rank, 10 + rank]
        assert out["world"] == [2, 2, True]


@pytest.mark.parametrize("module, flags", [
    ("launch_ps", ["--worker_num", "2", "--server_num", "2"]),
    ("launch", ["--worker_num=2", "--server_num=1"]),
    ("fleet.launch", ["--gpus=0,1"]),
])
def test_launch(tmp_path, module, flags):
    (tmp_path / "train.py").write_text(TRAIN)
    options = {"collective": "--gpus=0,1" in flags, "strategy": {"a_sync": False}}
    if options["collective"]:
        del options["strategy"]
    done = subprocess.run(
        [sys.executable, "-m", f"regatta.distributed.{module}", *flags, "train.py"],
        env=clean_env(OPTIONS=json.dumps(options)), cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    logs = "".join(p.read_text() for p in (tmp_path / "log").iterdir())
    assert logs.count('"losses"') == 2


TABLES = """
import json
import os

import numpy as np

import regatta as rg
import regatta.distributed.fleet as fleet

options = json.loads(os.environ.get("OPTIONS", "{}"))
rg.seed(3)
label = rg.static.data("label", [None, 1], "float32")
ids = [rg.static.data(f"id{i}", [None, 1], "int64") for i in range(3)]
table = rg.nn.Embedding(40, 4, sparse=True, weight_attr=rg.ParamAttr(name="table"))
rows = rg.concat([rg.reshape(table(i), [-1, 4]) for i in ids], axis=1)
predicted = rg.nn.Linear(12, 1)(rows)
cost = rg.mean(rg.nn.functional.square_error_cost(predicted, label))
main, startup = rg.static.default_main_program(), rg.static.default_startup_program()
test = main.clone(for_test=True)

fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = options.get("a_sync", False)
fleet.distributed_optimizer(rg.optimizer.Adam(0.01, lazy_mode=True), strategy).minimize(cost)
if fleet.is_server():
    fleet.run_server()
else:
    exe = rg.static.Executor()
    exe.run(startup)
    fleet.init_worker()
    files = fleet.util.get_file_shard(options["files"])
    data = fleet.InMemoryDataset() if options.get("memory") else rg.distributed.QueueDataset()
    data.init(batch_size=8, use_var=[label, *ids], pipe_command=options["pipe"])
    data.set_filelist(files)
    if options.get("memory"):
        data.load_into_memory()
    for epoch in range(3):
        done = exe.train_from_dataset(
            main, data, fetch_list=[cost], fetch_info=["cost"], print_period=2)
    feed = {f"id{i}": np.array([[i], [i + 3]]) for i in range(3)}
    feed["label"] = np.zeros((2, 1), "float32")
    fleet.barrier_worker()
    value = exe.run(test, feed=feed, fetch_list=[predicted])[0]
    again = exe.run(test, feed=feed, fetch_list=[predicted])[0]
    assert np.array_equal(value, again)
    report = {"value": value.ravel().tolist(), "done": list(done)}
    if options.get("save"):
        fleet.save_inference_model(exe, options["save"], ["id0", "id1", "id2"], predicted)
        fleet.save_persistables(exe, options["save"] + "-values")
        fleet.barrier_worker()
        report["shrunk"] = fleet.shrink(100)
    fleet.stop_worker()
    print(json.dumps(report), flush=True)
"""

PIPE = """
import sys
import regatta.distributed.fleet as fleet

class Reader(fleet.MultiSlotDataGenerator):
    def generate_sample(self, line):
        first, *rest = line.split(",")
        yield [("click", [float(first)]), *((f"f{i}", [int(w)]) for i, w in enumerate(rest))]

Reader().run_from_stdin()
"""


def table_files(tmp_path, parts=2):
    (tmp_path / "reader.py").write_text(PIPE)
    rng, files = np.random.RandomState(0), []
    for part in range(parts):
        path = tmp_path / f"part-{part}.csv"
        rows = rng.randint(0, 40, (32, 3))
        path.write_text("".join(f"{sum(r) % 3},{r[0]},{r[1]},{r[2]}\n" for r in rows.tolist()))
        files.append(str(path))
    return {"files": files, "pipe": f"python3.7 {tmp_path}/reader.py"}


@pytest.mark.parametrize("memory", [False, True])
def test_tables_and_datasets(tmp_path, memory):
    """One worker with servers trains as a process alone does, in batches of the same order."""
    options = dict(table_files(tmp_path), memory=memory)
    (tmp_path / "alone").mkdir()
    expected, = Job(tmp_path / "alone", TABLES, **options).reports()
    saved = str(tmp_path / "model")
    report, = Job(tmp_path, TABLES, servers=2, workers=1, save=saved, **options).reports()
    assert report["done"] == expected["done"] == [8, 64]
    np.testing.assert_allclose(report["value"], expected["value"], rtol=1e-4, atol=1e-5)
    model = regatta.Model.open(str(tmp_path / "model"))
    predicted, = model.predict({f"id{i}": np.array([[i], [i + 3]]) for i in range(3)}).values()
    np.testing.assert_allclose(predicted.ravel(), report["value"], rtol=1e-5, atol=1e-6)


def test_two_workers_with_tables(tmp_path):
    options = table_files(tmp_path, 4)
    job = Job(tmp_path, TABLES, servers=1, workers=2, a_sync=True, **options)
    first, second = job.reports()
    np.testing.assert_allclose(first["value"], second["value"], atol=0.1)
    assert first["done"] == second["done"] == [8, 64]


def test_the_launcher_names_the_worker_that_failed(tmp_path):
    (tmp_path / "train.py").write_text(TRAIN)
    options = {"strategy": {"a_sync": False}, "fail_at": 2, "steps": 50}
    done = subprocess.run(
        [sys.executable, "-m", "regatta.distributed.launch_ps", "train.py"],
        env=clean_env(OPTIONS=json.dumps(options)), cwd=tmp_path, capture_output=True, text=True,
        timeout=60, check=False,
    )
    assert done.returncode != 0
    assert "worker 1 failed" in done.stderr and "a disk is full" in done.stdout + done.stderr
