"""Random tensors. They follow from the seed (:func:`regatta.seed`) and the number of the call. In a
program they differ from run to run.

>>> import regatta as rg
>>> rg.seed(3)
3
>>> a = rg.rand([2, 3])
>>> rg.seed(3)
3
>>> bool((a == rg.rand([2, 3])).all())
True
"""
from __future__ import annotations

from typing import Any, Optional, Sequence

from .. import framework
from .._missing import missing
from ..framework import Tensor, to_dtype
from .._mode import in_dynamic_mode
from ._common import Namer, check, int_list, op

__all__ = [
    "bernoulli", "gaussian", "multinomial", "normal", "poisson", "rand", "randint", "randint_like",
    "randn", "randperm", "standard_normal", "uniform",
]

_state: Any = None
_seeded: Optional[int] = None


def generator() -> Any:
    """numpy's generator of the dynamic mode. :func:`regatta.seed` begins it anew."""
    global _state, _seeded
    if _state is None or _seeded != framework._seed_count:
        import numpy as np

        _seeded = framework._seed_count
        _state = np.random.Generator(np.random.PCG64(framework._seed & (2**64 - 1)))
    return _state


def _own(seed: int) -> Any:
    if not seed:
        return generator()
    import numpy as np

    return np.random.Generator(np.random.PCG64(int(seed)))


def _floats(values: Any, dtype: Any) -> Tensor:
    logical = to_dtype(dtype or "float32")
    if "float" not in logical:
        raise TypeError(f"random floats of type {logical}: float types are possible")
    return Tensor(values, str(logical))


def _in_program(
    kind: str, word: str, name: Optional[str], attrs: Any, dtype: Any, seed: int
) -> Any:
    """The op that draws in every run of the program that is being built."""
    from ..nn.functional import dropout_seed

    out = Namer(word, name).tmp()
    logical = to_dtype(dtype)
    made = op(kind, {}, out, {**attrs, "seed": dropout_seed(out, seed)}, logical)
    made.stop_gradient = True
    return made


def uniform(
    shape: Sequence[int], dtype: Any = None, min: float = -1.0, max: float = 1.0, seed: int = 0,
    name: Optional[str] = None,
) -> Tensor:
    """Uniform in ``[min, max)``."""
    dims = int_list(shape, "uniform: shape")
    if not in_dynamic_mode():
        attrs = {"shape": dims, "low": float(min), "high": float(max)}
        return _in_program("uniform", "uniform", name, attrs, dtype or "float32", seed)
    values = _own(seed).random(dims, "float32")
    return _floats(values * (float(max) - float(min)) + float(min), dtype)


def rand(shape: Sequence[int], dtype: Any = None, name: Optional[str] = None) -> Tensor:
    """Uniform in ``[0, 1)``."""
    return uniform(shape, dtype, 0.0, 1.0)


def gaussian(
    shape: Sequence[int], mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = None,
    name: Optional[str] = None,
) -> Tensor:
    """Gaussian with a mean and a standard deviation."""
    dims = int_list(shape, "gaussian: shape")
    if not in_dynamic_mode():
        attrs = {"shape": dims, "mean": float(mean), "std": float(std)}
        return _in_program("gaussian", "gaussian", name, attrs, dtype or "float32", seed)
    values = _own(seed).standard_normal(dims, "float32")
    return _floats(values * float(std) + float(mean), dtype)


def randn(shape: Sequence[int], dtype: Any = None, name: Optional[str] = None) -> Tensor:
    """Gaussian with mean 0 and standard deviation 1."""
    return gaussian(shape, dtype=dtype)


standard_normal = randn


def normal(
    mean: Any = 0.0, std: Any = 1.0, shape: Optional[Sequence[int]] = None,
    name: Optional[str] = None,
) -> Tensor:
    """Gaussian; mean and standard deviation may be tensors, one for each element."""
    if not isinstance(mean, Tensor) and not isinstance(std, Tensor):
        return gaussian([1] if shape is None else shape, mean, std)
    like = mean if isinstance(mean, Tensor) else std
    return gaussian(like.shape, dtype=like.dtype) * std + mean


def randint(
    low: int = 0, high: Optional[int] = None, shape: Sequence[int] = (1,), dtype: Any = None,
    name: Optional[str] = None,
) -> Tensor:
    """Integers in ``[low, high)``, or in ``[0, low)``."""
    if high is None:
        low, high = 0, low
    if high <= low:
        raise ValueError(f"randint: high is {high}, but should be above low, {low}")
    dims = int_list(shape, "randint: shape")
    if not in_dynamic_mode():
        attrs = {"shape": dims, "low": int(low), "high": int(high)}
        return _in_program("randint", "randint", name, attrs, dtype or "int64", 0)
    return Tensor(generator().integers(low, high, dims), str(to_dtype(dtype or "int64")))


def randint_like(
    x: Tensor, low: int = 0, high: Optional[int] = None, dtype: Any = None,
    name: Optional[str] = None,
) -> Tensor:
    """Integers in the shape of ``x``."""
    return randint(low, high, x.shape, dtype or x.dtype)


def randperm(n: int, dtype: Any = "int64", name: Optional[str] = None) -> Tensor:
    """The numbers from 0 to ``n - 1`` in a random order."""
    if not in_dynamic_mode():
        return _in_program("randperm", "randperm", name, {"n": int(n)}, dtype, 0)
    return Tensor(generator().permutation(int(n)), str(to_dtype(dtype)))


def _seed_of(name: str) -> int:
    from ..nn.functional import dropout_seed

    return dropout_seed(name)


def bernoulli(x: Tensor, name: Optional[str] = None) -> Tensor:
    """1 with the probability of the element, otherwise 0."""
    if not isinstance(check(x, "bernoulli: x"), Tensor):
        out = Namer("bernoulli", name).tmp()
        return op("bernoulli", {"X": x}, out, {"seed": _seed_of(out)})
    p = x.numpy()
    return Tensor((generator().random(p.shape) < p).astype("float32"), x._dtype)


def poisson(x: Tensor, name: Optional[str] = None) -> Tensor:
    """Counts with the element as their mean."""
    return Tensor(generator().poisson(x.numpy()).astype("float32"), x._dtype)


def multinomial(
    x: Tensor, num_samples: int = 1, replacement: bool = False, name: Optional[str] = None
) -> Tensor:
    """Positions drawn by weights that need not add up to 1: of a vector, or of each row."""
    import numpy as np

    if not isinstance(check(x, "multinomial: x"), Tensor):
        out = Namer("multinomial", name).tmp()
        attrs = {"num_samples": int(num_samples), "replacement": bool(replacement),
                 "seed": _seed_of(out)}
        return op("multinomial", {"X": x}, out, attrs)
    weights = x.numpy().astype("float64")
    rows = weights.reshape(-1, weights.shape[-1])
    if (rows < 0).any() or not np.isfinite(rows).all() or (rows.sum(1) <= 0).any():
        raise ValueError("multinomial: weights should not be below 0, and not all 0")
    if not replacement and ((rows > 0).sum(1) < num_samples).any():
        raise ValueError(f"multinomial: {num_samples} samples without replacement, but fewer "
                         "weights are above 0")
    draw = generator()
    found = [
        draw.choice(len(row), num_samples, replacement, row / row.sum()) for row in rows
    ]
    return Tensor(np.array(found).reshape(*weights.shape[:-1], num_samples), "int64")


__getattr__ = missing(__name__)
