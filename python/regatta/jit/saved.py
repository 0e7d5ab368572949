"""``jit.save`` and ``jit.load``: networks as models, and back as layers."""
from __future__ import annotations

import contextlib
import os
import warnings
from typing import Any, Dict, Iterator, List, Optional, Sequence

from .. import nn
from .._files import is_tensor
from .._model import model_folder, read_program, read_values
from ..framework import Program, Scope, Variable, scope_guard
from .api import StaticFunction
from .trace import Trace, trace


def save(
    layer: Any, path: str, input_spec: Optional[Sequence[Any]] = None, **configs: Any
) -> None:
    """Writes a layer, or a function, as a model that predicts: the folder ``path``, which
    :func:`load`, ``regatta predict``, ``regatta serve`` and :meth:`regatta.Model.open` read and the
    ONNX export takes, with ``path.pdmodel`` and ``path.pdiparams`` beside it.

    ``input_spec`` describes the inputs, as ``InputSpec`` with None for the batch or as tensors.
    Without it those of ``to_static`` hold, or those of the last call of the program. The layer is
    traced as after ``eval()``.
    """
    for name in ("output_spec", "with_hook", "combine_params", "clip_extra", "skip_forward",
                 "input_names_after_prune", "skip_prune_program"):
        if configs.pop(name, None):
            raise NotImplementedError(f"jit.save: {name} is not in Regatta; leave it out")
    if configs:
        raise TypeError(f"jit.save: unknown arguments {sorted(configs)}")
    found = _trace_of(layer, input_spec)
    if not found.fetches:
        raise ValueError("jit.save: the function returns no tensors")
    from ..static.io import save_inference_model

    found.update()
    feeds = found.used_feeds()
    if len(feeds) < len(found.feeds):
        unused = ", ".join(name for name in found.feeds if name not in feeds)
        warnings.warn(f"jit.save: no output depends on {unused}; the model does not take it")
    with scope_guard(found.scope):
        save_inference_model(path, feeds, found.fetches, None, program=found.program)


def _trace_of(layer: Any, input_spec: Optional[Sequence[Any]]) -> Trace:
    owner: Any = layer
    if isinstance(layer, nn.Layer):
        function: Any = layer.forward
    elif callable(layer):
        function, owner = layer, getattr(layer, "_layer", None)
    else:
        raise TypeError(f"jit.save takes a layer or a function, not {type(layer).__name__}")
    known, last = None, None
    if isinstance(function, StaticFunction):
        known, last, function = function.input_spec, function._last, function._function
    specs = list(input_spec) if input_spec is not None else known
    if specs is None and isinstance(layer, TranslatedLayer):
        specs = layer._input_spec()
    if specs is None:
        if last is None:
            raise ValueError(
                "jit.save needs input_spec: shapes and types of the inputs, such as "
                "[InputSpec([None, 28], 'float32')]")
        return last
    for spec in specs:
        if isinstance(spec, Variable):
            raise TypeError("jit.save: input_spec holds a variable; pass InputSpec or tensors")
    with _predicting(owner):
        return trace(function, specs, {}, owner)


@contextlib.contextmanager
def _predicting(layer: Any) -> Iterator[None]:
    """A layer as after ``eval()``; afterwards every part is as it was."""
    if layer is None:
        yield
        return
    parts = layer.sublayers(include_self=True)
    modes = [part.training for part in parts]
    layer.eval()
    try:
        yield
    finally:
        for part, mode in zip(parts, modes):
            object.__setattr__(part, "training", mode)


def load(path: str, **configs: Any) -> "TranslatedLayer":
    """The layer of a model that :func:`save` or ``static.save_inference_model`` wrote."""
    for name in ("model_filename", "params_filename"):
        configs.pop(name, None)  # a model is a folder
    if configs:
        raise TypeError(f"jit.load: unknown arguments {sorted(configs)}")
    return TranslatedLayer(model_folder(os.fspath(path)))


class TranslatedLayer(nn.Layer):
    """A saved model as a layer. After ``eval()`` or under ``no_grad`` its program runs by the
    executor. In training its ops run one by one, so that gradients reach its parameters; what was
    fixed for prediction (dropout, statistics of batch norms) stays so."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        from .._bridge import EagerParamBase
        from ..tensor import to_tensor

        feeds, fetches, text = read_program(folder)
        program = Program.parse_from_string(text)
        bound: List[Any] = []
        names: Dict[str, str] = {}
        for name, value in read_values(folder).items():
            if program._core.var(name)[3] == "param":
                tensor: Any = EagerParamBase(value, "float32", name)
                self.add_parameter(_attribute(name, names), tensor)
            else:
                tensor = to_tensor(value)
                tensor.name, tensor.persistable = name, True
                self.register_buffer(_attribute(name, names), tensor)
            bound.append((name, tensor))
        outputs = [program.global_block().var(name) for name in fetches]
        single = outputs[0] if len(outputs) == 1 else outputs
        self._trace = Trace(program, feeds, single, Scope(), bound)
        self._steps = _steps(program)
        self.eval()

    def program(self, method_name: str = "forward") -> Program:
        """The program of the model."""
        return self._trace.program

    def _input_spec(self) -> List[Any]:
        from ..static import InputSpec

        block = self._trace.program.global_block()
        return [InputSpec(block.var(n).shape, block.var(n).dtype, n) for n in self._trace.feeds]

    def forward(self, *inputs: Any) -> Any:
        from .._mode import is_grad_enabled

        feeds = self._trace.feeds
        if len(inputs) != len(feeds):
            raise TypeError(f"the model takes {len(feeds)} inputs {feeds}, not {len(inputs)}")
        if any(isinstance(each, Variable) for each in inputs):
            return self._run_ops(inputs)
        ready = [self._tensor(each) for each in inputs]
        if self.training and is_grad_enabled():
            return self._run_ops(ready)
        return self._trace.run(ready)

    @staticmethod
    def _tensor(value: Any) -> Any:
        from ..tensor import to_tensor

        return value if is_tensor(value) else to_tensor(value)

    def _run_ops(self, inputs: Sequence[Any]) -> Any:
        """Runs the ops of the program one by one: on tensors, or into a program that is traced."""
        from ..tensor._common import several

        values: Dict[str, Any] = dict(self._trace.bindings())
        values.update(zip(self._trace.feeds, inputs))
        for kind, slots, outputs, attrs in self._steps:
            given = {slot: [values[n] for n in names] for slot, names in slots.items()}
            made = several(kind, given, {slot: list(n) for slot, n in outputs.items()}, attrs)
            names = [name for slot in outputs.values() for name in slot]
            values.update(zip(names, made))
        found = [values[v.name] for v in self._trace.fetches]
        return found[0] if len(found) == 1 else found


def _attribute(name: str, taken: Dict[str, str]) -> str:
    """A name of a parameter as an attribute, which has no dots."""
    attribute = name.replace(".", "_")
    while attribute in taken:
        attribute += "_"
    taken[attribute] = name
    return attribute


# Results that gradients need and programs for prediction do not have.
_FOR_GRADIENTS = {"batch_norm": ("SavedMean", "SavedInvStd")}


def _steps(program: Program) -> List[Any]:
    steps = []
    for op in program.global_block().ops:
        outputs = {slot: names for slot, names in op._outputs.items() if names}
        first = next(iter(outputs.values()))[0]
        for slot in _FOR_GRADIENTS.get(op.type, ()):
            outputs.setdefault(slot, [f"{first}.{slot}"])
        inputs = {slot: names for slot, names in op._inputs.items() if names}
        steps.append((op.type, inputs, outputs, op.all_attrs()))
    return steps
