"""Metrics inside programs: computed on every batch, reported but not trained on."""
from __future__ import annotations

from typing import Any, List, Optional, Tuple

from ..framework import Variable, create_state, unique_name
from .._missing import missing
from ..tensor._common import Namer, check, op, ops

__all__ = ["accuracy", "auc"]

Auc = Tuple[Variable, Variable, List[Variable]]


def _counted(
    x: Variable, label: Variable, pos: Variable, neg: Variable, steps: int, out: str
) -> Variable:
    inputs = {"Predict": x, "Label": label, "StatPos": pos, "StatNeg": neg}
    outputs = {"AUC": out, "StatPosOut": pos, "StatNegOut": neg}
    attrs = {"slide_steps": steps}
    return ops("auc", inputs, outputs, attrs)._variable(out)


def auc(
    input: Variable,
    label: Variable,
    curve: str = "ROC",
    num_thresholds: int = 2**12 - 1,
    topk: int = 1,
    slide_steps: int = 1,
    ins_tag_weight: Any = None,
) -> Auc:
    """The area under the ROC curve: of all examples since the counters were last zero, and of the
    last ``slide_steps`` batches. Probabilities are ``[n, 2]`` (the last column is the positive
    class) or ``[n, 1]``, labels ``[n, 1]`` or ``[n]``.

    Returns both areas and the counters: ``[batch_stat_pos, batch_stat_neg, stat_pos, stat_neg]``.
    """
    if curve != "ROC":
        raise NotImplementedError(f"auc: the curve {curve!r}; only 'ROC' is possible")
    if topk != 1 or ins_tag_weight is not None:
        raise NotImplementedError("auc: topk other than 1, or ins_tag_weight")
    if num_thresholds < 1 or slide_steps < 0:
        raise ValueError(f"auc: num_thresholds is {num_thresholds} and slide_steps {slide_steps}")
    x, label = check(input, "auc: input"), check(label, "auc: label")
    namer = Namer("auc")
    # A constant that other systems write.
    for _ in range(2):
        unique_name.generate("fill_constant")
    whole, recent = namer.tmp(), namer.tmp()
    width = int(num_thresholds) + 1
    rows = [slide_steps + 1, slide_steps + 1, 1, 1]
    counters = [
        create_state(unique_name.generate("_generated_var"), [r, width], "int64", 0.0)
        for r in rows
    ]
    batch_pos, batch_neg, pos, neg = counters
    batch_auc = _counted(x, label, batch_pos, batch_neg, int(slide_steps), recent)
    return _counted(x, label, pos, neg, 0, whole), batch_auc, counters


def accuracy(
    input: Variable,
    label: Variable,
    k: int = 1,
    correct: Optional[Variable] = None,
    total: Optional[Variable] = None,
) -> Variable:
    """The share of examples whose largest score is at the label."""
    if k != 1:
        raise NotImplementedError(f"accuracy: k = {k}; whether the label is among the k largest "
                                  "scores needs the op 'top_k', which is not in the op set")
    if correct is not None or total is not None:
        raise NotImplementedError("accuracy: writing into 'correct' and 'total'")
    x, label = check(input, "accuracy: input"), check(label, "accuracy: label")
    namer = Namer("accuracy")
    namer.skip(2)
    out = namer.tmp()
    namer.skip(2)
    return op("accuracy", {"X": x, "Label": label}, out)


__getattr__ = missing(__name__)
