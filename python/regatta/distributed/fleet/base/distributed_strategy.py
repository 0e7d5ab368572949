"""What a user asks of distributed training, by Paddle's names.

Names, types, defaults and both text forms are those of the native strategy: every assignment is
checked there, so that a misspelt or outdated option is an error in the line that writes it.
"""
from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Tuple

from ...._missing import missing
from .... import _core
from ....errors import RegattaError

__all__ = ["DistributedStrategy"]

__getattr__ = missing(__name__)

# Options with a second name.
_ALIASES = {"is_with_coordinator": "with_coordinator"}

# Groups that scripts set attribute by attribute, as Paddle's classes of these names.
_OBJECTS = ("build_strategy", "execution_strategy")

# Options that are given per table, by the name of the table.
_TABLES = ("sparse_table_configs", "fleet_desc_configs")


class _Configs(dict):
    """The options of a group. What is written into it is written into the strategy."""

    def __init__(
        self, strategy: "DistributedStrategy", name: str, values: Mapping[str, Any]
    ) -> None:
        super().__init__(values)
        self._strategy, self._name = strategy, name

    def __setitem__(self, key: str, value: Any) -> None:
        self._strategy._write_group(self._name, {key: value})
        super().__setitem__(key, value)

    def update(self, *args: Any, **kwargs: Any) -> None:
        values = dict(*args, **kwargs)
        self._strategy._write_group(self._name, values)
        super().update(values)

    def setdefault(self, key: str, default: Any = None) -> Any:
        if key not in self:
            self[key] = default
        return self[key]

    def _fixed(self, *args: Any, **kwargs: Any) -> Any:
        raise TypeError(
            f"options of {self._name} cannot be removed: assign None to one for its default"
        )

    __delitem__ = pop = popitem = clear = _fixed  # type: ignore[assignment]

    def __copy__(self) -> Dict[str, Any]:
        return dict(self)

    copy = __copy__

    def __deepcopy__(self, memo: Any) -> Dict[str, Any]:
        return dict(self)

    def __reduce__(self) -> Tuple[Any, ...]:
        return dict, (dict(self),)


class _Options:
    """The options of a group as attributes."""

    def __init__(self, strategy: "DistributedStrategy", name: str) -> None:
        object.__setattr__(self, "_strategy", strategy)
        object.__setattr__(self, "_name", name)

    def __getattr__(self, option: str) -> Any:
        if option.startswith("_"):
            raise AttributeError(option)
        values = self._strategy._values[self._name]
        if option not in values:
            _check({self._name: {option: None}}, AttributeError)
            return None
        return values[option]

    def __setattr__(self, option: str, value: Any) -> None:
        _check({self._name: {option: None}}, AttributeError)
        self._strategy._write_group(self._name, {option: value})

    def __dir__(self) -> Iterable[str]:
        return list(self._strategy._values[self._name])

    def __repr__(self) -> str:
        values = self._strategy._values[self._name]
        return f"{self._name}({', '.join(f'{k}={v!r}' for k, v in values.items())})"


class DistributedStrategy:
    """All options of distributed training. ``print`` shows them and marks changed ones by ``*``.

    >>> strategy = DistributedStrategy()
    >>> strategy.a_sync = True
    >>> strategy.a_sync_configs = {"k_steps": 100}
    >>> strategy.a_sync_configs["k_steps"]
    100

    An option that does not exist, or whose type is another one, is an error at once. Whether an
    option can be honoured in the training that it is used for is checked by ``fleet.init`` and
    ``fleet.distributed_optimizer``.
    """

    def __init__(self, **options: Any) -> None:
        self._reset({})
        for name, value in options.items():
            setattr(self, name, value)

    def _reset(self, written: Dict[str, Any]) -> None:
        native = _check(written, ValueError)
        object.__setattr__(self, "_written", written)
        object.__setattr__(self, "_core", native)
        object.__setattr__(self, "_values", _parse_yaml(native.to_yaml()))

    # Reading
    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(f"'DistributedStrategy' object has no attribute '{name}'")
        name = _ALIASES.get(name, name)
        if name not in self._values:
            _check({name: None}, AttributeError)
            return None
        if name in _OBJECTS:
            return _Options(self, name)
        value = self._values[name]
        if isinstance(value, dict):
            return _Configs(self, name, value)
        return list(value) if isinstance(value, list) else value

    def __dir__(self) -> List[str]:
        return sorted([*object.__dir__(self), *self._values, *_ALIASES])

    # Writing
    def __setattr__(self, name: str, value: Any) -> None:
        name = _ALIASES.get(name, name)
        if name in _TABLES:
            value = _tables(name, value)
        elif isinstance(self._values.get(name), dict):
            return self._write_group(name, _as_group(name, value, self._values[name]))
        else:
            _check({name: None}, AttributeError)
            if value is None:
                raise TypeError(f"strategy.{name} should be a value, but is None")
        written = dict(self._written)
        written[name] = _plain(name, value)
        self._reset(written)

    def _write_group(self, name: str, values: Mapping[str, Any]) -> None:
        group = dict(self._written.get(name, {}))
        for key, value in values.items():
            if not isinstance(key, str):
                raise TypeError(f"strategy.{name}: {key!r} is not the name of an option")
            if value is None:
                _check({name: {key: None}}, ValueError)
                group.pop(key, None)
            else:
                group[key] = _plain(f"{name}.{key}", value)
        self._reset({**self._written, name: group})

    # Text
    def save_to_prototxt(self, output: str) -> None:
        """Writes all options to a file, in the text form of protocol buffers."""
        with open(output, "w", encoding="utf-8") as file:
            file.write(self._core.to_prototxt())

    def load_from_prototxt(self, pb_file: str) -> None:
        """Takes all options from a file that :meth:`save_to_prototxt` has written."""
        with open(pb_file, encoding="utf-8") as file:
            text = file.read()
        try:
            native = _core.Strategy.from_prototxt(text)
        except (ValueError, RegattaError) as error:
            raise ValueError(_PREFIX.sub(f"{pb_file}:\\1: ", str(error))) from None
        self._reset(_difference(_parse_yaml(native.to_yaml()), _defaults()))

    def to_yaml(self) -> str:
        """All options as YAML."""
        return self._core.to_yaml()

    def __repr__(self) -> str:
        usual = dict(_core.Strategy().options())
        changed = {name for name, _ in self._core.changed()}
        options = self._core.options()
        width = max(len(name) for name, _ in options)
        lines = [f"DistributedStrategy, {len(changed)} of {len(options)} options changed"]
        for name, value in options:
            line = f"{'*' if name in changed else ' '} {name:<{width}}  {value}"
            if name in changed:
                line += f"  (default: {usual.get(name, 'not set')})"
            lines.append(line.rstrip())
        return "\n".join(lines)

    __str__ = __repr__

    # Copies
    def __eq__(self, other: object) -> bool:
        if not isinstance(other, DistributedStrategy):
            return NotImplemented
        return self._core.to_yaml() == other._core.to_yaml()

    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> Tuple[Any, ...]:
        return _restore, (self._written,)

    def __copy__(self) -> "DistributedStrategy":
        return _restore(self._written)

    def __deepcopy__(self, memo: Any) -> "DistributedStrategy":
        return _restore(self._written)

    def _without(self, name: str) -> "DistributedStrategy":
        """A copy in which one option, or one of a group as ``group.option``, has its default."""
        group, _, option = name.partition(".")
        written = dict(self._written)
        if option:
            written[group] = {k: v for k, v in written.get(group, {}).items() if k != option}
        else:
            written.pop(group, None)
        return _restore(written)


def _restore(written: Dict[str, Any]) -> DistributedStrategy:
    import copy

    strategy = DistributedStrategy()
    strategy._reset(copy.deepcopy(written))
    return strategy


_PREFIX = re.compile(r"^strategy:(\d+): ")


def _check(written: Dict[str, Any], unknown: type) -> _core.Strategy:
    """The native strategy of some options; raises what fits if they are wrong."""
    import json

    try:
        return _core.Strategy(json.dumps(written))
    except (ValueError, RegattaError) as error:
        text = _PREFIX.sub("", str(error))
    if "there is no option" in text or " is now called " in text or "is a process flag" in text:
        raise unknown(f"strategy: {text}") from None
    if " should be " in text and "should be one of" not in text:
        raise TypeError(f"strategy: {text}") from None
    raise ValueError(f"strategy: {text}") from None


def _plain(name: str, value: Any) -> Any:
    """What can be written as text: numbers of numpy and variables become plain."""
    if isinstance(value, (bool, int, float, str)) or value is None:
        if isinstance(value, float) and (value != value or value in (float("inf"), -float("inf"))):
            raise ValueError(f"strategy.{name} should be a finite number, but is {value}")
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(f"{name}.{k}", v) for k, v in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(name, v) for v in value]
    if hasattr(value, "program") and hasattr(value, "name"):
        return value.name  # a variable: options name it
    if hasattr(value, "tolist"):
        return _plain(name, value.tolist())
    raise TypeError(f"strategy.{name}: {value!r} is neither a number, a text nor a list of them")


def _as_group(name: str, value: Any, known: Mapping[str, Any]) -> Mapping[str, Any]:
    """What was assigned to a group: a dict, or an object with options as attributes."""
    if isinstance(value, Mapping):
        return value
    if isinstance(value, _Options):
        return dict(value._strategy._written.get(value._name, {}))
    if name in _OBJECTS and not isinstance(value, (str, bytes, int, float, list, tuple)):
        usual = getattr(value, "_defaults", {})
        given = {k: getattr(value, k) for k in {**known, **usual} if hasattr(value, k)}
        return {k: v for k, v in given.items() if k not in usual or v != usual[k]}
    raise TypeError(
        f"strategy.{name} should be a dict of options, such as {{{next(iter(known))!r}: ...}}, but "
        f"is {value!r}"
    )


def _tables(name: str, value: Any) -> List[Dict[str, Any]]:
    """Options per table: ``{table: {option: value}}``, or a list of dicts with ``table_name``."""
    if isinstance(value, Mapping):
        if value and not all(isinstance(v, Mapping) for v in value.values()):
            raise TypeError(f"strategy.{name} should be a dict of tables, each a dict of options")
        value = [{"table_name": str(k), **v} for k, v in value.items()]
    if not isinstance(value, (list, tuple)):
        raise TypeError(f"strategy.{name} should be a dict of tables, but is {value!r}")
    return [_nested(dict(table)) for table in value]


def _nested(flat: Dict[str, Any]) -> Dict[str, Any]:
    """``{"table_parameters.t.accessor.fea_dim": 9}`` as ``{"accessor": {"fea_dim": 9}}``."""
    out: Dict[str, Any] = {}
    for path, value in flat.items():
        parts = str(path).split(".")
        if parts[0] == "table_parameters":
            parts = parts[2:]
        # The native rule has one set of options, whatever its name.
        parts = [p for p in parts[:-1] if p not in ("naive", "adagrad", "adam")] + parts[-1:]
        group = out
        for part in parts[:-1]:
            group = group.setdefault(part, {})
        if isinstance(value, Mapping):
            group.setdefault(parts[-1], {}).update(_nested(dict(value)))
        else:
            group[parts[-1]] = value
    return out


def _difference(values: Mapping[str, Any], usual: Mapping[str, Any]) -> Dict[str, Any]:
    """The options that differ from their defaults."""
    out: Dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict) and isinstance(usual.get(name), dict):
            inner = _difference(value, usual[name])
            if inner:
                out[name] = inner
        elif name not in usual or usual[name] != value:
            out[name] = value
    return out


def _defaults() -> Dict[str, Any]:
    return _parse_yaml(_core.Strategy().to_yaml())


# --- the YAML that the native strategy writes ----------------------------------------------------


def _parse_yaml(text: str) -> Dict[str, Any]:
    """Blocks of ``name: value``, groups below ``name:``, and lists of groups with ``- ``."""
    lines = [line for line in text.splitlines() if line.strip()]
    value, at = _block(lines, 0, 0)
    if at != len(lines):
        raise ValueError(f"the strategy holds a line that cannot be read: {lines[at]!r}")
    return value


def _depth(line: str) -> int:
    return len(line) - len(line.lstrip(" "))


def _block(lines: List[str], at: int, depth: int) -> Tuple[Dict[str, Any], int]:
    out: Dict[str, Any] = {}
    while at < len(lines) and _depth(lines[at]) == depth and not lines[at][depth:].startswith("- "):
        name, _, rest = lines[at][depth:].partition(":")
        rest, at = rest.strip(), at + 1
        if rest:
            out[name] = _scalar(rest)
        elif at < len(lines) and lines[at].lstrip(" ").startswith("- "):
            out[name], at = _groups(lines, at, _depth(lines[at]))
        elif at < len(lines) and _depth(lines[at]) > depth:
            out[name], at = _block(lines, at, _depth(lines[at]))
        else:
            out[name] = {}
    return out, at


def _groups(lines: List[str], at: int, depth: int) -> Tuple[List[Any], int]:
    out: List[Any] = []
    while at < len(lines) and _depth(lines[at]) == depth and lines[at][depth:].startswith("- "):
        lines[at] = lines[at][:depth] + "  " + lines[at][depth + 2:]
        group, at = _block(lines, at, depth + 2)
        out.append(group)
    return out, at


_WORDS = {"true": True, "false": False, "{}": {}}


def _scalar(text: str) -> Any:
    import json

    if text in _WORDS:
        return _WORDS[text] if text != "{}" else {}
    if text.startswith("["):
        try:
            return json.loads(text)
        except ValueError:
            return [_scalar(part.strip()) for part in text[1:-1].split(",") if part.strip()]
    if text.startswith('"'):
        return json.loads(text)
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            pass
    return text


def of(strategy: Optional[Any]) -> Optional[DistributedStrategy]:
    """A strategy that was passed to a call."""
    if strategy is None or isinstance(strategy, DistributedStrategy):
        return strategy
    raise TypeError(
        f"strategy should be a fleet.DistributedStrategy, but is a {type(strategy).__name__}"
    )
