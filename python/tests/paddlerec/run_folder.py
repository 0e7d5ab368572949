"""Trains one PaddleRec folder for a few steps from known weights and prints the losses as JSON.

    python run_folder.py ROOT FOLDER VARIANT [--steps N] [--override JSON] [--sgd-rate R] [--out F]
    python -m regatta.paddle run_folder.py ...          # the same on Regatta

ROOT is a copy of PaddleRec (see workspace.py). `import paddle` is real PaddlePaddle or Regatta,
depending on how the script is started; nothing else differs. The model, the feeds, the reader and
the optimizer are made as PaddleRec's tools/static_trainer.py makes them.
"""
from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 2024
EPSILON = 2.0 ** -23


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="losses of one PaddleRec folder")
    parser.add_argument("root")
    parser.add_argument("folder")
    parser.add_argument("variant", choices=["config", "sgd", "dense_adam", "lazy_adam"])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--override", type=json.loads, default={})
    parser.add_argument("--sgd-rate", type=float, default=0.1)
    parser.add_argument("--perturb", type=int, default=0,
                        help="seed of rounding noise on the weights, to see how losses react")
    parser.add_argument("--out")
    return parser.parse_args()


def sort_listings() -> None:
    """Readers take files in the order of os.listdir, which is not defined; sort it."""
    plain = os.listdir
    os.listdir = lambda *args: sorted(plain(*args))


def load_config(args: argparse.Namespace) -> dict:
    from utils.utils_single import load_yaml

    model_dir = os.path.join(os.path.abspath(args.root), "models", args.folder)
    path = os.path.join(model_dir, "config.yaml")
    config = load_yaml(path)
    config["yaml_path"] = path
    config["config_abs_dir"] = model_dir
    for key, value in args.override.items():
        if key not in config:
            raise KeyError(f"override {key!r} is not a key of {path}")
        config[key] = value
    return config


def build(args: argparse.Namespace, config: dict):
    """Builds the program; returns the model, its feeds and its named outputs."""
    import paddle
    from utils.utils_single import load_static_model_class

    if args.variant == "dense_adam":
        embedding = paddle.nn.Embedding
        paddle.nn.Embedding = lambda *a, **k: embedding(*a, **dict(k, sparse=False))
    model = load_static_model_class(config)
    feeds = model.create_feeds()
    outputs = model.net(feeds)
    if args.variant == "sgd":
        paddle.optimizer.SGD(learning_rate=args.sgd_rate).minimize(model._cost)
    else:
        model.create_optimizer()
    return model, feeds, outputs


def set_weights(place, perturb: int) -> list:
    """Sets every trainable parameter by the formula; returns their names.

    `perturb` is 0 or the seed of a noise of one rounding error on every weight.
    """
    import numpy as np
    import paddle
    import weights

    scope = paddle.static.global_scope()
    noise = np.random.RandomState(perturb)

    def put(name, array):
        if perturb:
            array = array * noise.choice(np.float32([1 - EPSILON, 1 + EPSILON]), array.shape)
        scope.find_var(name).get_tensor().set(array, place)

    parameters = [(p.name, list(p.shape))
                  for p in paddle.static.default_main_program().all_parameters() if p.trainable]
    weights.set_all(parameters, put)
    return [name for name, _ in parameters]


def undo_early_correction(place) -> None:
    """Makes Paddle's Adam use beta ** t for tables with row-sparse gradients.

    Its row-sparse kernel multiplies the stored powers by beta before it uses them; powers that
    start at 1 instead of beta give the formula of Adam.
    """
    import numpy as np
    import paddle

    block = paddle.static.default_main_program().global_block()
    scope = paddle.static.global_scope()
    # A parameter that nothing uses has no gradient.
    tables = [p.name for p in block.all_parameters() if block.has_var(p.name + "@GRAD")
              and "SELECTED_ROWS" in str(block.var(p.name + "@GRAD").type)]
    if not tables:
        raise RuntimeError("no table of this folder has a row-sparse gradient")
    for table in tables:
        for beta in ("beta1", "beta2"):
            power = scope.find_var(f"{table}_{beta}_pow_acc_0").get_tensor()
            power.set(np.ones([1], "float32"), place)


def batches(config: dict, place):
    """Yields (is the first of an epoch, batch) without end."""
    import numpy as np
    from utils.utils_single import create_data_loader

    random.seed(SEED)
    np.random.seed(SEED)
    loader = create_data_loader(config=config, place=place)
    while True:
        first = True
        for batch in loader():
            yield first, batch
            first = False
        if first:
            raise RuntimeError("the reader gave no batch: is train_batch_size above the data?")


def train(args: argparse.Namespace) -> dict:
    import numpy as np
    import paddle
    import random_off
    from utils.utils_single import reset_auc

    paddle.enable_static()
    random_off.functions(paddle)
    config = load_config(args)
    _, feeds, outputs = build(args, config)
    place = paddle.set_device("cpu")
    exe = paddle.static.Executor(place)
    exe.run(paddle.static.default_startup_program())
    parameters = set_weights(place, args.perturb)
    if args.variant == "lazy_adam":
        undo_early_correction(place)
    names = [var.name for var in feeds]
    values = {key: [] for key in outputs}
    started = time.time()
    for step, (first, batch) in enumerate(batches(config, place)):
        if step == args.steps:
            break
        if first and config.get("runner.use_auc", False):
            reset_auc(False, config.get("runner.auc_num", 1))
        fetched = exe.run(program=paddle.static.default_main_program(),
                          feed=dict(zip(names, batch)),
                          fetch_list=list(outputs.values()))
        for key, value in zip(outputs, fetched):
            values[key].append(float(np.asarray(value).reshape(-1)[0]))
    return {
        "folder": args.folder,
        "variant": args.variant,
        "paddle": paddle.__version__,
        "parameters": parameters,
        "values": values,
        "seconds": round(time.time() - started, 2),
    }


def main() -> None:
    args = parse()
    sys.path.insert(0, os.path.join(os.path.abspath(args.root), "tools"))
    if HERE not in sys.path:
        sys.path.append(HERE)
    sort_listings()
    result = json.dumps(train(args))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(result)
    else:
        print(result)


if __name__ == "__main__":
    main()
