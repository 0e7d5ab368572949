"""What editors and type checkers see: the names of the package, and types that fit programs of users."""
import ast
import importlib
import os
import subprocess
import sys

import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))

SCRIPT = """
from typing import Any, Dict, List

import numpy as np
import regatta as rg
import regatta.nn.functional as F
from regatta import nn, static
from regatta.distributed import fleet


class Net(nn.Layer):
    def __init__(self) -> None:
        super().__init__()
        self.rows = nn.Embedding(10, 4)
        self.body = nn.Sequential(nn.Linear(4, 4), nn.ReLU())

    def forward(self, ids: rg.Tensor, x: rg.Tensor) -> rg.Tensor:
        both = rg.concat([self.rows(ids), x], axis=1)
        return F.relu(rg.matmul(both, x, transpose_y=True)) + F.softmax(x * 2 - 1.0)


def dynamic(x: rg.Tensor, y: rg.Tensor) -> float:
    net = Net()
    optimizer = rg.optimizer.Adam(0.01, parameters=net.parameters())
    loss = rg.mean((net(x, y) - 1.0) ** 2) + F.cross_entropy(x, y)
    loss.backward()
    optimizer.step()
    optimizer.clear_grad()
    with rg.no_grad():
        parts: List[rg.Tensor] = rg.split(x, 2)
        best = rg.where(x > y, x, y)[0, 1:]
    print(x.shape, x.dtype, x.numpy(), x.grad, x.name, -x @ y, len(x), parts, best.reshape([2]))
    rg.save(net.state_dict(), "a.pdparams")
    net.set_state_dict(rg.load("a.pdparams"))
    return float(loss)


def program(x: static.Variable) -> Dict[str, Any]:
    cost: static.Variable = rg.mean(F.square_error_cost(static.nn.fc(x, 1), x + 1))
    rg.optimizer.SGD(learning_rate=0.1).minimize(cost)
    exe = static.Executor(rg.CPUPlace())
    exe.run(static.default_startup_program())
    loss, = exe.run(feed={"x": np.ones((2, 4))}, fetch_list=[cost])
    static.save_inference_model("line", [x], [cost], exe)
    report = rg.train("config.yaml", {"runner.epochs": 1}, threads=2)
    print(float(loss), report.losses, fleet.worker_index(), rg.Tensor(np.ones(2)), rg.float32)
    return rg.Model.open("line").predict({"x": np.ones((2, 4))})  # type: ignore[no-any-return]
"""


def names_of_stub():
    folder = os.path.dirname(os.path.abspath(rg.__file__))
    with open(os.path.join(folder, "__init__.pyi"), encoding="utf-8") as file:
        tree = ast.parse(file.read())
    names = {node.target.id for node in tree.body if isinstance(node, ast.AnnAssign)}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.names[0].name == "*":
            names.update(importlib.import_module(f"regatta.{node.module}").__all__)
        elif isinstance(node, ast.ImportFrom):
            names.update(alias.asname for alias in node.names)
    return names


def test_the_stub_has_the_names_of_the_package():
    expected = {*rg.__all__, *rg.tensor.__all__, "bool", "core", "torch", "__version__"}
    assert names_of_stub() - expected == set(), "only in __init__.pyi"
    assert expected - names_of_stub() == set(), "only in __init__.py"


WRONG = """
import regatta as rg

rg.meen
rg.seed("b")
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What mypy says about a good script and a wrong one."""
    pytest.importorskip("mypy")
    folder = tmp_path_factory.mktemp("types")
    (folder / "good.py").write_text(SCRIPT)
    (folder / "wrong.py").write_text(WRONG)
    # Only the scripts are judged; the package is found as an installed one is.
    return mypy(folder, "--strict", "good.py", "wrong.py")


def mypy(folder, *arguments):
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports", "silent", "--cache-dir", os.devnull,
         *arguments], cwd=folder, capture_output=True, text=True,
        env={**os.environ, "MYPYPATH": "" if "site-packages" in ROOT else ROOT})
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return done.stdout.splitlines()


def test_programs_of_users_have_types_that_fit(found):
    assert [line for line in found if line.startswith("good.py")] == []


def test_wrong_names_and_types_are_found(found):
    wrong = [line for line in found if line.startswith("wrong.py")]
    assert 'has no attribute "meen"' in wrong[0] and 'incompatible type "str"' in wrong[1]
    assert len(wrong) == 2


def test_the_part_for_pytorch_uses_what_exists(tmp_path):
    """Its tests need PyTorch, which is not everywhere."""
    pytest.importorskip("mypy")
    found = mypy(tmp_path, "--ignore-missing-imports", "-p", "regatta.torch")
    assert found[0].startswith("Success"), found
