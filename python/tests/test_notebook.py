"""The notebook of the documents runs, in a kernel, and shows progress."""
import json
import os

import pytest

import regatta as rg

DOCS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "docs")
NOTEBOOK = os.path.join(DOCS, "first-steps.ipynb")
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))


def test_the_notebook_is_stored_without_results():
    with open(NOTEBOOK, encoding="utf-8") as file:
        notebook = json.load(file)
    for cell in notebook["cells"]:
        assert cell.get("outputs", []) == [] and cell.get("execution_count") is None
    assert set(notebook["metadata"]) == {"kernelspec", "language_info"}


@pytest.fixture(scope="module")
def cells():
    """The cells, with what they gave."""
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    nbformat.validate(notebook)
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = ROOT
    try:
        client = nbclient.NotebookClient(
            notebook, timeout=120, kernel_name="python3", resources={"metadata": {"path": DOCS}})
        client.execute()
    finally:
        if before is None:
            del os.environ["PYTHONPATH"]
        else:
            os.environ["PYTHONPATH"] = before
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def outputs(cell, kind):
    return [each for each in cell.outputs if each.output_type == kind]


def test_every_cell_gives_what_it_should(cells):
    assert not [each for cell in cells for each in outputs(cell, "error")]
    assert "fill_constant" in outputs(cells[1], "execute_result")[0].data["text/plain"]
    printed = outputs(cells[2], "stream")[0].text.splitlines()
    assert [line.split(" cost ")[0] for line in printed] == ["step 0", "step 50", "step 100"]
    assert float(printed[-1].split()[-1]) < 1e-5
    assert outputs(cells[3], "execute_result")[0].data["text/plain"] == "True"
    assert outputs(cells[5], "execute_result")[0].data["text/plain"] == "(True, True)"


def test_progress_is_one_line_that_changes(cells):
    train = cells[4]
    shown, = outputs(train, "display_data")
    # The last state of the line: that of the second epoch.
    assert shown.data["text/plain"].startswith("epoch: 1")
    done = [line for each in outputs(train, "stream") for line in each.text.splitlines()]
    assert [line.split(" done, ")[0] for line in done] == ["epoch: 0", "epoch: 1"]
    report, = outputs(train, "execute_result")
    assert "<table>" in report.data["text/html"] and "examples/s" in report.data["text/plain"]
