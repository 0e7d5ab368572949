"""Training from Python and from Rust gives the same bits."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
EXAMPLES = os.environ.get("REGATTA_EXAMPLES", str(HERE.parents[1] / "target" / "debug" / "examples"))
RUST = pathlib.Path(EXAMPLES) / "same_bits"
JOBS = {"ps": ["--server_num", "2", "--worker_num", "2"], "collective": ["--nproc_per_node", "2"]}


def run(folder, program, model, kind, job):
    folder.mkdir()
    out = folder / "saved"
    logs = ["--log_dir", str(folder / "log")]
    launch = [sys.executable, "-m", "regatta", "launch", *job, *logs] if job else []
    done = subprocess.run(
        [*launch, *program, model, kind, str(out)], cwd=folder, capture_output=True, text=True,
        timeout=120, check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    files = sorted(out.rglob("*.safetensors"))
    assert files, list(out.rglob("*"))
    return {name: value for p in files for name, value in tensors(p).items()}


def tensors(path):
    """Type, shape and bytes of every value of a safetensors file. Its notes name the program, whose
    temporaries are named in other ways, so they are left out."""
    data = path.read_bytes()
    begin = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:begin])
    header.pop("__metadata__", None)
    return {
        (path.name, name): (about["dtype"], about["shape"], data[begin:][slice(*about["data_offsets"])])
        for name, about in header.items()
    }


@pytest.mark.parametrize("job", ["alone", "job"])
@pytest.mark.parametrize("kind", ["ps", "collective"])
@pytest.mark.parametrize("model", ["fit_a_line", "mlp", "dnn"])
def test_saved_values_are_the_same(tmp_path, model, kind, job):
    if not RUST.exists():
        pytest.skip(f"{RUST} is missing: cargo build --examples -p regatta")
    flags = JOBS[kind] if job == "job" else []
    rust = run(tmp_path / "rust", [str(RUST)], model, kind, flags)
    script = [sys.executable] if not flags else []
    python = run(tmp_path / "python", [*script, str(HERE / "same_bits.py")], model, kind, flags)
    assert python == rust
