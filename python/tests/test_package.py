"""The package itself: its top level, the command line, training of configuration files."""
import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import regatta as rg

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))

CONFIG = """
runner:
  train_data_dir: "synthetic://ctr?slots=26&vocab=50&dense=13&seed=1&examples=2000"
  train_reader_path: "criteo_reader"
  train_batch_size: 100
  epochs: 2
  print_interval: 10
  model_save_path: "output"
  use_auc: True
hyper_parameters:
  optimizer:
    class: Adam
    learning_rate: 0.003
  sparse_inputs_slots: 27
  sparse_feature_number: 1301
  sparse_feature_dim: 4
  dense_input_dim: 13
  fc_sizes: [16, 8]
"""


def python(*arguments, **options):
    environment = {**os.environ, "PYTHONPATH": ROOT, **options.pop("env", {})}
    return subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, text=True, timeout=120,
        **options)


@pytest.fixture
def config(tmp_path):
    folder = tmp_path / "dnn"
    folder.mkdir()
    (folder / "config.yaml").write_text("model: dnn\n" + CONFIG)
    return str(folder / "config.yaml")


# --- the top level -------------------------------------------------------------------------------


def test_importing_loads_nothing_heavy():
    code = (
        "import sys, time; before = set(sys.modules); t = time.perf_counter(); import regatta; "
        "print(time.perf_counter() - t, 'numpy' in sys.modules, 'regatta._core' in sys.modules)"
    )
    best = min(
        (python("-c", code).stdout.split() for _ in range(3)), key=lambda words: float(words[0]))
    assert float(best[0]) < 0.05
    assert best[1:] == ["False", "False"]


def test_the_command_line_does_without_numpy():
    code = (
        "import sys; from regatta.__main__ import main; code = main(['--version']); "
        "sys.exit(code or ('numpy' in sys.modules) * 9)"
    )
    done = python("-c", code)
    assert done.returncode == 0 and done.stdout.startswith("regatta ")
    done = python("-m", "regatta", "train")
    assert done.returncode == 2 and "--config" in done.stderr


def test_names_of_the_top_level_exist():
    for name in rg.__all__:
        assert getattr(rg, name) is not None, name
        assert name in dir(rg)
    assert rg.bool == "bool" and rg.float32 == "float32"
    assert rg.core.EOFException and rg.reshape and rg.unique_name.generate
    assert set(rg.tensor.__all__) <= set(dir(rg))
    assert "fc" in rg.op_kinds()
    assert issubclass(rg.PeerLost, rg.RegattaError)


def test_what_is_absent_is_named():
    with pytest.raises(AttributeError, match="regatta.fft is not in Regatta; .*docs/python.md"):
        rg.fft
    with pytest.raises(AttributeError, match="did you mean regatta.optimizer"):
        rg.optimiser
    with pytest.raises(AttributeError, match="did you mean regatta.io.DataLoader"):
        rg.io.DataLoder
    with pytest.raises(ImportError):
        from regatta.io import Nothing  # noqa: F401
    assert not hasattr(rg.metric, "F1")


def test_the_mode_is_dynamic_until_it_is_static():
    assert rg.in_dynamic_mode() is True
    with rg.static.program_guard(rg.static.Program()):
        assert rg.in_dynamic_mode() is False
        assert isinstance(rg.ones([2]), rg.static.Variable)
    rg.enable_static()
    try:
        assert rg.in_dynamic_mode() is False
    finally:
        rg.disable_static()
    assert rg.in_dynamic_mode() and isinstance(rg.ones([2]), rg.Tensor)


def test_devices(monkeypatch):
    assert rg.set_device("cpu") == rg.CPUPlace() and rg.get_device() == "cpu"
    assert not rg.is_compiled_with_cuda() and rg.is_compiled_with_distribute()
    assert not rg.is_compiled_with_custom_device("npu")
    monkeypatch.setattr(rg.device, "_warned", False)
    with pytest.warns(UserWarning, match="computes on CPUs"):
        place = rg.set_device("gpu:1")
    assert repr(place) == "Place(gpu:1)" and rg.get_device() == "gpu:1"
    with pytest.raises(ValueError, match="'tpu'"):
        rg.set_device("tpu")
    rg.set_device("cpu")


def test_flags(monkeypatch):
    monkeypatch.delenv("FLAGS_check_nan_inf", raising=False)
    assert rg.get_flags("FLAGS_check_nan_inf") == {"FLAGS_check_nan_inf": False}
    rg.set_flags({"FLAGS_check_nan_inf": 1})
    assert rg.get_flags(["FLAGS_check_nan_inf"]) == {"FLAGS_check_nan_inf": True}
    with pytest.raises(ValueError, match="FLAGS_cudnn"):
        rg.set_flags({"FLAGS_cudnn": 1})
    monkeypatch.setenv("FLAGS_check_nan_inf", "0")


def test_a_check_that_trains(capsys):
    rg.utils.run_check()
    assert "works" in capsys.readouterr().out


def test_readers_of_batches():
    import regatta.batch  # noqa: F401 - the module has the name of the function

    assert list(rg.batch(lambda: iter(range(3)), 2)()) == [[0, 1], [2]]


# --- training of configuration files -------------------------------------------------------------


def test_train_gives_a_report(config, capsys):
    report = rg.train(config, {"runner.epochs": 2}, runner={"seed": 7})
    assert "epoch: 1 done" in capsys.readouterr().out
    assert len(report.losses) == len(report.epochs) == 2
    assert report.losses[1] < report.losses[0]
    assert 0.4 < report.auc <= 1 and report.examples_per_sec > 0
    assert report.config["runner"]["seed"] == 7
    assert os.path.isdir(report.model_dir) and report.model_dir.endswith(os.path.join("output", "1"))
    assert json.loads(json.dumps(report.to_dict()))["epochs"][0]["examples"] == 2000
    lines = repr(report).splitlines()
    assert lines[1].split()[:3] == ["epoch", "loss", "auc"] and len(lines) == 4
    assert report._repr_html_().count("<tr>") == 3


def test_train_reports_what_is_wrong(config):
    with pytest.raises(ValueError, match="epochz"):
        rg.train(config, {"runner.epochz": 2}, progress=False)
    with pytest.raises(FileNotFoundError, match="nowhere.yaml"):
        rg.train("nowhere.yaml", progress=False)
    with pytest.raises(TypeError, match="'epochs' is neither"):
        rg.train(config, epochs=2)


def test_what_the_wheel_was_built_without_is_named(config):
    def refusal(*arguments, env=None):
        done = python("-m", "regatta", "train", "-m", str(config), *arguments, env=env or {})
        assert done.returncode != 0
        return done.stderr

    data = ["runner.train_data_dir=.", "runner.data_format=parquet",
            "features.label.kind=label", "features.C1.kind=hash", "features.C1.buckets=9"]
    assert "without the feature 'parquet'" in refusal("-o", *data)
    rank = {f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")}
    size = {f"OMPI_COMM_WORLD_{name}": "2" for name in ("SIZE", "LOCAL_SIZE")}
    printed = refusal("--transport", "mpi", env={**rank, **size})
    assert "cargo build --release --features mpi" in printed


def test_the_wheel_needs_only_the_c_library():
    module = rg._core.__file__
    listed = subprocess.run(["ldd", module], capture_output=True, text=True, check=True).stdout
    known = ("linux-vdso", "libc.so", "libm.so", "libgcc_s.so", "libpthread.so", "libdl.so",
             "librt.so", "ld-linux")
    for line in listed.splitlines():
        assert any(name in line for name in known), line


def test_interrupting_train_ends_it(config):
    code = (
        "import regatta as rg\n"
        "try:\n"
        f"    rg.train({config!r}, {{'runner.epochs': 100000}})\n"
        "except KeyboardInterrupt:\n"
        "    print('interrupted', flush=True)\n"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": ROOT}, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
    for line in process.stdout:
        if line.startswith("epoch: 0 done"):
            break
    # Only the parent: in a notebook the kernel alone may get the signal.
    process.send_signal(signal.SIGINT)
    started = time.monotonic()
    rest, _ = process.communicate(timeout=30)
    assert rest.endswith("interrupted\n") and time.monotonic() - started < 10
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)


def test_a_trained_model_answers(config):
    report = rg.train(config, {"runner.epochs": 1, "runner.use_inference": True}, progress=False)
    folder = next(
        path for path, _, files in os.walk(report.model_dir) if "model.program" in files)
    model = rg.Model.open(folder)
    feed = {}
    for each in model.inputs:
        if each.is_ragged:
            feed[each.name] = [[1], [2], [3]]
        else:
            feed[each.name] = np.ones((3, *each.shape[1:]), each.dtype)
    for value in model.predict(feed).values():
        assert len(value) == 3 and np.isfinite(value).all()
