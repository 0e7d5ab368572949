"""Saves a tiny model with real PaddlePaddle, for tests of readers that have no Paddle.

    python record_files.py DIR         (called by record.py; needs paddlepaddle==2.6.2)

One fc 13 -> 1 on square error, trained for 10 steps, once with SGD and once with Adam. For each:
  DIR/<optimizer>.pdparams, .pdopt, .pdmodel         paddle.static.save
  DIR/<optimizer>_infer.pdmodel, .pdiparams          paddle.static.save_inference_model
  DIR/<optimizer>.npz                                what a reader must find
Entries of the .npz: `param/<name>` and `opt/<name>` are the saved arrays, `losses` the 10 losses
before each update, `infer_x` and `infer_y` one batch and the output of the inference model.
The attribute op_callstack, which holds paths of the machine, is taken out of the .pdmodel files.
"""
from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

STEPS = 10
FEATURES = 13
BATCH = 4


def batch(step: int) -> tuple:
    """Features of shape [4, 13] and targets of shape [4, 1]."""
    draw = np.random.RandomState(step)
    x = draw.uniform(-1, 1, (BATCH, FEATURES)).astype("float32")
    y = (x.sum(axis=1, keepdims=True) * 0.5 + 1).astype("float32")
    return x, y


def strip_call_stacks(path: Path) -> None:
    from paddle.base.proto import framework_pb2

    program = framework_pb2.ProgramDesc.FromString(path.read_bytes())
    for block in program.blocks:
        for op in block.ops:
            kept = [attr for attr in op.attrs if attr.name != "op_callstack"]
            del op.attrs[:]
            op.attrs.extend(kept)
    path.write_bytes(program.SerializeToString())


def save(kind: str, into: Path) -> None:
    import paddle
    import weights

    main, startup = paddle.static.Program(), paddle.static.Program()
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope), paddle.static.program_guard(main, startup), \
            paddle.utils.unique_name.guard():
        x = paddle.static.data("x", [None, FEATURES], "float32")
        y = paddle.static.data("y", [None, 1], "float32")
        predict = paddle.static.nn.fc(x, size=1)
        loss = paddle.mean(paddle.nn.functional.square_error_cost(input=predict, label=y))
        rate = {"sgd": 0.1, "adam": 0.01}[kind]
        optimizer = {"sgd": paddle.optimizer.SGD, "adam": paddle.optimizer.Adam}[kind]
        optimizer(learning_rate=rate).minimize(loss)
        place = paddle.CPUPlace()
        exe = paddle.static.Executor(place)
        exe.run(startup)
        weights.set_all(
            [(p.name, p.shape) for p in main.all_parameters()],
            lambda name, array: scope.find_var(name).get_tensor().set(array, place))
        losses = []
        for step in range(STEPS):
            xs, ys = batch(step)
            losses.append(exe.run(main, feed={"x": xs, "y": ys}, fetch_list=[loss])[0])
        paddle.static.save(main, str(into / kind))
        prefix = str(into / f"{kind}_infer")
        paddle.static.save_inference_model(prefix, [x], [predict], exe)
        for model in (f"{kind}.pdmodel", f"{kind}_infer.pdmodel"):
            strip_call_stacks(into / model)
        arrays = {"losses": np.array(losses, "float32")}
        parameters = {p.name for p in main.all_parameters()}
        for var in main.list_vars():
            if var.persistable and scope.find_var(var.name) is not None:
                group = "param" if var.name in parameters else "opt"
                arrays[f"{group}/{var.name}"] = np.array(scope.find_var(var.name).get_tensor())
    with paddle.static.scope_guard(paddle.static.Scope()):
        program, feeds, fetches = paddle.static.load_inference_model(prefix, exe)
        arrays["infer_x"] = batch(STEPS)[0]
        arrays["infer_y"] = exe.run(program, feed={feeds[0]: arrays["infer_x"]},
                                    fetch_list=fetches)[0]
    np.savez(into / f"{kind}.npz", **arrays)


def main() -> None:
    import paddle

    into = Path(sys.argv[1])
    into.mkdir(parents=True, exist_ok=True)
    paddle.enable_static()
    for kind in ("sgd", "adam"):
        save(kind, into)


if __name__ == "__main__":
    main()
