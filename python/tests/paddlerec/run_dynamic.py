"""Trains one PaddleRec folder in dynamic form for a few steps from known weights.

    python run_dynamic.py ROOT FOLDER [--steps N] [--override JSON] [--sgd-rate R] [--out F]
    python -m regatta.paddle run_dynamic.py ...         # the same on Regatta

ROOT is a copy of PaddleRec (see workspace.py). `import paddle` is real PaddlePaddle or Regatta,
depending on how the script is started. The model, the reader and the optimizer are made as
PaddleRec's tools/trainer.py makes them; what is random (dropout, sampling) is switched off by
random_off.py, in both systems alike. The result is JSON: the losses, and how many parameters
were set by the formula of weights.py, with a checksum of their names.
"""
from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import sys
import time
import zlib

HERE = os.path.dirname(os.path.abspath(__file__))
SEED = 2024
EPSILON = 2.0 ** -23


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="losses of one PaddleRec folder, dynamic form")
    parser.add_argument("root")
    parser.add_argument("folder")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--override", type=json.loads, default={})
    parser.add_argument("--sgd-rate", type=float, default=0.0,
                        help="train with plain SGD of this rate instead of the folder's optimizer")
    parser.add_argument("--perturb", type=int, default=0,
                        help="seed of rounding noise on the weights, to see how losses react")
    parser.add_argument("--names", action="store_true", help="print the names of parameters")
    parser.add_argument("--out")
    return parser.parse_args()


def seed_all() -> None:
    """Readers draw from the generators of Python and numpy."""
    import numpy as np

    random.seed(SEED)
    np.random.seed(SEED)


def load_config(args: argparse.Namespace) -> dict:
    from utils.utils_single import load_yaml

    model_dir = os.path.join(os.path.abspath(args.root), "models", args.folder)
    config = load_yaml(os.path.join(model_dir, "config.yaml"))
    config["config_abs_dir"] = model_dir
    config.update(args.override)
    return config


def set_weights(parameters: list, perturb: int) -> list:
    """Sets every trainable parameter by the formula; returns their sorted names.

    `perturb` is 0 or the seed of a noise of one rounding error on every weight.
    """
    import numpy as np
    import weights

    noise = np.random.RandomState(perturb)
    by_name = {}
    for parameter in parameters:
        if parameter.stop_gradient:
            continue
        array = weights.value(parameter.name, parameter.shape)
        if perturb:
            array = array * noise.choice(np.float32([1 - EPSILON, 1 + EPSILON]), array.shape)
        parameter.set_value(array)
        by_name[parameter.name] = parameter
    return sorted(by_name)


def batches(config: dict, count: int) -> list:
    """The first `count` batches, over as many epochs as that takes."""
    import paddle
    from utils.utils_single import create_data_loader

    seed_all()
    place = paddle.set_device("cpu")
    loader = create_data_loader(config=config, place=place)
    result = []
    while len(result) < count:
        part = list(itertools.islice(loader(), count - len(result)))
        if not part:
            raise RuntimeError("the reader gave no batch: is train_batch_size above the data?")
        result += part
    return result


def optimizers(args: argparse.Namespace, model_class, model, config: dict) -> list:
    """Those of the folder: one, or a tuple of them (with schedulers, which are left alone)."""
    import paddle

    if args.sgd_rate:
        return [paddle.optimizer.SGD(learning_rate=args.sgd_rate, parameters=model.parameters())]
    made = model_class.create_optimizer(model, config)
    made = made if isinstance(made, tuple) else (made, )
    return [one for one in made if hasattr(one, "clear_grad")]


def train(args: argparse.Namespace) -> dict:
    import numpy as np
    import paddle
    import random_off
    from utils.utils_single import load_dy_model_class

    config = load_config(args)
    paddle.set_device("cpu")
    created = random_off.install(paddle)
    seed_all()
    model_class = load_dy_model_class(config["config_abs_dir"])
    model = model_class.create_model(config)
    makers = optimizers(args, model_class, model, config)
    names = set_weights(created(model), args.perturb)
    if args.names:
        print("\n".join(names))
    data = batches(config, args.steps)
    model.train()
    metrics, _ = model_class.create_metrics()
    losses = []
    started = time.time()
    for batch in data:
        for optimizer in makers:
            optimizer.clear_grad()
        *_, loss, metrics, shown = model_class.train_forward(model, metrics, batch, config)
        loss.backward()
        for optimizer in makers:
            optimizer.step()
        # maml gives a constant as its loss and prints the real one.
        value = shown["loss"] if loss.stop_gradient and shown and "loss" in shown else loss
        losses.append(float(np.asarray(value.numpy()).reshape(-1)[0]))
    return {
        "folder": args.folder,
        "paddle": paddle.__version__,
        "parameters": {"count": len(names), "crc32": zlib.crc32(" ".join(names).encode())},
        "losses": losses,
        "seconds": round(time.time() - started, 2),
    }


def main() -> None:
    args = parse()
    sys.path.insert(0, os.path.join(os.path.abspath(args.root), "tools"))
    if HERE not in sys.path:
        sys.path.append(HERE)
    plain = os.listdir
    # Readers take files in the order of os.listdir, which is not defined.
    os.listdir = lambda *args: sorted(plain(*args))
    result = json.dumps(train(args))
    if args.out:
        with open(args.out, "w", encoding="utf-8") as file:
            file.write(result)
    else:
        print(result)


if __name__ == "__main__":
    main()
