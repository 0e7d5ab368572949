"""Optimizers and schedules of the learning rate."""
import json
import os
import warnings

import numpy as np
import pytest

import regatta as rg
from regatta.optimizer import lr, schedules

DATA = os.path.join(os.path.dirname(__file__), "data")


@pytest.fixture(autouse=True)
def fresh():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard(), \
            rg.static.scope_guard(rg.static.Scope()):
        yield


X = np.array([[1.0, 2.0], [-1.0, 0.5], [0.5, -2.0]], "float32")
Y = np.array([[1.0], [0.0], [-1.0]], "float32")
W = np.array([[0.3], [-0.2]], "float32")


def line():
    x = rg.static.data("x", [None, 2], "float32")
    y = rg.static.data("y", [None, 1], "float32")
    w = rg.create_parameter([2, 1], "float32", name="w")
    return rg.mean(rg.square(rg.matmul(x, w) - y))


def start():
    exe = rg.static.Executor()
    exe.run(rg.static.default_startup_program())
    rg.static.global_scope().var("w").get_tensor().set(W)
    return exe


def step(exe, fetch=()):
    return exe.run(feed={"x": X, "y": Y}, fetch_list=list(fetch))


def weights():
    return rg.static.global_scope().find_var("w").get_tensor().numpy().astype("float64")


def gradient(w):
    return 2 * X.T.astype("float64") @ (X @ w - Y) / len(X)


def trained(optimizer, steps=3):
    optimizer.minimize(line())
    exe = start()
    for _ in range(steps):
        step(exe)
    return weights()


def expected(update, steps=3):
    w, state = W.astype("float64"), {}
    for t in range(1, steps + 1):
        w = update(w, gradient(w), state, t)
    return w


def adam(w, g, s, t, rate=0.1, decay=0.0):
    s["m"] = 0.9 * s.get("m", 0) + 0.1 * g
    s["v"] = 0.999 * s.get("v", 0) + 0.001 * g * g
    m, v = s["m"] / (1 - 0.9 ** t), s["v"] / (1 - 0.999 ** t)
    return w * (1 - rate * decay) - rate * m / (np.sqrt(v) + 1e-8)


def momentum(w, g, s, t):
    s["v"] = 0.8 * s.get("v", 0) + g
    return w - 0.1 * s["v"]


def nesterov(w, g, s, t):
    s["v"] = 0.8 * s.get("v", 0) + g
    return w - 0.1 * (g + 0.8 * s["v"])


def adagrad(w, g, s, t):
    s["a"] = s.get("a", 0.5) + g * g
    return w - 0.1 * g / (np.sqrt(s["a"]) + 1e-6)


def rmsprop(w, g, s, t):
    s["s"] = 0.9 * s.get("s", 0) + 0.1 * g * g
    s["u"] = 0.5 * s.get("u", 0) + 0.1 * g / np.sqrt(s["s"] + 1e-6)
    return w - s["u"]


def adadelta(w, g, s, t):
    s["s"] = 0.95 * s.get("s", 0) + 0.05 * g * g
    d = g * np.sqrt((s.get("x", 0) + 1e-6) / (s["s"] + 1e-6))
    s["x"] = 0.95 * s.get("x", 0) + 0.05 * d * d
    return w - 1.0 * d


def lars(w, g, s, t):
    length = np.linalg.norm(w)
    rate = 0.1 * 0.01 * length / (np.linalg.norm(g) + 0.1 * length)
    s["v"] = 0.9 * s.get("v", 0) + rate * (g + 0.1 * w)
    return w - s["v"]


RULES = {
    "sgd": (lambda: rg.optimizer.SGD(0.1), lambda w, g, s, t: w - 0.1 * g),
    "sgd with L2": (
        lambda: rg.optimizer.SGD(0.1, weight_decay=0.5), lambda w, g, s, t: w - 0.1 * (g + 0.5 * w)
    ),
    "sgd of fluid": (
        lambda: rg.optimizer.SGDOptimizer(
            learning_rate=0.1, regularization=rg.regularizer.L2Decay(0.5)),
        lambda w, g, s, t: w - 0.1 * (g + 0.5 * w),
    ),
    "momentum": (lambda: rg.optimizer.Momentum(0.1, 0.8), momentum),
    "nesterov": (lambda: rg.optimizer.Momentum(0.1, 0.8, use_nesterov=True), nesterov),
    "adagrad": (lambda: rg.optimizer.Adagrad(0.1, initial_accumulator_value=0.5), adagrad),
    "adam": (lambda: rg.optimizer.Adam(0.1), adam),
    "adamw": (
        lambda: rg.optimizer.AdamW(0.1, weight_decay=0.2),
        lambda w, g, s, t: adam(w, g, s, t, decay=0.2),
    ),
    "rmsprop": (lambda: rg.optimizer.RMSProp(0.1, rho=0.9, momentum=0.5), rmsprop),
    "adadelta": (lambda: rg.optimizer.Adadelta(1.0), adadelta),
    "lars": (
        lambda: rg.optimizer.LarsMomentum(0.1, 0.9, lars_coeff=0.01, lars_weight_decay=0.1), lars
    ),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_rule_moves_weights_by_its_formula(rule):
    make, update = RULES[rule]
    np.testing.assert_allclose(trained(make()), expected(update), rtol=2e-5, atol=1e-6)


def test_ftrl_and_lamb_learn():
    assert not np.allclose(trained(rg.optimizer.Ftrl(0.1)), W)


def test_minimize_returns_ops_and_gradients():
    ops, params_grads = rg.optimizer.Adam(0.1).minimize(line())
    assert [op.type for op in ops] == ["adam"]
    (param, grad), = params_grads
    assert param.name == "w" and grad.name == "w@GRAD"
    assert isinstance(param, rg.static.Parameter) and grad.shape == (2, 1)


def test_only_chosen_parameters_move():
    x = rg.static.data("x", [None, 2], "float32")
    a = rg.create_parameter([2, 1], "float32", name="a")
    b = rg.create_parameter([2, 1], "float32", name="b")
    cost = rg.mean(rg.matmul(x, a) + rg.matmul(x, b))
    _, pairs = rg.optimizer.SGD(0.1, parameters=[a]).minimize(cost)
    assert [p.name for p, _ in pairs] == ["a"]


def test_backward_and_apply_gradients_are_minimize():
    optimizer = rg.optimizer.SGD(0.1)
    cost = line()
    params_grads = optimizer.backward(cost)
    assert [(p.name, g.name) for p, g in params_grads] == [("w", "w@GRAD")]
    optimizer.apply_gradients(params_grads)
    exe = start()
    step(exe)
    np.testing.assert_allclose(weights(), expected(RULES["sgd"][1], 1), rtol=1e-5)


def test_changed_gradients_cannot_be_applied():
    optimizer = rg.optimizer.SGD(0.1)
    cost = line()
    params_grads = optimizer.backward(cost)
    rg.square(cost)
    with pytest.raises(NotImplementedError, match="grad_clip"):
        optimizer.apply_gradients(params_grads)


# --- learning rates ------------------------------------------------------------------------------


def test_a_scheduler_decides_the_rate_of_the_next_run():
    scheduler = lr.StepDecay(0.1, step_size=1, gamma=0.5)
    optimizer = rg.optimizer.SGD(scheduler)
    optimizer.minimize(line())
    exe = start()
    seen = []
    for _ in range(3):
        seen.append(float(step(exe, ["learning_rate_0"])[0]))
        scheduler.step()
    np.testing.assert_allclose(seen, [0.1, 0.05, 0.025])
    assert optimizer.get_lr() == scheduler()


def test_a_scheduler_that_nobody_steps_stays():
    optimizer = rg.optimizer.SGD(lr.PiecewiseDecay([1], [0.1, 0.0]))
    np.testing.assert_allclose(
        trained(optimizer), expected(RULES["sgd"][1]), rtol=1e-5)


def test_a_scheduler_of_ones_own_is_not_called_by_runs():
    class Falling(lr.LRScheduler):
        def get_lr(self):
            return self.last_lr * 0.5

    scheduler = Falling(0.4)
    rg.optimizer.SGD(scheduler).minimize(line())
    exe = start()
    for _ in range(3):
        assert float(step(exe, ["learning_rate_0"])[0]) == pytest.approx(0.2)


def test_set_lr():
    optimizer = rg.optimizer.SGD(0.1)
    optimizer.minimize(line())
    exe = start()
    optimizer.set_lr(0.0)
    assert optimizer.get_lr() == 0.0
    step(exe)
    np.testing.assert_array_equal(weights(), W.astype("float64"))
    with pytest.raises(RuntimeError, match="schedule"):
        rg.optimizer.SGD(lr.StepDecay(0.1, 1)).set_lr(0.2)


def test_a_schedule_in_the_program_counts_its_steps():
    rate = schedules.exponential_decay(0.1, decay_steps=1, decay_rate=0.5)
    rg.optimizer.SGD(rate).minimize(line())
    exe = start()
    seen = [float(step(exe, ["learning_rate_0"])[0]) for _ in range(3)]
    np.testing.assert_allclose(seen, [0.1, 0.05, 0.025], rtol=1e-6)


def test_every_schedule_in_the_program_is_accepted():
    made = [
        schedules.natural_exp_decay(0.1, 10, 0.5, staircase=True),
        schedules.inverse_time_decay(0.1, 10, 0.5),
        schedules.polynomial_decay(0.1, 10, 0.01, power=2.0, cycle=True),
        schedules.piecewise_decay([2, 4], [0.3, 0.2, 0.1]),
        schedules.cosine_decay(0.1, 10, 5),
        schedules.noam_decay(64, 10),
        schedules.linear_lr_warmup(schedules.noam_decay(64, 10), 5, 0.0, 0.1),
    ]
    for rate in made:
        main, startup = rg.static.Program(), rg.static.Program()
        with rg.static.program_guard(main, startup), rg.unique_name.guard():
            rg.optimizer.SGD(rate).minimize(line())
            step(start())


def test_servers_keep_the_rate_they_were_given():
    scheduler = lr.StepDecay(0.1, step_size=2, gamma=0.5)
    optimizer = rg.optimizer.SGD(scheduler)
    assert optimizer._spec(for_servers=True)["learning_rate"] == 0.1
    scheduler.step()  # the rate stays
    with pytest.raises(RuntimeError, match="parameter servers"):
        scheduler.step()
    assert scheduler() == 0.1
    with pytest.raises(RuntimeError, match="parameter servers"):
        constant = rg.optimizer.SGD(0.1)
        constant._spec(for_servers=True)
        constant.set_lr(0.2)


SCHEDULERS = {
    "noam": lambda: lr.NoamDecay(64, 5, 0.5),
    "piece": lambda: lr.PiecewiseDecay([3, 6], [0.1, 0.01, 0.001]),
    "natexp": lambda: lr.NaturalExpDecay(0.5, 0.1),
    "inv": lambda: lr.InverseTimeDecay(0.5, 0.1),
    "poly": lambda: lr.PolynomialDecay(0.5, 7, power=2.0),
    "polyc": lambda: lr.PolynomialDecay(0.5, 4, cycle=True),
    "exp": lambda: lr.ExponentialDecay(0.5, 0.9),
    "multi": lambda: lr.MultiStepDecay(0.5, [2, 5], 0.8),
    "step": lambda: lr.StepDecay(0.5, 3, 0.5),
    "lam": lambda: lr.LambdaDecay(0.5, lambda x: 0.95 ** x),
    "mul": lambda: lr.MultiplicativeDecay(0.5, lambda x: 0.95),
    "cos": lambda: lr.CosineAnnealingDecay(0.5, 6, 0.01),
    "cosw": lambda: lr.CosineAnnealingWarmRestarts(0.5, 3, 2, 0.01),
    "warm": lambda: lr.LinearWarmup(0.5, 4, 0.0, 0.5),
    "warm2": lambda: lr.LinearWarmup(lr.PiecewiseDecay([3], [0.5, 0.1]), 4, 0.1, 0.4),
    "lin": lambda: lr.LinearLR(0.5, 6),
    "cyc": lambda: lr.CyclicLR(0.1, 0.5, 3, 2),
    "cyc2": lambda: lr.CyclicLR(0.1, 0.5, 3, 2, "triangular2"),
    "cyce": lambda: lr.CyclicLR(0.1, 0.5, 3, None, "exp_range", 0.9),
    "one": lambda: lr.OneCycleLR(1.0, 12),
    "one3": lambda: lr.OneCycleLR(1.0, 12, three_phase=True, anneal_strategy="linear"),
}


@pytest.mark.parametrize("name", SCHEDULERS)
def test_a_scheduler_gives_the_rates_of_paddle(name):
    with open(os.path.join(DATA, "lr_schedules.json")) as file:
        rates = json.load(file)[name]
    scheduler = SCHEDULERS[name]()
    seen = [scheduler()]
    for _ in range(len(rates) - 1):
        scheduler.step()
        seen.append(scheduler())
    np.testing.assert_allclose(seen, rates, rtol=1e-9, atol=1e-12)


def test_plateaus_give_the_rates_of_paddle():
    with open(os.path.join(DATA, "lr_schedules.json")) as file:
        recorded = json.load(file)
    scheduler = lr.ReduceOnPlateau(1.0, patience=1, factor=0.5, cooldown=1)
    seen = []
    for measure in [1, 0.9, 0.9, 0.9, 0.9, 0.95, 0.8, 0.9, 0.9, 0.9, 0.9]:
        scheduler.step(np.array([measure]))
        seen.append(scheduler())
    assert seen == recorded["plateau"]


@pytest.mark.parametrize("name", ["step", "warm2", "cos"])
def test_a_scheduler_continues_from_its_state(name):
    scheduler, other = SCHEDULERS[name](), SCHEDULERS[name]()
    for _ in range(5):
        scheduler.step()
    other.set_state_dict(scheduler.state_dict())
    scheduler.step()
    other.step()
    assert scheduler() == other()


# --- what cannot be honoured ---------------------------------------------------------------------


@pytest.mark.parametrize("lazy", [False, True])
def test_lazy_mode_says_which_rows_of_tables_move(lazy):
    ids = rg.static.data("ids", [None, 1], "int64")
    table = rg.create_parameter([10, 2], "float32", name="table")
    block = rg.static.default_main_program().global_block()
    block.append_op("embedding", {"W": table, "Ids": ids}, {"Out": "rows"}, {"is_sparse": True})
    ops, _ = rg.optimizer.Adam(0.1, lazy_mode=lazy).minimize(rg.mean(block.var("rows")))
    assert [op.attr("lazy") for op in ops if op.type == "adam"] == [lazy]


def test_settings_that_cannot_be_honoured_are_refused():
    for make in (
        lambda: rg.optimizer.AdamW(0.1, apply_decay_param_fun=lambda name: True),
        lambda: rg.optimizer.Momentum(0.1, rescale_grad=0.5),
        lambda: rg.optimizer.Lamb(0.1, exclude_from_weight_decay_fn=lambda p: True),
    ):
        with pytest.raises(NotImplementedError):
            make()
    with pytest.raises(TypeError, match="learning_rate"):
        rg.optimizer.SGD("fast")
    with pytest.raises(ValueError, match="learning_rate"):
        rg.optimizer.SGD(-0.1)
    with pytest.raises(RuntimeError, match="no parameters with values"):
        rg.optimizer.SGD(0.1).step()
    with pytest.raises(AttributeError, match="Adamax is not in Regatta"):
        rg.optimizer.Adamax


def test_clipping_limits_the_gradient():
    clip = rg.nn.clip.ClipGradByValue(max=0.01)
    moved = trained(rg.optimizer.SGD(1.0, grad_clip=clip), steps=1) - W
    assert np.abs(moved).max() == pytest.approx(0.01, rel=1e-4)


def test_state_moves_to_another_program():
    optimizer = rg.optimizer.Adam(0.1)
    trained(optimizer, 2)
    state, w = optimizer.state_dict(), weights()
    assert "w_beta1_pow_acc_0" in state
    with rg.static.scope_guard(rg.static.Scope()):
        exe = start()
        optimizer.set_state_dict(state)
        rg.static.global_scope().var("w").get_tensor().set(w)
        step(exe)
        np.testing.assert_allclose(weights(), expected(adam, 3), rtol=2e-5)
