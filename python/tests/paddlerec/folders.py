"""The 58 model folders of PaddleRec: how each is trained, and why some are not.

A folder is trained as its README says: in the folder, `python ../../../tools/trainer.py -m
config.yaml` (dynamic form) or `static_trainer.py` (static form), with the options given here.
"""
from __future__ import annotations

from typing import Any, Dict, List, NamedTuple

CPU = {"runner.use_gpu": False}
# Two columns per field: tables of millions of rows and their moments fit into memory.
SMALL_FFM = {"hyper_parameters.sparse_feature_dim": 2}
MASKED = "masked_select is for tensors, not for programs"


class Folder(NamedTuple):
    """One folder of models/.

    dynamic, static  names of the model's sub-folders that have the form; "." is the folder itself
    options          keys of config.yaml that differ from the file
    trainer          a trainer of the folder's own, when tools/trainer.py does not fit it
    note             what a reader of the table should know
    refused          why the folder trains neither here nor under PaddlePaddle 2.6.2
    dynamic_only     why the static form does not train here
    """

    name: str
    dynamic: List[str] = ["."]
    static: List[str] = []
    options: Dict[str, Any] = {}
    trainer: str = "../../../tools/trainer.py"
    note: str = ""
    refused: str = ""
    dynamic_only: str = ""


def both(name: str, **fields: Any) -> Folder:
    return Folder(name, static=["."], **fields)


def refused(name: str, why: str) -> Folder:
    return Folder(name, dynamic=[], refused=why)


DEMO = ["rank", "recall"]
FOLDERS = [
    both("contentunderstanding/tagspace"),
    both("contentunderstanding/textcnn"),
    Folder("demo/movie_recommand", DEMO, DEMO, note="generated data",
           dynamic_only="the static form fixes the batch in the program"),
    refused("graph", "needs PGL and its graph engine; no tools/ form"),
    both("match/dssm"),
    Folder("match/kim", trainer="trainer.py", options={"hyper_parameters.vocab_size": 1893},
           note="own trainer; words split by a pattern instead of NLTK's model"),
    both("match/match-pyramid"),
    both("match/multiview-simnet"),
    Folder("multitask/aitm"),
    both("multitask/dselect_k"),
    both("multitask/escm2"),
    both("multitask/esmm"),
    Folder("multitask/maml", options={**CPU, "runner.train_batch_size": 16},
           note="64 tasks per epoch instead of 3200"),
    Folder("multitask/metaheac", note="its pickled data needs pandas 1.5"),
    both("multitask/mmoe"),
    both("multitask/ple"),
    both("multitask/share_bottom"),
    Folder("rank/autofis", trainer="trainer.py", note="own trainer"),
    both("rank/autoint", options=CPU),
    Folder("rank/bert4rec"),
    both("rank/bst"),
    both("rank/dcn"),
    Folder("rank/dcn_v2"),
    both("rank/deepfefm"),
    both("rank/deepfm"),
    Folder("rank/deeprec", trainer="trainer.py", note="own trainer"),
    both("rank/dien"),
    both("rank/difm"),
    both("rank/din"),
    both("rank/dlrm", dynamic_only=MASKED),
    both("rank/dmr"),
    both("rank/dnn"),
    Folder("rank/dpin"),
    both("rank/dsin"),
    both("rank/fastformer", dynamic_only="the static form does not build in Paddle either"),
    Folder("rank/fat_deepffm", options=SMALL_FFM, note="2 columns per field instead of 10"),
    both("rank/ffm", options=SMALL_FFM, note="2 columns per field instead of 9"),
    Folder("rank/fgcnn"),
    Folder("rank/flen"),
    both("rank/fm"),
    both("rank/gatenet"),
    Folder("rank/iprec"),
    both("rank/logistic_regression"),
    both("rank/naml"),
    refused("rank/sign", "needs PGL"),
    refused("rank/slot_dnn", "ids of 64 bits need tables on servers; inputs with LoD"),
    both("rank/wide_deep"),
    both("rank/xdeepfm"),
    refused("recall/deepwalk", "needs PGL"),
    Folder("recall/ensfm"),
    Folder("recall/mhcn"),
    both("recall/mind"),
    both("recall/ncf"),
    both("recall/tisas", dynamic_only=MASKED),
    both("recall/word2vec"),
    refused("rl/A2C", "needs gym and paddle.rpc"),
    refused("treebased/jtm", "needs a tree index that is downloaded"),
    refused("treebased/tdm", "needs a tree index that is downloaded"),
]


def by_name(name: str) -> Folder:
    """The folder of a name, or of one of its sub-folders.

    >>> by_name("demo/movie_recommand/rank").name
    'demo/movie_recommand'
    """
    for folder in FOLDERS:
        if name == folder.name or name.startswith(folder.name + "/"):
            return folder
    raise KeyError(f"{name} is not a folder of PaddleRec's models")


def models(folder: Folder, form: str) -> List[str]:
    """The models of a folder in a form ("dynamic" or "static").

    >>> models(by_name("demo/movie_recommand"), "static")
    ['demo/movie_recommand/rank', 'demo/movie_recommand/recall']
    >>> models(by_name("rank/flen"), "static")
    []
    """
    return [folder.name if part == "." else f"{folder.name}/{part}"
            for part in getattr(folder, form)]
