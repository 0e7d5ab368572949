"""Training from Python and from Rust gives the same bits."""
import hashlib
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
    files = sorted(p for p in out.rglob("*") if p.is_file() and p.suffix not in (".json", ".sums"))
    assert files, list(out.rglob("*"))
    return {p.relative_to(out).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


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
