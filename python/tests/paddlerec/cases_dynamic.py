"""The folders whose losses in dynamic form were recorded, and what was overridden.

Every case trains with the folder's own optimizer, unless a rate of plain SGD is given: some
folders amplify the last bit of a float32 under their own optimizer (see `drift` in the files of
losses_dynamic/, and record_dynamic.py). What is random is off in all of them (random_off.py).
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

from folders import FOLDERS, models

STEPS = 20


class Case(NamedTuple):
    """One model: overridden keys of config.yaml, and the rate of SGD (0: its own optimizer)."""

    model: str
    overrides: Dict[str, Any] = {}
    sgd_rate: float = 0.0


# Smaller batches and tables, where the folder's own take minutes.
OVERRIDES: Dict[str, Dict[str, Any]] = {
    "match/multiview-simnet": {"runner.train_batch_size": 16},
    "multitask/maml": {"runner.train_batch_size": 2,
                       "hyper_parameters.base_optimizer.learning_rate": 0.001},
    "rank/autofis": {"runner.train_batch_size": 16},
    "rank/fastformer": {"runner.train_batch_size": 2},
    "rank/fat_deepffm": {"hyper_parameters.sparse_feature_dim": 2},
    "rank/ffm": {"hyper_parameters.sparse_feature_dim": 2},
    "rank/naml": {"runner.train_batch_size": 2},
    "demo/movie_recommand/rank": {"runner.train_batch_size": 16},
    "demo/movie_recommand/recall": {"runner.train_batch_size": 16},
}
SGD_RATES: Dict[str, float] = {
    "contentunderstanding/tagspace": 1e-4,
    "match/multiview-simnet": 1e-4,
    "multitask/esmm": 0.1,
    "multitask/maml": 0.01,
    "multitask/mmoe": 1e-6,
    "rank/autofis": 0.001,
    "rank/bst": 1e-4,
    "rank/deepfm": 0.1,
    "rank/deeprec": 0.001,
    "rank/difm": 0.1,
    "rank/dmr": 0.01,
    "rank/dnn": 0.1,
    "rank/fgcnn": 0.1,
    "rank/fm": 0.1,
    "recall/mind": 0.1,
}
# Models that are not compared, and why.
NOT_COMPARED: Dict[str, str] = {
    "match/kim": "one rounding error on the weights moves its first loss by 5e-5, the 20th by 3e-4",
}


def cases() -> List[Case]:
    """The cases in the order of folders.py."""
    names = [model for folder in FOLDERS for model in models(folder, "dynamic")]
    return [Case(name, OVERRIDES.get(name, {}), SGD_RATES.get(name, 0.0))
            for name in names if name not in NOT_COMPARED]
