"""Ranks of real processes that train tensors."""
import json
import os
import subprocess
import sys

import numpy as np
import pytest

import regatta
import regatta.distributed as dist

HERE = os.path.dirname(os.path.abspath(__file__))
SCRIPT = os.path.join(HERE, "parallel_jobs.py")


def clean_env():
    unwanted = ("PADDLE_", "TRAINING_ROLE", "OMPI_", "PMI_", "SLURM_")
    env = {k: v for k, v in os.environ.items() if not k.startswith(unwanted)}
    here = os.path.dirname(os.path.dirname(os.path.abspath(regatta.__file__)))
    paths = [p for p in (here, env.get("PYTHONPATH")) if p]
    return {**env, "REGATTA_START_TIMEOUT": "30", "PYTHONPATH": os.pathsep.join(paths)}


class Found:
    """What the ranks of a job have written."""

    def __init__(self, folder, ranks, done):
        self.code, self.output = done.returncode, done.stdout + done.stderr
        self.ranks = []
        for rank in range(ranks):
            path = folder / f"rank{rank}.json"
            self.ranks.append(json.loads(path.read_text()) if path.exists() else None)
            values = folder / f"rank{rank}.npz"
            if values.exists():
                self.ranks[-1]["values"] = dict(np.load(values))

    def same(self, key):
        """What all ranks have found alike."""
        assert self.code == 0, self.output
        assert all(rank[key] == self.ranks[0][key] for rank in self.ranks), self.ranks
        return self.ranks[0][key]


def without_launcher(path, ranks, kind, **options):
    """Runs ranks that nobody watches: exit codes and what they wrote to standard error."""
    from regatta.distributed._spawn import _places

    command = [sys.executable, SCRIPT, kind, str(path), json.dumps(options)]
    started = [
        subprocess.Popen(command, env={**clean_env(), **place}, stderr=subprocess.PIPE, text=True)
        for place in _places(ranks)
    ]
    errors = [process.communicate(timeout=60)[1] for process in started]
    return [process.returncode for process in started], errors


def job(path, ranks, kind, **options):
    """Runs a job of ranks; alone without a launcher."""
    number = sum(1 for _ in path.iterdir())
    folder = path / f"{kind}{number}"
    folder.mkdir()
    launch = ["-m", "regatta.distributed.launch", "--nproc_per_node", str(ranks), "--log_dir",
              str(folder / "log")] if ranks > 1 else []
    command = [sys.executable, *launch, SCRIPT, kind, str(folder), json.dumps(options)]
    done = subprocess.run(command, env=clean_env(), capture_output=True, text=True, timeout=120)
    return Found(folder, ranks, done)


def assert_near(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, atol=1e-5, rtol=1e-5, err_msg=name)


def assert_same_bits(ranks, but=()):
    first = ranks[0]["values"]
    for other in ranks[1:]:
        for name, value in first.items():
            if name not in but:
                assert other["values"][name].tobytes() == value.tobytes(), name


@pytest.mark.parametrize("options", [
    {},
    {"optimizer": "adam", "parallel": {"comm_buffer_size": 1e-4, "last_comm_buffer_size": 1e-5}},
    {"accumulate": 3},
], ids=["sgd", "adam in small buckets", "parts without exchange"])
def test_ranks_train_as_one_process_on_the_whole_batch(tmp_path, options):
    alone = job(tmp_path, 1, "train", **options)
    assert alone.code == 0, alone.output
    for size in (2, 3):
        found = job(tmp_path, size, "train", **options)
        assert found.code == 0, found.output
        assert_same_bits(found.ranks)
        assert_near(found.ranks[0]["values"], alone.ranks[0]["values"])
        buckets = found.same("buckets")
        assert sorted(sum(buckets, [])) == sorted(
            n for n in alone.ranks[0]["values"] if "_mean" not in n and "_variance" not in n)
        if "parallel" in options:
            assert buckets[0][-1].startswith("extra") and len(buckets) > 3


def test_norms_keep_the_statistics_of_their_rank(tmp_path):
    found = job(tmp_path, 2, "train", norm=True)
    assert found.code == 0, found.output
    statistics = [n for n in found.ranks[0]["values"] if "_mean" in n or "_variance" in n]
    assert len(statistics) == 2
    assert_same_bits(found.ranks, but=statistics)
    first, second = (rank["values"][statistics[0]] for rank in found.ranks)
    assert not np.array_equal(first, second)


def test_unused_parameters_are_named(tmp_path):
    error = job(tmp_path, 2, "unused").same("error")
    assert error.startswith("RuntimeError: no gradient in this backward for 'extra.weight', "
                            "'extra.bias'"), error
    assert "find_unused_parameters=True" in error and "parallel_jobs.py" in error


def test_ranks_that_do_not_use_a_parameter_give_zeros(tmp_path):
    found = job(tmp_path, 2, "train", parallel={"find_unused_parameters": True})
    assert found.code == 0, found.output
    assert_same_bits(found.ranks)
    alone = job(tmp_path, 1, "unused_alone")
    assert_near(found.ranks[0]["values"], alone.ranks[0]["values"])
    assert job(tmp_path, 2, "never_used").same("absent") == ["_layers.extra.bias",
                                                             "_layers.extra.weight"]


@pytest.mark.parametrize("size", [2, 3])
def test_collectives(tmp_path, size):
    found = job(tmp_path, size, "collectives")
    assert found.code == 0, found.output
    assert [rank["env"] for rank in found.ranks] == [[r, True] for r in range(size)]
    assert f"nranks={size}" in found.ranks[1]["group"]
    assert "one of [0] is not implemented" in found.same("some")
    assert f"should be a rank below {size}, but is 9" in found.same("bad")
    assert "should be another rank, but is 1" in found.ranks[1]["self"]


def test_ranks_that_train_apart_are_noticed(tmp_path):
    error = job(tmp_path, 2, "apart", barrier=True).same("error")
    assert error.startswith("RuntimeError: barrier: parameter 'embedding_0.w_0' of rank 1"), error
    at_end = job(tmp_path, 2, "apart")
    assert at_end.code != 0
    assert "end of the script: parameter 'embedding_0.w_0' of rank 1" in at_end.output


def test_values_of_one_rank_only_are_noticed(tmp_path):
    error = job(tmp_path, 2, "loaded").same("error")
    assert "parameter 'second.weight' of rank 1 is not that of rank 0" in error


def test_different_models_are_refused(tmp_path):
    error = job(tmp_path, 2, "other_models").same("error")
    assert "rank 0 has 'second.weight' [8, 1] float32 where rank 1 has 'second.weight' [8, 2]" \
        in error.replace("paddle.", ""), error


@pytest.mark.parametrize("how,text", [
    ("killed", "PeerLost: lost rank 1"), ("raises", "PeerLost: lost rank 1"),
    ("ends", "rank 1 in all_gather_bytes `end of the script`"),
])
def test_a_rank_that_ends_early_is_named(tmp_path, how, text):
    codes, errors = without_launcher(tmp_path, 2, "uneven", how=how)
    assert codes[0] == 1 and text in errors[0], errors[0]
    assert "parallel_jobs.py" in errors[0], "the line of the backward that waits"
    assert ("the same number of batches?" in errors[0]) == (how == "ends")
    assert codes[1] == {"killed": -9}.get(how, 1), errors[1]


def test_fleet(tmp_path):
    alone = job(tmp_path, 1, "train")
    found = job(tmp_path, 2, "by_fleet", strategy={"fuse_all_reduce_ops": False})
    assert found.code == 0, found.output
    assert_same_bits(found.ranks)
    assert_near(found.ranks[0]["values"], alone.ranks[0]["values"])
    assert found.same("total") == [3] and found.same("all") == [0, 1]
    assert all(len(bucket) == 1 for bucket in found.same("buckets"))


def test_strategies_that_tensors_cannot_follow_are_errors(tmp_path):
    errors = job(tmp_path, 2, "by_fleet", strategy={"gradient_merge": True}, refused=True)
    for error in errors.same("errors"):
        assert error.startswith("NotImplementedError: strategy.gradient_merge = true"), error
        assert "no_sync()" in error


def test_the_high_level_api_needs_no_change(tmp_path):
    found = job(tmp_path, 2, "fitted")
    assert found.code == 0, found.output
    assert_same_bits(found.ranks)
    assert found.same("loss")[0] > 0 and found.same("count") == 12


def test_samplers_divide_examples(tmp_path):
    found = job(tmp_path, 2, "sampled")
    assert found.code == 0, found.output
    numbers = [rank["numbers"] for rank in found.ranks]
    assert [len(n) for n in numbers] == [6, 6]
    assert set(numbers[0]) | set(numbers[1]) == set(range(11))


# --- spawn ---------------------------------------------------------------------------------------


@pytest.fixture
def jobs(monkeypatch):
    monkeypatch.syspath_prepend(HERE)
    for name in [n for n in os.environ if n.startswith("PADDLE_")]:
        monkeypatch.delenv(name)
    import parallel_jobs

    return parallel_jobs


def test_spawn(tmp_path, jobs):
    assert dist.spawn(jobs.spawned, (str(tmp_path), 2), nprocs=2) is None
    found = [json.loads((tmp_path / f"rank{rank}.json").read_text()) for rank in range(2)]
    assert found == [{"sum": 4.0, "rank": 0}, {"sum": 4.0, "rank": 1}]
    context = dist.spawn(jobs.spawned, (str(tmp_path), 3), nprocs=2, join=False)
    assert len(context.processes) == 2
    assert context.join(timeout=60)


@pytest.mark.parametrize("how,text", [
    ("spawned_fails", "KeyError: 'no such column'"), ("spawned_exits", "exit code 7"),
])
def test_spawn_raises_what_a_rank_raised(tmp_path, jobs, how, text):
    context = dist.spawn(getattr(jobs, how), (str(tmp_path),), nprocs=2, join=False)
    with pytest.raises(RuntimeError, match="spawn: rank 1") as raised:
        context.join()
    assert text in str(raised.value)
    assert all(process.exitcode is not None for process in context.processes)


def test_ranks_do_not_outlive_who_spawned_them(tmp_path):
    command = [sys.executable, SCRIPT, "spawning", str(tmp_path)]
    parent = subprocess.Popen(command, env=clean_env(), stdout=subprocess.PIPE, text=True)
    try:
        assert [parent.stdout.readline() for _ in range(2)] == ["begun\n", "begun\n"]
    finally:
        parent.kill()
    # The end of what ranks write to comes when the last of them has ended.
    assert parent.communicate(timeout=30)[0] == ""


def test_spawn_refuses(jobs):
    with pytest.raises(TypeError, match="should be a function"):
        dist.spawn("train", nprocs=2)
    with pytest.raises(ValueError, match="nprocs should be"):
        dist.spawn(print, nprocs=0)
    with pytest.raises(ValueError, match="no option 'gpu'"):
        dist.spawn(print, nprocs=1, gpu=1)


# --- alone ---------------------------------------------------------------------------------------


def test_alone_nothing_is_exchanged():
    layer = regatta.nn.Linear(2, 1)
    model = regatta.DataParallel(layer)
    assert model._layers is layer and model.weight is layer.weight
    assert model.in_features == layer.in_features if hasattr(layer, "in_features") else True
    loss = model(regatta.ones([3, 2])).mean()
    assert model.scale_loss(loss) is loss and model.apply_collective_grads() is None
    with model.no_sync():
        loss.backward()
    assert layer.weight.grad is not None
    state = model.state_dict()
    assert list(state) == ["weight", "bias"]
    assert model.set_state_dict(state) == ([], [])
    x = regatta.to_tensor([1.0])
    dist.all_reduce(x)
    assert float(x) == 1.0 and dist.get_world_size() == 1 and not dist.is_initialized()
    with pytest.raises(AttributeError, match="Linear has no attribute 'widht'"):
        model.widht
    with pytest.raises(TypeError, match="takes a layer"):
        regatta.DataParallel(3)


def test_names_of_fluid():
    from regatta.fluid import dygraph

    strategy = dygraph.parallel.prepare_context()
    assert strategy.nranks == 1
    assert isinstance(dygraph.DataParallel(regatta.nn.Linear(2, 1), strategy), regatta.DataParallel)
