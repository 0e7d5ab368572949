"""Files of values: ``.pdparams`` and ``.pdopt``, which are pickles of dictionaries of arrays as
Paddle writes them, and ``.safetensors``.

Reading executes nothing: an unpickler that knows arrays, dictionaries, lists and numbers refuses
everything else by name.
"""
from __future__ import annotations

import io
import os
import pickle
import sys
from typing import Any, BinaryIO, Callable, Dict, Tuple, Union

from . import _safetensors
from ._safetensors import narrowed, widened

#: Key of the table from structured names (``fc.weight``) to names of parameters.
NAME_TABLE = "StructuredToParameterName@@"
#: Key of the table of arrays that were cut into parts for old pickle protocols.
_BIG = "UnpackBigParamInfor@@"
_PART_BYTES = 2**30 - 1

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


def is_tensor(value: Any) -> bool:
    """Whether a value is a Tensor of dynamic mode."""
    core = sys.modules.get("regatta._core")
    kind = getattr(core, "Tensor", None)
    return kind is not None and isinstance(value, kind)


def _array(tensor: Any) -> Any:
    """The array of a tensor as files hold it: Paddle writes bfloat16 as 16-bit patterns."""
    array = tensor.numpy()
    return narrowed(array) if tensor._dtype == "bfloat16" and array.dtype.itemsize == 4 else array


def _is_state(value: Any) -> bool:
    """Whether a dictionary is what ``state_dict`` gives: tensors, and dictionaries without any."""
    if not isinstance(value, dict) or not any(is_tensor(each) for each in value.values()):
        return False
    return all(is_tensor(each) or isinstance(each, dict) and not any(map(is_tensor, each.values()))
               for each in value.values())


def _state(value: Dict[str, Any], path: str) -> Dict[str, Any]:
    """A state dictionary as Paddle writes it: arrays, and a table of the names of tensors."""
    out, names = {}, {}
    for key, each in value.items():
        if is_tensor(each):
            out[key], names[key] = _array(each), str(each.name)
        else:
            out[key] = plain(each, path)
    out[NAME_TABLE] = names
    return out


def plain(value: Any, path: str = "the data") -> Any:
    """A value as files hold it: arrays for everything that has an array, pairs of a name and an
    array for tensors, no other objects."""
    import numpy as np

    if value is None or isinstance(value, (bool, int, float, complex, str, bytes)):
        return str(value) if type(value) is not str and isinstance(value, str) else value
    if is_tensor(value):
        return (str(value.name), _array(value))
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
        f"save: {path} cannot hold an object of type {type(value).__name__}, only tensors, arrays, "
        "numbers, texts, lists and dictionaries"
    )


def _cut(value: Any) -> Any:
    """For protocols 2 and 3, which have no arrays above 4 GiB: large arrays of a dictionary in
    parts, as Paddle cuts them."""
    import numpy as np

    if not isinstance(value, dict):
        return value
    out: Dict[Any, Any] = {}
    about: Dict[Any, Any] = {}
    for key, array in value.items():
        most = _PART_BYTES // array.dtype.itemsize if isinstance(array, np.ndarray) else 0
        if not most or array.size <= most:
            out[key] = array
            continue
        flat, parts = array.ravel(), range(0, array.size, most)
        names = [f"{key}@@.{i}" for i in range(len(parts))]
        out.update(zip(names, (flat[at:at + most] for at in parts)))
        about[key] = {"OriginShape": array.shape, "slices": names}
    if about:
        out[_BIG] = about
    return out


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
    """Writes a state dictionary, or any lists and dictionaries of tensors, arrays and numbers, to a
    file that :func:`load` and Paddle read. A path that ends in ``.safetensors`` makes a file of
    that format, of a dictionary of tensors. A program is written as text.

    >>> import tempfile
    >>> import numpy as np
    >>> path = tempfile.mkdtemp() + "/values.pdparams"
    >>> save({"w": np.ones(2, "float32")}, path)
    >>> load(path, return_numpy=True)
    {'w': array([1., 1.], dtype=float32)}
    """
    if configs.pop("use_binary_format", False):
        raise NotImplementedError("save: use_binary_format is not in Regatta; leave it out")
    protocol = configs.pop("pickle_protocol", protocol)
    if configs:
        raise TypeError(f"save: unknown arguments {sorted(configs)}")
    if not isinstance(protocol, int) or not 2 <= protocol <= 5:
        raise ValueError(f"save: protocol should be 2, 3, 4 or 5, but is {protocol!r}")
    if hasattr(path, "write"):
        _writer(obj, "the file", protocol)(path)
        return
    target = os.fspath(path)  # type: ignore[arg-type]
    if not os.path.basename(target):
        raise ValueError(f"save: '{target}' is a folder; expected the name of a file")
    write_file(target, _writer(obj, target, protocol))


def _writer(obj: Any, path: str, protocol: int) -> Callable[[Any], Any]:
    """What writes an object to a file. The object is checked before the file is opened."""
    from .framework import Program

    if isinstance(obj, Program):
        text = obj.serialize_to_string()
        return lambda file: file.write(text)
    if path.endswith(".safetensors"):
        arrays = _flat_arrays(obj, path)
        return lambda file: _safetensors.write(file, arrays, {"format": "np"})
    value = _state(obj, path) if _is_state(obj) else plain(obj, path)
    value = _cut(value) if protocol < 4 else value
    return lambda file: pickle.dump(value, file, protocol=protocol)


def _flat_arrays(obj: Any, path: str) -> Dict[str, Tuple[Any, bool]]:
    """Arrays by name of a dictionary for safetensors, with whether they are bfloat16."""
    import numpy as np

    if not isinstance(obj, dict):
        raise TypeError(f"save: {path} holds tensors by name, not a {type(obj).__name__}")
    out = {}
    for key, value in obj.items():
        if is_tensor(value):
            out[str(key)] = (_array(value), value._dtype == "bfloat16")
        elif isinstance(value, (np.ndarray, np.generic)) or hasattr(value, "get_value"):
            out[str(key)] = (plain(value), False)
        else:
            raise TypeError(
                f"save: {path} holds tensors by name, but '{key}' is a {type(value).__name__}; "
                "files that end in .pdparams or .pdopt hold it")
    return out


def load(
    path: Union[str, "os.PathLike[str]", BinaryIO], **configs: Any
) -> Any:
    """Reads what :func:`save` or ``paddle.save`` wrote, or a file of the safetensors format. Values
    are Tensors in dynamic mode, arrays in static mode and with ``return_numpy``. A program that was
    saved comes back as a program."""
    keep = bool(configs.pop("keep_name_table", False))
    as_arrays = bool(configs.pop("return_numpy", False)) or not _is_dynamic()
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
    if _safetensors.looks_like(data[:16]):
        found = _safetensors.read(data, name)
        if as_arrays:
            return {key: widened(*value) for key, value in found.items()}
        return {key: _tensor(widened(*value), key, "bfloat16" if value[1] else None)
                for key, value in found.items()}
    value = unpickle(data, name)
    return values_of(value, keep) if as_arrays else _tensors_of(value, keep)


def _is_dynamic() -> bool:
    from ._mode import in_dynamic_mode

    return in_dynamic_mode()


def _tensor(array: Any, name: Any, kind: Any = None) -> Any:
    from .tensor import to_tensor

    if kind is None and array.dtype.name == "uint16":  # how Paddle writes bfloat16
        array, kind = widened(array, True), "bfloat16"
    made = to_tensor(array) if kind is None else to_tensor(array, dtype=kind)
    if isinstance(name, str):
        made.name = name
    return made


def _tensors_of(value: Any, keep_name_table: bool, name: Any = None) -> Any:
    """The same with tensors in the place of arrays, under the names that were saved."""
    import numpy as np

    if isinstance(value, np.ndarray):
        return _tensor(value, name)
    if isinstance(value, dict):
        names = value.get(NAME_TABLE, {})
        out = {k: _tensors_of(v, keep_name_table, names.get(k)) if k != NAME_TABLE else v
               for k, v in value.items()}
        if not keep_name_table:
            out.pop(NAME_TABLE, None)
        return out
    if isinstance(value, tuple) and len(value) == 2:
        if isinstance(value[0], str) and isinstance(value[1], np.ndarray):
            return _tensor(value[1], value[0])
    if isinstance(value, (list, tuple)):
        return type(value)(_tensors_of(v, keep_name_table) for v in value)
    return value


def values_of(value: Any, keep_name_table: bool = False) -> Any:
    """The same with arrays in the place of tensors, which files hold with their names."""
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
