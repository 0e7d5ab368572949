"""Takes what is random out of a model, in PaddlePaddle and in Regatta alike.

`functions(paddle)` replaces dropout by nothing, permutations and samples by fixed ones.
`install(paddle)` does that for a dynamic model, and returns a function that lists every parameter
that was made since, registered in the model or not.
"""
from __future__ import annotations

from typing import Any, Callable, List

import numpy as np


def functions(paddle: Any) -> None:
    paddle.nn.functional.dropout = lambda x, *args, **kwargs: x
    paddle.nn.Dropout.forward = lambda self, x: x
    paddle.randperm = lambda n, *args, **kwargs: paddle.to_tensor(np.roll(np.arange(int(n)), 1))
    paddle.multinomial = _fixed_sample(paddle)


def install(paddle: Any) -> Callable[[Any], List[Any]]:
    functions(paddle)
    if "regatta" not in paddle.__version__:
        _exact_sparse_adam(paddle)
        _exact_gather(paddle)
    return _collect(paddle)


def _fixed_sample(paddle: Any) -> Callable[..., Any]:
    def multinomial(x: Any, num_samples: int = 1, replacement: bool = False, name: Any = None):
        # Class 0 is padding and has no probability.
        classes = int(x.shape[-1]) - 1
        return paddle.assign(1 + np.arange(num_samples, dtype="int64") * 7919 % classes)

    return multinomial


def _collect(paddle: Any) -> Callable[[Any], List[Any]]:
    """Some folders keep layers in plain lists, where `parameters()` does not find them."""
    made: List[Any] = []

    def watch(owner: Any, name: str) -> None:
        plain = getattr(owner, name)

        def create(*args: Any, **kwargs: Any) -> Any:
            parameter = plain(*args, **kwargs)
            if parameter is not None:
                made.append(parameter)
            return parameter

        setattr(owner, name, create)

    watch(paddle.nn.Layer, "create_parameter")
    watch(paddle, "create_parameter")
    _skip_flat_weights(paddle, made)

    def everything(model: Any) -> List[Any]:
        known = {id(parameter) for parameter in made}
        return made + [p for p in model.parameters() if id(p) not in known]

    return everything


def _exact_gather(paddle: Any) -> None:
    """The gradient of Paddle's gather along another axis than 0 takes the first example for all
    of them; along axis 0 it is right.
    """
    plain = paddle.gather

    def gather(x: Any, index: Any, axis: Any = None, name: Any = None) -> Any:
        axis = int(axis or 0) % len(x.shape)
        if axis == 0:
            return plain(x, index)
        order = list(range(len(x.shape)))
        order[0], order[axis] = axis, 0
        return paddle.transpose(plain(paddle.transpose(x, order), index), order)

    paddle.gather = gather


def _skip_flat_weights(paddle: Any, made: List[Any]) -> None:
    """Paddle's recurrent layers own a second parameter that shares the memory of the others."""
    base = getattr(getattr(paddle.nn, "layer", None), "rnn", None)
    if "regatta" in paddle.__version__ or base is None:
        return
    plain = base.RNNBase.flatten_parameters

    def flatten(self: Any) -> None:
        count = len(made)
        plain(self)
        del made[count:]

    base.RNNBase.flatten_parameters = flatten


def _exact_sparse_adam(paddle: Any) -> None:
    """Makes Paddle's Adam use beta ** t for tables with row-sparse gradients.

    Its row-sparse kernel multiplies the stored powers by beta before it uses them; powers that
    start at 1 instead of beta give the formula of Adam.
    """
    adam = paddle.optimizer.Adam
    plain = adam._append_optimize_op

    def append(self: Any, block: Any, pair: Any) -> Any:
        # A gradient that a regularizer was added to is dense.
        param, gradient = pair
        done = self.__dict__.setdefault("_powers_set", set())
        # Variables of a static program do not say.
        sparse = getattr(gradient, "is_selected_rows", lambda: False)()
        if sparse and param.name not in done:
            done.add(param.name)
            for name in (self._beta1_pow_acc_str, self._beta2_pow_acc_str):
                self._get_accumulator_master(name, param).set_value(np.ones([1], "float32"))
        return plain(self, block, pair)

    adam._append_optimize_op = append
