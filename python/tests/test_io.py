"""Datasets and loaders, metrics, files of values, saved models."""
import os
import pickle
import threading

import numpy as np
import pytest

import regatta as rg
from regatta import io, metric

DATA = os.path.join(os.path.dirname(__file__), "data")


@pytest.fixture(autouse=True)
def fresh():
    main, startup = rg.static.Program(), rg.static.Program()
    with rg.static.program_guard(main, startup), rg.unique_name.guard(), \
            rg.static.scope_guard(rg.static.Scope()):
        yield


class Numbers(io.Dataset):
    def __init__(self, n):
        self.n = n

    def __getitem__(self, i):
        return np.array([i], "int64"), np.float32(i / 2)

    def __len__(self):
        return self.n


class Stream(io.IterableDataset):
    def __init__(self, n):
        super().__init__()
        self.n = n

    def __iter__(self):
        for i in range(self.n):
            yield [np.array([i], "int64"), np.array(i, "float32")]


class Shards(Stream):
    def __iter__(self):
        info = io.get_worker_info()
        start, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(start, self.n, step):
            yield [np.array([i], "int64")]


def firsts(loader):
    return [batch[0].ravel().tolist() for batch in loader]


# --- loaders -------------------------------------------------------------------------------------


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_batches_come_in_order_whoever_reads_them(workers):
    loader = io.DataLoader(Numbers(7), batch_size=3, num_workers=workers)
    assert firsts(loader) == [[0, 1, 2], [3, 4, 5], [6]]
    assert firsts(loader()) == [[0, 1, 2], [3, 4, 5], [6]]
    assert len(loader) == 3
    batch = next(iter(loader))
    assert type(batch) is list
    assert batch[0].shape == (3, 1) and batch[0].dtype == np.int64
    assert batch[1].shape == (3,) and batch[1].dtype == np.float32


@pytest.mark.parametrize("workers", [0, 1, 3])
def test_an_iterable_dataset_gives_every_example_once(workers):
    loader = io.DataLoader(Stream(7), batch_size=2, drop_last=True, num_workers=workers)
    assert any(loader())
    assert firsts(loader()) == [[0, 1], [2, 3], [4, 5]]
    with pytest.raises(TypeError):
        len(loader)


def test_a_dataset_that_asks_is_read_by_all_workers():
    loader = io.DataLoader(Shards(8), batch_size=2, num_workers=2)
    assert firsts(loader) == [[0, 2], [1, 3], [4, 6], [5, 7]]
    assert io.get_worker_info() is None


def test_shuffled_batches_hold_everything():
    loader = io.DataLoader(Numbers(20), batch_size=4, shuffle=True, num_workers=2)
    seen = sum(firsts(loader), [])
    assert sorted(seen) == list(range(20)) and seen != list(range(20))


@pytest.mark.parametrize("dataset", [Numbers(5), Stream(5)])
def test_an_error_of_a_worker_reaches_the_reader(dataset):
    def fail(batch):
        raise KeyError("no such column")

    for workers in (0, 2):
        with pytest.raises(KeyError, match="no such column"):
            list(io.DataLoader(dataset, batch_size=2, collate_fn=fail, num_workers=workers))


def test_workers_end_when_their_reader_does():
    iterator = iter(io.DataLoader(Stream(10**9), batch_size=2, num_workers=2))
    next(iterator)
    iterator.close()
    for thread in threading.enumerate():
        if thread.name.startswith("regatta-loader"):
            thread.join(5)
            assert not thread.is_alive()


def test_a_slow_dataset_times_out():
    class Slow(io.IterableDataset):
        def __iter__(self):
            yield [np.zeros(1)]
            threading.Event().wait(30)
            yield [np.zeros(1)]

    with pytest.raises(TimeoutError):
        list(io.DataLoader(Slow(), batch_size=1, num_workers=1, timeout=0.5))


def test_feeds_by_name():
    x = rg.static.data("x", [None, 1], "int64")
    y = rg.static.data("y", [None], "float32")
    loader = io.DataLoader(Numbers(4), feed_list=[x, y], batch_size=2, return_list=False)
    (feed,) = next(iter(loader))
    assert list(feed) == ["x", "y"]
    out = rg.scale(y, scale=2.0)
    exe = rg.static.Executor()
    seen = [exe.run(feed=batch, fetch_list=[out])[0].tolist() for batch in loader]
    assert seen == [[0.0, 1.0], [2.0, 3.0]]


def test_batches_of_one_shape():
    class Ragged(Numbers):
        def __getitem__(self, i):
            return np.zeros(i)

    with pytest.raises(ValueError, match="different shapes"):
        list(io.DataLoader(Ragged(3), batch_size=2))


def test_a_generator_feeds_runs_until_its_end():
    x = rg.static.data("x", [None, 1], "float32")
    out = rg.scale(x, scale=2.0)
    loader = io.DataLoader.from_generator(feed_list=[x], capacity=4, iterable=False)
    loader.set_sample_generator(lambda: ([float(i)] for i in range(5)), batch_size=2)
    exe = rg.static.Executor()
    for _ in range(2):
        loader.start()
        seen = []
        with pytest.raises(rg.core.EOFException):
            while True:
                seen.append(exe.run(fetch_list=[out])[0].ravel().tolist())
        loader.reset()
        assert seen == [[0.0, 2.0], [4.0, 6.0]]


def test_a_generator_is_iterated_over():
    x = rg.static.data("x", [None, 2], "float32")
    loader = io.DataLoader.from_generator(feed_list=[x], capacity=4)
    loader.set_batch_generator(lambda: iter([[np.ones((3, 2), "float32")]]))
    ((feed,),) = list(loader())
    assert feed["x"].shape == (3, 2)


# --- samplers and datasets -----------------------------------------------------------------------


def test_ranks_share_an_epoch():
    seen = []
    for rank in range(3):
        sampler = io.DistributedBatchSampler(
            Numbers(20), batch_size=2, num_replicas=3, rank=rank, shuffle=True)
        batches = list(sampler)
        assert len(batches) == len(sampler) == 4
        seen += sum(batches, [])
        again = list(sampler)
        assert again != batches
        sampler.set_epoch(0)
        assert list(sampler) == batches
    assert set(seen) == set(range(20)) and len(seen) == 21


def test_samplers():
    assert list(io.SequenceSampler(range(3))) == [0, 1, 2]
    assert sorted(io.RandomSampler(range(9))) == list(range(9))
    assert len(list(io.RandomSampler(range(3), replacement=True, num_samples=7))) == 7
    assert set(io.WeightedRandomSampler([0, 1, 0], 5)) == {1}
    assert sorted(io.SubsetRandomSampler([3, 5])) == [3, 5]
    batches = io.BatchSampler(sampler=io.SequenceSampler(range(5)), batch_size=2, drop_last=True)
    assert list(batches) == [[0, 1], [2, 3]] and len(batches) == 2


def test_datasets():
    rows = io.TensorDataset([np.arange(4), np.arange(4) * 2])
    assert rows[1] == (1, 2) and len(rows) == 4
    both = io.ConcatDataset([rows, rows])
    assert both[5] == (1, 2) and both[-1] == (3, 6) and len(both) == 8
    assert io.ComposeDataset([rows, rows])[1] == (1, 2, 1, 2)
    assert len(list(io.ChainDataset([Stream(2), Stream(3)]))) == 5
    parts = io.random_split(rows, [1, 3])
    assert sorted(int(part[i][0]) for part in parts for i in range(len(part))) == [0, 1, 2, 3]


# --- metrics -------------------------------------------------------------------------------------


def test_auc_is_the_chance_to_order_a_pair():
    random = np.random.RandomState(0)
    labels = random.randint(0, 2, 200)
    scores = np.round(np.clip(random.rand(200) * 0.7 + labels * 0.3, 0, 1) * 4095) / 4095
    pairs = scores[labels == 1][:, None] - scores[labels == 0][None]
    expected = ((pairs > 0) + 0.5 * (pairs == 0)).mean()
    auc = metric.Auc()
    for part in np.split(np.arange(200), 4):
        auc.update(np.stack([1 - scores[part], scores[part]], 1), labels[part][:, None])
    assert auc.accumulate() == pytest.approx(expected, abs=1e-3)
    auc.reset()
    assert auc.accumulate() == 0.0


def test_accuracy_precision_recall():
    accuracy = metric.Accuracy(topk=(1, 2))
    pred = np.array([[0.1, 0.9, 0.0], [0.5, 0.3, 0.2], [0.2, 0.3, 0.5]])
    accuracy.update(accuracy.compute(pred, np.array([[1], [1], [0]])))
    assert accuracy.accumulate() == pytest.approx([1 / 3, 2 / 3])
    assert accuracy.name() == ["acc_top1", "acc_top2"]
    preds, labels = np.array([0.9, 0.8, 0.2, 0.6]), np.array([1, 0, 1, 1])
    precision, recall = metric.Precision(), metric.Recall()
    precision.update(preds, labels)
    recall.update(preds, labels)
    assert precision.accumulate() == pytest.approx(2 / 3)
    assert recall.accumulate() == pytest.approx(2 / 3)


# --- files of values -----------------------------------------------------------------------------


def line(optimizer=None):
    x = rg.static.data("x", [None, 2], "float32")
    y = rg.static.data("y", [None, 1], "float32")
    w = rg.create_parameter([2, 1], "float32", name="w")
    out = rg.matmul(x, w)
    cost = rg.mean(rg.square(out - y))
    if optimizer is not None:
        optimizer.minimize(cost)
    exe = rg.static.Executor()
    exe.run(rg.static.default_startup_program())
    return exe, x, out, cost


FEED = {"x": np.eye(2, dtype="float32"), "y": np.array([[1.0], [2.0]], "float32")}


def losses(exe, cost, steps):
    return [float(exe.run(feed=FEED, fetch_list=[cost])[0]) for _ in range(steps)]


@pytest.mark.parametrize("name", ["line_adam", "line_adam_protocol2"])
def test_training_continues_what_paddle_began(name):
    exe, _, _, cost = line(rg.optimizer.Adam(0.1))
    rg.static.load(rg.static.default_main_program(), os.path.join(DATA, name))
    assert losses(exe, cost, 3)[-1] == pytest.approx(2.799914, rel=1e-6)


def test_states_that_paddle_saved_are_read():
    state = rg.load(os.path.join(DATA, "linear.pdparams"))
    assert state["weight"].shape == (2, 3) and set(state) == {"weight", "bias"}
    table = rg.load(os.path.join(DATA, "linear.pdparams"), keep_name_table=True)
    assert table["StructuredToParameterName@@"]["weight"] == "linear_0.w_0"
    state = rg.load(os.path.join(DATA, "linear.pdopt"))
    assert state["linear_0.w_0_moment1_0"].shape == (2, 3)
    assert state["LR_Scheduler"]["last_epoch"] == 0


def test_training_continues_from_saved_values(tmp_path):
    exe, _, _, cost = line(rg.optimizer.Adam(0.1))
    losses(exe, cost, 2)
    main = rg.static.default_main_program()
    rg.static.save(main, str(tmp_path / "a" / "rec"))
    assert sorted(os.listdir(tmp_path / "a")) == ["rec.pdmodel", "rec.pdopt", "rec.pdparams"]
    expected = losses(exe, cost, 2)
    rg.static.load(main, tmp_path / "a" / "rec", exe)
    assert losses(exe, cost, 2) == expected
    with open(tmp_path / "a" / "rec.pdopt", "rb") as file:
        saved = pickle.load(file)
    assert saved["learning_rate_0"].shape == () and "w_beta2_pow_acc_0" in saved
    state = rg.static.load_program_state(str(tmp_path / "a" / "rec"))
    assert set(state) == {"w", *saved}
    rg.static.set_program_state(main, state)
    assert losses(exe, cost, 2) == expected
    with pytest.warns(UserWarning, match="other"):
        rg.static.set_program_state(main, {"other": np.ones(1)})


def test_a_wrong_path_or_a_missing_parameter_is_an_error(tmp_path):
    exe, *_ = line()
    main = rg.static.default_main_program()
    with pytest.raises(FileNotFoundError, match="nowhere.pdparams"):
        rg.static.load(main, str(tmp_path / "nowhere"))
    rg.save({"v": np.ones(2, "float32")}, str(tmp_path / "rec.pdparams"))
    with pytest.raises(RuntimeError, match="no value of w"):
        rg.static.load(main, str(tmp_path / "rec"))
    rg.save({"w": np.ones((3, 1), "float32")}, str(tmp_path / "rec.pdparams"))
    with pytest.raises(ValueError, match=r"\[2, 1\]"):
        rg.static.load(main, str(tmp_path / "rec"))
    with pytest.raises(RuntimeError, match="startup"):
        with rg.static.scope_guard(rg.static.Scope()):
            rg.static.save(main, str(tmp_path / "none"))


class Evil:
    def __reduce__(self):
        return (os.system, ("true",))


def test_loading_runs_nothing(tmp_path):
    path = tmp_path / "evil.pdparams"
    path.write_bytes(pickle.dumps({"w": Evil()}))
    with pytest.raises(pickle.UnpicklingError, match="system"):
        rg.load(str(path))
    path.write_bytes(pickle.dumps({"w": Evil()}, protocol=0))
    with pytest.raises(pickle.UnpicklingError, match="system"):
        rg.load(str(path))
    path.write_bytes(b"no pickle at all")
    with pytest.raises(pickle.UnpicklingError, match="evil.pdparams"):
        rg.load(str(path))
    path.write_bytes(pickle.dumps({"w": np.ones(1000)})[:-100])
    with pytest.raises(pickle.UnpicklingError, match="evil.pdparams"):
        rg.load(str(path))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_values_come_back_as_they_were(tmp_path, protocol):
    values = {
        "f": np.ones((2, 3), "float32"), "i": np.arange(3), "s": "text", "n": [1, 2.5, None, True],
        "scalar": np.float32(2), "nested": {"t": (np.zeros(1), 2)}, "empty": np.zeros((0, 4)),
    }
    rg.save(values, str(tmp_path / "v"), protocol=protocol)
    back = rg.load(str(tmp_path / "v"))
    assert back["n"] == values["n"] and back["s"] == "text" and back["scalar"] == 2
    for name in ("f", "i", "empty"):
        np.testing.assert_array_equal(back[name], values[name])
        assert back[name].dtype == values[name].dtype
    with pytest.raises(TypeError, match="Evil"):
        rg.save({"w": Evil()}, str(tmp_path / "w"))


def test_arrays_in_parts_are_joined(tmp_path):
    path = tmp_path / "big.pdparams"
    parts = {"w@@.0": np.arange(4.0), "w@@.1": np.arange(4.0, 6.0)}
    about = {"w": {"OriginShape": (2, 3), "slices": ["w@@.0", "w@@.1"]}}
    path.write_bytes(pickle.dumps({**parts, "UnpackBigParamInfor@@": about}, protocol=2))
    np.testing.assert_array_equal(rg.load(str(path))["w"], np.arange(6.0).reshape(2, 3))


def test_programs_are_saved_as_text(tmp_path):
    line()
    main = rg.static.default_main_program()
    rg.save(main, str(tmp_path / "p.pdmodel"))
    assert str(rg.load(str(tmp_path / "p.pdmodel"))) == str(main)


# --- models --------------------------------------------------------------------------------------


def test_a_saved_model_answers(tmp_path):
    exe, x, out, cost = line(rg.optimizer.SGD(0.1))
    losses(exe, cost, 3)
    (expected,) = exe.run(
        rg.static.default_main_program().clone(for_test=True), feed=FEED, fetch_list=[out])
    prefix = str(tmp_path / "0" / "rec_inference")
    rg.static.save_inference_model(prefix, [x], [out], exe)
    assert os.path.isfile(prefix + ".pdmodel") and os.path.isfile(prefix + ".pdiparams")
    with rg.static.scope_guard(rg.static.Scope()):
        program, feeds, fetches = rg.static.load_inference_model(prefix, exe)
        assert feeds == ["x"]
        (got,) = exe.run(program, feed={"x": FEED["x"]}, fetch_list=fetches)
        np.testing.assert_array_equal(got, expected)
    for path in (prefix, prefix + ".pdmodel"):
        model = rg.Model.open(path)
        np.testing.assert_array_equal(model.predict({"x": FEED["x"]})[out.name], expected)
    assert model.predict({"x": [[1.0, 0.0]]}, return_list=True)[0].shape == (1, 1)
    assert "x: float32 [-1, 2]" in repr(model) and out.name in repr(model)
    with pytest.raises(ValueError, match=r"takes \['x'\]"):
        model.predict({"z": FEED["x"]})


def test_predictors_of_paddle(tmp_path):
    exe, x, out, _ = line()
    rg.static.save_inference_model(str(tmp_path / "m"), [x], [out], exe)
    from regatta import inference

    config = inference.Config(str(tmp_path / "m.pdmodel"), str(tmp_path / "m.pdiparams"))
    predictor = inference.create_predictor(config)
    (name,) = predictor.get_input_names()
    predictor.get_input_handle(name).copy_from_cpu(FEED["x"])
    predictor.run()
    got = predictor.get_output_handle(predictor.get_output_names()[0]).copy_to_cpu()
    (expected,) = exe.run(feed=FEED, fetch_list=[out])
    np.testing.assert_allclose(got, expected, rtol=1e-6)


def test_models_whose_inputs_are_not_rows(tmp_path):
    x = rg.static.data("x", [None, 3, 2], "float32")
    ids = rg.static.data("ids", [None, 1], "int64")
    w = rg.create_parameter([2, 1], "float32", name="w")
    table = rg.create_parameter([10, 1], "float32", name="table")
    main = rg.static.default_main_program()
    main.global_block().append_op(
        "embedding", {"W": table, "Ids": ids}, {"Out": "rows"}, {"is_sparse": True})
    rows = main.global_block().var("rows")
    out = rg.sum(rg.matmul(x, w), axis=1) + rg.reshape(rows, [-1, 1])
    exe = rg.static.Executor()
    exe.run(rg.static.default_startup_program())
    feed = {"x": np.ones((2, 3, 2), "float32"), "ids": np.array([[1], [7]])}
    (expected,) = exe.run(feed=feed, fetch_list=[out])
    rg.static.save_inference_model(str(tmp_path / "m"), [x, ids], [out], exe)
    with rg.static.scope_guard(rg.static.Scope()):
        program, _, fetches = rg.static.load_inference_model(str(tmp_path / "m"), exe)
        np.testing.assert_allclose(exe.run(program, feed=feed, fetch_list=fetches)[0], expected)


def test_a_model_does_not_take_the_place_of_something_else(tmp_path):
    exe, x, out, _ = line()
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1").write_text("years of work")
    with pytest.raises(FileExistsError):
        rg.static.save_inference_model(str(tmp_path / "thesis"), [x], [out], exe)
    assert (tmp_path / "thesis" / "chapter1").exists()
    with pytest.raises(FileNotFoundError, match="model.program"):
        rg.Model.open(str(tmp_path / "nowhere"))
    rg.static.save_inference_model(str(tmp_path / "m"), [x], [out], exe)
    rg.static.save_inference_model(str(tmp_path / "m"), [x], [out], exe)


def test_programs_and_values_as_bytes(tmp_path):
    exe, x, out, _ = line()
    program = rg.static.serialize_program([x], [out])
    values = rg.static.serialize_persistables([x], [out], exe)
    rg.static.save_to_file(str(tmp_path / "p"), program)
    (expected,) = exe.run(feed=FEED, fetch_list=[out])
    with rg.static.scope_guard(rg.static.Scope()):
        back = rg.static.deserialize_program(rg.static.load_from_file(str(tmp_path / "p")))
        rg.static.deserialize_persistables(back, values, exe)
        np.testing.assert_array_equal(
            exe.run(back, feed={"x": FEED["x"]}, fetch_list=[out.name])[0], expected)
