"""Einstein's sums over tensors and variables, made of transpose, reshape and matmul.

>>> import regatta as rg
>>> a, b = rg.ones([2, 3]), rg.ones([3, 4])
>>> rg.einsum("ij,jk->ik", a, b).tolist()
[[3.0, 3.0, 3.0, 3.0], [3.0, 3.0, 3.0, 3.0]]
"""
from __future__ import annotations

from typing import Any, Dict, List, Tuple

from .._missing import missing
from ..framework import Tensor
from ._common import check
from .linalg import matmul, transpose
from .manipulation import reshape
from .math import multiply, sum as sum_over

__all__ = ["einsum"]


def einsum(equation: str, *operands: Any) -> Any:
    """The sum of products that an equation such as ``"bij,bjk->bik"`` describes. Operands are taken
    two at a time, from the left. ``...`` stands for further dimensions."""
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)):
        operands = tuple(operands[0])
    values = [check(v, "einsum: an operand") for v in operands]
    inputs, output = _parsed(equation, values)
    for i, (labels, value) in enumerate(zip(inputs, values)):
        inputs[i], values[i] = _without_repeats(labels, value)
    while len(values) > 1:
        rest = set(output).union(*inputs[2:])
        inputs[:2], values[:2] = _pair(inputs[0], values[0], inputs[1], values[1], rest)
    return _last(inputs[0], values[0], output)


def _parsed(equation: str, values: List[Any]) -> Tuple[List[str], str]:
    """Labels of operands and of the result; ``...`` becomes capital letters that are not used."""
    left, arrow, right = equation.replace(" ", "").partition("->")
    inputs = left.split(",")
    if len(inputs) != len(values):
        raise ValueError(f"einsum: {equation!r} names {len(inputs)} operands, but there are "
                         f"{len(values)}")
    free = [c for c in "ZYXWVUTSRQPONMLKJIHGFEDCBA" if c not in equation]
    longest = ""
    for i, (labels, value) in enumerate(zip(inputs, values)):
        rank = len(value.shape)
        if "..." in labels:
            dots = "".join(free[:max(rank - len(labels) + 3, 0)][::-1])
            longest = dots if len(dots) > len(longest) else longest
            inputs[i] = labels.replace("...", dots)
        if len(inputs[i]) != rank:
            raise ValueError(f"einsum: {labels!r} in {equation!r} for an operand of {rank} "
                             "dimensions")
    if arrow:
        return inputs, right.replace("...", longest)
    every = "".join(inputs)
    once = sorted(c for c in set(every) if every.count(c) == 1 and c not in longest)
    return inputs, longest + "".join(once)


def _without_repeats(labels: str, value: Any) -> Tuple[str, Any]:
    """A label twice in one operand takes the diagonal."""
    from .search import diagonal

    for label in labels:
        while labels.count(label) > 1:
            first, second = labels.index(label), labels.rindex(label)
            value = diagonal(value, 0, first, second)
            labels = labels.replace(label, "") + label
    return labels, value


def _summed(labels: str, value: Any, keep: Any) -> Tuple[str, Any]:
    """Without dimensions that nobody needs any more."""
    gone = [i for i, c in enumerate(labels) if c not in keep]
    if gone:
        value = sum_over(value, gone)
        labels = "".join(c for c in labels if c in keep)
    return labels, value


def _pair(a: str, x: Any, b: str, y: Any, rest: Any) -> Tuple[List[str], List[Any]]:
    """Two operands as one: a product of matrices for each of the shared labels that stay."""
    a, x = _summed(a, x, rest.union(b))
    b, y = _summed(b, y, rest.union(a))
    batch = [c for c in a if c in b and c in rest]
    inner = [c for c in a if c in b and c not in rest]
    rows, columns = [c for c in a if c not in b], [c for c in b if c not in a]
    if not inner:
        return [_outer_labels(a, b)], [_outer(a, x, b, y)]
    sizes = _sizes(a, x, b, y)
    left = _arranged(a, x, [batch, rows, inner], sizes)
    right = _arranged(b, y, [batch, inner, columns], sizes)
    made = matmul(left, right)
    dims = [sizes[c] for c in batch + rows + columns]
    return ["".join(batch + rows + columns)], [_shaped(made, dims)]


def _sizes(a: str, x: Any, b: str, y: Any) -> Dict[str, int]:
    sizes = dict(zip(b, y.shape))
    for label, size in zip(a, x.shape):
        if label not in sizes or sizes[label] == 1:
            sizes[label] = size
        elif size not in (1, sizes[label]):
            raise ValueError(f"einsum: '{label}' is {size} and {sizes[label]}")
    return sizes


def _ordered(labels: str, x: Any, wanted: List[str]) -> Any:
    perm = [labels.index(c) for c in wanted]
    return x if perm == list(range(len(perm))) else transpose(x, perm)


def _arranged(labels: str, x: Any, groups: List[List[str]], sizes: Dict[str, int]) -> Any:
    """The labels in the order of the groups, the last two groups joined to one dimension each."""
    x = _ordered(labels, x, [c for group in groups for c in group])
    batch, first, second = ([sizes[c] for c in group] for group in groups)
    return _shaped(x, batch + [_joined(first), _joined(second)])


def _joined(dims: List[int]) -> int:
    total = 1
    for d in dims:
        if d == -1:
            return -1
        total *= d
    return total


def _shaped(x: Any, dims: List[int]) -> Any:
    return x if list(x.shape) == dims else reshape(x, dims)


def _outer_labels(a: str, b: str) -> str:
    return a + "".join(c for c in b if c not in a)


def _outer(a: str, x: Any, b: str, y: Any) -> Any:
    """Element by element where labels are shared, all pairs elsewhere."""
    every = _outer_labels(a, b)
    second = _ordered(b, y, [c for c in every if c in b])
    sizes = dict(zip(b, y.shape))
    y = _shaped(second, [sizes[c] if c in b else 1 for c in every])
    x = _shaped(x, list(x.shape) + [1] * (len(every) - len(a)))
    return multiply(x, y)


def _last(labels: str, value: Any, output: str) -> Any:
    labels, value = _summed(labels, value, output)
    unknown = [c for c in output if c not in labels]
    if unknown:
        raise ValueError(f"einsum: '{unknown[0]}' of the result is in no operand")
    if isinstance(value, Tensor) and labels == output:
        return value
    return _ordered(labels, value, list(output))


__getattr__ = missing(__name__)
