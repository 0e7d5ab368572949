"""Layers, shapes and numbers of parameters of a network, as a table."""
from __future__ import annotations

from typing import Any, Dict, List, Sequence, Tuple

Row = Tuple[str, str, str, int]


def summary(
    net: Any, input_size: Any = None, dtypes: Any = None, input: Any = None
) -> Dict[str, int]:
    """Runs a network on zeros of ``input_size``, or on ``input``, prints its layers, and returns
    ``total_params`` and ``trainable_params``. ``input_size`` is a shape or a list of shapes, in
    which None and -1 are 1."""
    from .._mode import no_grad

    inputs = _inputs(input_size, dtypes, input)
    rows, hooks = [], []  # type: ignore[var-annotated]
    for name, layer in net.named_sublayers():
        if not list(layer.children()):
            hooks.append(layer.register_forward_post_hook(_recorder(rows, layer)))
    training = net.training
    net.eval()
    try:
        with no_grad():
            net(*inputs)
    finally:
        for hook in hooks:
            hook.remove()
        if training:
            net.train()
    total = sum(_size(each) for each in net.parameters())
    trainable = sum(_size(each) for each in net.parameters() if not each.stop_gradient)
    print(_table(rows, total, trainable))
    return {"total_params": total, "trainable_params": trainable}


def _inputs(size: Any, dtypes: Any, given: Any) -> List[Any]:
    if given is not None:
        return list(given) if isinstance(given, (list, tuple)) else [given]
    if size is None:
        raise ValueError("summary needs input_size or input")
    from ..tensor import zeros

    if hasattr(size, "shape"):  # an InputSpec
        size, dtypes = tuple(size.shape), dtypes or size.dtype
    several = isinstance(size, list) and size and not isinstance(size[0], (int, type(None)))
    shapes = list(size) if several else [size]
    kinds = list(dtypes) if isinstance(dtypes, (list, tuple)) else [dtypes] * len(shapes)
    if len(kinds) != len(shapes):
        raise ValueError(f"summary: {len(kinds)} types for {len(shapes)} inputs")
    return [zeros([1 if d is None or d < 0 else int(d) for d in getattr(shape, "shape", shape)],
                  kind or getattr(shape, "dtype", None) or "float32")
            for shape, kind in zip(shapes, kinds)]


def _size(parameter: Any) -> int:
    n = 1
    for d in parameter.shape:
        n *= d
    return n


def _shape(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ", ".join(_shape(each) for each in value)
    return str(list(value.shape)) if hasattr(value, "shape") else type(value).__name__


def _recorder(rows: List[Row], layer: Any) -> Any:
    def record(layer: Any, inputs: Any, outputs: Any) -> None:
        own = sum(_size(each) for each in layer.parameters(include_sublayers=False))
        name = f"{type(layer).__name__}-{len(rows) + 1}"
        rows.append((name, _shape(inputs), _shape(outputs), own))

    return record


def _table(rows: Sequence[Row], total: int, trainable: int) -> str:
    head = ("Layer (type)", "Input Shape", "Output Shape", "Param #")
    cells = [head] + [(name, a, b, f"{n:,}") for name, a, b, n in rows]
    widths = [max(len(row[i]) for row in cells) + 2 for i in range(4)]
    line = "-" * sum(widths)
    body = ["".join(text.rjust(width) for text, width in zip(row, widths)) for row in cells]
    tail = [f"Total params: {total:,}", f"Trainable params: {trainable:,}",
            f"Non-trainable params: {total - trainable:,}"]
    return "\n".join([line, body[0], line, *body[1:], line, *tail, line])


