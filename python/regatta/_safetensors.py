"""Files of the safetensors format: a header of JSON, then the bytes of the arrays.

Nothing in such a file can be executed. bfloat16 values are arrays of 16-bit patterns here: numpy
has no such type.
"""
from __future__ import annotations

import json
from typing import Any, BinaryIO, Dict, Tuple

_TYPES = {
    "F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2", "I64": "<i8", "I32": "<i4",
    "I16": "<i2", "I8": "|i1", "U64": "<u8", "U32": "<u4", "U16": "<u2", "U8": "|u1", "BOOL": "|b1",
}
_NAMES = {code: name for name, code in _TYPES.items() if name != "BF16"}
#: The header of a file with a million tensors is smaller.
_MAX_HEADER = 100 << 20


def looks_like(start: bytes) -> bool:
    """Whether the first bytes of a file are those of this format."""
    return len(start) > 8 and start[8:9] == b"{" and int.from_bytes(
        start[:8], "little") <= _MAX_HEADER


def write(file: BinaryIO, arrays: Dict[str, Tuple[Any, bool]], metadata: Dict[str, str]) -> None:
    """Writes arrays by name, each with whether its 16-bit patterns are bfloat16."""
    import numpy as np

    head: Dict[str, Any] = {"__metadata__": metadata} if metadata else {}
    ready, at = [], 0
    for name, (array, is_bfloat) in arrays.items():
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        code = array.dtype.newbyteorder("<").str
        if not is_bfloat and code not in _NAMES:
            raise TypeError(f"save: '{name}' is of type {array.dtype}, which safetensors have not")
        kind = "BF16" if is_bfloat else _NAMES[code]
        head[name] = {
            "dtype": kind, "shape": list(array.shape), "data_offsets": [at, at + array.nbytes]}
        ready.append(array.astype(code, copy=False))
        at += array.nbytes
    text = json.dumps(head, separators=(",", ":")).encode("utf-8")
    text += b" " * (-len(text) % 8)  # so that values are aligned when the file is mapped
    file.write(len(text).to_bytes(8, "little"))
    file.write(text)
    for array in ready:
        file.write(array.tobytes())


def read(data: bytes, path: str) -> Dict[str, Tuple[Any, bool]]:
    """Arrays by name, each with whether its 16-bit patterns are bfloat16.

    Raises ValueError if the file is damaged."""
    import numpy as np

    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or 8 + length > len(data):
        raise ValueError(f"{path} is damaged: its header is longer than the file")
    try:
        head = json.loads(data[8:8 + length])
        head.pop("__metadata__", None)
        values = {}
        for name, about in head.items():
            start, end = about["data_offsets"]
            kind = np.dtype(_TYPES[about["dtype"]])
            n_elements = 1
            for d in about["shape"]:
                n_elements *= d
            if start < 0 or end - start != n_elements * kind.itemsize:
                raise ValueError(f"'{name}' has {end - start} bytes")
            array = np.frombuffer(data, kind, n_elements, 8 + length + start)
            values[name] = (array.reshape(about["shape"]).copy(), about["dtype"] == "BF16")
        return values
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is damaged, or not of the safetensors format ({error})") from None


def widened(array: Any, is_bfloat: bool) -> Any:
    """An array of floats in the place of bfloat16 patterns."""
    import numpy as np

    if not is_bfloat:
        return array
    return (array.astype(np.uint32) << 16).view(np.float32)


def narrowed(array: Any) -> Any:
    """The bfloat16 patterns of floats that bfloat16 holds exactly."""
    import numpy as np

    return (np.ascontiguousarray(array, np.float32).view(np.uint32) >> 16).astype(np.uint16)


