"""Reads files that real PaddlePaddle 2.6.2 wrote. Needs neither Paddle nor PaddleRec."""
import numpy as np
import pytest

import harness
import record_files
import weights

import regatta as rg

KINDS = ["sgd", "adam"]
FILES = harness.HERE / "files"


@pytest.fixture(params=KINDS)
def saved(request):
    """(path prefix, arrays that a reader must find)"""
    with np.load(FILES / f"{request.param}.npz") as arrays:
        return str(FILES / request.param), {name: arrays[name] for name in arrays.files}


def states(arrays, *groups):
    return {name.split("/", 1)[1]: value for name, value in arrays.items()
            if name.split("/")[0] in groups}


def same(got, expected):
    assert set(got) == set(expected)
    for name, value in expected.items():
        array = np.asarray(got[name])
        assert array.shape == value.shape and array.dtype == value.dtype, name
        np.testing.assert_array_equal(array, value)


def test_program_state(saved):
    prefix, arrays = saved
    same(rg.static.load_program_state(prefix), states(arrays, "param", "opt"))


@pytest.mark.parametrize("suffix, group", [("pdparams", "param"), ("pdopt", "opt")])
def test_load(saved, suffix, group):
    prefix, arrays = saved
    same(rg.load(f"{prefix}.{suffix}", return_numpy=True), states(arrays, group))


@pytest.mark.parametrize("kind", KINDS)
def test_training_gives_the_saved_states(kind):
    """The same ten steps on Regatta end at the arrays that PaddlePaddle saved."""
    with np.load(FILES / f"{kind}.npz") as file:
        arrays = {name: file[name] for name in file.files}
    main, startup, scope = rg.static.Program(), rg.static.Program(), rg.static.Scope()
    with rg.static.scope_guard(scope), rg.static.program_guard(main, startup), \
            rg.utils.unique_name.guard():
        x = rg.static.data("x", [None, record_files.FEATURES], "float32")
        y = rg.static.data("y", [None, 1], "float32")
        predict = rg.static.nn.fc(x, size=1)
        loss = rg.mean(rg.nn.functional.square_error_cost(input=predict, label=y))
        if kind == "sgd":
            rg.optimizer.SGD(learning_rate=0.1).minimize(loss)
        else:
            rg.optimizer.Adam(learning_rate=0.01).minimize(loss)
        place = rg.CPUPlace()
        exe = rg.static.Executor(place)
        exe.run(startup)
        weights.set_all(
            [(p.name, p.shape) for p in main.all_parameters()],
            lambda name, array: scope.find_var(name).get_tensor().set(array, place))
        for step, expected in enumerate(arrays["losses"]):
            xs, ys = record_files.batch(step)
            got = exe.run(main, feed={"x": xs, "y": ys}, fetch_list=[loss])[0]
            np.testing.assert_allclose(np.asarray(got).reshape(()), expected, rtol=1e-5, atol=1e-6)
        for name, expected in states(arrays, "param", "opt").items():
            # Powers of the decay rates have a shorter name here; files carry the longer one.
            found = scope.find_var(name.replace("_pow_acc_", "_pow_"))
            assert found is not None, f"{name} is not in the scope"
            got = np.array(found.get_tensor()).reshape(expected.shape)
            np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-7, err_msg=name)
