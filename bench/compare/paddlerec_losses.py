#!/usr/bin/env python3
"""Writes bench/reference/paddlerec.json: losses of PaddleRec's own networks in PaddlePaddle 2.6.2,
from parameters and batches that any language can rebuild bit for bit, and what the initial values
of their parameters are like (bench/reference/README.md).

    PADDLEREC=/path/to/PaddleRec python paddlerec_losses.py [MODEL ...]

Run it with the environment of `setup.sh paddle` and an interpreter that has the same numpy. Without
names, all models are recorded.
"""
import importlib.util
import json
import os
import sys
import types

import numpy as np

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(ROOT, "bench", "reference", "paddlerec.json")
sys.dont_write_bytecode = True
sys.path.insert(0, HERE)
sys.path.insert(0, os.path.join(ROOT, "python", "tests", "paddlerec"))

import paddlerec_models  # noqa: E402
import random_off  # noqa: E402
from common import Uniform  # noqa: E402

STEPS, BATCH = 12, 32
SEEDS, INITIAL_SEEDS = (1, 2, 3), (1, 2, 3, 4, 5)


def draw_parameter(uniform, parameter):
    """`k * scale * 2^-23`, row by row."""
    k = uniform.draw(int(np.prod(parameter.shape))) - (1 << 23)
    step = np.float32(parameter.scale * 2.0**-23)
    return (k.astype(np.float32) * step).reshape(parameter.shape)


def draw_input(uniform, spec, step):
    """One input of a batch; ids of a ragged slot end after `1 + (example + step) % width`."""
    k = uniform.draw(BATCH * spec.width).reshape(BATCH, spec.width)
    if spec.kind == "label":
        return k & 1
    if spec.kind == "dense":
        return (k - (1 << 23)).astype(np.float32) * np.float32(2.0**-23)
    ids = 1 + k % (spec.below - 1)
    if spec.kind == "ragged":
        lengths = 1 + (np.arange(BATCH) + step) % spec.width
        ids = np.where(np.arange(spec.width)[None, :] < lengths[:, None], ids, 0)
    return ids


def draw_batches(seed, inputs):
    uniform = Uniform(seed)
    return [{spec.name: draw_input(uniform, spec, step) for spec in inputs}
            for step in range(STEPS)]


def load_network(root, folder):
    """The modules `net` and `dygraph_model` of a folder, without leaving them in `sys.modules`."""
    sys.modules.pop("net", None)
    modules = {}
    for name in ("net", "dygraph_model"):
        path = os.path.join(root, "models", folder, name + ".py")
        if not os.path.exists(path):
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        modules[name] = importlib.util.module_from_spec(spec)
        sys.modules[name] = modules[name]
        spec.loader.exec_module(modules[name])
    return types.SimpleNamespace(**modules)


class Recorder:
    def __init__(self, paddle, root):
        self.paddle, self.root = paddle, root
        self.made = random_off.install(paddle)
        self.trained = []
        self.replace_optimizer("Adam", lazy_mode=True)
        self.replace_optimizer("SGD")

    def replace_optimizer(self, name, **more):
        """Optimizers get every parameter, and Adam is lazy: as in PaddleRec's static forms."""
        plain, recorder = getattr(self.paddle.optimizer, name), self

        class Optimizer(plain):
            def __init__(self, *args, parameters=None, **kwargs):
                if parameters is not None:
                    kwargs.update(more, parameters=recorder.trained)
                super().__init__(*args, **kwargs)

        setattr(self.paddle.optimizer, name, Optimizer)

    def make(self, model):
        """The network, of which some layers are not found by `parameters()`."""
        before = len(self.made(self.paddle.nn.Layer()))
        network = model.make(self.root, load_network)
        self.trained = self.made(self.paddle.nn.Layer())[before:]
        return network

    def losses(self, model, seed):
        network = self.make(model)
        uniform = Uniform(1000 + seed)
        for parameter in model.parameters:
            value = draw_parameter(uniform, parameter)
            parameter.put(network.layer, value)
        optimizer = network.optimizer()
        losses = []
        for batch in draw_batches(seed, model.inputs):
            loss = network.loss(batch)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            losses.append("%.9g" % float(loss))
        return losses

    def initial(self, model):
        """Mean, standard deviation and largest number of each parameter over some seeds."""
        found = {}
        for seed in INITIAL_SEEDS:
            self.paddle.seed(seed)
            layer = self.make(model).layer
            for parameter in model.parameters:
                value = parameter.get(layer)
                found.setdefault(parameter.name, []).append(value[parameter.padding:].ravel())
        summary = {}
        for name, values in found.items():
            values = np.concatenate(values).astype(np.float64)
            numbers = (values.mean(), values.std(), np.abs(values).max())
            summary[name] = dict(zip(("mean", "std", "largest"), ("%.4g" % x for x in numbers)))
        return summary


def record(recorder, model):
    losses = {str(seed): recorder.losses(model, seed) for seed in SEEDS}
    return {
        "hyper": model.hyper,
        "optimizer": model.optimizer,
        "inputs": [spec.written() for spec in model.inputs],
        "parameters": [parameter.written() for parameter in model.parameters],
        "initial": recorder.initial(model),
        "losses": losses,
    }


def write(paddle, models):
    head = {
        "description": "Losses of PaddleRec's networks; parameters and batches as in README.md",
        "system": "paddle " + paddle.__version__, "steps": STEPS, "batch": BATCH,
        "initial_seeds": len(INITIAL_SEEDS),
    }
    text = json.dumps(head, indent=1)[:-2] + ',\n "models": {\n'
    blocks = []
    for name in sorted(models):
        lines = []
        for key, value in models[name].items():
            if isinstance(value, dict) and key in ("losses", "initial"):
                rows = ("    %s: %s" % (json.dumps(k), json.dumps(v)) for k, v in value.items())
                rows = ",\n".join(rows)
                lines.append('   "%s": {\n%s\n   }' % (key, rows))
            elif isinstance(value, list):
                rows = ",\n".join("    " + json.dumps(v) for v in value)
                lines.append('   "%s": [\n%s\n   ]' % (key, rows))
            else:
                lines.append('   "%s": %s' % (key, json.dumps(value)))
        blocks.append('  "%s": {\n%s\n  }' % (name, ",\n".join(lines)))
    text += ",\n".join(blocks) + "\n }\n}\n"
    json.loads(text)
    with open(TARGET, "w", encoding="utf-8") as file:
        file.write(text)


def main():
    root = os.environ.get("PADDLEREC")
    if not root:
        sys.exit("paddlerec_losses.py: set PADDLEREC to the root of a PaddleRec checkout")
    import paddle

    recorder = Recorder(paddle, root)
    models = {}
    if sys.argv[1:] and os.path.exists(TARGET):
        with open(TARGET, encoding="utf-8") as file:
            models = json.load(file)["models"]
    for model in paddlerec_models.all_models():
        if sys.argv[1:] and model.name not in sys.argv[1:]:
            continue
        models[model.name] = record(recorder, model)
        of_first = models[model.name]["losses"]["1"]
        print(model.name, of_first[0], "->", of_first[-1], flush=True)
    write(paddle, models)


if __name__ == "__main__":
    main()
