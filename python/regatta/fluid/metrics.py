"""Metrics that Python counts over batches, under the names of Fluid."""
from __future__ import annotations

from typing import Any, List, Optional

from .._missing import missing

__all__ = ["Accuracy", "Auc", "CompositeMetric", "MetricBase", "Precision", "Recall"]


class MetricBase:
    """What metrics have in common."""

    def __init__(self, name: Optional[str] = None) -> None:
        self._name = name or type(self).__name__

    def __str__(self) -> str:
        return self._name

    def reset(self) -> None:
        """Begins to count anew."""
        raise NotImplementedError

    def update(self, preds: Any, labels: Any) -> None:
        """Counts a batch."""
        raise NotImplementedError

    def eval(self) -> Any:
        """The metric of all batches."""
        raise NotImplementedError


class CompositeMetric(MetricBase):
    """Several metrics of the same predictions."""

    def __init__(self, name: Optional[str] = None) -> None:
        super().__init__(name)
        self._metrics: List[MetricBase] = []

    def add_metric(self, metric: MetricBase) -> None:
        """Adds a metric."""
        if not isinstance(metric, MetricBase):
            raise ValueError(f"{metric!r} is not a metric")
        self._metrics.append(metric)

    def reset(self) -> None:
        for metric in self._metrics:
            metric.reset()

    def update(self, preds: Any, labels: Any) -> None:
        for metric in self._metrics:
            metric.update(preds, labels)

    def eval(self) -> List[Any]:
        return [metric.eval() for metric in self._metrics]


class Accuracy(MetricBase):
    """The mean of accuracies of batches, weighted by examples.

    >>> metric = Accuracy()
    >>> metric.update(value=0.5, weight=10)
    >>> metric.update(value=1.0, weight=30)
    >>> metric.eval()
    0.875
    """

    def __init__(self, name: Optional[str] = None) -> None:
        super().__init__(name)
        self.reset()

    def reset(self) -> None:
        self.value, self.weight = 0.0, 0.0

    def update(self, value: Any, weight: Any) -> None:  # type: ignore[override]
        """Counts the accuracy ``value`` of a batch of ``weight`` examples."""
        import numpy as np

        weight = float(np.asarray(weight).reshape(-1)[0])
        if weight < 0:
            raise ValueError(f"Accuracy: the weight should not be negative, but is {weight}")
        self.value += float(np.asarray(value).reshape(-1)[0]) * weight
        self.weight += weight

    def eval(self) -> float:
        if self.weight == 0:
            raise ValueError("Accuracy: no batch was counted: call update first")
        return self.value / self.weight


class _Counts(MetricBase):
    """Counts of right and wrong positives."""

    def __init__(self, name: Optional[str] = None) -> None:
        super().__init__(name)
        self.reset()

    def reset(self) -> None:
        self.tp, self.fp, self.fn = 0, 0, 0

    def update(self, preds: Any, labels: Any) -> None:
        import numpy as np

        predicted = np.rint(np.asarray(preds)).astype(np.int64).reshape(-1) == 1
        true = np.asarray(labels).astype(np.int64).reshape(-1) == 1
        if len(predicted) != len(true):
            raise ValueError(f"{len(predicted)} predictions, but {len(true)} labels")
        self.tp += int((predicted & true).sum())
        self.fp += int((predicted & ~true).sum())
        self.fn += int((~predicted & true).sum())


class Precision(_Counts):
    """How many of the predicted positives are positive.

    >>> metric = Precision()
    >>> metric.update([[0.9], [0.8], [0.1]], [[1], [0], [1]])
    >>> metric.eval()
    0.5
    """

    def eval(self) -> float:
        return self.tp / (self.tp + self.fp) if self.tp + self.fp else 0.0


class Recall(_Counts):
    """How many of the positives were predicted."""

    def eval(self) -> float:
        return self.tp / (self.tp + self.fn) if self.tp + self.fn else 0.0


class Auc(MetricBase):
    """The area under the ROC curve, from counts per threshold.

    >>> metric = Auc("auc")
    >>> metric.update([[0.9, 0.1], [0.2, 0.8], [0.4, 0.6]], [[0], [1], [0]])
    >>> round(metric.eval(), 3)
    1.0
    """

    def __init__(
        self, name: Optional[str] = None, curve: str = "ROC", num_thresholds: int = 4095
    ) -> None:
        super().__init__(name)
        if curve != "ROC":
            raise NotImplementedError(f"Auc: the curve {curve!r}: only ROC is supported")
        self._thresholds = int(num_thresholds)
        self.reset()

    def reset(self) -> None:
        import numpy as np

        self._positive = np.zeros(self._thresholds + 1, np.int64)
        self._negative = np.zeros(self._thresholds + 1, np.int64)

    def update(self, preds: Any, labels: Any) -> None:
        """Counts predictions, two probabilities per row, and labels 0 or 1."""
        import numpy as np

        rows, labels = np.asarray(preds), np.asarray(labels).reshape(-1)
        if rows.ndim != 2 or rows.shape[1] != 2 or len(rows) != len(labels):
            raise ValueError(
                f"Auc: predictions should have the shape [{len(labels)}, 2], but have "
                f"{list(rows.shape)}"
            )
        buckets = (rows[:, 1] * self._thresholds).astype(np.int64)
        if ((buckets < 0) | (buckets > self._thresholds)).any():
            raise ValueError("Auc: predictions should be between 0 and 1")
        np.add.at(self._positive, buckets[labels != 0], 1)
        np.add.at(self._negative, buckets[labels == 0], 1)

    def eval(self) -> float:
        import numpy as np

        # From the highest threshold down: a trapezoid for every bucket.
        positive = np.cumsum(self._positive[::-1]).astype(np.float64)
        negative = np.cumsum(self._negative[::-1]).astype(np.float64)
        if not positive[-1] or not negative[-1]:
            return 0.0
        before = np.concatenate([[0.0], positive[:-1]])
        widths = np.diff(np.concatenate([[0.0], negative]))
        return float((widths * (before + positive) / 2).sum() / (positive[-1] * negative[-1]))


__getattr__ = missing(__name__)
