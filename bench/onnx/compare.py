"""Runs every ONNX file of a directory of cases in onnxruntime and compares the scores with those that
the case holds. A case is a directory with model.onnx and case.json: inputs and outputs by name.

Usage: compare.py DIR
Prints a line for each case, and fails if a score is off by more than 1e-5.
"""

import json
import pathlib
import sys

import numpy
import onnxruntime

WITHIN = 1e-5


def array(numbers, dtype="float32"):
    return numpy.array(numbers["values"], dtype=numbers.get("type", dtype)).reshape(numbers["shape"])


def compare(case):
    """The largest difference of a score, or a sentence that says what else is different."""
    wanted = json.loads((case / "case.json").read_text())
    session = onnxruntime.InferenceSession(str(case / "model.onnx"), providers=["CPUExecutionProvider"])
    told = session.get_modelmeta().custom_metadata_map
    names = sorted(i.name for i in session.get_inputs())
    if names != sorted(wanted["inputs"]):
        return f"takes {names}, but the model takes {sorted(wanted['inputs'])}"
    untold = [name for name in names if f"input {name}" not in told]
    if untold:
        return f"does not describe {untold}"
    outputs = list(wanted["outputs"])
    scores = session.run(outputs, {name: array(x) for name, x in wanted["inputs"].items()})
    worst = 0.0
    for name, got in zip(outputs, scores):
        expected = array(wanted["outputs"][name])
        if got.shape != expected.shape:
            return f"'{name}' is {got.shape}, but should be {expected.shape}"
        if not numpy.isfinite(expected).all():
            return f"'{name}' is not finite, so nothing is compared"
        worst = max(worst, float(numpy.abs(got - expected).max()))
    return worst


def main():
    bad = False
    for case in sorted(pathlib.Path(sys.argv[1]).iterdir()):
        try:
            found = compare(case)
        except Exception as error:  # noqa: BLE001 - whatever the runtime says belongs to this case
            found = str(error)
        if isinstance(found, str):
            print(f"{case.name}: {found}")
        else:
            print(f"{case.name}: off by {found:.1e}")
        bad |= isinstance(found, str) or found > WITHIN
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
