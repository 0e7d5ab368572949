#!/usr/bin/env python3
"""Training steps of PaddlePaddle (static graph, CPU): see --help, and ../README.md."""
import os

import common


def start(threads):
    os.environ.setdefault("OMP_NUM_THREADS", str(threads))
    os.environ.setdefault("MKL_NUM_THREADS", str(threads))
    import paddle

    paddle.enable_static()
    place = paddle.CPUPlace()

    class Runner:
        def __init__(self, workload, batch):
            w = common.WORKLOADS[workload]
            values = common.parameters(w["dims"])
            self.scope = paddle.static.Scope()
            self.program, self.startup = paddle.static.Program(), paddle.static.Program()
            assign = paddle.nn.initializer.Assign
            with paddle.static.program_guard(self.program, self.startup):
                x = paddle.static.data("x", [batch, w["dims"][0]], "float32")
                y = paddle.static.data("y", [batch, 1], "int64")
                x.stop_gradient = not w["input_grad"]
                h = x
                for i, (weight, bias) in enumerate(values):
                    h = paddle.static.nn.fc(
                        h, weight.shape[1], weight_attr=paddle.ParamAttr(initializer=assign(weight)),
                        bias_attr=paddle.ParamAttr(initializer=assign(bias)),
                        activation=w["act"] if i + 1 < len(values) else None)
                self.loss = paddle.mean(paddle.nn.functional.softmax_with_cross_entropy(h, y))
                if w["optimizer"] == "adam":
                    optimizer = paddle.optimizer.Adam(w["lr"])
                else:
                    optimizer = paddle.optimizer.SGD(w["lr"])
                optimizer.minimize(self.loss)
            names = {v.name for v in self.program.list_vars()}
            if w["input_grad"] != ("x@GRAD" in names):
                raise RuntimeError("the program does not compute the expected input gradient")
            self.executor = paddle.static.Executor(place)

            def tensor(a):
                t = paddle.base.core.LoDTensor()
                t.set(a, place)
                return t

            self.feeds = [{"x": tensor(a), "y": tensor(b.reshape(-1, 1))}
                          for a, b in common.batches(w["dims"][0], batch, common.BATCHES)]

        def reset(self):
            self.executor.run(self.startup, scope=self.scope)

        def step(self, i, want_loss=False):
            out = self.executor.run(self.program, feed=self.feeds[i], scope=self.scope,
                                    fetch_list=[self.loss] if want_loss else [])
            return float(out[0]) if want_loss else None

    name = "paddle " + paddle.__version__
    mkl = os.environ.get("MKL_DEBUG_CPU_TYPE")
    return name + (" MKL_DEBUG_CPU_TYPE=" + mkl if mkl else ""), Runner


if __name__ == "__main__":
    common.main(__doc__, start)
