"""Models whose features were declared: trained from text, asked with raw values."""
import subprocess
import sys

import numpy as np
import pytest

import regatta as rg

CONFIG = """
model: deepfm
runner:
  train_data_dir: clicks.csv
  data_format: csv
  train_batch_size: 20
  model_save_path: epochs
features:
  label: {kind: label, column: clicked}
  user: {kind: vocabulary}
  tags: {kind: hash, buckets: 50, split: "|", pooling: mean}
  price: {kind: standardize}
hyper_parameters:
  fc_sizes: [8]
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = tmp_path_factory.mktemp("features")
    (folder / "c.yaml").write_text(CONFIG)
    rows = [f"{i % 2},u{i % 7},{'a|b' if i % 3 else 'c'},{i / 10}" for i in range(100)]
    (folder / "clicks.csv").write_text("clicked,user,tags,price\n" + "\n".join(rows) + "\n")
    rg.train(folder / "c.yaml", progress=False)
    command = [sys.executable, "-m", "regatta"]
    export = ["export", str(folder / "epochs/0"), "--to", str(folder / "model")]
    subprocess.run([*command, *export], check=True, capture_output=True)
    return rg.Model.open(folder / "model")


def test_rows_and_columns_give_the_same_scores(model):
    assert model.columns == ["price", "tags", "user"]
    rows = [
        {"user": "u1", "tags": ["a", "b"], "price": 3.5},
        {"user": "u1", "tags": "a|b", "price": "3.50"},
        {"user": "nobody", "tags": [], "price": None},
    ]
    (by_row,) = model.predict(rows, return_list=True)
    assert by_row.shape == (3, 1) and by_row[0] == by_row[1] != by_row[2]
    columns = {name: [row[name] for row in rows] for name in model.columns}
    assert np.array_equal(model.predict(columns, return_list=True)[0], by_row)


def test_what_does_not_fit_is_named(model):
    with pytest.raises(ValueError, match="row 1 lacks price; .* takes the columns price, tags"):
        model.predict([{"user": "u1", "tags": "", "price": 1}, {"user": "u1", "tags": ""}])
    with pytest.raises(ValueError, match="row 0, column 'price': a number was expected"):
        model.predict([{"user": "u1", "tags": "", "price": "cheap"}])
    with pytest.raises(TypeError, match="a raw value is a text, a number, None or a list"):
        model.predict([{"user": object(), "tags": "", "price": 1}])
    with pytest.raises(ValueError, match="different lengths"):
        model.predict({"user": ["u1"], "tags": ["a", "b"], "price": [1]})
