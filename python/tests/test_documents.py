"""The code of the documents runs and prints what they say, and every name in them exists."""
import os
import re
import socket
import subprocess
import sys
import textwrap
from operator import attrgetter

import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))
DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
README = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "README.md")


def text_of(name):
    path = README if name == "README.md" else os.path.join(DOCS, name)
    with open(path, encoding="utf-8") as file:
        return file.read()


def blocks(name):
    """The fenced blocks of a document: language and text."""
    return re.findall(r"^```(\w+)\n(.*?)^```$", text_of(name), re.M | re.S)


def python_blocks(name):
    """Every block of Python, with the block of text that follows it, if there is one."""
    found = blocks(name)
    after = [*found[1:], ("", "")]
    return [(text, next_text if kind == "text" else None)
            for (language, text), (kind, next_text) in zip(found, after) if language == "python"]


def run(arguments, folder, check=True):
    environment = {
        key: value for key, value in os.environ.items()
        if not key.startswith(("PADDLE_", "TRAINING_", "REGATTA_", "POD_", "CPU_NUM"))}
    environment.update(PYTHONPATH=ROOT, PATH=f"{folder}/bin{os.pathsep}{os.environ['PATH']}")
    done = subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=120)
    assert not check or done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def scripts(folder):
    """`python` and `regatta` of this environment."""
    (folder / "bin").mkdir()
    for name, words in (("python", ""), ("regatta", "-m regatta")):
        path = folder / "bin" / name
        path.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
        path.chmod(0o755)


# --- docs/python.md --------------------------------------------------------------------------------


def test_the_first_network(tmp_path):
    code = next(text for text, _ in python_blocks("python.md") if "LeNet" in text)
    # A part of the data: the loss is smaller all the same.
    (tmp_path / "first.py").write_text(code.replace("size=2000", "size=640"))
    lines = run([sys.executable, "first.py"], tmp_path).splitlines()
    losses = [float(line.split(" loss ")[1]) for line in lines]
    assert len(losses) == 3 and losses[2] < losses[0]
    assert (tmp_path / "lenet.pdparams").exists()


def test_a_network_on_ranks(tmp_path):
    code = next(text for text, _ in python_blocks("python.md") if "rg.DataParallel" in text)
    commands = re.findall(r"`((?:regatta|python -m) [\w.]*launch [^`]*train.py)`", text_of("python.md"))
    commands = [c for c in commands if "nproc_per_node 2" in c or "--gpus 0,1" in c]
    assert len(commands) >= 2
    scripts(tmp_path)
    (tmp_path / "train.py").write_text(code)
    assert re.match(r"rank 0 of 1: loss \d", run([sys.executable, "train.py"], tmp_path))
    for command in sorted(set(commands)):
        out = run(["bash", "-c", command], tmp_path)
        assert len(set(re.findall(r"rank \d of 2: loss \d\.\d\de[-+]\d\d", out))) == 2, out


def test_the_first_program(tmp_path):
    code, expected = next(pair for pair in python_blocks("python.md") if '"line"' in pair[0])
    (tmp_path / "first.py").write_text(code)
    assert run([sys.executable, "first.py"], tmp_path) == expected


def test_ten_lines_run_as_their_commands_say(tmp_path):
    code = next(text for text, _ in python_blocks("python.md") if "fleet.stop_worker" in text)
    commands = next(text for kind, text in blocks("python.md") if kind == "sh" and "alone" in text)
    scripts(tmp_path)
    (tmp_path / "train.py").write_text(code)
    seen = set()
    for command in commands.splitlines():
        out = run(["bash", "-c", command], tmp_path)
        seen.update(re.findall(r"worker \d of \d: cost \d\.\d\de-\d\d", out))
    assert len(seen) == 3, seen
    ranks = code.replace("fleet.init() ", "fleet.init(is_collective=True) ")
    (tmp_path / "train.py").write_text(ranks)
    out = run(["bash", "-c", "regatta launch --nproc_per_node 2 train.py"], tmp_path)
    assert len(set(re.findall(r"worker \d of 2: cost \d\.\d\de-\d\d", out))) == 2, out


def test_a_configuration(tmp_path):
    code = next(text for text, _ in python_blocks("python.md") if "rg.train(" in text)
    path, = re.findall(r'"(models/.*?)"', code)
    code = code.replace(path, os.path.join(os.path.dirname(DOCS.rstrip("/")), path))
    code = "import regatta as rg\n" + code.replace(
        '"runner.epochs": 1', f'"runner.epochs": 1, "runner.model_save_path": "{tmp_path}/out"')
    (tmp_path / "train.py").write_text(code)
    out = run([sys.executable, "train.py"], tmp_path)
    assert "epoch: 0 done" in out and "TrainReport: dnn" in out and "examples/s" in out


def test_the_program_of_the_package(tmp_path):
    (code, _), = python_blocks("README.md")
    (tmp_path / "readme.py").write_text(code)
    assert float(run([sys.executable, "readme.py"], tmp_path).strip("[]\n ")) < 1e-3


# --- docs/faq.md -----------------------------------------------------------------------------------

FLUID = """
import sys
import numpy as np
import paddle.fluid as fluid


def train():
    x = fluid.layers.data(name="x", shape=[2], dtype="float32")
    y = fluid.layers.data(name="y", shape=[1], dtype="float32")
    cost = fluid.layers.square_error_cost(input=fluid.layers.fc(input=x, size=1), label=y)
    return fluid.layers.mean(cost)


def optimizer():
    return fluid.optimizer.SGD(learning_rate=0.1)


def rows(n):
    return np.ones((n, 2), "float32"), np.ones((n, 1), "float32")
"""

FAQ = {
    "CheckpointConfig": """
{code}
assert config.max_num_checkpoints == 2
assert isinstance(trainer, fluid.Trainer)
""",
    "DistributeTranspiler": """
role, endpoints, trainer_id, current_endpoint = sys.argv[1:]
trainer_id = int(trainer_id)
exe = fluid.Executor(fluid.CPUPlace())
loss = train()
optimizer().minimize(loss)
x, y = rows(4)
{code}
if role == "TRAINER":
    exe.close()
""",
    "ParallelExecutor": """
loss = train()
program = fluid.default_main_program()
fluid.Executor(fluid.CPUPlace()).run(fluid.default_startup_program())
(a, b), (c, d) = rows(3), rows(5)
{code}
""",
}


def faq_script(folder, name, patches=()):
    code = next(text for text, _ in python_blocks("faq.md") if name in text)
    for old, new in patches:
        assert old in code
        code = code.replace(old, new)
    (folder / "faq.py").write_text(FLUID + FAQ[name].format(code=code))


def test_both_languages_have_the_same_code():
    def code(name):
        return [re.sub(r"  +#.*", "", text) for _, text in blocks(name)]

    assert code("faq.md") == code("faq.zh-CN.md")
    questions = [len(re.findall(r"^\*\*", text_of(n), re.M)) for n in ("faq.md", "faq.zh-CN.md")]
    assert questions[0] == questions[1]


@pytest.mark.parametrize("name", ["CheckpointConfig", "ParallelExecutor"])
def test_answers_of_one_process(name, tmp_path):
    faq_script(tmp_path, name, [("/tmp/ckpt", f"{tmp_path}/ckpt")] if "Check" in name else [])
    run([sys.executable, "-m", "regatta.paddle", "faq.py"], tmp_path)


def test_the_programs_of_the_transpiler(tmp_path):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(2)]
    endpoints = ["127.0.0.1:%d" % each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    faq_script(tmp_path, "DistributeTranspiler", [
        ('"127.0.0.1:6174,127.0.0.1:6175"', "endpoints"),
        ("feed=..., fetch_list=[...]", 'feed={"x": x, "y": y}, fetch_list=[loss]'),
    ])

    def start(role, number, endpoint):
        return subprocess.Popen(
            [sys.executable, "-m", "regatta.paddle", "faq.py", role, ",".join(endpoints), number,
             endpoint], cwd=tmp_path, env={**os.environ, "PYTHONPATH": ROOT}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE)

    servers = [start("PSERVER", "0", endpoint) for endpoint in endpoints]
    workers = [start("TRAINER", str(i), "-") for i in range(2)]
    outs = [process.communicate(timeout=120) for process in servers + workers]
    assert not any(process.returncode for process in servers + workers), outs
    expected, = [text for kind, text in blocks("faq.md") if kind == "text"]
    assert outs[0][0] == expected.replace("127.0.0.1:6174", endpoints[0])


# --- names -----------------------------------------------------------------------------------------

#: What `paddle` and its usual short names are.
ROOTS = {
    "paddle": "regatta", "regatta": "regatta", "rg": "regatta", "fluid": "regatta.fluid",
    "fleet": "regatta.distributed.fleet", "static": "regatta.static", "nn": "regatta.nn",
}
DOTTED = re.compile(r"(?<![\w./-])((?:%s)(?:\.[A-Za-z_]\w*)+)" % "|".join(ROOTS))

#: Names that are no names: files, variables of a text, what a document says was removed or
#: misspells, what PyTorch is needed for.
EXCEPT = {
    "fleet.main_program", "paddle.fluid.incubate.fleet", "regatta.torch",
    "paddle.fluid.Distribut", "fleet.Distributedstrategy",
    "paddle.fluid.incubate.fleet.collective.DistributedStrategy",
    "paddle.fluid.incubate.fleet.parameter_server.distribute_transpiler.distributed_strategy"
    ".DistributedStrategy",
}


def missing_names(text):
    import importlib

    missing = []
    for name in sorted(set(DOTTED.findall(text)) - EXCEPT):
        root, *rest = name.split(".")
        value = importlib.import_module(ROOTS[root])
        try:
            for part in rest:
                value = getattr(value, part)
        except AttributeError:
            missing.append(name)
    return missing


@pytest.mark.parametrize("name", ["python.md", "faq.md", "faq.zh-CN.md", "README.md"])
def test_names_in_documents_exist(name):
    text = text_of(name)
    if name == "python.md":
        begin = text.index("## What is absent")
        text = text[:begin] + text[text.index("\n## ", begin + 1):]
    assert missing_names(text) == []


def test_names_of_the_tables_exist():
    """Rows such as ``| `paddle.static` | ..., `auc` |``: names stand in the module of the row."""
    rows = re.findall(r"^\| (`paddle[^|]*) \| (.*) \|$", text_of("python.md"), re.M)
    assert len(rows) >= 8
    for modules, names in rows:
        modules = re.findall(r"`([\w.*]+)`", modules)
        first = modules[0]
        paths = [m if not m.startswith(".") else first + m for m in modules]
        found = [rg if p == "paddle.*" else attrgetter(p[len("paddle."):])(rg) for p in paths]
        found += [rg.hapi] if "paddle.Model" in paths else []
        for name in re.findall(r"`(\w+)`", names):
            assert any(hasattr(module, name) for module in found), (modules, name)


def test_names_in_the_seeds_exist():
    sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
    import seeds_blocks

    folder = seeds_blocks.folder()
    if folder is None:
        pytest.skip("no documents: set REGATTA_SEEDS to the folder that holds them")
    for name in sorted(os.listdir(folder)):
        if name.endswith(".txt"):
            with open(os.path.join(folder, name), encoding="utf-8") as file:
                assert missing_names(file.read()) == [], name


def test_what_the_documents_say_was_removed_says_so():
    with pytest.raises(AttributeError, match="default_main_program"):
        rg.distributed.fleet.main_program  # noqa: B018
    with pytest.raises(ImportError, match="paddle.distributed.fleet"):
        import regatta.fluid.incubate.fleet.collective  # noqa: F401
    code = "import sys; sys.modules['torch'] = None\nimport regatta as rg\nrg.torch"
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True,
                          text=True, env={**os.environ, "PYTHONPATH": ROOT})
    assert "AttributeError: regatta.torch needs PyTorch" in done.stderr, done.stderr


def test_names_of_version_1_that_still_work(tmp_path, monkeypatch):
    import numpy as np

    from regatta import fluid

    monkeypatch.chdir(tmp_path)
    assert fluid.dygraph.prepare_context().nranks == 1
    layer = rg.nn.Linear(2, 3)
    optimizer = rg.optimizer.Adam(0.1, parameters=layer.parameters())
    layer(rg.to_tensor(np.ones((1, 2), "float32"))).sum().backward()
    optimizer.step()
    fluid.save_dygraph(layer.state_dict(), "model")
    assert fluid.load_dygraph("model")[1] is None
    fluid.save_dygraph(optimizer.state_dict(), "model")
    assert sorted(os.listdir(tmp_path)) == ["model.pdopt", "model.pdparams"]
    params, others = fluid.load_dygraph("model.pdparams")
    np.testing.assert_array_equal(params["weight"], layer.weight.numpy())
    assert others
    with pytest.raises(FileNotFoundError, match="neither nowhere.pdparams nor"):
        fluid.load_dygraph("nowhere")
