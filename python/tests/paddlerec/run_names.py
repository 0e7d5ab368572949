"""Prints the names, shapes and printed forms of a folder's static program as JSON.

    python run_names.py ROOT FOLDER [--out F]
    python -m regatta.paddle run_names.py ...           # the same on Regatta

ROOT is a copy of PaddleRec (see workspace.py).
"""
from __future__ import annotations

import argparse
import json
import os
import sys

HERE = os.path.dirname(os.path.abspath(__file__))


def row(var) -> list:
    """A variable as [name, shape, dtype, persistable]."""
    return [var.name, list(var.shape), str(var.dtype), bool(var.persistable)]


def describe(root: str, folder: str) -> dict:
    import paddle
    from utils.utils_single import load_static_model_class, load_yaml

    model_dir = os.path.join(os.path.abspath(root), "models", folder)
    config = load_yaml(os.path.join(model_dir, "config.yaml"))
    config["config_abs_dir"] = model_dir
    paddle.enable_static()
    auc_states = []
    plain_auc = paddle.static.auc

    def auc(*args, **kwargs):
        result = plain_auc(*args, **kwargs)
        auc_states.append([row(var) for var in [result[0], result[1]] + list(result[2])])
        return result

    paddle.static.auc = auc
    model = load_static_model_class(config)
    feeds = model.create_feeds()
    outputs = model.net(feeds)
    program = paddle.static.default_main_program()
    before = [row(var) for var in program.list_vars()]
    model.create_optimizer()
    known = {entry[0] for entry in before}
    after = [row(var) for var in program.list_vars()
             if var.name not in known and "@GRAD" not in var.name]
    parameter = program.all_parameters()[0]
    loss = next(iter(outputs.values()))
    return {
        "paddle": paddle.__version__,
        "feeds": [row(var) for var in feeds],
        "outputs": {key: row(var) for key, var in outputs.items()},
        "auc": auc_states,
        "parameters": [row(var) for var in program.all_parameters()],
        "variables": before,
        "variables_of_minimize": after,
        "printed": {
            "str(feed)": str(feeds[0]),
            "str(loss)": str(loss),
            "str(parameter)": str(parameter),
            "feed.shape": repr(feeds[0].shape),
            "loss.shape": repr(loss.shape),
            "str(feed.dtype)": str(feeds[0].dtype),
            "repr(feed.dtype)": repr(feeds[0].dtype),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description="names of one PaddleRec folder")
    parser.add_argument("root")
    parser.add_argument("folder")
    parser.add_argument("--out")
    args = parser.parse_args()
    sys.path.insert(0, os.path.join(os.path.abspath(args.root), "tools"))
    result = json.dumps(describe(args.root, args.folder))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(result)
    else:
        print(result)


if __name__ == "__main__":
    main()
