"""Names and shapes of static programs against those of real PaddlePaddle 2.6.2.

Regatta fuses some ops, so it may lack intermediate variables; what it has must be called as Paddle
calls it. Needs PADDLEREC.
"""
import json
import re

import pytest

import harness
import workspace

pytestmark = pytest.mark.skipif(harness.missing() is not None, reason=str(harness.missing()))
# A step of an op that Paddle does in one.
PART = re.compile(r"\.part_\d+$")
RECORD = json.loads((harness.HERE / "names.json").read_text())


@pytest.fixture(scope="module", params=sorted(RECORD))
def both(request, tmp_path_factory):
    """(recorded, own) description of one folder"""
    root = tmp_path_factory.mktemp("names")
    workspace.copy(workspace.checkout(), request.param, root)
    out = root / "names.json"
    harness.run([harness.HERE / "run_names.py", root, request.param, "--out", out], cwd=root)
    return RECORD[request.param], json.loads(out.read_text())


def plain(row):
    """A row with what may differ in writing only: `paddle.int64` is int64, a scalar is [] or [1]."""
    name, shape, dtype, persistable = row
    return [name, shape or [1], dtype.rsplit(".", 1)[-1], persistable]


def test_feeds_and_parameters(both):
    expected, got = both
    assert [plain(row) for row in got["feeds"]] == [plain(row) for row in expected["feeds"]]
    assert [plain(row) for row in got["parameters"]] == [
        plain(row) for row in expected["parameters"]]
    assert got["printed"]["feed.shape"] == expected["printed"]["feed.shape"]


def test_outputs(both):
    expected, got = both
    assert {key: row[0] for key, row in got["outputs"].items()} == {
        key: row[0] for key, row in expected["outputs"].items()}


def test_auc_states(both):
    """Names of all six variables, shapes of the two global counters."""
    expected, got = both
    assert [[row[0] for row in rows] for rows in got["auc"]] == [
        [row[0] for row in rows] for rows in expected["auc"]]
    assert [[plain(row) for row in rows[4:]] for rows in got["auc"]] == [
        [plain(row) for row in rows[4:]] for rows in expected["auc"]]


def test_variables_have_the_names_of_paddle(both):
    expected, got = both
    known = {row[0]: plain(row)[1] for row in expected["variables"]}
    states = {row[0] for rows in expected["auc"] for row in rows[2:]}
    mine = [plain(row) for row in got["variables"] if not PART.search(row[0])]
    unknown = [row[0] for row in mine if row[0] not in known]
    assert not unknown, f"not in PaddlePaddle's program: {unknown}"
    other = [(row[0], row[1], known[row[0]]) for row in mine
             if row[1] != known[row[0]] and row[0] not in states]
    assert not other, f"(name, shape, shape in PaddlePaddle): {other}"


def test_states_of_the_optimizer(both):
    expected, got = both
    mine = {row[0] for row in got["variables_of_minimize"] if row[3]}
    theirs = {row[0] for row in expected["variables_of_minimize"] if row[3]}
    assert mine == theirs
