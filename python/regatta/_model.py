"""Saved models that answer."""
from __future__ import annotations

import os
from typing import Any, Dict, List, Optional, Tuple, Union

from . import _core, _safetensors
from .errors import RegattaError

_DTYPES = {"f32": "float32", "i64": "int64", "u64": "uint64", "f16": "float16", "bf16": "bfloat16"}


class ModelInput:
    """An input of a model: name, type, shape, and whether examples have any number of values."""

    def __init__(self, name: str, dtype: str, shape: List[int], layout: str) -> None:
        self.name = name
        self.dtype = _DTYPES.get(dtype, dtype)
        self.shape = tuple(-1 if d < 0 else d for d in shape)
        self.is_ragged = layout == "ragged"

    def __repr__(self) -> str:
        if self.is_ragged:
            return f"{self.name}: {self.dtype}, any number of ids per example (values, offsets)"
        return f"{self.name}: {self.dtype} {list(self.shape)}"


class SavedModel:
    """A trained model, from the folder that training, ``jit.save`` or ``save_inference_model`` wrote.

    ``Model.open("output/9").predict({"x": rows})`` gives a dictionary of arrays by output.
    """

    def __init__(self, native: "_core.Model", path: str) -> None:
        self._core = native
        self.path = path

    @staticmethod
    def open(path: Union[str, "os.PathLike[str]"], threads: int = 1) -> "SavedModel":
        """Opens a model: its folder, or the path prefix of ``static.save_inference_model``, with
        or without ``.pdmodel``."""
        folder = model_folder(os.fspath(path))
        return SavedModel(_core.Model.open(folder, threads), folder)

    @property
    def inputs(self) -> List[ModelInput]:
        """What :meth:`predict` needs."""
        return [ModelInput(*each) for each in self._core.inputs()]

    @property
    def outputs(self) -> List[str]:
        """Names of what :meth:`predict` gives."""
        return self._core.outputs()

    @property
    def program_text(self) -> str:
        """What the model computes, as text."""
        return read_program(self.path)[2]

    @property
    def columns(self) -> Optional[List[str]]:
        """The columns of raw rows that :meth:`predict` takes, if the features were declared."""
        return self._core.columns()

    def predict(self, feed: Any, return_list: bool = False) -> Any:
        """Outputs for a batch: arrays by name, or a list in the order of :attr:`outputs`.

        A model whose features were declared takes raw values: a list of dictionaries, one for each
        row, or a dictionary (or data frame) with a list for each of :attr:`columns`.

        ``feed`` holds an array for every input. An input with any number of ids per example takes
        a list of lists, or a tuple of all values and the offsets at which examples begin.
        """
        columns = self.columns
        if columns is not None and (isinstance(feed, list) or set(feed) >= set(columns)):
            values = self._core.predict_rows(_rows(feed, columns, self.path))
            return values if return_list else dict(zip(self.outputs, values))
        names = {each.name for each in self.inputs}
        if set(feed) != names:
            raise ValueError(
                f"the model of {self.path} takes {sorted(names)}, but was given {sorted(feed)}"
            )
        ready = {i.name: _ready(feed[i.name], i) for i in self.inputs}
        values = self._core.predict(ready)
        return values if return_list else dict(zip(self.outputs, values))

    __call__ = predict

    def __repr__(self) -> str:
        lines = [f"Model({self.path!r})", "  inputs:"]
        lines += [f"    {each!r}" for each in self.inputs]
        lines += ["  outputs:"] + [f"    {name}" for name in self.outputs]
        return "\n".join(lines)


def _rows(feed: Any, columns: List[str], path: str) -> List[List[Any]]:
    """Rows with the values of all columns, in their order."""
    if not isinstance(feed, list):
        lists = [list(feed[name]) for name in columns]
        if len({len(values) for values in lists}) > 1:
            sizes = ", ".join(f"{name}: {len(v)}" for name, v in zip(columns, lists))
            raise ValueError(f"columns are of different lengths ({sizes})")
        return [list(row) for row in zip(*lists)]
    rows = []
    for at, row in enumerate(feed):
        missing = [name for name in columns if name not in row]
        if missing:
            raise ValueError(
                f"row {at} lacks {', '.join(missing)}; the model of {path} takes the columns "
                f"{', '.join(columns)} (None where there is no value)"
            )
        rows.append([row[name] for name in columns])
    return rows


def _ready(value: Any, spec: ModelInput) -> Any:
    import numpy as np

    if spec.is_ragged and not isinstance(value, (tuple, np.ndarray)):
        rows = [np.asarray(row, dtype=spec.dtype).ravel() for row in value]
        offsets = np.cumsum([0, *(len(row) for row in rows)], dtype=np.int64)
        return (np.concatenate(rows) if rows else np.zeros(0, spec.dtype), offsets)
    if isinstance(value, tuple):
        return tuple(np.asarray(part) for part in value)
    return np.ascontiguousarray(value, dtype=spec.dtype)


def read_program(folder: str) -> Tuple[List[str], List[str], str]:
    """Names of inputs and outputs of a model, and its program as text."""
    with open(os.path.join(folder, "model.program"), encoding="utf-8") as file:
        lines = file.read().splitlines(keepends=True)
    first = next(i for i, line in enumerate(lines) if line.startswith("program "))
    head = {words[0]: words[1:] for words in map(str.split, lines[:first]) if words}
    return head["feeds"], head["fetches"], "".join(lines[first:])


def read_values(folder: str) -> Dict[str, Any]:
    """All values of a model, in memory."""
    import json

    import numpy as np

    with open(os.path.join(folder, "manifest.json"), encoding="utf-8") as file:
        manifest = json.load(file)
    for each in manifest["files"]:
        size = os.path.getsize(os.path.join(folder, each["name"]))
        if size != each["bytes"]:
            raise RegattaError(
                f"{folder}/{each['name']} has {size} bytes, but should have {each['bytes']}: the "
                "model is damaged"
            )
    path = os.path.join(folder, "params.safetensors")
    with open(path, "rb") as binary:
        found = _safetensors.read(binary.read(), path)
    values = {name: _safetensors.widened(*value) for name, value in found.items()}
    for table in manifest["tables"]:
        if table["encoding"] != "f32" or table["keys"] is not None:
            raise NotImplementedError(
                f"{folder}: table '{table['name']}' is compressed or keyed, and the model has "
                "inputs of more than 2 dimensions; such a model cannot be loaded"
            )
        rows = np.fromfile(os.path.join(folder, table["values"]), "<f4")
        values[table["name"]] = rows.reshape(table["rows"], table["dim"])
    return values


def model_folder(path: str) -> str:
    """The folder of a model that is named by its folder or by a prefix of ``.pdmodel``."""
    for end in (".pdmodel", ".pdiparams"):
        if path.endswith(end) and not os.path.isdir(path):
            path = path[: -len(end)]
    if os.path.isdir(path):
        return path
    beside = path + ".pdmodel"
    if os.path.isfile(beside):
        raise FileNotFoundError(
            f"{beside} is here, but the folder {path} with the model is not: Regatta keeps a model "
            "in that folder; models that Paddle wrote cannot be read (see docs/python.md)"
        )
    raise FileNotFoundError(f"no model at {path}: expected a folder that holds model.program")
