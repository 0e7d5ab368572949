"""PaddleRec's folders in dynamic form: losses against those of real PaddlePaddle 2.6.2, and its
own trainer and inference scripts, unchanged. Needs PADDLEREC.
"""
import json
import math

import pytest

import cases_dynamic
import folders
import harness
import table
import weights
import workspace
from cases import file_name

TOLERANCE = 1e-4
TOOLS = ["rank/dnn", "rank/deepfm", "rank/xdeepfm", "multitask/mmoe", "recall/ncf"]
pytestmark = pytest.mark.skipif(harness.missing() is not None, reason=str(harness.missing()))


@pytest.mark.parametrize("case", cases_dynamic.cases(), ids=lambda case: case.model)
def test_losses(case, tmp_path):
    harness.need_packages(case.model)
    record = json.loads((harness.HERE / "losses_dynamic" / file_name(case.model)).read_text())
    for key, value in (("weights_version", weights.VERSION), ("overrides", case.overrides),
                       ("sgd_rate", case.sgd_rate)):
        assert record[key] == value, "record_dynamic.py must run again"
    workspace.copy(workspace.checkout(), folders.by_name(case.model).name, tmp_path)
    out = tmp_path / "out.json"
    harness.run([harness.HERE / "run_dynamic.py", tmp_path, case.model,
                 "--steps", cases_dynamic.STEPS, "--override", json.dumps(case.overrides),
                 "--sgd-rate", case.sgd_rate, "--out", out],
                cwd=tmp_path / "models" / case.model, root=tmp_path)
    got = json.loads(out.read_text())
    assert got["parameters"] == record["parameters"], "see run_dynamic.py --names"
    assert len(got["losses"]) == cases_dynamic.STEPS
    for step, (expected, mine) in enumerate(zip(record["losses"], got["losses"])):
        assert abs(expected - mine) <= TOLERANCE * max(1.0, abs(expected)), (
            f"the loss of step {step} is {mine!r}, PaddlePaddle gave {expected!r}")


@pytest.mark.parametrize("model", TOOLS)
def test_trainer_and_infer(model, tmp_path):
    folder = folders.by_name(model)
    place = workspace.copy(workspace.checkout(), folder.name, tmp_path)
    text = harness.run(table.command(folder, model, "dynamic"), cwd=place, root=tmp_path)
    assert "epoch: 0 done" in text
    for suffix in ("pdparams", "pdopt"):
        assert (place / "saved" / "0" / f"rec.{suffix}").is_file(), suffix
    text = harness.run(["../../../tools/infer.py", "-m", "config.yaml", "-o",
                        "runner.infer_load_path=saved", "runner.infer_start_epoch=0",
                        "runner.infer_end_epoch=1"], cwd=place, root=tmp_path)
    assert "load model epoch 0" in text and "epoch: 0 done" in text


def test_recorded_losses_are_finite_and_calm():
    """A recording that noise moves by more than the tolerance could not be compared."""
    for case in cases_dynamic.cases():
        record = json.loads((harness.HERE / "losses_dynamic" / file_name(case.model)).read_text())
        assert all(math.isfinite(loss) for loss in record["losses"]), case.model
        assert len(set(record["losses"])) > 1, f"{case.model} does not train"
        assert record["drift"][-1] < TOLERANCE, case.model
