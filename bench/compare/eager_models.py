#!/usr/bin/env python3
"""Training steps of dynamic graphs, for bench/compare/eager.

    python eager_models.py torch
    python eager_models.py paddle                          # PaddlePaddle
    python -m regatta.paddle eager_models.py regatta       # Regatta: the same code as for Paddle
    python -m regatta.paddle eager_models.py static        # Regatta: the mlp as a static program

Reads JSON requests {model, batch, seconds} from standard input and answers each with one JSON line:
the CPU time of a step in microseconds (median of groups of steps) and the loss.
"""
import json
import os
import statistics
import sys
import time

import numpy as np

import common

GROUPS = 7


def images(batch, channels, size, classes=10):
    rng = np.random.RandomState(7)
    x = rng.standard_normal((batch, channels, size, size)).astype("float32")
    return x, rng.randint(0, classes, (batch, 1)).astype("int64")


def measure(step, seconds):
    """The CPU time of a step, in microseconds: the median over groups."""
    loss = [step() for _ in range(3)][-1]
    start = time.process_time()
    step()
    once = max(time.process_time() - start, 1e-6)
    count = max(1, int(seconds / GROUPS / once))
    times = []
    for _ in range(GROUPS):
        start = time.process_time()
        for _ in range(count):
            loss = step()
        times.append((time.process_time() - start) / count * 1e6)
    return {"cpu_us": statistics.median(times), "steps": GROUPS * count, "loss": float(loss)}


# --- PyTorch ---------------------------------------------------------------------------------------


def torch_models():
    import torch
    from torch import nn

    torch.set_num_threads(1)
    torch.set_flush_denormal(True)

    class Block(nn.Module):
        def __init__(self, channels, width, stride):
            super().__init__()
            self.conv1 = nn.Conv2d(channels, width, 3, stride, 1, bias=False)
            self.bn1 = nn.BatchNorm2d(width)
            self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
            self.bn2 = nn.BatchNorm2d(width)
            self.down = None
            if stride != 1 or channels != width:
                self.down = nn.Sequential(nn.Conv2d(channels, width, 1, stride, bias=False),
                                          nn.BatchNorm2d(width))

        def forward(self, x):
            short = x if self.down is None else self.down(x)
            y = torch.relu(self.bn1(self.conv1(x)))
            return torch.relu(self.bn2(self.conv2(y)) + short)

    def resnet18():
        layers = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(),
                  nn.MaxPool2d(3, 2, 1)]
        channels = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(channels, width, stride), Block(width, width, 1)]
            channels = width
        return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))

    def lenet():
        return nn.Sequential(
            nn.Conv2d(1, 6, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2, 2), nn.Conv2d(6, 16, 5),
            nn.ReLU(), nn.MaxPool2d(2, 2), nn.Flatten(), nn.Linear(400, 120), nn.Linear(120, 84),
            nn.Linear(84, 10))

    def mlp():
        model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(),
                              nn.Linear(128, 2))
        with torch.no_grad():
            for layer, (w, b) in zip(model[::2], common.parameters((32, 128, 128, 2))):
                layer.weight.copy_(torch.from_numpy(w.T.copy()))
                layer.bias.copy_(torch.from_numpy(b))
        return model

    def make(name, batch):
        if name == "mlp":
            model, (x, y) = mlp(), common.batches(32, batch, 1)[0]
        elif name == "lenet":
            model, (x, y) = lenet(), images(batch, 1, 28)
        elif name == "resnet18":
            model, (x, y) = resnet18(), images(batch, 3, 32)
        else:
            return None
        y = y.reshape(-1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1 if name == "mlp" else 0.01,
                                    fused=True)
        criterion = nn.CrossEntropyLoss()

        def step():
            tx, ty = torch.from_numpy(x), torch.from_numpy(y)
            optimizer.zero_grad(set_to_none=True)
            loss = criterion(model(tx), ty)
            loss.backward()
            optimizer.step()
            return loss.detach()

        return step

    return "PyTorch " + torch.__version__, make


# --- PaddlePaddle and Regatta ----------------------------------------------------------------------


def paddle_models():
    import paddle
    from paddle import nn

    if hasattr(paddle, "set_num_threads"):
        paddle.set_num_threads(1)

    def mlp():
        model = nn.Sequential(nn.Linear(32, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh(),
                              nn.Linear(128, 2))
        for layer, (w, b) in zip(list(model)[::2], common.parameters((32, 128, 128, 2))):
            layer.weight.set_value(w)
            layer.bias.set_value(b)
        return model

    def trained(model, x, y, rate):
        optimizer = paddle.optimizer.SGD(rate, parameters=model.parameters())
        criterion = nn.CrossEntropyLoss()

        def step():
            loss = criterion(model(paddle.to_tensor(x)), paddle.to_tensor(y))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            return loss

        return step

    # Paddle refuses a second parameter of one name, so all batch sizes train one model.
    made = []

    def dnn(batch):
        """The unchanged net.py and dygraph_model.py of PaddleRec's rank/dnn."""
        root = os.environ.get("PADDLEREC")
        if not root:
            return None
        folder = os.path.join(root, "models", "rank", "dnn")
        if folder not in sys.path:
            sys.path.insert(0, folder)
        import dygraph_model
        import yaml

        with open(os.path.join(folder, "config.yaml"), encoding="utf-8") as file:
            read = yaml.safe_load(file)
        config = {"hyper_parameters." + k: v for k, v in read["hyper_parameters"].items()}
        flat = {}
        for key, value in config.items():
            if isinstance(value, dict):
                flat.update({key + "." + k: v for k, v in value.items()})
            else:
                flat[key] = value
        rng = np.random.RandomState(3)
        ids = int(flat["hyper_parameters.sparse_feature_number"])
        data = [rng.randint(0, 2, (batch, 1)).astype("int64")]
        data += [rng.randint(0, ids, (batch, 1)).astype("int64") for _ in range(26)]
        data.append(rng.rand(batch, 13).astype("float32"))
        if not made:
            maker = dygraph_model.DygraphModel()
            model = maker.create_model(flat)
            # Rows that no batch names rest: Paddle would otherwise update a million rows per step.
            made.extend([maker, model, maker.create_metrics()[0], paddle.optimizer.Adam(
                0.001, parameters=model.parameters(), lazy_mode=True)])
        maker, model, metrics, optimizer = made

        def step():
            loss, _, _ = maker.train_forward(
                model, metrics, [paddle.to_tensor(d) for d in data], flat)
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            return loss

        return step

    def make(name, batch):
        paddle.seed(1)
        if name == "mlp":
            return trained(mlp(), *batched(common.batches(32, batch, 1)[0]), 0.1)
        if name == "lenet":
            return trained(paddle.vision.models.LeNet(), *images(batch, 1, 28), 0.01)
        if name == "resnet18":
            model = paddle.vision.models.resnet18(num_classes=10)
            return trained(model, *images(batch, 3, 32), 0.01)
        return dnn(batch)

    return "Paddle " + paddle.__version__, make


def batched(pair):
    return pair[0], pair[1].reshape(-1, 1)


def static_models():
    import paddle

    def make(name, batch):
        if name != "mlp":
            return None
        paddle.enable_static()
        main, startup = paddle.static.Program(), paddle.static.Program()
        with paddle.static.program_guard(main, startup):
            x = paddle.static.data("x", [-1, 32], "float32")
            label = paddle.static.data("label", [-1, 1], "int64")
            h = paddle.static.nn.fc(x, 128, activation="tanh")
            h = paddle.static.nn.fc(h, 128, activation="tanh")
            loss = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(
                paddle.static.nn.fc(h, 2), label))
            paddle.optimizer.SGD(0.1).minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup)
        parameters = main.all_parameters()
        values = [v for pair in common.parameters((32, 128, 128, 2)) for v in pair]
        for parameter, value in zip(parameters, values):
            paddle.static.global_scope().find_var(parameter.name).get_tensor().set(value)
        images_, labels = batched(common.batches(32, batch, 1)[0])

        def step():
            feed = {"x": images_, "label": labels}
            return exe.run(main, feed=feed, fetch_list=[loss])[0]

        return step

    return "Regatta, static program", make


def main():
    kinds = {"torch": torch_models, "paddle": paddle_models, "regatta": paddle_models,
             "static": static_models}
    name, make = kinds[sys.argv[1]]()
    steps = {}
    for line in sys.stdin:
        request = json.loads(line)
        key = (request["model"], request["batch"])
        if key not in steps:
            steps[key] = make(*key)
        answer = {"system": name}
        if steps[key] is not None:
            answer.update(measure(steps[key], request["seconds"]))
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
