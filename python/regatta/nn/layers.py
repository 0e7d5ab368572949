"""The base of layers: what holds parameters, sublayers and buffers under names."""
from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, Callable, Dict, Iterator, List, Optional, Sequence, Set, Tuple

from .. import framework
from .._bridge import EagerParamBase, create_eager
from .._missing import missing
from .._mode import in_dynamic_mode
from ..framework import (
    Parameter, ParamAttr, Tensor, Variable, global_scope, to_dtype, unique_name,
)

__all__ = ["Layer"]

_PARAMETERS = (EagerParamBase, Parameter)
_VALUES = (Tensor, Variable)


def snake_case(name: str) -> str:
    """The name of a class as names of variables begin with it.

    >>> snake_case("MMoELayer"), snake_case("ReLU"), snake_case("BatchNorm1D")
    ('m_mo_e_layer', 're_lu', 'batch_norm1d')
    """
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()


class HookRemoveHelper:
    """Takes a hook away again."""

    def __init__(self, hooks: Dict[int, Callable[..., Any]], key: int) -> None:
        self._hooks, self._key = hooks, key

    def remove(self) -> None:
        """The hook is not called any more."""
        self._hooks.pop(self._key, None)


class Layer:
    """A part of a network. In the dynamic mode its parameters are tensors with values, and calling
    it computes. Made in the static mode, its parameters belong to the program that is being built,
    and calling it adds ops.

    >>> import regatta as rg
    >>> class Tower(rg.nn.Layer):
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.wide = rg.nn.Linear(4, 8)
    ...     def forward(self, x):
    ...         return rg.nn.functional.relu(self.wide(x))
    >>> tower = Tower()
    >>> [name for name, _ in tower.named_parameters()]
    ['wide.weight', 'wide.bias']
    >>> tower(rg.ones([2, 4])).shape
    [2, 8]
    """

    def __init__(self, name_scope: Optional[str] = None, dtype: Any = "float32") -> None:
        own = object.__setattr__
        own(self, "_parameters", OrderedDict())
        own(self, "_sub_layers", OrderedDict())
        own(self, "_buffers", OrderedDict())
        own(self, "_non_persistable_buffers", set())
        own(self, "_pre_hooks", OrderedDict())
        own(self, "_post_hooks", OrderedDict())
        own(self, "_hook_count", 0)
        own(self, "training", True)
        own(self, "_dtype", to_dtype(dtype))
        word = name_scope if name_scope is not None else snake_case(type(self).__name__)
        own(self, "_full_name", unique_name.generate(word))

    # Parts
    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """What the layer computes."""
        raise NotImplementedError(f"{type(self).__name__} has no forward")

    def __call__(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._hook_count:
            return self._call_with_hooks(inputs, kwargs)
        return self.forward(*inputs, **kwargs)

    def _call_with_hooks(self, inputs: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Any:
        for hook in list(self._pre_hooks.values()):
            changed = hook(self, inputs)
            if changed is not None:
                inputs = changed if isinstance(changed, tuple) else (changed,)
        outputs = self.forward(*inputs, **kwargs)
        for hook in list(self._post_hooks.values()):
            changed = hook(self, inputs, outputs)
            if changed is not None:
                outputs = changed
        return outputs

    def _add_hook(self, hooks: Dict[int, Any], hook: Callable[..., Any]) -> HookRemoveHelper:
        object.__setattr__(self, "_hook_count", self._hook_count + 1)
        hooks[self._hook_count] = hook
        return HookRemoveHelper(hooks, self._hook_count)

    def register_forward_pre_hook(self, hook: Callable[..., Any]) -> HookRemoveHelper:
        """``hook(layer, inputs)`` is called before forward and may replace the inputs."""
        return self._add_hook(self._pre_hooks, hook)

    def register_forward_post_hook(self, hook: Callable[..., Any]) -> HookRemoveHelper:
        """``hook(layer, inputs, outputs)`` is called after forward and may replace the outputs."""
        return self._add_hook(self._post_hooks, hook)

    def full_name(self) -> str:
        """The name that names of parameters begin with."""
        return self._full_name

    def create_parameter(
        self, shape: Sequence[int], attr: Any = None, dtype: Any = None, is_bias: bool = False,
        default_initializer: Any = None,
    ) -> Optional[Parameter]:
        """A parameter named after this layer; None if ``attr`` is False."""
        from .initializer import default_for

        attr = ParamAttr.to_attr(attr)
        if attr is False:
            return None
        init = default_initializer if default_initializer is not None else default_for(is_bias)
        suffix = "b" if is_bias else "w"
        kind = self._dtype if dtype is None else dtype
        if in_dynamic_mode():
            chosen = attr.initializer if attr.initializer is not None else init
            return create_eager(None, self._full_name, suffix, shape, attr, chosen, kind)
        return framework.create_parameter(self._full_name, suffix, shape, attr, init, kind)

    def _state(self, name: Optional[str], shape: Sequence[int], value: float) -> Variable:
        """What is kept between runs but not learned."""
        name = name or unique_name.generate(f"{self._full_name}.w")
        if in_dynamic_mode():
            import numpy as np

            made = Tensor(np.full([int(d) for d in shape], value, "float32"), "float32")
            made.name, made.persistable = name, True
            return made
        return framework.create_state(name, shape, "float32", value)

    def create_variable(
        self, name: Optional[str] = None, persistable: bool = False, dtype: Any = None
    ) -> Variable:
        """A variable that ops may write; in the dynamic mode a tensor of zeros."""
        name = name or unique_name.generate(f"{self._full_name}.create_variable")
        if in_dynamic_mode():
            made = Tensor([0.0], str(to_dtype(dtype or self._dtype)))
            made.name, made.persistable = name, persistable
            return made
        block = framework.default_main_program().global_block()
        return block.create_var(name=name, shape=[1], dtype=dtype or self._dtype,
                                persistable=persistable)

    create_tensor = create_variable

    def add_parameter(self, name: str, parameter: Optional[Parameter]) -> Optional[Parameter]:
        """Adds a parameter under a name; returns it."""
        self._check_name(name)
        if parameter is not None and not isinstance(parameter, _PARAMETERS):
            raise TypeError(f"parameter '{name}' of {type(self).__name__} is "
                            f"{type(parameter).__name__}, not a Parameter")
        self._show("_parameters", name, parameter)
        return parameter

    def add_sublayer(self, name: str, sublayer: Optional["Layer"]) -> Optional["Layer"]:
        """Adds a layer under a name; returns it."""
        name = str(name)
        if sublayer is not None and not isinstance(sublayer, Layer):
            raise TypeError(f"sublayer '{name}' of {type(self).__name__} is "
                            f"{type(sublayer).__name__}, not a Layer")
        self._show("_sub_layers", name, sublayer)
        return sublayer

    def register_buffer(
        self, name: str, tensor: Optional[Variable], persistable: bool = True
    ) -> None:
        """Adds a variable that is not learned under a name."""
        self._check_name(name)
        if tensor is not None and not isinstance(tensor, _VALUES):
            raise TypeError(f"buffer '{name}' of {type(self).__name__} is "
                            f"{type(tensor).__name__}, not a tensor or a variable")
        self._show("_buffers", name, tensor)
        if persistable:
            self._non_persistable_buffers.discard(name)
        else:
            self._non_persistable_buffers.add(name)

    @staticmethod
    def _check_name(name: str) -> None:
        if not isinstance(name, str) or not name or "." in name:
            raise KeyError(f"a name of a parameter or buffer is a text without '.', not {name!r}")

    # Attributes. Parts are in their stores, which keep the order, and among the attributes, where
    # Python finds them at once.
    def __setattr__(self, name: str, value: Any) -> None:
        own = self.__dict__
        if "_parameters" not in own:
            if isinstance(value, (Layer,) + _PARAMETERS):
                raise ValueError(f"{type(self).__name__}: call super().__init__() before "
                                 f"'{name}' is set")
        elif isinstance(value, _PARAMETERS):
            self._forget(name, "_parameters")
            own["_parameters"][name] = value
        elif isinstance(value, Layer):
            self._forget(name, "_sub_layers")
            own["_sub_layers"][name] = value
        elif name in own["_buffers"] and (value is None or isinstance(value, _VALUES)):
            own["_buffers"][name] = value
        elif value is None and (name in own["_parameters"] or name in own["_sub_layers"]):
            store = "_parameters" if name in own["_parameters"] else "_sub_layers"
            own[store][name] = None
        else:
            self._forget(name, "")
        object.__setattr__(self, name, value)

    def _show(self, store: str, name: str, value: Any) -> None:
        """Puts a part into its store and, unless that hides something else, among the
        attributes."""
        own = self.__dict__
        parts = own[store]
        seen = name not in own or (name in parts and own[name] is parts[name])
        parts[name] = value
        if seen and name.isidentifier() and not hasattr(type(self), name):
            own[name] = value

    def _forget(self, name: str, kept: str) -> None:
        own = self.__dict__
        for store in ("_parameters", "_sub_layers", "_buffers"):
            if store != kept and name in own[store]:
                del own[store][name]

    def __getattr__(self, name: str) -> Any:
        for store in ("_parameters", "_sub_layers", "_buffers"):
            values = self.__dict__.get(store)
            if values is not None and name in values:
                return values[name]
        raise AttributeError(f"{type(self).__name__} has no attribute '{name}'")

    def __delattr__(self, name: str) -> None:
        own = self.__dict__
        for store in ("_parameters", "_sub_layers", "_buffers"):
            if name in own[store]:
                del own[store][name]
                own.pop(name, None)
                return
        object.__delattr__(self, name)

    def __dir__(self) -> List[str]:
        names = set(object.__dir__(self))
        return sorted(names | set(self._parameters) | set(self._sub_layers) | set(self._buffers))

    # Walks
    def named_children(self) -> Iterator[Tuple[str, "Layer"]]:
        """The layers directly below, each once."""
        seen: Set[int] = set()
        for name, layer in self._sub_layers.items():
            if layer is not None and id(layer) not in seen:
                seen.add(id(layer))
                yield name, layer

    def children(self) -> Iterator["Layer"]:
        """The layers directly below."""
        return (layer for _, layer in self.named_children())

    def named_sublayers(
        self, prefix: str = "", include_self: bool = False, layers_set: Optional[Set[Any]] = None,
        remove_duplicate: bool = True,
    ) -> Iterator[Tuple[str, "Layer"]]:
        """All layers below with their dotted names, each once."""
        seen = set() if layers_set is None else layers_set
        if include_self and id(self) not in seen:
            seen.add(id(self))
            yield prefix, self
        for name, layer in self._sub_layers.items():
            if layer is None:
                continue
            path = f"{prefix}.{name}" if prefix else name
            yield from layer.named_sublayers(path, True, seen)

    def sublayers(self, include_self: bool = False) -> List["Layer"]:
        """All layers below."""
        return [layer for _, layer in self.named_sublayers(include_self=include_self)]

    def _named(
        self, store: str, prefix: str, include_sublayers: bool
    ) -> Iterator[Tuple[str, Any]]:
        layers = [(prefix, self)]
        if include_sublayers:
            layers = list(self.named_sublayers(prefix, include_self=True))
        seen: Set[Tuple[int, str]] = set()
        for path, layer in layers:
            for name, value in getattr(layer, store).items():
                if value is None:
                    continue
                static = isinstance(value, Variable)
                key = (id(value.program), value.name) if static else (id(value), "")
                if key in seen:
                    continue
                seen.add(key)
                yield f"{path}.{name}" if path else name, value

    def named_parameters(
        self, prefix: str = "", include_sublayers: bool = True
    ) -> Iterator[Tuple[str, Parameter]]:
        """All parameters with their dotted names, each once."""
        return self._named("_parameters", prefix, include_sublayers)

    def parameters(self, include_sublayers: bool = True) -> List[Parameter]:
        """All parameters."""
        return [p for _, p in self.named_parameters(include_sublayers=include_sublayers)]

    def named_buffers(
        self, prefix: str = "", include_sublayers: bool = True
    ) -> Iterator[Tuple[str, Variable]]:
        """All buffers with their dotted names, each once."""
        return self._named("_buffers", prefix, include_sublayers)

    def buffers(self, include_sublayers: bool = True) -> List[Variable]:
        """All buffers."""
        return [b for _, b in self.named_buffers(include_sublayers=include_sublayers)]

    def apply(self, fn: Callable[["Layer"], Any]) -> "Layer":
        """Calls a function with every layer below, then with this one."""
        for layer in self.children():
            layer.apply(fn)
        fn(self)
        return self

    # Modes
    def train(self) -> "Layer":
        """What is called from now on trains: dropout drops, batch norms use the batch."""
        for layer in self.sublayers(include_self=True):
            object.__setattr__(layer, "training", True)
        return self

    def eval(self) -> "Layer":
        """What is called from now on predicts."""
        for layer in self.sublayers(include_self=True):
            object.__setattr__(layer, "training", False)
        return self

    # Values
    def _values(self, include_sublayers: bool, path: str = "") -> Iterator[Tuple[str, Any]]:
        """Parameters and buffers under all of their names, also where layers share them."""
        for name, value in self._parameters.items():
            if value is not None:
                yield path + name, value
        for name, value in self._buffers.items():
            if value is not None and name not in self._non_persistable_buffers:
                yield path + name, value
        if include_sublayers:
            for name, layer in self._sub_layers.items():
                if layer is not None:
                    yield from layer._values(True, f"{path}{name}.")

    def state_dict(
        self, destination: Optional[Dict[str, Any]] = None, include_sublayers: bool = True,
        structured_name_prefix: str = "", use_hook: bool = True,
    ) -> Dict[str, Any]:
        """Parameters and buffers by dotted names: the tensors themselves. Of a layer that was made
        in the static mode the values in the global scope, as arrays.

        Raises RuntimeError if there are none yet: run the startup program first."""
        out = OrderedDict() if destination is None else destination
        for name, value in self._values(include_sublayers):
            eager = isinstance(value, Tensor)
            out[structured_name_prefix + name] = value if eager else value.numpy()
        return out

    to_static_state_dict = state_dict

    def set_state_dict(
        self, state_dict: Dict[str, Any], use_structured_name: bool = True
    ) -> Tuple[List[str], List[str]]:
        """Sets values, by dotted names or else by names of parameters: of tensors in place, of
        variables in the global scope. Returns names that were missing and names that nothing
        took."""
        import numpy as np

        missing_keys, used, done = [], set(), set()
        for name, variable in self._values(True):
            key = name if use_structured_name else variable.name
            if key not in state_dict:
                missing_keys.append(key)
                continue
            used.add(key)
            if variable.name in done:
                continue
            done.add(variable.name)
            value = np.asarray(state_dict[key])
            if list(value.shape) != list(variable.shape):
                raise ValueError(f"'{key}' has the shape {list(value.shape)}, but "
                                 f"'{variable.name}' has {list(variable.shape)}")
            if isinstance(variable, Tensor):
                variable._set(value)
                continue
            global_scope().var(variable.name).get_tensor().set(value.astype("float32"))
        unexpected = [key for key in state_dict if key not in used]
        return missing_keys, unexpected

    set_dict = set_state_dict
    load_dict = set_state_dict

    def to(self, device: Any = None, dtype: Any = None, blocking: Any = None) -> "Layer":
        """This layer: everything is on the CPU and of type float32."""
        if dtype is not None and to_dtype(dtype) not in ("float32", "float64"):
            raise NotImplementedError(f"parameters of type {dtype}: they are float32; for 16 bits "
                                      "use amp of the strategy")
        return self

    def astype(self, dtype: Any = None) -> "Layer":
        """This layer: parameters are of type float32."""
        return self.to(dtype=dtype)

    def clear_gradients(self) -> None:
        """Parameters without gradients. Those of a program are made anew in every run."""
        for parameter in self.parameters():
            if isinstance(parameter, Tensor):
                parameter._clear_grad(True)

    clear_grad = clear_gradients

    def float(self, excluded_layers: Any = None) -> "Layer":
        """This layer: parameters are of type float32."""
        return self

    def backward(self, *inputs: Any) -> None:
        """Raises: layers have no backward of their own."""
        raise ValueError("a layer has no backward: call backward() of the loss")

    # Text
    def extra_repr(self) -> str:
        """What stands in brackets behind the name of the layer."""
        return ""

    def __repr__(self) -> str:
        extra = self.extra_repr()
        lines = []
        for name, layer in self._sub_layers.items():
            text = repr(layer).replace("\n", "\n  ")
            lines.append(f"({name}): {text}")
        if not lines:
            return f"{type(self).__name__}({extra})"
        head = f"{extra}\n  " if extra else "\n  "
        return f"{type(self).__name__}({head}" + "\n  ".join(lines) + "\n)"


__getattr__ = missing(__name__)
