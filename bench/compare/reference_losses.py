#!/usr/bin/env python3
"""Writes bench/reference/losses.json: the losses of 100 training steps of small networks in
PyTorch and PaddlePaddle, from parameters and batches that any language can rebuild bit for bit
(bench/reference/README.md). Needs the environments of setup.sh; runs in a few seconds.
"""
import json
import os
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
TARGET = os.path.join(os.path.dirname(HERE), "reference", "losses.json")
STEPS, BATCH, BATCHES = 100, 16, 10
MODELS = {"tanh": ((32, 128, 128, 2), "tanh"), "relu": ((32, 64, 64, 2), "relu")}
OPTIMIZERS = {
    "sgd": {"lr": 0.1},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "adagrad": {"lr": 0.05, "eps": 1e-6, "initial_accumulator": 0.0},
    "adagrad_small_lr": {"lr": 0.01, "eps": 1e-6, "initial_accumulator": 0.0},
    "adam": {"lr": 0.001, "beta1": 0.9, "beta2": 0.999, "eps": 1e-8},
}


def torch_losses(dtype_name):
    import torch

    import common

    torch.set_num_threads(1)
    dtype = getattr(torch, dtype_name)

    def run(dims, act, name, o):
        layers = [(torch.from_numpy(w).to(dtype).requires_grad_(),
                   torch.from_numpy(b).to(dtype).requires_grad_())
                  for w, b in common.parameters(dims)]
        flat = [p for layer in layers for p in layer]
        optim = torch.optim
        optimizer = {
            "sgd": lambda: optim.SGD(flat, o["lr"]),
            "momentum": lambda: optim.SGD(flat, o["lr"], momentum=o["momentum"]),
            "adagrad": lambda: optim.Adagrad(flat, o["lr"], eps=o["eps"]),
            "adam": lambda: optim.Adam(flat, o["lr"], (o["beta1"], o["beta2"]), o["eps"]),
        }[name.split("_")[0]]()
        data = [(torch.from_numpy(x).to(dtype), torch.from_numpy(y))
                for x, y in common.batches(dims[0], BATCH, BATCHES)]
        out = []
        for step in range(STEPS):
            x, y = data[step % BATCHES]
            optimizer.zero_grad()
            for w, b in layers[:-1]:
                x = getattr(torch, act)(torch.addmm(b, x, w))
            loss = torch.nn.functional.cross_entropy(torch.addmm(layers[-1][1], x, layers[-1][0]), y)
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out

    return "torch " + torch.__version__.split("+")[0], run


def paddle_losses():
    import paddle

    import common

    paddle.enable_static()

    def run(dims, act, name, o):
        main, startup, scope = paddle.static.Program(), paddle.static.Program(), paddle.static.Scope()
        assign = paddle.nn.initializer.Assign
        with paddle.static.program_guard(main, startup):
            h = paddle.static.data("x", [BATCH, dims[0]], "float32")
            y = paddle.static.data("y", [BATCH, 1], "int64")
            values = common.parameters(dims)
            for i, (w, b) in enumerate(values):
                h = paddle.static.nn.fc(
                    h, w.shape[1], weight_attr=paddle.ParamAttr(initializer=assign(w)),
                    bias_attr=paddle.ParamAttr(initializer=assign(b)),
                    activation=act if i + 1 < len(values) else None)
            loss = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(h, y))
            {
                "sgd": lambda: paddle.optimizer.SGD(o["lr"]),
                "momentum": lambda: paddle.optimizer.Momentum(o["lr"], o["momentum"]),
                "adagrad": lambda: paddle.optimizer.Adagrad(o["lr"], o["eps"]),
                "adam": lambda: paddle.optimizer.Adam(o["lr"], o["beta1"], o["beta2"], o["eps"]),
            }[name.split("_")[0]]().minimize(loss)
        exe = paddle.static.Executor(paddle.CPUPlace())
        exe.run(startup, scope=scope)
        data = common.batches(dims[0], BATCH, BATCHES)
        out = []
        for step in range(STEPS):
            x, y = data[step % BATCHES]
            out.append(float(exe.run(main, feed={"x": x, "y": y.reshape(-1, 1)}, fetch_list=[loss],
                                     scope=scope)[0]))
        return out

    return "paddle " + paddle.__version__, run


def emit(which):
    """Prints what one framework computes; runs inside its environment."""
    import common

    system, run = paddle_losses() if which == "paddle" else torch_losses(which)
    losses = {m: {n: run(dims, act, n, o) for n, o in OPTIMIZERS.items()}
              for m, (dims, act) in MODELS.items()}
    (w, b), (x, y) = common.parameters((32, 128, 128, 2))[0], common.batches(32, BATCH, 1)[0]
    samples = {
        "splitmix64_seed_1_first_outputs_top_24_bits": common.Uniform(1).draw(4).tolist(),
        "splitmix64_seed_2_first_outputs_top_24_bits": common.Uniform(2).draw(4).tolist(),
        "tanh_first_weight_first_row_start": w[0, :4].tolist(),
        "tanh_first_bias_start": b[:4].tolist(),
        "first_batch_first_example_start": x[0, :4].tolist(),
        "first_batch_labels": y.tolist(),
    }
    print(json.dumps({"system": system, "losses": losses, "samples": samples}))


def collect(variable, folder, which):
    exe = os.path.join(os.environ.get(variable, os.path.join(HERE, folder)), "bin", "python")
    if not os.path.exists(exe):
        sys.exit("reference_losses.py: %s is missing: run bench/compare/setup.sh first" % exe)
    env = dict(os.environ, OMP_NUM_THREADS="1", MKL_NUM_THREADS="1", GLOG_v="0")
    p = subprocess.run([exe, os.path.abspath(__file__), "--emit", which], env=env, text=True,
                       stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    if p.returncode:
        sys.exit("reference_losses.py: %s failed\n%s" % (which, p.stderr[-2000:]))
    return json.loads(p.stdout.splitlines()[-1])


def main():
    torch = collect("TORCH_VENV", "venv-torch", "float32")
    double = collect("TORCH_VENV", "venv-torch", "float64")
    paddle = collect("PADDLE_VENV", "venv-paddle", "paddle")
    if torch["samples"] != paddle["samples"]:
        sys.exit("reference_losses.py: the generator differs between the two environments")
    losses, differences, apart = {}, {}, []
    print("largest difference over %d steps (first loss -> last loss)" % STEPS)
    for m in MODELS:
        losses[m], differences[m] = {}, {}
        for n in OPTIMIZERS:
            t, p, d = (s["losses"][m][n] for s in (torch, paddle, double))

            def largest(a, b):
                return max(abs(x - y) for x, y in zip(a, b))

            pairs = {"torch-paddle": largest(t, p), "torch-float64": largest(t, d),
                     "paddle-float64": largest(p, d)}
            differences[m][n] = {k: float("%.1e" % v) for k, v in pairs.items()}
            print("%-5s %-17s %s  (%.4f -> %.4f)" % (
                m, n, "  ".join("%s %.1e" % i for i in pairs.items()), t[0], t[-1]))
            if pairs["torch-paddle"] > 1e-5:
                apart.append("%s %s" % (m, n))
            losses[m][n] = {"torch": ["%.9g" % v for v in t], "paddle": ["%.9g" % v for v in p]}
    if apart:
        print("PyTorch and PaddlePaddle are more than 1e-5 apart in: " + ", ".join(apart))
    head = {
        "description": "Losses of %d training steps; parameters and batches as in README.md" % STEPS,
        "systems": {"torch": torch["system"], "paddle": paddle["system"]},
        "steps": STEPS, "batch": BATCH, "batches": BATCHES,
        "generator": {
            "algorithm": "splitmix64; u = output >> 40; k = u - 2^23",
            "parameter_seed": 1, "batch_seed": 2,
            "parameter": "k * 2^-26", "input": "k * 2^-23",
            "label": "1 if sum over features j of (+k_j for even j, -k_j for odd j) > 0, else 0",
            "parameter_order": "for each layer: weight [in, out] row by row, then bias [out]",
            "input_order": "for each batch, for each example, for each feature",
        },
        "samples": torch["samples"],
        "models": {m: {"dims": dims, "activation": act} for m, (dims, act) in MODELS.items()},
        "optimizers": OPTIMIZERS,
        "largest_differences": differences,
    }
    text = json.dumps(head, indent=1)[:-2] + ',\n "losses": {\n'
    rows = []
    for m in losses:
        inner = ",\n".join('   "%s": {\n%s\n   }' % (n, ",\n".join(
            '    "%s": [%s]' % (s, ", ".join(v)) for s, v in by.items()))
            for n, by in losses[m].items())
        rows.append('  "%s": {\n%s\n  }' % (m, inner))
    text += ",\n".join(rows) + "\n }\n}\n"
    json.loads(text)
    os.makedirs(os.path.dirname(TARGET), exist_ok=True)
    with open(TARGET, "w") as f:
        f.write(text)
    print("wrote bench/reference/losses.json")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--emit"]:
        emit(sys.argv[2])
    else:
        main()
