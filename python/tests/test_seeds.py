"""Every code block of the documents that the package serves, run.

Complete blocks are scripts. Fragments run inside a harness that defines the names they use. Blocks
that do not parse, or leave something out, are patched; every patch is in the test of its block.
Addresses become loopback addresses with free ports, folders become those of the test. Processes are
real: ``python`` and ``fleetrun`` are found in a folder where ``paddle`` is Regatta.

The documents are in the folder of the variable REGATTA_SEEDS, or ``../shared/seeds`` beside the
repository. Blocks that use PaddleRec need the variable PADDLEREC, the path of a checkout.
"""
from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import textwrap
import time
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import pytest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import seeds_blocks  # noqa: E402

FOLDER = seeds_blocks.folder()
BLOCKS = seeds_blocks.by_key(FOLDER) if FOLDER else {}
PADDLEREC = os.environ.get("PADDLEREC", "")
#: How every block runs: filled by the tests below.
TABLE: Dict[str, str] = {}

pytestmark = pytest.mark.skipif(
    FOLDER is None, reason="no documents: set REGATTA_SEEDS to the folder that holds them"
)
needs_paddlerec = pytest.mark.skipif(
    not os.path.isdir(os.path.join(PADDLEREC, "tools")) or not PADDLEREC,
    reason="set PADDLEREC to a checkout of PaddleRec",
)


def block(key: str, how: str) -> Callable[[Any], Any]:
    """Says how a block runs."""
    assert key not in TABLE, f"{key} is in the table twice"
    TABLE[key] = how
    return lambda function: function


def test_every_block_has_an_entry() -> None:
    assert set(TABLE) == set(BLOCKS)
    assert len(BLOCKS) == 39


# --- processes -----------------------------------------------------------------------------------


def text_of(key: str, *patches: Tuple[str, str]) -> str:
    """A block, with texts replaced that must occur in it."""
    text = BLOCKS[key].text
    for old, new in patches:
        assert old in text, f"{key} has no {old!r}"
        text = text.replace(old, new)
    return text


def ports(count: int) -> List[int]:
    """Ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def endpoints(count: int) -> str:
    return ",".join(f"127.0.0.1:{port}" for port in ports(count))


@pytest.fixture
def where(tmp_path: Any, monkeypatch: Any) -> Any:
    """A folder with the commands that documents use, and processes that end with the test."""
    return _Place(tmp_path)


class _Place:
    def __init__(self, path: Any) -> None:
        self.path = path
        commands = path / "bin"
        commands.mkdir()
        python = f'exec "{sys.executable}" -m regatta.paddle "$@"\n'
        unbuffered = '[ "$1" = -u ] && shift\nexport PYTHONUNBUFFERED=1\n'
        for name in ("python", "python3", "python3.7"):
            _command(commands / name, unbuffered + python)
        _command(
            commands / "fleetrun",
            f'exec "{sys.executable}" -m regatta.paddle -m paddle.distributed.launch "$@"\n',
        )
        # Documents run bash scripts with `sh`.
        _command(commands / "sh", 'exec bash "$@"\n')

    def write(self, name: str, text: str) -> str:
        path = self.path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    def env(self, **more: Any) -> Dict[str, str]:
        import regatta

        clean = {
            name: value for name, value in os.environ.items()
            if not name.startswith(("PADDLE_", "TRAINING_", "FLAGS_", "REGATTA_", "POD_"))
        }
        clean["PATH"] = f"{self.path / 'bin'}{os.pathsep}{clean.get('PATH', '')}"
        clean["PYTHONPATH"] = os.path.dirname(os.path.dirname(os.path.abspath(regatta.__file__)))
        clean["PYTHONWARNINGS"] = "ignore"
        clean["HOME"] = str(self.path)
        clean.update({name: str(value) for name, value in more.items()})
        return clean

    def run(self, script: str, *args: str, code: int = 0, timeout: float = 120, **env: Any) -> str:
        """The output of a script that ends with a code."""
        return self.shell(f"python {script} {' '.join(args)}", code=code, timeout=timeout, **env)

    def shell(self, line: str, code: int = 0, timeout: float = 120, cwd: Any = None, **env: Any) -> str:
        """The output of shell lines that end with a code."""
        (output,) = self.together([(line, env)], codes=[code], timeout=timeout, cwd=cwd)
        return output

    def together(
        self, lines: Sequence[Tuple[str, Dict[str, Any]]], codes: Optional[Sequence[int]] = None,
        timeout: float = 120, cwd: Any = None,
    ) -> List[str]:
        """The outputs of shell lines that run at the same time."""
        processes, files = [], []
        for at, (line, env) in enumerate(lines):
            files.append(open(self.path / f"output.{at}", "w+", encoding="utf-8"))
            processes.append(subprocess.Popen(
                ["bash", "-c", line], cwd=cwd or self.path, env=self.env(**env), stdout=files[-1],
                stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, start_new_session=True,
            ))
        try:
            end = time.monotonic() + timeout
            for process in processes:
                try:
                    process.wait(max(0.1, end - time.monotonic()))
                except subprocess.TimeoutExpired:
                    pass
            found = [process.poll() for process in processes]
        finally:
            for process in processes:
                if process.poll() is None:
                    os.killpg(process.pid, 9)
                    process.wait()
        outputs = []
        for file in files:
            file.seek(0)
            outputs.append(file.read())
            file.close()
        told = "\n".join(
            f"--- {line} -> {code}\n{output}"
            for (line, _), code, output in zip(lines, found, outputs)
        )
        assert found == list(codes or [0] * len(lines)), told
        return outputs


def _command(path: Any, text: str) -> None:
    path.write_text("#!/bin/bash\n" + text, encoding="utf-8")
    path.chmod(0o755)


# --- harnesses -----------------------------------------------------------------------------------

#: The model of 003's first chapter, before `minimize`, and what reads for it.
MODEL = '''
import os
import sys
import numpy
import paddle.v2 as paddle
import paddle.fluid as fluid

x = fluid.layers.data(name='x', shape=[13], dtype='float32')
y_predict = fluid.layers.fc(input=x, size=1, act=None)
y = fluid.layers.data(name='y', shape=[1], dtype='float32')
cost = fluid.layers.square_error_cost(input=y_predict, label=y)
avg_cost = fluid.layers.mean(x=cost)
sgd_optimizer = fluid.optimizer.SGD(learning_rate=0.01)
train_reader = paddle.batch(
    paddle.reader.shuffle(paddle.dataset.uci_housing.train(), buf_size=500), batch_size=20)
place = fluid.CPUPlace()
feeder = fluid.DataFeeder(place=place, feed_list=[x, y])
exe = fluid.Executor(place)
'''

#: As above, minimized, with the role of this process from its environment.
JOB = MODEL + '''
optimize_ops, params_grads = sgd_optimizer.minimize(avg_cost)
role = training_role = os.environ["ROLE"]
trainer_id = int(os.environ["ID"])
trainers = int(os.environ["TRAINERS"])
pserver = pserver_endpoints = os.environ["SERVERS"]
server_endpoint = current_endpoint = pserver.split(",")[trainer_id % len(pserver.split(","))]

def train_loop(program, run=None):
    exe.run(fluid.default_startup_program())
    for pass_id in range(8):
        for data in train_reader():
            feed = feeder.feed(data)
            loss = run(feed) if run else exe.run(program, feed=feed, fetch_list=[avg_cost])[0]
    print("trained to %.2f" % loss[0])
    assert loss[0] < 150.0, loss
'''


def job_of(where: _Place, script: str, servers: int = 2, trainers: int = 2) -> Tuple[List[str], List[str]]:
    """Outputs of the servers and of the trainers of a script that has a role in its environment."""
    at = endpoints(servers)
    lines = []
    for role, count in (("PSERVER", servers), ("TRAINER", trainers)):
        for index in range(count):
            env = {"ROLE": role, "ID": index, "TRAINERS": trainers, "SERVERS": at,
                   "PADDLE_TRAINING_ROLE": role}
            lines.append((f"python {script}", env))
    outputs = where.together(lines)
    return outputs[:servers], outputs[servers:]


def assert_trained(servers: Sequence[str], trainers: Sequence[str]) -> None:
    assert all("Server listening on 127.0.0.1:" in output for output in servers), servers
    assert all("trained to" in output for output in trainers), trainers


# --- 000: questions about several machines ------------------------------------------------------


@block("000:17", "fragment: a trainer that is stopped and continues from its checkpoint")
def test_000_17(where: _Place) -> None:
    fragment = text_of(
        "000:17", ("Trainer(..., ", "Trainer(train_func, optimizer_func, "),
        ("/tmp/ckpt", "ckpt"),
    )
    script = where.write("train.py", '''
import sys
import paddle.v2 as paddle
import paddle.fluid as fluid
from paddle.fluid import CheckpointConfig, Trainer, EndStepEvent

def train_func():
    x = fluid.layers.data(name='x', shape=[13], dtype='float32')
    y = fluid.layers.data(name='y', shape=[1], dtype='float32')
    y_predict = fluid.layers.fc(input=x, size=1)
    return fluid.layers.mean(fluid.layers.square_error_cost(input=y_predict, label=y))

def optimizer_func():
    return fluid.optimizer.SGD(learning_rate=0.01)

steps = []
def handler(event):
    if isinstance(event, EndStepEvent):
        steps.append((event.epoch, event.step, float(event.metrics[0])))
        if len(steps) == int(sys.argv[1]):
            trainer.stop()

''' + fragment + '''
trainer.train(3, handler, paddle.batch(paddle.dataset.uci_housing.train(), 20), ['x', 'y'])
print("first", steps[0][:2], "loss", steps[0][2], "last", steps[-1][:2])
''')
    first = where.run(script, "15")
    assert "first (0, 0)" in first and "last (0, 14)" in first
    assert sorted(os.listdir(where.path / "ckpt")) == [
        "checkpoint_0", "checkpoint_1", "trainer_0.0.json", "trainer_0.1.json"]
    # Checkpoints follow the steps 0 and 10: training continues with step 11.
    again = where.run(script, "1000")
    assert "first (0, 11)" in again and "last (2, 20)" in again
    assert float(re.search(r"loss ([\d.]+)", again)[1]) < float(re.search(r"loss ([\d.]+)", first)[1])
    assert len([n for n in os.listdir(where.path / "ckpt") if n.startswith("checkpoint_")]) == 2


@block("000:59", "fragment: 2 servers and 2 trainers; memory is optimized before transpile")
def test_000_59(where: _Place) -> None:
    fragment = text_of(
        "000:59",
        ("    # start pserver here", "    serve()"), ("    # start trainer here", "    train()"),
    )
    script = where.write("train.py", JOB + '''
def serve():
    program = t.get_pserver_program(current_endpoint)
    exe.run(t.get_startup_program(current_endpoint, program))
    exe.run(program)

def train():
    train_loop(t.get_trainer_program())

''' + fragment)
    assert_trained(*job_of(where, script))


@block("000:82", "fragment: 2 servers and 4 trainers, ids and addresses replaced")
def test_000_82(where: _Place) -> None:
    fragment = text_of(
        "000:82",
        ('"192.168.0.1:6174,192.168.0.2:6174"', "os.environ['SERVERS']"),
        ('current_endpoint = "192.168.0.1:6174"', "current_endpoint = server_endpoint"),
        ("trainer_id = 0", "trainer_id = int(os.environ['ID'])"),
    )
    script = where.write("train.py", JOB + fragment + '''
if role == "PSERVER":
    exe.run(pserver_startup_program)
    exe.run(pserver_program)
else:
    train_loop(trainer_program)
''')
    assert_trained(*job_of(where, script, trainers=4))


@block("000:135", "fragment: one machine")
def test_000_135(where: _Place) -> None:
    script = where.write("train.py", MODEL + '''
sgd_optimizer.minimize(avg_cost)
cpu = fluid.CPUPlace()
train_data = numpy.random.rand(8, 13).astype('float32')
y_true = numpy.random.rand(8, 1).astype('float32')
''' + text_of("000:135") + '''
assert outs[0].shape == (8, 1) and outs[1].shape == (1,), outs
print("done")
''')
    assert "done" in where.run(script)


@block("000:150", "after the program that it feeds: two unequal parts of a batch")
def test_000_150(where: _Place) -> None:
    script = where.write("train.py", '''
import paddle.fluid as fluid
image = fluid.layers.data(name="image", shape=[3, 224, 224], dtype="float32")
label = fluid.layers.data(name="label", shape=[1], dtype="int64")
prediction = fluid.layers.fc(fluid.layers.reshape(image, [-1, 3 * 224 * 224]), 10, act="softmax")
loss = fluid.layers.mean(fluid.layers.cross_entropy(prediction, label))
fluid.optimizer.SGD(learning_rate=1e-5).minimize(loss)
fluid.Executor().run(fluid.default_startup_program())
before = fluid.global_scope().find_var("fc_0.b_0").get_tensor().numpy()
''' + text_of("000:150") + '''
after = fluid.global_scope().find_var("fc_0.b_0").get_tensor().numpy()
assert (before != after).any(), "nothing was trained"
print("done")
''')
    assert "done" in where.run(script)


#: 000:176: an `if` that all roles pass, and its body under it.
PATCH_176 = (
    ('if training_role == "PSERVER":\n        place', 'if training_role:\n    place'),
)


@block("000:176", "fragment, 2 lines repaired: alone, and 2 servers and 2 trainers")
def test_000_176(where: _Place) -> None:
    script = where.write("train.py", JOB + '''
is_local = not pserver
pserver_ips, port = "127.0.0.1", pserver.rpartition(":")[2]
''' + text_of("000:176", *PATCH_176))
    (alone,) = where.together([
        (f"python {script}", {"ROLE": "TRAINER", "ID": 0, "TRAINERS": 1, "SERVERS": ""})])
    assert "trained to" in alone
    servers, trainers = job_of(where, script, servers=1)
    assert_trained(servers, trainers)
    for text in ("start pserver...", "pserver start up ok: program pserver_startup", "pserver ended"):
        assert text in servers[0]


@block("000:221", "fragment, 1 line indented: the trainers of 2 servers use ParallelExecutor")
def test_000_221(where: _Place) -> None:
    fragment = textwrap.dedent(text_of("000:221", (" if args", "    if args")))
    script = where.write("train.py", JOB + '''
t = fluid.DistributeTranspiler()
t.transpile(trainer_id, pservers=pserver_endpoints, trainers=trainers)
if role == "PSERVER":
    program = t.get_pserver_program(current_endpoint)
    exe.run(t.get_startup_program(current_endpoint, program))
    exe.run(program)
    sys.exit()

class args:
    update_method = "pserver"

avg_loss, train_prog = avg_cost, t.get_trainer_program()
strategy, build_strategy = fluid.ExecutionStrategy(), fluid.BuildStrategy()
startup_exe = exe
''' + fragment + '''
parallel, exe = exe, startup_exe
train_loop(None, lambda feed: parallel.run(fetch_list=[avg_loss.name], feed=feed)[0])
''')
    assert_trained(*job_of(where, script))


# --- 002: questions about fleet -----------------------------------------------------------------


@block("002:43", "complete: alone")
def test_002_43(where: _Place) -> None:
    script = where.write("train.py", text_of("002:43") + "print(fleet.worker_num())\n")
    assert where.run(script).splitlines()[-1] == "1"


@block("002:87", "fragment, 2 lines repaired")
def test_002_87(where: _Place) -> None:
    script = where.write("train.py", text_of(
        "002:87", ("fleet a fleet", "fleet as fleet"), ("Distributedstrategy", "DistributedStrategy"),
    ) + '''
assert strategy.recompute is True
assert strategy.recompute_configs["checkpoints"] == ["x", "y"], strategy.recompute_configs
print("done")
''')
    assert "done" in where.run(script)


def test_002_dynamic(where: _Place) -> None:
    """What the answers about dynamic graphs say in their sentences, by the command they give."""
    script = where.write("train.py", '''
import numpy as np
import paddle
import paddle.distributed as dist
import paddle.fluid as fluid

dist.init_parallel_env()
fluid.dygraph.prepare_context()
net = paddle.DataParallel(paddle.vision.models.LeNet())
optimizer = paddle.optimizer.Adam(0.001, parameters=net.parameters())
images = np.random.RandomState(dist.get_rank()).rand(4, 1, 28, 28).astype("float32")
x, y = paddle.to_tensor(images), paddle.to_tensor(np.arange(4).reshape(4, 1))
for step in range(2):
    loss = net.scale_loss(paddle.nn.functional.cross_entropy(net(x), y))
    loss.backward()
    net.apply_collective_grads()
    optimizer.step()
    optimizer.clear_grad()
net.eval()
with paddle.no_grad():
    assert net(x).stop_gradient
if dist.get_rank() == 0:
    paddle.save(net.state_dict(), "lenet.pdparams")
    paddle.save(optimizer.state_dict(), "lenet.pdopt")
    paddle.jit.save(net, "lenet", [paddle.static.InputSpec([None, 1, 28, 28], "float32")])
dist.barrier()
net.set_state_dict(paddle.load("lenet.pdparams"))
loaded = paddle.jit.load("lenet")
np.testing.assert_allclose(loaded(x).numpy(), net(x).numpy(), atol=1e-5)
print("ranks", dist.get_world_size())
''')
    logs = _with_logs(where, where.shell(f'python3 -m paddle.distributed.launch --gpus="1, 3" {script}'))
    assert logs.count("ranks 2") >= 2, logs[-3000:]


# --- 003: the guide of Fluid --------------------------------------------------------------------


@block("003:14", "not applicable: cmake options of Paddle's own build")
def test_003_14() -> None:
    assert text_of("003:14").startswith("cmake ")


@block("003:21", "complete: alone, until the loss is below 10")
def test_003_21(where: _Place) -> None:
    where.run(where.write("fit_a_line.py", text_of("003:21")))
    assert os.listdir(where.path / "fit_a_line.model") == ["persistables.safetensors"]


@block("003:70", "fragment: one machine")
def test_003_70(where: _Place) -> None:
    script = where.write("train.py", MODEL + text_of("003:70") + '''
print([op.type for op in optimize_ops], [(p.name, g.name) for p, g in params_grads])
''')
    output = where.run(script)
    assert "['sgd', 'sgd']" in output and "('fc_0.w_0', 'fc_0.w_0@GRAD')" in output


@block("003:74", "fragment: its parts on 2 servers and 2 trainers; the steps get a feed")
def test_003_74(where: _Place) -> None:
    fragment = text_of(
        "003:74",
        ("exe.run(t.get_trainer_program())",
         "loss, = exe.run(t.get_trainer_program(), feed=feeder.feed(data), fetch_list=[avg_cost])"),
    )
    head, rest = fragment.split("# in pserver, run this\n")
    server, trainer = rest.split("# in trainer, run this\n")
    script = where.write("train.py", MODEL + '''
pserver_endpoints = os.environ["SERVERS"]
current_endpoint = pserver_endpoints.split(",")[int(os.environ["ID"])]
os.environ["PADDLE_TRAINER_ID"] = os.environ["ID"]
''' + head + '''
if os.environ["ROLE"] == "PSERVER":
''' + textwrap.indent(server, "    ") + '''
else:
''' + textwrap.indent(trainer, "    ") + '''
    assert loss[0] < 30.0, loss
    print("trained to %f" % loss[0])
''')
    assert_trained(*job_of(where, script))


@block("003:148", "fragment: 2 servers and 2 trainers")
def test_003_148(where: _Place) -> None:
    script = where.write("train.py", JOB + text_of("003:148") + '''
    exe.run(pserver_startup)
    exe.run(pserver_prog)
else:
    train_loop(t.get_trainer_program())
''')
    assert_trained(*job_of(where, script))


#: What 003 calls test_fit_a_line.py: the first chapter of the book, with the cluster by variables.
TEST_FIT_A_LINE = MODEL.replace("learning_rate=0.01", "learning_rate=0.001") + '''
sgd_optimizer.minimize(avg_cost)

def train_loop(main_program):
    exe.run(fluid.default_startup_program())
    for pass_id in range(100):
        for data in train_reader():
            avg_loss_value, = exe.run(main_program, feed=feeder.feed(data), fetch_list=[avg_cost])
    print("trained to %f" % avg_loss_value[0])

port = os.getenv("PADDLE_PSERVER_PORT", "6174")
pserver_ips = os.getenv("PADDLE_PSERVER_IPS")
pserver_endpoints = ",".join(ip + ":" + port for ip in pserver_ips.split(","))
trainers = int(os.getenv("PADDLE_TRAINERS"))
current_endpoint = os.getenv("PADDLE_CURRENT_IP", "") + ":" + port
trainer_id = int(os.getenv("PADDLE_TRAINER_ID"))
training_role = os.getenv("PADDLE_TRAINING_ROLE", "TRAINER")
t = fluid.DistributeTranspiler()
t.transpile(trainer_id, pservers=pserver_endpoints, trainers=trainers)
if training_role == "PSERVER":
    pserver_prog = t.get_pserver_program(current_endpoint)
    exe.run(t.get_startup_program(current_endpoint, pserver_prog))
    exe.run(pserver_prog)
elif training_role == "TRAINER":
    train_loop(t.get_trainer_program())
'''

@block("003:165", "shell: the folder of the demo, that of the test")
@block("003:170", "shell: the server of a job, its address replaced")
@block("003:176", "shell: the trainers of that job, as printed and with the id 0")
def test_003_165_170_176(where: _Place) -> None:
    where.write("test_fit_a_line.py", TEST_FIT_A_LINE)
    (port,) = ports(1)
    to_folder = text_of("003:165", ("/paddle/python/paddle/fluid/tests/book", str(where.path)))
    server = text_of("003:170", ("192.168.1.2", "127.0.0.1"), ("6174", str(port)))
    trainer = text_of("003:176", ("192.168.1.3", "127.0.0.1"), ("6174", str(port)))
    other = trainer.replace("PADDLE_TRAINER_ID=1", "PADDLE_TRAINER_ID=0")
    outputs = where.together([(to_folder + line, {}) for line in (server, trainer, other)], cwd="/")
    assert f"Server listening on 127.0.0.1:{port}" in outputs[0]
    assert all("trained to" in output for output in outputs[1:])


# --- 004: the fleet API -------------------------------------------------------------------------


def quickstart(where: _Place) -> None:
    where.write("nets.py", text_of("004:21"))
    where.write("utils.py", text_of("004:36"))


def steps_of(output: str) -> List[Tuple[int, float]]:
    return [(int(s), float(c)) for s, c in re.findall(r"step(\d+) cost ?= ?([\d.]+)", output)]


@block("004:21", "complete: nets.py of the scripts below")
@block("004:36", "complete: utils.py of the scripts below")
@block("004:47", "complete: alone")
def test_004_47(where: _Place) -> None:
    quickstart(where)
    steps = steps_of(where.run(where.write("trainer.py", text_of("004:47"))))
    assert [step for step, _ in steps] == list(range(1001))
    assert 0.4 < steps[-1][1] < 0.9


@block("004:73", "complete: alone, and with 2 servers and 2 workers")
@block("004:226", "shell: the launcher of 004:73, as printed")
def test_004_73_226(where: _Place) -> None:
    quickstart(where)
    script = where.write("trainer.py", text_of("004:73"))
    assert len(steps_of(where.run(script))) == 1001
    output = where.shell(text_of("004:226"))
    logs = output + "".join(
        path.read_text() for path in where.path.rglob("*log*") if path.is_file())
    for worker in (0, 1):
        assert f"worker_index: {worker}, step1000 cost = " in logs


@block("004:122", "complete: alone, and as 2 ranks")
@block("004:247", "shell: the launcher of 004:122, as printed")
def test_004_122_247(where: _Place) -> None:
    quickstart(where)
    script = where.write("trainer.py", text_of("004:122"))
    assert len(steps_of(where.run(script))) == 1001
    assert "step1000 cost" in _with_logs(where, where.shell(text_of("004:247")))
    # Document 002 starts two ranks so.
    _remove_logs(where)
    logs = _with_logs(where, where.shell("python -m paddle.distributed.launch --gpus=0,1 trainer.py"))
    for worker in (0, 1):
        assert f"worker_index: {worker}, step1000 cost = " in logs


def _with_logs(where: _Place, output: str) -> str:
    return output + "".join(p.read_text() for p in where.path.rglob("*log*") if p.is_file())


def _remove_logs(where: _Place) -> None:
    for path in list(where.path.rglob("*log*")):
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)


SHOW = '''
print("server" if fleet.is_server() else "worker", fleet.worker_num(), fleet.server_num())
'''


@block("004:212", "complete: alone, and as the processes of launch_ps")
def test_004_212(where: _Place) -> None:
    script = where.write("trainer.py", text_of("004:212") + SHOW)
    assert "worker 1 0" in where.run(script)
    logs = _with_logs(where, where.shell(text_of("004:226"), code=_ANY))
    assert "server 2 2" in logs and "worker 2 2" in logs


@block("004:233", "complete: alone, and as 2 ranks")
def test_004_233(where: _Place) -> None:
    script = where.write("trainer.py", text_of("004:233") + SHOW)
    assert "worker 1 0" in where.run(script)
    logs = _with_logs(where, where.shell("python -m paddle.distributed.launch --gpus=0,1 trainer.py"))
    assert "worker 2 0" in logs


@block("004:261", "complete: alone, as the first of two servers")
def test_004_261(where: _Place) -> None:
    script = where.write("trainer.py", text_of("004:261") + SHOW + '''
print(fleet.server_endpoints(), fleet.server_index())
''')
    output = where.run(script)
    assert "server 2 2" in output and "['127.0.0.1:36011', '127.0.0.1:36012'] 0" in output


class _Any(int):
    """A code that equals all."""

    def __eq__(self, other: object) -> bool:
        return True

    __hash__ = int.__hash__


_ANY = _Any(0)


# --- 001: PaddleRec -----------------------------------------------------------------------------


def merged(key: str, config: Any) -> None:
    """Puts the keys of a YAML block into a configuration file. `...` stands for those that are
    there already."""
    yaml = pytest.importorskip("yaml")
    wanted = yaml.safe_load(re.sub(r"(?m)^\s*\.\.\.\s*$", "", text_of(key)))
    found = yaml.safe_load(config.read_text(encoding="utf-8"))
    for section, values in wanted.items():
        found[section].update(values)
    config.write_text(yaml.safe_dump(found, allow_unicode=True), encoding="utf-8")


def paddlerec(where: _Place, model: str) -> Any:
    """A copy of PaddleRec's tools and of a model in the folder of the test; the model's folder."""
    pytest.importorskip("six", reason="PaddleRec's tools need the package six")
    leave = shutil.ignore_patterns("__pycache__", "*.png", "*.md", "output_model*")
    shutil.copytree(os.path.join(PADDLEREC, "tools"), where.path / "tools", ignore=leave)
    folder = where.path / "models" / model
    shutil.copytree(os.path.join(PADDLEREC, "models", model), folder, ignore=leave)
    return folder


def resolved(where: _Place, config: Any, **env: Any) -> Dict[str, Any]:
    """The configuration that `regatta train` trains with."""
    import yaml

    return yaml.safe_load(where.shell(
        f'"{sys.executable}" -m regatta train -m {config} --print-config 2>/dev/null', **env))


def criteo_lines(count: int) -> str:
    """Lines of the click log that benchmark_reader.py reads."""
    import random

    made = random.Random(1)
    lines = []
    for _ in range(count):
        ids = [f"{made.randrange(50):08x}" for _ in range(26)]
        label = int(ids[0] < f"{15:08x}")
        numbers = [str(made.randrange(10)) for _ in range(13)]
        lines.append("\t".join([str(label), *numbers, *ids]))
    return "\n".join(lines) + "\n"


@needs_paddlerec
@block("001:28", "YAML: in rank/dnn's configuration, resolved by regatta train")
def test_001_28(where: _Place) -> None:
    config = paddlerec(where, "rank/dnn") / "config.yaml"
    merged("001:28", config)
    runner = resolved(where, config)["runner"]
    assert (runner["sync_mode"], runner["reader_type"]) == ("async", "QueueDataset")
    assert (runner["thread_num"], runner["split_file_list"]) == (1, False)
    assert runner["pipe_command"] == "python benchmark_reader.py"
    runner = resolved(where, f"{config} -o runner.sync_mode=geo")["runner"]
    assert (runner["sync_mode"], runner["geo_step"]) == ("geo", 400)


def ps_workspace(where: _Place) -> None:
    folder = paddlerec(where, "rank/dnn")
    merged("001:28", folder / "config.yaml")
    # The command of 001:28 names a file of the folder in which training is started.
    shutil.copy(folder / "benchmark_reader.py", where.path)
    # Its hash function, of which any will do.
    where.write("xxhash.py", """
import zlib

class xxh32:
    def __init__(self, text):
        self.text = text

    def intdigest(self):
        return zlib.crc32(self.text.encode())
""")
    data = folder / "data" / "sample_data" / "train"
    shutil.rmtree(data)
    data.mkdir()
    for part in range(2):
        (data / f"part-{part}").write_text(criteo_lines(40))


@needs_paddlerec
@block("001:45", "shell: as printed, with the keys of 001:28 and lines that its reader reads")
def test_001_45(where: _Place) -> None:
    ps_workspace(where)
    logs = _with_logs(where, where.shell(text_of("001:45"), timeout=300))
    assert re.search(r"Epoch: 2, .*auc", logs), logs[-3000:]


@needs_paddlerec
@block("001:53", "shell: 2 servers and 2 workers, their addresses replaced")
def test_001_53(where: _Place) -> None:
    ps_workspace(where)
    # Workers of different machines make this folder; two of one machine would race for it.
    (where.path / "output_model_dnn").mkdir()
    line = text_of(
        "001:53",
        ('--workers="ip1:port1,ip2:port2...ipN:portN"', f'--workers="{endpoints(2)}"'),
        ('--servers="ip1:port1,ip2:port2...ipN:portN"', f'--servers="{endpoints(2)}"'),
    )
    logs = _with_logs(where, where.shell(line, timeout=300))
    assert re.search(r"Epoch: 2, .*auc", logs), logs[-3000:]


@needs_paddlerec
@block("001:68", "YAML: in rank/wide_deep's configuration, resolved by regatta train")
def test_001_68(where: _Place) -> None:
    config = paddlerec(where, "rank/wide_deep") / "config.yaml"
    merged("001:68", config)
    # Nothing is trained on devices that are not there, unless the user says so.
    refused = where.shell(f'"{sys.executable}" -m regatta train -m {config}', code=_ANY)
    assert "runner.use_gpu: True cannot be honoured" in refused
    runner = resolved(where, f"{config} -o runner.use_gpu=False")["runner"]
    assert runner["use_fleet"] is True


def lines_of(key: str, *patches: Tuple[str, str]) -> Tuple[str, str]:
    """The two commands of a block: with dynamic and with static graphs."""
    lines = [line for line in text_of(key, *patches).splitlines() if line.startswith("python ")]
    dynamic, static = lines
    assert "/trainer.py" in dynamic and "/static_trainer.py" in static
    return dynamic, static


#: 001:111: one machine, two ranks.
PATCH_111 = (("xx.xx.xx.xx,yy.yy.yy.yy", "127.0.0.1"), ("0,1,2,3,4,5,6,7", "0,1"))


def ranks_workspace(where: _Place) -> Any:
    folder = paddlerec(where, "rank/wide_deep")
    merged("001:68", folder / "config.yaml")
    # Its reader deals files to ranks, and the sample is one file.
    (sample,) = (folder / "data" / "sample_data" / "train").iterdir()
    shutil.copy(sample, sample.with_name("other.txt"))
    return folder


@needs_paddlerec
@block("001:87", "shell: both lines, in the folder of wide_deep")
def test_001_87(where: _Place) -> None:
    folder = ranks_workspace(where)
    logs = _with_logs(where, where.shell(lines_of("001:87")[1], cwd=folder, timeout=300))
    assert re.search(r"epoch: 2 done", logs), logs[-3000:]


@needs_paddlerec
@block("001:111", "shell: both lines, 2 ranks of one machine")
def test_001_111(where: _Place) -> None:
    folder = ranks_workspace(where)
    line = lines_of("001:111", *PATCH_111)[1]
    logs = _with_logs(where, where.shell(line, cwd=folder, timeout=300))
    assert re.search(r"epoch: 2 done", logs), logs[-3000:]


@needs_paddlerec
@pytest.mark.parametrize("key", ["001:87", "001:111"])
def test_001_dynamic(where: _Place, key: str) -> None:
    folder = ranks_workspace(where)
    line = lines_of(key, *(PATCH_111 if key == "001:111" else ()))[0]
    logs = _with_logs(where, where.shell(line, cwd=folder, timeout=300))
    assert re.search(r"epoch: 2 done", logs), logs[-3000:]
    if key == "001:111":
        assert "rank 1 of 2 connected" in logs


@block("001:95", "fragment: a method of a model, alone and as 2 ranks")
def test_001_95(where: _Place) -> None:
    script = where.write("train.py", '''
import sys
import numpy as np
import paddle
import paddle.distributed.fleet as fleet

class StaticModel:
    learning_rate = 0.01

    def net(self):
        x = paddle.static.data("x", [None, 4], "float32")
        self._cost = paddle.mean(paddle.square(paddle.static.nn.fc(x, 1) - 1.0))

''' + textwrap.indent(text_of("001:95"), "    ") + '''
paddle.enable_static()
model = StaticModel()
model.net()
strategy = None
if len(sys.argv) > 1:
    strategy = fleet.DistributedStrategy()
    fleet.init(is_collective=True, strategy=strategy)
model.create_optimizer(strategy)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
costs = [float(exe.run(feed={"x": np.ones((8, 4), "float32")}, fetch_list=[model._cost])[0])
         for step in range(200)]
assert costs[-1] < 0.1 * costs[0] or costs[-1] < 1e-3, costs
print("done", fleet.worker_num() if strategy else 1)
''')
    assert "done 1" in where.run(script)
    logs = _with_logs(where, where.shell(
        "python -m paddle.distributed.launch --gpus=0,1 train.py fleet"))
    assert logs.count("done 2") >= 2


@needs_paddlerec
@block("001:131", "YAML: in rank/dnn's configuration, which run_gpubox.sh trains in 001:174")
@block("001:142", "YAML: as 001:131")
@block("001:174", "shell: as printed, with the lines of 001:180 in the script")
@block("001:180", "shell: in the place of the same lines of run_gpubox.sh, with a free port")
def test_001_gpubox(where: _Place) -> None:
    folder = paddlerec(where, "rank/dnn")
    config = folder / "config_gpubox.yaml"
    merged("001:131", config)
    merged("001:142", config)
    script = where.path / "tools" / "run_gpubox.sh"
    printed = script.read_text(encoding="utf-8")
    (port,) = ports(1)
    # What 001:180 shows are lines of the script: with a free port they go where they are.
    for line in text_of("001:180").splitlines():
        assert line in printed, line
        printed = printed.replace(line, line.replace("29011", str(port)))
    script.write_text(printed, encoding="utf-8")
    where.shell(text_of("001:174"), timeout=300)
    log = (where.path / "log" / "worker.0.log").read_text(encoding="utf-8")
    assert "Epoch: 2, using time" in log and "Run Success, Exit." in log, log[-3000:]
    server = (where.path / "log" / "pserver.0.log").read_text(encoding="utf-8")
    assert f"Server listening on 127.0.0.1:{port}" in server, server[-3000:]


@block("001:152", "fragment: a method of a layer, alone and with 2 servers and 2 workers")
def test_001_152(where: _Place) -> None:
    script = where.write("train.py", '''
import sys
import numpy as np
import paddle
import paddle.fluid
import paddle.distributed.fleet as fleet

class Net:
    sync_mode, sparse_feature_number, sparse_feature_dim = "gpubox", 1000, 4

''' + textwrap.indent(text_of("001:152"), "    ") + '''
      return paddle.static.nn.fc(paddle.concat(sparse_embs + [dense_inputs], axis=1), 1)

paddle.enable_static()
slots = [paddle.static.data("C%d" % i, [None, 1], "int64") for i in range(3)]
dense = paddle.static.data("dense", [None, 2], "float32")
label = paddle.static.data("label", [None, 1], "float32")
score = Net().forward(slots, dense)
cost = paddle.mean(paddle.nn.functional.square_error_cost(score, label))
fleet.init()
strategy = fleet.DistributedStrategy()
strategy.a_sync = False
fleet.distributed_optimizer(paddle.optimizer.SGD(0.1), strategy).minimize(cost)
if fleet.is_server():
    fleet.init_server()
    fleet.run_server()
    sys.exit()
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
fleet.init_worker()
made = np.random.RandomState(fleet.worker_index())
for step in range(200):
    ids = made.randint(0, 20, (3, 16, 1)).astype("int64")
    feed = {"C%d" % i: ids[i] for i in range(3)}
    feed.update(dense=made.rand(16, 2).astype("float32"), label=(ids[0] % 2).astype("float32"))
    loss, = exe.run(feed=feed, fetch_list=[cost])
assert loss[0] < 0.2, loss
print("done %d of %d" % (fleet.worker_index(), fleet.worker_num()))
fleet.stop_worker()
''')
    assert "done 0 of 1" in where.run(script)
    logs = _with_logs(where, where.shell(
        "python -m paddle.distributed.launch_ps --worker_num 2 --server_num 2 train.py"))
    assert "done 0 of 2" in logs and "done 1 of 2" in logs
