"""``.pdparams`` and ``.pdopt`` files: pickles of dictionaries of arrays, as Paddle writes them.

Reading executes nothing: an unpickler that knows arrays, dictionaries, lists and numbers refuses
everything else by name.
"""
from __future__ import annotations

import io
import os
import pickle
from typing import Any, BinaryIO, Callable, Dict, Union

#: Key of the table from structured names (``fc.weight``) to names of parameters.
NAME_TABLE = "StructuredToParameterName@@"
#: Key of the table of arrays that were cut into parts for old pickle protocols.
_BIG = "UnpackBigParamInfor@@"

_BUILTINS = {
    "bool", "bytearray", "bytes", "complex", "dict", "float", "frozenset", "int", "list", "range",
    "set", "slice", "str", "tuple",
}
_ALLOWED = {
    ("collections", "OrderedDict"),
    ("_codecs", "encode"),
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
}
_NUMPY = {
    "multiarray": {"_reconstruct", "scalar"},
    "numeric": {"_frombuffer"},
}


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: BinaryIO, path: str, **options: Any) -> None:
        super().__init__(file, **options)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        import importlib

        if module in ("builtins", "__builtin__") and name in _BUILTINS:
            return getattr(importlib.import_module("builtins"), name)
        if (module, name) in _ALLOWED:
            return getattr(importlib.import_module(module), name)
        for core in ("numpy.core", "numpy._core"):
            if module.startswith(core + "."):
                part = module[len(core) + 1:]
                if name in _NUMPY.get(part, ()):
                    return _numpy_internal(part, name)
        raise pickle.UnpicklingError(
            f"{self._path}: it wants {module}.{name}, but a file of values holds only arrays, "
            "numbers, texts, lists and dictionaries. It was not loaded"
        )


def _numpy_internal(part: str, name: str) -> Any:
    import importlib

    try:
        return getattr(importlib.import_module(f"numpy._core.{part}"), name)
    except ImportError:
        return getattr(importlib.import_module(f"numpy.core.{part}"), name)


def unpickle(file: Union[bytes, BinaryIO], path: str = "the data") -> Any:
    """What a pickle of values holds.

    Raises ``pickle.UnpicklingError`` if it holds anything else, or is no pickle."""
    stream = io.BytesIO(file) if isinstance(file, bytes) else file
    try:
        return _join(_Unpickler(stream, path, encoding="latin1").load())
    except pickle.UnpicklingError as error:
        if path in str(error):
            raise
        raise pickle.UnpicklingError(f"{path}: it is not a pickle ({error})") from None
    except (EOFError, IndexError, KeyError, UnicodeDecodeError, AttributeError, ValueError,
            TypeError) as error:
        raise pickle.UnpicklingError(f"{path}: it is damaged or not a pickle ({error})") from error


def _join(value: Any) -> Any:
    """Puts arrays together that were cut into parts."""
    if not isinstance(value, dict) or _BIG not in value:
        return value
    import numpy as np

    whole = dict(value)
    for name, about in whole.pop(_BIG).items():
        parts = [whole.pop(part) for part in about["slices"]]
        whole[name] = np.concatenate([p.ravel() for p in parts]).reshape(about["OriginShape"])
    return whole


def plain(value: Any, path: str = "the data") -> Any:
    """A value as files hold it: arrays for everything that has an array, no other objects."""
    import numpy as np

    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return str(value) if type(value) is not str and isinstance(value, str) else value
    if isinstance(value, np.ndarray):
        return np.asarray(value)
    if isinstance(value, np.generic):
        return value
    if isinstance(value, dict):
        return {plain(k, path): plain(v, path) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(v, path) for v in value) if type(value) in (list, tuple) else (
            [plain(v, path) for v in value])
    if isinstance(value, (set, frozenset)):
        return {plain(v, path) for v in value}
    if hasattr(value, "state_dict"):
        raise TypeError(
            f"save: {type(value).__name__} is not a value; pass what its state_dict() gives"
        )
    if hasattr(value, "get_value"):  # a variable that is kept between runs
        return np.asarray(value.get_value())
    if hasattr(value, "__array__"):
        return np.asarray(value)
    raise TypeError(
        f"save: {path} cannot hold an object of type {type(value).__name__}, only arrays, numbers, "
        "texts, lists and dictionaries"
    )


def write_file(path: str, data: Union[bytes, Callable[[BinaryIO], Any]]) -> None:
    """Writes a file that appears whole or not at all, and its folder: bytes, or what a function
    writes."""
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    draft = f"{path}.{os.getpid()}.tmp"
    try:
        with open(draft, "wb") as file:
            data(file) if callable(data) else file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(draft, path)
    except BaseException:
        if os.path.exists(draft):
            os.remove(draft)
        raise


def save(
    obj: Any,
    path: Union[str, "os.PathLike[str]", BinaryIO],
    protocol: int = 4,
    **configs: Any,
) -> None:
    """Writes a dictionary of arrays, or any lists and dictionaries of values, to a file that
    :func:`load` and Paddle read; a program is written as text.

    >>> import tempfile
    >>> import numpy as np
    >>> path = tempfile.mkdtemp() + "/values.pdparams"
    >>> save({"w": np.ones(2, "float32")}, path)
    >>> load(path)
    {'w': array([1., 1.], dtype=float32)}
    """
    from .framework import Program

    if configs.pop("use_binary_format", False):
        raise NotImplementedError("save: use_binary_format is not in Regatta; leave it out")
    if configs:
        raise TypeError(f"save: unknown arguments {sorted(configs)}")
    if not isinstance(protocol, int) or not 2 <= protocol <= 5:
        raise ValueError(f"save: protocol should be 2, 3, 4 or 5, but is {protocol!r}")
    is_program = isinstance(obj, Program)
    where = path if isinstance(path, str) else "the file"
    value = obj.serialize_to_string() if is_program else plain(obj, where)

    def write(file: BinaryIO) -> None:
        file.write(value) if is_program else pickle.dump(value, file, protocol=protocol)

    if hasattr(path, "write"):
        write(path)  # type: ignore[arg-type]
        return
    target = os.fspath(path)  # type: ignore[arg-type]
    if not os.path.basename(target):
        raise ValueError(f"save: '{target}' is a folder; expected the name of a file")
    write_file(target, write)


def load(
    path: Union[str, "os.PathLike[str]", BinaryIO], **configs: Any
) -> Any:
    """Reads what :func:`save` or ``paddle.save`` wrote: dictionaries of arrays. A program that was
    saved comes back as a program."""
    keep = bool(configs.pop("keep_name_table", False))
    configs.pop("return_numpy", None)  # values are arrays anyway
    if configs:
        raise TypeError(f"load: unknown arguments {sorted(configs)}")
    if hasattr(path, "read"):
        name, data = "the file", path.read()  # type: ignore[union-attr]
    else:
        name = os.fspath(path)  # type: ignore[arg-type]
        with open(name, "rb") as file:
            data = file.read()
    if data.startswith(b"program "):
        from .framework import Program

        return Program.parse_from_string(data)
    return values_of(unpickle(data, name), keep)


def values_of(value: Any, keep_name_table: bool = False) -> Any:
    """Values of a state dictionary: pairs of a name and an array become arrays."""
    import numpy as np

    if isinstance(value, dict):
        out: Dict[Any, Any] = {k: values_of(v, keep_name_table) for k, v in value.items()}
        if not keep_name_table:
            out.pop(NAME_TABLE, None)
        return out
    if isinstance(value, tuple) and len(value) == 2:
        if isinstance(value[0], str) and isinstance(value[1], np.ndarray):
            return value[1]
    if isinstance(value, (list, tuple)):
        return type(value)(values_of(v, keep_name_table) for v in value)
    return value
