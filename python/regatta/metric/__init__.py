"""Measures that Python computes over batches: ``update`` with Tensors or arrays, ``accumulate``
the result.

>>> import numpy as np
>>> auc = Auc()
>>> auc.update(np.array([[0.9, 0.1], [0.2, 0.8]]), np.array([[0], [1]]))
>>> round(float(auc.accumulate()), 3)
1.0
"""
from __future__ import annotations

import abc
from typing import Any, List, Optional, Sequence, Union

from .._files import is_tensor
from .._missing import missing

__all__ = ["Accuracy", "Auc", "Metric", "Precision", "Recall", "accuracy"]


class Metric(abc.ABC):
    """A measure over batches."""

    def __init__(self) -> None:
        pass

    @abc.abstractmethod
    def reset(self) -> None:
        """Begins anew."""

    @abc.abstractmethod
    def update(self, *args: Any) -> Any:
        """Takes what :meth:`compute` gave for a batch."""

    @abc.abstractmethod
    def accumulate(self) -> Any:
        """The measure over all batches since :meth:`reset`."""

    @abc.abstractmethod
    def name(self) -> Any:
        """Its name."""

    def compute(self, *args: Any) -> Any:
        """Prepares outputs and labels of a batch for :meth:`update`."""
        return args


def _array(value: Any) -> Any:
    import numpy as np

    return value.numpy() if is_tensor(value) else np.asarray(value)


def _like(value: Any, array: Any) -> Any:
    """An array as a Tensor if ``value`` is one."""
    if not is_tensor(value):
        return array
    from ..tensor import to_tensor

    return to_tensor(array)


def _hits(pred: Any, label: Any, k: int) -> Any:
    """For every example, which of its ``k`` best classes is the label: 0 or 1."""
    import numpy as np

    if k > pred.shape[-1]:
        raise ValueError(f"there are {pred.shape[-1]} classes, but the best {k} are asked for")
    best = np.argsort(-pred, axis=-1, kind="stable")[..., :k]
    if label.ndim == pred.ndim and label.shape[-1] != 1:
        label = label.argmax(axis=-1)[..., None]
    elif label.ndim == pred.ndim - 1:
        label = label[..., None]
    if label.shape[:-1] != pred.shape[:-1]:
        raise ValueError(f"predictions of shape {list(pred.shape)} do not fit labels of shape "
                         f"{list(label.shape)}")
    return (best == label).astype("float32")


class Accuracy(Metric):
    """How often the label is among the ``k`` best classes, for every ``k`` of ``topk``."""

    def __init__(
        self, topk: Sequence[int] = (1,), name: Optional[str] = None, *args: Any, **kwargs: Any
    ) -> None:
        super().__init__()
        self.topk = tuple(topk)
        self.maxk = max(self.topk)
        base = name or "acc"
        self._name = [base] if self.maxk == 1 else [f"{base}_top{k}" for k in self.topk]
        self.reset()

    def compute(self, pred: Any, label: Any, *args: Any) -> Any:
        """For every example, which of the ``max(topk)`` best classes is right: 0 or 1."""
        return _like(pred, _hits(_array(pred), _array(label), self.maxk))

    def update(self, correct: Any, *args: Any) -> Any:
        """Takes what :meth:`compute` gave; returns the accuracy of this batch."""
        correct = _array(correct)
        examples = int(correct[..., 0].size)
        batch = []
        for i, k in enumerate(self.topk):
            right = float(correct[..., :k].sum())
            self.total[i] += right
            self.count[i] += examples
            batch.append(right / examples if examples else 0.0)
        return batch[0] if len(batch) == 1 else batch

    def reset(self) -> None:
        self.total: List[float] = [0.0] * len(self.topk)
        self.count: List[int] = [0] * len(self.topk)

    def accumulate(self) -> Union[float, List[float]]:
        rates = [t / c if c else 0.0 for t, c in zip(self.total, self.count)]
        return rates[0] if len(rates) == 1 else rates

    def name(self) -> List[str]:
        return self._name


class _Binary(Metric):
    """Counts of a yes-or-no prediction: yes from 0.5 on."""

    def __init__(self, name: str, *args: Any, **kwargs: Any) -> None:
        super().__init__()
        self._name = name
        self.reset()

    def _counts(self, preds: Any, labels: Any) -> Any:
        import numpy as np

        yes = np.floor(_array(preds) + 0.5).astype("int32").ravel() == 1
        is_yes = _array(labels).ravel() == 1
        if yes.size != is_yes.size:
            raise ValueError(f"{yes.size} predictions do not fit {is_yes.size} labels")
        return int((yes & is_yes).sum()), int((yes & ~is_yes).sum()), int((~yes & is_yes).sum())

    def name(self) -> str:
        return self._name


class Precision(_Binary):
    """How many of those that were predicted are so."""

    def __init__(self, name: str = "precision", *args: Any, **kwargs: Any) -> None:
        super().__init__(name)

    def update(self, preds: Any, labels: Any) -> None:
        hit, false, _ = self._counts(preds, labels)
        self.tp += hit
        self.fp += false

    def reset(self) -> None:
        self.tp = self.fp = 0

    def accumulate(self) -> float:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Binary):
    """How many of those that are so were predicted."""

    def __init__(self, name: str = "recall", *args: Any, **kwargs: Any) -> None:
        super().__init__(name)

    def update(self, preds: Any, labels: Any) -> None:
        hit, _, missed = self._counts(preds, labels)
        self.tp += hit
        self.fn += missed

    def reset(self) -> None:
        self.tp = self.fn = 0

    def accumulate(self) -> float:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(Metric):
    """The area under the ROC curve, from counts of predictions by threshold."""

    def __init__(
        self,
        curve: str = "ROC",
        num_thresholds: int = 4095,
        name: str = "auc",
        *args: Any,
        **kwargs: Any,
    ) -> None:
        super().__init__()
        if curve != "ROC":
            raise NotImplementedError(f"Auc: the curve '{curve}' is not in Regatta, only ROC")
        self._num_thresholds = int(num_thresholds)
        self._name = name
        self.reset()

    def update(self, preds: Any, labels: Any) -> None:
        """Predictions ``[N, 2]``, of which the last column counts, or ``[N, 1]``; labels 0 or 1."""
        import numpy as np

        preds, labels = _array(preds), _array(labels).ravel()
        score = preds[..., -1].ravel() if preds.ndim > 1 else preds.ravel()
        if score.size != labels.size:
            raise ValueError(f"{score.size} predictions do not fit {labels.size} labels")
        bins = (score * self._num_thresholds).astype("int64")
        if bins.size and (bins.min() < 0 or bins.max() > self._num_thresholds):
            raise ValueError("Auc: predictions should be between 0 and 1")
        n = self._num_thresholds + 1
        positive = labels.astype(bool)
        self._stat_pos += np.bincount(bins[positive], minlength=n)
        self._stat_neg += np.bincount(bins[~positive], minlength=n)

    def reset(self) -> None:
        import numpy as np

        self._stat_pos = np.zeros(self._num_thresholds + 1, "int64")
        self._stat_neg = np.zeros(self._num_thresholds + 1, "int64")

    def accumulate(self) -> float:
        import numpy as np

        # From the highest threshold down: trapezoids between points of the curve.
        pos = np.concatenate([[0], np.cumsum(self._stat_pos[::-1])]).astype("float64")
        neg = np.concatenate([[0], np.cumsum(self._stat_neg[::-1])]).astype("float64")
        if pos[-1] == 0 or neg[-1] == 0:
            return 0.0
        area = ((neg[1:] - neg[:-1]) * (pos[1:] + pos[:-1]) / 2).sum()
        return float(area / pos[-1] / neg[-1])

    def name(self) -> str:
        return self._name


def accuracy(
    input: Any, label: Any, k: int = 1, correct: Any = None, total: Any = None,
    name: Optional[str] = None,
) -> Any:
    """How often the label is among the ``k`` best classes of a batch: a Tensor for Tensors, an array
    for arrays, for variables of a program the op :func:`regatta.static.accuracy`."""
    import numpy as np

    from ..framework import Variable

    if isinstance(input, Variable):
        from ..static.metric import accuracy as op

        return op(input, label, k, correct, total)
    if correct is not None or total is not None:
        raise ValueError("accuracy: correct and total are variables of static programs")
    hits = _hits(_array(input), _array(label), k)
    return _like(input, np.asarray(hits.sum(axis=-1).mean(), "float32"))


__getattr__ = missing(__name__)
