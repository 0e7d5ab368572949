"""Threads share a batch: results are those of one thread, or the program is refused."""
import numpy as np
import pytest

import regatta as rg
from regatta import static

LOSSES = {
    "a mean of a mean": lambda h: rg.mean(rg.mean(h)),
    "a mean of Fluid of a mean": lambda h: rg.fluid.layers.mean(rg.fluid.layers.mean(h)),
    "a mean of reduce_mean": lambda h: rg.mean(rg.fluid.layers.reduce_mean(h)),
    "a mean of a sum": lambda h: rg.mean(rg.sum(h)),
    "a mean of means of columns": lambda h: rg.mean(rg.mean(h, axis=0)),
    "a sum of means of columns": lambda h: rg.sum(rg.mean(h, axis=0)),
    "a mean of a scaled mean": lambda h: rg.mean(rg.mean(h) * 2.0),
    "a mean of a mean with a shape": lambda h: rg.mean(rg.reshape(rg.mean(h), [1, 1])),
    "a sum of two means": lambda h: rg.mean(h) + rg.mean(rg.mean(h * h)),
}


def losses(loss, threads, examples):
    main, startup = static.Program(), static.Program()
    with static.program_guard(main, startup), rg.unique_name.guard():
        rg.seed(1)
        x = static.data("x", [-1, 3], "float32")
        value = loss(rg.tanh(static.nn.fc(x, 4)))
        rg.optimizer.SGD(0.1).minimize(value)
    exe = static.Executor(threads=threads)
    rng = np.random.RandomState(0)
    with static.scope_guard(static.Scope()):
        exe.run(startup)
        feeds = [{"x": rng.rand(examples, 3).astype("float32")} for _ in range(3)]
        return np.array([exe.run(main, feed=f, fetch_list=[value])[0] for f in feeds]).ravel()


@pytest.mark.parametrize("name", LOSSES)
def test_threads_train_as_one_does(name):
    for examples in (7, 2, 1):
        one = losses(LOSSES[name], 1, examples)
        many = losses(LOSSES[name], 3, examples)
        np.testing.assert_allclose(many, one, rtol=1e-5, atol=1e-6)


def test_results_without_the_batch_in_front():
    main = static.Program()
    with static.program_guard(main, static.Program()):
        x = static.data("x", [-1, 3], "float32")
        twice = rg.expand(x, [2, -1, 3])
        mean = rg.mean(twice)
    feed = {"x": np.arange(15, dtype="float32").reshape(5, 3)}
    for threads in (1, 2, 3):
        exe = static.Executor(threads=threads)
        got, m = exe.run(main, feed=feed, fetch_list=[twice, mean])
        np.testing.assert_array_equal(got, np.stack([feed["x"]] * 2))
        np.testing.assert_allclose(m, 7.0)


def test_a_function_of_a_mean_is_refused():
    with pytest.raises(ValueError, match="run it with one thread"):
        losses(lambda h: rg.tanh(rg.mean(h)), 2, 4)
