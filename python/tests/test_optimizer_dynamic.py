"""Optimizers on tensors: equal to those of programs, with Paddle's state, groups and schedules."""
from __future__ import annotations

import pickle

import numpy as np
import pytest

import regatta as rg
import regatta.nn as nn
from regatta import optimizer as O  # noqa: N812

RNG = np.random.RandomState(5)
X = RNG.randn(6, 4).astype("float32")
IDS = RNG.randint(0, 7, (6, 2))
Y = RNG.randint(0, 3, (6, 1))

RULES = {
    "sgd": lambda **kw: O.SGD(0.1, **kw), "momentum": lambda **kw: O.Momentum(0.1, 0.9, **kw),
    "nesterov": lambda **kw: O.Momentum(0.1, 0.9, use_nesterov=True, **kw),
    "adagrad": lambda **kw: O.Adagrad(0.1, initial_accumulator_value=0.1, **kw),
    "adam": lambda **kw: O.Adam(0.1, lazy_mode=True, **kw),
    "adamw": lambda **kw: O.AdamW(0.1, weight_decay=0.05, lazy_mode=True, **kw),
    "rmsprop": lambda **kw: O.RMSProp(0.1, momentum=0.5, centered=True, **kw),
    "adadelta": lambda **kw: O.Adadelta(0.1, **kw), "ftrl": lambda **kw: O.Ftrl(0.1, **kw),
    "lamb": lambda **kw: O.Lamb(0.1, **kw), "lars": lambda **kw: O.LarsMomentum(0.1, **kw),
    "l2": lambda **kw: O.SGD(0.1, weight_decay=0.1, **kw),
    "l1": lambda **kw: O.Adam(0.1, weight_decay=rg.regularizer.L1Decay(0.1), lazy_mode=True, **kw),
    "global norm": lambda **kw: O.SGD(0.1, grad_clip=nn.ClipGradByGlobalNorm(0.1), **kw),
    "norm": lambda **kw: O.SGD(0.1, grad_clip=nn.ClipGradByNorm(0.05), **kw),
    "value": lambda **kw: O.SGD(0.1, grad_clip=nn.ClipGradByValue(0.01), **kw),
    "schedule": lambda **kw: O.SGD(O.lr.StepDecay(0.1, 2), **kw),
}


class Net(nn.Layer):
    def __init__(self, sparse=False, **attrs):
        super().__init__()
        self.table = nn.Embedding(7, 4, sparse=sparse)
        self.first, self.second = nn.Linear(12, 5, **attrs), nn.Linear(5, 3)

    def forward(self, x, ids):
        rows = self.table(ids).reshape([-1, 8])
        return self.second(nn.functional.relu(self.first(rg.concat([x, rows], 1))))


def loss_of(net, x, ids, y):
    return nn.functional.cross_entropy(net(x, ids), y)


def dynamic(make, steps=4, sparse=False, **attrs):
    with rg.unique_name.guard():
        net = Net(sparse, **attrs)
        optimizer = make(parameters=net.parameters())
        for _ in range(steps):
            loss = loss_of(net, *(rg.to_tensor(a) for a in (X, IDS, Y)))
            loss.backward()
            optimizer.step()
            optimizer.clear_grad()
            if isinstance(optimizer._learning_rate, O.lr.LRScheduler):
                optimizer._learning_rate.step()
    return net, optimizer


def static(make, steps=4, sparse=False, **attrs):
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        x, y = rg.static.data("x", [None, 4]), rg.static.data("y", [None, 1], "int64")
        net = Net(sparse, **attrs)
        optimizer = make()
        optimizer.minimize(loss_of(net, x, rg.static.data("ids", [None, 2], "int64"), y))
    with rg.static.scope_guard(rg.static.Scope()):
        exe = rg.static.Executor()
        exe.run(startup)
        for _ in range(steps):
            exe.run(main, feed={"x": X, "ids": IDS, "y": Y})
            if isinstance(optimizer._learning_rate, O.lr.LRScheduler):
                optimizer._learning_rate.step()
        return net.state_dict(), optimizer.state_dict()


@pytest.mark.parametrize("sparse", [False, True])
@pytest.mark.parametrize("rule", RULES)
def test_steps_equal_those_of_programs(rule, sparse):
    net, optimizer = dynamic(RULES[rule], sparse=sparse)
    # Regularization of a sparse table reaches all rows of tensors, as in Paddle; programs regularize
    # the rows of a batch, so theirs is dense here.
    values, state = static(RULES[rule], sparse=sparse and rule != "l2")
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value.numpy(), values[name], rtol=2e-4, atol=1e-5, err_msg=name)
    mine = optimizer.state_dict()
    assert set(state) == {paddle_to_static(name) for name in mine}
    if rule == "adam":
        np.testing.assert_allclose(mine["linear_0.w_0_moment1_0"].numpy(),
                                   state["linear_0.w_0_moment1_0"], rtol=1e-3, atol=1e-6)


def paddle_to_static(name):
    return name.replace("__avg", "_avg")


def test_attributes_of_parameters():
    attrs = {
        "weight_attr": rg.ParamAttr(learning_rate=0.5, regularizer=rg.regularizer.L2Decay(0.3)),
        "bias_attr": rg.ParamAttr(trainable=False),
    }
    net, _ = dynamic(RULES["sgd"], **attrs)
    values, _ = static(RULES["sgd"], **attrs)
    for name, value in net.state_dict().items():
        np.testing.assert_allclose(value.numpy(), values[name], rtol=1e-4, atol=1e-6)
    assert (net.first.bias.numpy() == 0).all() and not net.first.bias.trainable


def test_groups_have_settings_of_their_own():
    a, b = rg.create_parameter([2], "float32"), rg.create_parameter([2], "float32")
    start = a.numpy(), b.numpy()
    sgd = O.SGD(0.1, parameters=[
        {"params": [a], "learning_rate": 0.5}, {"params": [b], "weight_decay": 0.2},
    ])
    (a * 1.0 + b * 2.0).sum().backward()
    sgd.step()
    np.testing.assert_allclose(a.numpy(), start[0] - 0.05, rtol=1e-5)
    np.testing.assert_allclose(b.numpy(), start[1] - 0.1 * (2.0 + 0.2 * start[1]), rtol=1e-5)
    with pytest.raises(ValueError, match="has no setting 'momentom'"):
        O.Momentum(parameters=[{"params": [a], "momentom": 0.5}])
    with pytest.raises(TypeError, match="list of parameters"):
        O.SGD(parameters=a)


def test_decay_of_chosen_parameters_is_clipped_with_the_others():
    def make(decays):
        with rg.unique_name.guard():
            layer = nn.Linear(4, 3)
        layer.weight.set_value(np.ones([4, 3], "float32"))
        adamw = O.AdamW(0.1, parameters=layer.parameters(), weight_decay=0.3,
                        apply_decay_param_fun=decays, grad_clip=nn.ClipGradByGlobalNorm(0.1))
        layer(rg.to_tensor(X)).square().sum().backward()
        before = layer.bias.grad.numpy()
        adamw.step()
        assert (layer.bias.grad.numpy() == before).all()
        return layer, adamw.state_dict()

    chosen, state = make(lambda name: name.endswith("w_0"))
    every, whole = make(None)
    np.testing.assert_allclose(state["linear_0.b_0_moment1_0"].numpy(),
                               whole["linear_0.b_0_moment1_0"].numpy(), rtol=1e-5)
    np.testing.assert_allclose(chosen.weight.numpy(), every.weight.numpy(), rtol=1e-6)


def test_state_goes_to_another_optimizer():
    _, whole = dynamic(RULES["adam"], steps=6)
    net, half = dynamic(RULES["adam"], steps=3)
    saved = {k: v.numpy() for k, v in half.state_dict().items()}
    for again in (pickle.loads(pickle.dumps(half)), O.Adam(0.1, lazy_mode=True,
                                                           parameters=net.parameters())):
        if not again.state_dict():
            again.set_state_dict(saved)
        found = again.state_dict()
        assert sorted(found) == sorted(saved)
        for name, value in saved.items():
            np.testing.assert_allclose(found[name].numpy(), value)
    for _ in range(3):
        loss_of(net, *(rg.to_tensor(a) for a in (X, IDS, Y))).backward()
        again.step()
        again.clear_grad()
    for name, value in whole.state_dict().items():
        np.testing.assert_allclose(again.state_dict()[name].numpy(), value.numpy(), rtol=1e-5)


def test_schedules_and_rates():
    w = rg.create_parameter([1], "float32")
    rate = O.lr.StepDecay(0.1, 1, 0.5)
    sgd = O.SGD(rate, parameters=[w])
    assert sgd.get_lr() == 0.1
    rate.step()
    assert sgd.get_lr() == 0.05 and sgd.state_dict()["LR_Scheduler"]["last_epoch"] == 1
    start = w.numpy()
    w.sum().backward()
    sgd.step()
    np.testing.assert_allclose(w.numpy(), start - 0.05, rtol=1e-6)
    plateau = O.lr.ReduceOnPlateau(0.4, factor=0.5, patience=0, threshold=0.0)
    plain = O.SGD(plateau, parameters=[w])
    for loss in (1.0, 1.0, 1.0):
        plateau.step(rg.to_tensor(loss))
    assert plain.get_lr() == 0.1
    constant = O.SGD(0.3, parameters=[w])
    constant.set_lr(0.7)
    assert constant.get_lr() == 0.7


def test_minimize_runs_backward_unless_it_ran():
    w = rg.create_parameter([2], "float32")
    start, sgd = w.numpy(), O.SGD(0.1, parameters=[w])
    sgd.minimize((w * 2.0).sum())
    sgd.clear_grad()
    loss = (w * 3.0).sum()
    loss.backward()
    ops, pairs = sgd.minimize(loss)
    np.testing.assert_allclose(w.numpy(), start - 0.5, rtol=1e-5)
    assert ops == [] and pairs[0][0] is w
    sgd.clear_grad()
    sgd.step()
    np.testing.assert_allclose(w.numpy(), start - 0.5, rtol=1e-5)
    with pytest.raises(RuntimeError, match="no parameters with values"):
        O.SGD(0.1).minimize((w * 2.0).sum())


@pytest.mark.parametrize("lazy", [True, False])
def test_rows_of_tables_rest_if_adam_is_lazy(lazy):
    """Without lazy_mode a table with sparse gradients moves as one with dense gradients."""
    moved = []
    for sparse in (True, False):
        rg.seed(4)
        with rg.unique_name.guard():
            table = nn.Embedding(6, 2, sparse=sparse)
        adam = O.Adam(0.1, parameters=table.parameters(), lazy_mode=lazy)
        for ids in ([0, 1], [1, 2], [2, 2]):
            table(rg.to_tensor(ids)).square().sum().backward()
            assert table.weight.grad._is_rows is sparse
            adam.step()
            adam.clear_grad()
        moved.append(table.weight.numpy())
    np.testing.assert_allclose(moved[0][3:], moved[1][3:])
    assert np.allclose(moved[0], moved[1], rtol=1e-5) is not lazy
    rg.seed(0)


def test_memory_stays_after_steps():
    import gc

    net, adam = dynamic(RULES["adam"], steps=1)
    inputs = [rg.to_tensor(a) for a in (X, IDS, Y)]

    def step():
        loss_of(net, *inputs).backward()
        adam.step()
        adam.clear_grad()

    for _ in range(5):
        step()
    gc.collect()
    before = len(gc.get_objects())
    for _ in range(50):
        step()
    gc.collect()
    assert len(gc.get_objects()) - before < 10


def test_a_program_updates_the_parameters_that_the_optimizer_was_given():
    """A script that builds a program but does not say enable_static."""
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.unique_name.guard():
        first, second = nn.Linear(4, 4), nn.Linear(4, 1)
    with rg.static.program_guard(main, startup), rg.unique_name.guard():
        loss = second(first(rg.static.data("x", [None, 4]))).square().mean()
        _, pairs = O.SGD(0.1, parameters=second.parameters()).minimize(loss)
    assert [p.name for p, _ in pairs] == ["linear_1.w_0", "linear_1.b_0"]
    with rg.static.scope_guard(rg.static.Scope()):
        exe = rg.static.Executor()
        exe.run(startup)
        before, = exe.run(main, feed={"x": X}, fetch_list=[loss])
        want = second(first(rg.to_tensor(X))).square().mean().numpy()
        np.testing.assert_allclose(np.asarray(before).reshape([]), want, rtol=1e-5)
        after, = exe.run(main, feed={"x": X}, fetch_list=[loss])
    assert float(after) < float(before)
