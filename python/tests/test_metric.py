"""Metrics over batches, of Tensors and of arrays."""
import numpy as np
import pytest

import regatta as rg
from regatta import metric

PRED = np.array([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]], "float32")
LABEL = np.array([[1], [1], [0]])


def both(array):
    return [array, rg.to_tensor(array)]


@pytest.mark.parametrize("kind", [0, 1], ids=["arrays", "tensors"])
def test_accuracy(kind):
    pred, label = both(PRED)[kind], both(LABEL)[kind]
    accuracy = metric.Accuracy(topk=(1, 2))
    correct = accuracy.compute(pred, label)
    # The numbers of PaddlePaddle 2.6.2.
    np.testing.assert_array_equal(np.asarray(correct), [[1, 0], [0, 1], [0, 0]])
    assert type(correct) is type(pred)
    assert accuracy.update(correct) == pytest.approx([1 / 3, 2 / 3])
    accuracy.update(accuracy.compute(pred[:1], label[:1]))
    assert accuracy.accumulate() == pytest.approx([2 / 4, 3 / 4])
    assert accuracy.name() == ["acc_top1", "acc_top2"]
    single = metric.Accuracy()
    assert single.update(single.compute(pred, label.reshape([3]))) == pytest.approx(1 / 3)
    one_hot = np.eye(3, dtype="float32")[LABEL.ravel()]
    assert single.update(single.compute(pred, both(one_hot)[kind])) == pytest.approx(1 / 3)


@pytest.mark.parametrize("kind", [0, 1], ids=["arrays", "tensors"])
def test_precision_recall_auc(kind):
    preds, labels = both(np.array([0.9, 0.8, 0.2, 0.6], "float32"))[kind], both(
        np.array([1, 0, 1, 1]))[kind]
    precision, recall = metric.Precision(), metric.Recall()
    precision.update(preds, labels)
    recall.update(preds, labels)
    assert precision.accumulate() == pytest.approx(2 / 3)
    assert recall.accumulate() == pytest.approx(2 / 3)
    auc = metric.Auc()
    auc.update(both(PRED[:, :2])[kind], both(LABEL)[kind])
    assert auc.accumulate() == pytest.approx(0.75)  # of PaddlePaddle 2.6.2
    auc.reset()
    assert auc.accumulate() == 0.0


def test_accuracy_of_a_batch():
    value = metric.accuracy(rg.to_tensor(PRED), rg.to_tensor(LABEL), k=2)
    assert value.shape == [] and float(value) == pytest.approx(2 / 3)
    assert float(metric.accuracy(PRED, LABEL)) == pytest.approx(1 / 3)


def test_what_does_not_fit_is_said():
    with pytest.raises(ValueError, match="3 classes, but the best 5"):
        metric.accuracy(PRED, LABEL, k=5)
    with pytest.raises(ValueError, match=r"\[3, 3\] do not fit labels of shape \[2, 1\]"):
        metric.accuracy(PRED, LABEL[:2])
    with pytest.raises(ValueError, match="4 predictions do not fit 3 labels"):
        metric.Precision().update(np.ones(4), np.ones(3))
    with pytest.raises(ValueError, match="between 0 and 1"):
        metric.Auc().update(np.array([2.0]), np.array([1]))
