"""Losses of PaddleRec folders against those that real PaddlePaddle 2.6.2 printed.

Both sides start from the weights of weights.py and run run_folder.py. Needs PADDLEREC.
"""
import json

import pytest

import cases
import harness
import weights
import workspace

TOLERANCE = 1e-5
# Rounding differs between two implementations at every op, in the recorded noise only at the
# weights.
NOISE = 30
pytestmark = pytest.mark.skipif(harness.missing() is not None, reason=str(harness.missing()))


def runs():
    """(case, variant to run, recorded variant to compare with)"""
    for case in cases.CASES:
        for variant in case.variants:
            if variant == "lazy_adam":
                continue
            exact = variant == "config" and "lazy_adam" in case.variants
            recorded = "lazy_adam" if exact and harness.OWN_RUNNER else variant
            yield pytest.param(case, variant, recorded, id=f"{case.folder}-{variant}")


def allowed(expected, drift):
    """How far a loss may be from the recorded one."""
    return max(TOLERANCE, NOISE * drift) * max(1.0, abs(expected))


@pytest.mark.parametrize("case, variant, recorded", list(runs()))
def test_losses(case, variant, recorded, tmp_path):
    record = json.loads((harness.HERE / "losses" / cases.file_name(case.folder)).read_text())
    assert record["weights_version"] == weights.VERSION, "record.py must run again"
    assert record["overrides"] == case.overrides, "record.py must run again"
    workspace.copy(workspace.checkout(), case.folder, tmp_path)
    out = tmp_path / "out.json"
    harness.run([harness.HERE / "run_folder.py", tmp_path, case.folder, variant,
                 "--steps", cases.STEPS, "--override", json.dumps(case.overrides),
                 "--sgd-rate", case.sgd_rate, "--out", out], cwd=tmp_path)
    got = json.loads(out.read_text())
    assert got["parameters"] == record["parameters"]

    expected = record["variants"][recorded]
    assert set(got["values"]) == set(expected["values"])
    limits = expected["drift"]
    for key, values in expected["values"].items():
        is_loss = key == record["loss"]
        for step, (value, mine) in enumerate(zip(values, got["values"][key])):
            # An example that crosses a threshold moves auc by a step; that takes noise in the
            # predictions, so auc is compared while there is next to none.
            if not is_loss and limits[step] * NOISE > TOLERANCE:
                break
            limit = allowed(value, limits[step] if is_loss else 0.0)
            assert abs(value - mine) <= limit, (
                f"{key} of step {step} is {mine!r}, PaddlePaddle gave {value!r}")
    assert len(got["values"][record["loss"]]) == cases.STEPS


def test_weights_have_not_changed():
    assert weights.value("linear_0.b_0", [2]).tolist() == [
        0.01080450601875782, -0.08145401626825333]
    assert weights.scale([64, 32]) == 0.125
