"""The folders of the parity tests: which variants were recorded and what was overridden.

Variants
  config      the folder's own `create_optimizer`
  lazy_adam   the same with Adam's own formula for tables (see below)
  dense_adam  the same with tables updated densely (`sparse=False`)
  sgd         plain SGD with the rate of the case

Under Adam, Paddle 2.6.2 updates a table of `sparse=True` with a bias correction that is one step
ahead: beta ** (t + 1) instead of beta ** t. The losses of `config` contain that; `lazy_adam` was
recorded with the powers set back by one step and is what an implementation of the formula gives
for `config`.
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

STEPS = 30
SGD_RATE = 0.1


class Case(NamedTuple):
    """One folder: its variants, overridden keys of config.yaml and rate of the sgd variant."""

    folder: str
    variants: List[str]
    overrides: Dict[str, Any] = {}
    sgd_rate: float = SGD_RATE


ALL = ["config", "lazy_adam", "dense_adam", "sgd"]
DENSE = ["config", "sgd"]
OWN = ["config"]

CASES = [
    Case("rank/dnn", ALL),
    Case("rank/wide_deep", ALL),
    Case("rank/deepfm", ALL),
    Case("rank/dcn", ALL, sgd_rate=0.001),
    Case("rank/fm", ALL),
    # 351 columns for each of a million rows do not fit with the moments of Adam.
    Case("rank/ffm", ALL, {"hyper_parameters.sparse_feature_dim": 2}),
    Case("rank/gatenet", ALL),
    Case("rank/difm", ALL),
    Case("rank/logistic_regression", DENSE),
    Case("rank/din", DENSE),
    # Dropout is random.
    Case("rank/bst", DENSE, {
        "hyper_parameters.dropout_rate": 0,
        "hyper_parameters.prepostprocess_dropout": 0,
        "hyper_parameters.relu_dropout": 0,
    }, sgd_rate=1e-4),
    Case("recall/ncf", DENSE),
    Case("match/dssm", DENSE),
    Case("multitask/esmm", ALL),
    # Features of the census data are not scaled.
    Case("multitask/mmoe", DENSE, sgd_rate=1e-6),
    Case("multitask/ple", DENSE, sgd_rate=1e-6),
    Case("multitask/share_bottom", DENSE, sgd_rate=1e-6),
    Case("contentunderstanding/textcnn", OWN),
    Case("match/match-pyramid", OWN),
    Case("multitask/dselect_k", OWN),
    Case("multitask/escm2", ALL),
    Case("rank/naml", OWN, {"runner.train_batch_size": 2}),
    Case("rank/xdeepfm", ALL),
    Case("recall/mind", OWN),
    Case("recall/word2vec", OWN),
]


def file_name(folder: str) -> str:
    """The file under losses/ that holds the recording of a folder.

    >>> file_name("rank/dnn")
    'rank-dnn.json'
    """
    return folder.replace("/", "-") + ".json"
