"""Scripts that say `import paddle`."""
import os
import shutil
import subprocess
import sys

import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))
WHEEL = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "regatta-paddle")


def run(*arguments, path=(), cwd=None, **environment):
    env = {k: v for k, v in os.environ.items() if k not in ("REGATTA_PADDLE", "PYTHONPATH")}
    env.update(PYTHONPATH=os.pathsep.join([*path, ROOT]), **environment)
    return subprocess.run(
        [sys.executable, *map(str, arguments)], env=env, capture_output=True, text=True,
        timeout=120, cwd=cwd)


def paddle(*arguments, **options):
    return run("-m", "regatta.paddle", *arguments, **options)


def code(text, *arguments, **options):
    done = paddle("-c", text, *arguments, **options)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def false_paddle(tmp_path):
    """A folder with another paddle, as if it were installed."""
    package = tmp_path / "site" / "paddle"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("__version__ = '9.9.9'\nreal = True\n")
    (package / "linalg.py").write_text("svd = 1\n")
    about = tmp_path / "site" / "paddlepaddle-9.9.9.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: paddlepaddle\nVersion: 9.9.9\n")
    return str(tmp_path / "site")


SCRIPT = """
import sys, os
import paddle
import helper
print(paddle.__version__, sys.argv[1:], os.path.basename(sys.path[0]), __name__, helper.name)
print(os.path.basename(__file__), sys.argv[0] == __file__)
"""


def test_a_script_runs_as_python_runs_it(tmp_path):
    folder = tmp_path / "work"
    folder.mkdir()
    (folder / "script.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("import paddle\nname = paddle.static.Program.__module__\n")
    done = paddle(folder / "script.py", "-m", "config.yaml", cwd=str(tmp_path))
    assert done.returncode == 0, done.stderr
    first, second = done.stdout.splitlines()
    version = f"2.6.2+regatta.{rg.__version__}"
    assert first == (
        f"{version} ['-m', 'config.yaml'] work __main__ regatta.framework")
    assert second == "script.py True"
    line = f"paddle is Regatta {rg.__version__} in this process and its children\n"
    assert done.stderr == line or done.stderr.startswith(line[:-1] + "; paddlepaddle")


def test_modules_are_the_same_objects():
    out = code("""
import paddle, regatta
import paddle.static.nn as nn
import paddle.nn.functional as F
import paddle.distributed.fleet.base.role_maker as role_maker
from paddle.distributed import fleet
from paddle.io import DistributedBatchSampler, DataLoader, IterableDataset
from paddle.optimizer.lr import LRScheduler
import regatta.distributed.fleet.base.role_maker
import paddle.fluid, paddle.v2
assert paddle.static is regatta.static and nn is regatta.static.nn
assert F is regatta.nn.functional and F.__name__ == "regatta.nn.functional"
assert F.__spec__.name == "regatta.nn.functional"
assert role_maker is regatta.distributed.fleet.base.role_maker
assert paddle.fluid is regatta.fluid
assert issubclass(paddle.optimizer.lr.StepDecay, LRScheduler)
assert paddle.framework.ParamAttr is paddle.ParamAttr is regatta.ParamAttr
assert paddle.base.core is paddle.core and paddle.core.EOFException
import paddle.core as core, paddle.utils.unique_name as names
assert core.EOFException is paddle.core.EOFException and names.generate("fc") == "fc_0"
import paddle.fluid.framework, paddle.fluid.core
print(paddle.__file__, 'static' in dir(paddle), 'TrainReport' in dir(paddle))
""")
    assert out.endswith(os.path.join("_path", "paddle", "__init__.py") + " True False\n")


def test_what_is_absent_is_named_and_never_taken_from_paddle(false_paddle):
    out = code("""
import paddle
for text in ("paddle.fft.fft", "paddle.TrainReport", "paddle.io.Datset", "paddle._core"):
    try: eval(text)
    except AttributeError as error: print(error)
for name in ("paddle.fft", "paddle._core", "paddle.io.cloud", "paddle.paddle"):
    try: __import__(name)
    except ModuleNotFoundError as error: print(error.name, "|", error)
assert not hasattr(paddle, "real")
""", path=[false_paddle])
    lines = out.splitlines()
    assert lines[0] == 'paddle.fft is not in Regatta; see docs/python.md ("What is absent")'
    assert lines[1].startswith("paddle.TrainReport is not in Regatta")
    assert "did you mean paddle.io.Dataset?" in lines[2]
    assert [line.split(" | ")[0] for line in lines[4:]] == [
        "paddle.fft", "paddle._core", "paddle.io.cloud", "paddle.paddle"]
    assert all("is not in Regatta" in line for line in lines)


def test_children_see_the_same_and_keep_quiet(tmp_path, false_paddle):
    (tmp_path / "child.py").write_text("import paddle; print(paddle.__version__)\n")
    (tmp_path / "parent.py").write_text(
        "import subprocess, sys, paddle\n"
        "sys.stdout.flush()\n"
        "subprocess.run([sys.executable, 'child.py'], check=True)\n"
        "subprocess.run([sys.executable, '-m', 'regatta.paddle', 'child.py'], check=True)\n"
        "import os; env = dict(os.environ); paths = env['PYTHONPATH'].split(os.pathsep)\n"
        "env['PYTHONPATH'] = paths[0]\n"
        "subprocess.run([sys.executable, 'child.py'], check=True, env=env)\n"
    )
    done = paddle("parent.py", cwd=str(tmp_path), path=[false_paddle])
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [f"2.6.2+regatta.{rg.__version__}"] * 3
    assert done.stderr == (
        f"paddle is Regatta {rg.__version__} in this process and its children; "
        "paddlepaddle 9.9.9 is installed and not used\n")


def test_modules_run_under_both_names(tmp_path):
    (tmp_path / "tool.py").write_text(
        "import sys, paddle; print(sys.argv[1:], paddle.__name__, __name__)\n")
    done = paddle("-m", "tool", "a", "--b", cwd=str(tmp_path))
    assert done.stdout == "['a', '--b'] paddle __main__\n", done.stderr
    (tmp_path / "train.py").write_text("import paddle; print('trained', paddle.CPUPlace())\n")
    for module in ("paddle.distributed.launch", "paddle.distributed.launch_ps"):
        more = [] if module.endswith("launch") else ["--worker_num", "1", "--server_num", "1"]
        done = paddle("-m", module, *more, "train.py", cwd=str(tmp_path))
        assert done.returncode == 0, done.stdout + done.stderr
        logs = "".join(p.read_text() for p in (tmp_path / "log").rglob("worker*"))
        assert "trained Place(cpu)" in logs + done.stdout
        shutil.rmtree(tmp_path / "log")


def test_code_and_exit_codes(tmp_path):
    done = paddle("-c", "import sys, paddle; print(sys.argv, __name__); sys.exit(3)", "x")
    assert (done.returncode, done.stdout) == (3, "['-c', 'x'] __main__\n")
    (tmp_path / "fails.py").write_text("import paddle\nraise KeyError('here')\n")
    done = paddle(tmp_path / "fails.py")
    assert done.returncode == 1 and "KeyError: 'here'" in done.stderr
    for arguments in ([], ["-m"], ["--what"], ["nowhere.py"]):
        assert paddle(*arguments).returncode != 0
    assert "usage" in paddle("--help").stdout


def test_installing_in_a_process(false_paddle):
    text = """
import sys, types, os
import regatta.paddle
regatta.paddle.install()
import paddle
print(paddle.__version__, regatta.paddle.is_installed())
regatta.paddle.uninstall()
print(regatta.paddle.is_installed(), "paddle" in sys.modules, "REGATTA_PADDLE" in os.environ)
import paddle
print(paddle.__version__)
try: regatta.paddle.install()
except RuntimeError as error: print("refused:", error)
"""
    done = run("-c", text, path=[false_paddle])
    lines = done.stdout.splitlines()
    assert lines[:3] == [f"2.6.2+regatta.{rg.__version__} True", "False False False", "9.9.9"]
    assert lines[3].startswith("refused: paddle was imported already")


def test_without_being_asked_paddle_is_left_alone(false_paddle):
    done = run("-c", "import regatta, paddle; print(paddle.__version__)", path=[false_paddle])
    assert done.stdout == "9.9.9\n"
    done = run("-c", "import regatta; regatta.static.nn; import sys; print('paddle' in sys.modules)")
    assert done.stdout == "False\n"


@pytest.mark.skipif(not os.path.isdir(WHEEL), reason="only in a checkout")
def test_the_opt_in_package(false_paddle, tmp_path):
    text = "import paddle, paddle.static; print(paddle.__version__, paddle.__file__)"
    done = run("-c", text, path=[WHEEL])
    if "both installed" in done.stderr:
        pytest.skip("Paddle is installed here")
    assert done.stdout.split() == [
        f"2.6.2+regatta.{rg.__version__}", os.path.join(WHEEL, "paddle", "__init__.py")]
    done = run("-c", text, path=[WHEEL, false_paddle])
    assert done.returncode == 1
    assert "ImportError: paddlepaddle 9.9.9 and regatta-paddle are both installed" in done.stderr


LINE = """
import numpy as np
import paddle
paddle.enable_static()
x = paddle.static.data(name="x", shape=[None, 2], dtype="float32")
y = paddle.static.data(name="y", shape=[None, 1], dtype="float32")
cost = paddle.mean(paddle.nn.functional.square_error_cost(paddle.static.nn.fc(x, 1), y))
paddle.optimizer.SGD(learning_rate=0.2).minimize(cost)
exe = paddle.static.Executor(paddle.CPUPlace())
exe.run(paddle.static.default_startup_program())
points = np.array([[0, 1], [1, 0], [1, 1]], "float32")
for step in range(300):
    cost_val = exe.run(feed={"x": points, "y": points.sum(1, keepdims=True)}, fetch_list=[cost])
print("cost=%f" % cost_val[0])
"""


def test_a_script_trains(tmp_path):
    (tmp_path / "line.py").write_text(LINE)
    done = paddle(tmp_path / "line.py")
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("cost=0.00")
