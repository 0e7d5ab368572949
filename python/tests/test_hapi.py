"""Models with fit, evaluate and predict; callbacks; summaries."""
import os

import numpy as np
import pytest

import regatta as rg
from regatta import nn
from regatta.static import InputSpec


class Points(rg.io.Dataset):
    """Two classes that a line separates."""

    def __init__(self, n, seed=0):
        draw = np.random.RandomState(seed)
        self.x = draw.randn(n, 2).astype("float32")
        self.y = (self.x.sum(axis=1) > 0).astype("int64")[:, None]

    def __getitem__(self, i):
        return self.x[i], self.y[i]

    def __len__(self):
        return len(self.x)


def network():
    return nn.Sequential(nn.Linear(2, 8), nn.ReLU(), nn.Linear(8, 2))


@pytest.fixture
def model():
    rg.seed(1)
    made = rg.Model(network(), inputs=[InputSpec([None, 2], "float32", "x")])
    optimizer = rg.optimizer.Adam(0.02, parameters=made.parameters())
    made.prepare(optimizer, nn.CrossEntropyLoss(), rg.metric.Accuracy())
    return made


def test_fit_evaluate_predict(model, capsys):
    model.fit(Points(200), Points(100, 1), batch_size=20, epochs=6, verbose=2, log_freq=5)
    text = capsys.readouterr().out
    assert "Epoch 6/6" in text and "step 10/10 - loss: 0." in text and "acc: " in text
    found = model.evaluate(Points(100, 1), batch_size=30, verbose=0)
    assert found["acc"] > 0.95 and 0 < found["loss"][0] < 0.3
    (batches,) = model.predict(Points(50, 2), batch_size=20, verbose=0)
    assert [b.shape for b in batches] == [(20, 2), (20, 2), (10, 2)]
    (stacked,) = model.predict(Points(50, 2), batch_size=20, stack_outputs=True, verbose=0)
    assert stacked.shape == (50, 2)
    assert (stacked.argmax(1) == Points(50, 2).y[:, 0]).mean() > 0.95
    assert capsys.readouterr().out == ""


def test_the_loss_of_an_evaluation_is_that_of_all_examples(model):
    data = Points(50, 3)
    whole = model.evaluate(data, batch_size=50, verbose=0)["loss"][0]
    parts = model.evaluate(data, batch_size=20, verbose=0)["loss"][0]
    assert parts == pytest.approx(whole, rel=1e-5)


def test_batches(model):
    data = Points(10)
    losses, measured = model.train_batch([data.x], [data.y])
    assert losses[0].shape == () and 0 <= measured[0] <= 1
    before = model.network[0].weight.numpy()
    model.train_batch(data.x, data.y, update=False)
    np.testing.assert_array_equal(model.network[0].weight.numpy(), before)
    assert model.network[0].weight.grad is not None
    model.network.clear_gradients()
    losses, _ = model.eval_batch([data.x], [data.y])
    (out,) = model.predict_batch([data.x])
    assert out.shape == (10, 2) and float(losses[0]) > 0


def test_gradients_of_several_batches_are_one_step():
    values = []
    for batch, accumulate in ((20, 1), (10, 2)):
        rg.seed(5)
        with rg.unique_name.guard():  # initial values follow from seeds and names
            made = rg.Model(network())
        made.prepare(rg.optimizer.SGD(0.1, parameters=made.parameters()),
                     nn.CrossEntropyLoss(reduction="sum"))
        made.fit(Points(40), batch_size=batch, shuffle=False, verbose=0,
                 accumulate_grad_batches=accumulate)
        values.append(made.network[0].weight.numpy())
    np.testing.assert_allclose(values[0], values[1], rtol=1e-4, atol=1e-6)


def test_checkpoints_continue(model, tmp_path):
    folder = str(tmp_path / "saved")
    model.fit(Points(100), batch_size=20, epochs=2, verbose=0, save_dir=folder)
    assert sorted(os.listdir(folder)) == [
        "0.pdopt", "0.pdparams", "1.pdopt", "1.pdparams", "final.pdopt", "final.pdparams"]
    other = rg.Model(network(), inputs=[InputSpec([None, 2], "float32", "x")])
    other.network.set_state_dict(model.network.state_dict())
    wrong = rg.Model(nn.Sequential(nn.Linear(2, 9), nn.ReLU(), nn.Linear(9, 2)))
    with pytest.raises(ValueError, match="0.weight, 0.bias, 2.weight"):
        wrong.load(os.path.join(folder, "final"))
    wrong.load(os.path.join(folder, "final"), skip_mismatch=True)
    np.testing.assert_array_equal(
        wrong.network[2].bias.numpy(), model.network[2].bias.numpy())
    expected = model.predict_batch([Points(5).x])[0]
    for parameter in model.parameters():
        parameter.set_value(np.zeros(parameter.shape, "float32"))
    model.load(os.path.join(folder, "final"))
    np.testing.assert_array_equal(model.predict_batch([Points(5).x])[0], expected)
    model.save(str(tmp_path / "infer"), training=False)
    answer = rg.Model.open(str(tmp_path / "infer")).predict({"x": Points(5).x}, return_list=True)
    np.testing.assert_allclose(answer[0], expected, rtol=1e-5)


def test_early_stopping(model, tmp_path):
    stop = rg.callbacks.EarlyStopping("acc", patience=1, verbose=0, baseline=2.0)
    seen = []

    class Count(rg.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            seen.append(sorted(logs))

    model.fit(Points(40), Points(20), batch_size=20, epochs=9, verbose=0,
              callbacks=[stop, Count()])
    assert len(seen) == 2 and {"acc", "loss"} <= set(seen[0])
    best = rg.callbacks.EarlyStopping("loss", patience=5, verbose=0)
    model.fit(Points(40), Points(20), batch_size=20, epochs=2, verbose=0, callbacks=best,
              save_dir=str(tmp_path))
    assert os.path.isfile(tmp_path / "best_model.pdparams")


@pytest.mark.parametrize("by_step, rate", [(True, 0.1 * 0.5**6), (False, 0.1 * 0.5**2)])
def test_learning_rates_step(by_step, rate):
    schedule = rg.optimizer.lr.ExponentialDecay(0.1, 0.5)
    made = rg.Model(network())
    made.prepare(rg.optimizer.SGD(schedule, parameters=made.parameters()), nn.CrossEntropyLoss())
    made.fit(Points(60), batch_size=20, epochs=2, verbose=0,
             callbacks=rg.callbacks.LRScheduler(by_step, not by_step))
    assert schedule() == pytest.approx(rate)


def test_a_number_of_steps(model):
    steps = []

    class Count(rg.callbacks.Callback):
        def on_train_batch_end(self, step, logs=None):
            steps.append(step)

    model.fit(Points(60), batch_size=20, epochs=9, verbose=0, num_iters=4, callbacks=[Count()])
    assert steps == [0, 1, 2, 0]


def test_what_was_not_prepared_is_said():
    made = rg.Model(network())
    with pytest.raises(RuntimeError, match="prepare"):
        made.train_batch([np.ones((1, 2), "float32")], [np.zeros((1, 1), "int64")])
    with pytest.raises(TypeError, match="not a Metric"):
        made.prepare(metrics=[3])
    with pytest.raises(ValueError, match="InputSpec"):
        made.save("x", training=False)
    rg.enable_static()
    try:
        with pytest.raises(RuntimeError, match="dynamic mode"):
            rg.Model(network())
    finally:
        rg.disable_static()


def test_summary(capsys):
    found = rg.summary(network(), (None, 2))
    assert found == {"total_params": 42, "trainable_params": 42}
    text = capsys.readouterr().out
    assert "Linear-1" in text and "[1, 8]" in text and "Total params: 42" in text
