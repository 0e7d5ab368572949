"""``regatta.torch`` beside PyTorch itself: rows on servers, ranks that average gradients.

Needs PyTorch: ``python/check_torch`` runs it with the environment of ``bench/compare/setup.sh``.
"""
import copy
import json
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

# The folder of this file is called `torch`, too, and is importable: it has no `nn`.
pytest.importorskip("torch.nn")
import torch  # noqa: E402

import regatta as rg  # noqa: E402
import regatta.torch as rt  # noqa: E402
from regatta.nn.initializer import Uniform  # noqa: E402

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(os.path.abspath(rg.__file__)))
ROWS, DIM, FIELDS, BATCH = 50, 4, 3, 8


def run(kind, folder, servers=0, workers=0, ranks=0, check=True, **options):
    """What every worker or rank reports. Without processes of a job, one process."""
    words = [os.path.join(HERE, "jobs.py"), kind, str(folder), json.dumps(options)]
    if servers:
        words = ["-m", "regatta", "launch", "--server_num", str(servers), "--worker_num",
                 str(workers), *words]
    elif ranks:
        words = ["-m", "regatta", "launch", "--nproc_per_node", str(ranks), *words]
    clean = {key: value for key, value in os.environ.items()
             if not key.startswith(("PADDLE_", "TRAINING_", "RANK", "WORLD_SIZE", "MASTER_"))}
    paths = [ROOT, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    clean.update(PYTHONPATH=os.pathsep.join(paths), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, *words], cwd=folder, env=clean, capture_output=True,
                          text=True, timeout=120)
    if not check:
        return done
    assert done.returncode == 0, done.stdout + done.stderr
    count = workers or ranks or 1
    return [json.loads((folder / f"{i}.json").read_text()) for i in range(count)]


def batch(step):
    rng = np.random.RandomState(step)
    ids = torch.from_numpy(rng.randint(0, ROWS, (BATCH, FIELDS)))
    return ids, torch.from_numpy(rng.rand(BATCH, 1).astype("float32"))


class Twin(torch.nn.Module):
    """The model of the jobs, with embeddings of PyTorch."""

    def __init__(self, begin):
        super().__init__()
        self.first = torch.nn.Embedding.from_pretrained(
            torch.tensor(begin["first"]), freeze=False, padding_idx=0)
        self.second = torch.nn.Embedding.from_pretrained(
            torch.tensor(begin["second"]), freeze=False)
        torch.manual_seed(0)
        self.top = torch.nn.Sequential(
            torch.nn.Linear(2 * DIM, 6), torch.nn.Tanh(), torch.nn.Linear(6, 1))

    def forward(self, ids):
        return self.top(torch.cat([self.first(ids).mean(1), self.second(ids[:, 0])], 1))


def twin(begin, rule, steps=6):
    """Losses, rows and dense parameters of PyTorch from the same initial values."""
    net = Twin(begin)
    optimizers = [
        rule(net.first.parameters()), torch.optim.SGD(net.second.parameters(), 0.2),
        torch.optim.SGD(net.top.parameters(), 0.1)]
    losses = []
    for step in range(steps):
        ids, labels = batch(step)
        net.zero_grad()
        loss = torch.nn.functional.mse_loss(net(ids), labels)
        loss.backward()
        losses.append(loss.item())
        for each in optimizers:
            each.step()
    rows = {name: getattr(net, name).weight.detach().numpy() for name in ("first", "second")}
    return losses, rows, [p.detach().numpy() for p in net.top.parameters()]


def assert_as(report, expected, tolerance=1e-5):
    losses, rows, parameters = expected
    np.testing.assert_allclose(report["losses"], losses, rtol=tolerance, atol=1e-6)
    for name, values in rows.items():
        np.testing.assert_allclose(report["rows"][name], values, rtol=tolerance, atol=1e-6)
    for ours, theirs in zip(report["parameters"], parameters):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=1e-6)


def as_expected(report):
    rows = {name: np.array(values) for name, values in report["rows"].items()}
    return report["losses"], rows, [np.array(p) for p in report["parameters"]]


# --- tables ----------------------------------------------------------------------------------------

RULES = {
    "sgd": lambda p: torch.optim.SGD(p, 0.5),
    "adagrad": lambda p: torch.optim.Adagrad(p, 0.1, eps=1e-6),
}


@pytest.mark.parametrize("rule", RULES)
def test_a_process_alone_trains_as_pytorch(rule, tmp_path):
    report, = run("tables", tmp_path, optimizer=rule)
    assert report["servers"] == 0
    assert_as(report, twin(report["begin"], RULES[rule]))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("servers, workers", [(1, 1), (2, 2)])
def test_servers_train_as_pytorch_on_the_merged_batch(servers, workers, rule, tmp_path):
    reports = run("tables", tmp_path, servers, workers, optimizer=rule, touch=True)
    expected = twin(reports[0]["begin"], RULES[rule])
    for report in reports:
        assert report["servers"] == servers
        assert_as(report, expected)


@pytest.mark.parametrize("rule", ["momentum", "adam"])
def test_rules_with_state_are_the_same_on_servers(rule, tmp_path):
    """Only rows of a batch move, so PyTorch's dense rules are no oracle."""
    (tmp_path / "alone").mkdir()
    alone, = run("tables", tmp_path / "alone", optimizer=rule)
    for report in run("tables", tmp_path, 2, 2, optimizer=rule, touch=True):
        assert_as(report, as_expected(alone), 1e-4)


def test_batches_of_different_sizes_count_by_example(tmp_path):
    reports = run("tables", tmp_path, 1, 2, touch=True, sizes=[6, 2])
    for report in reports:
        assert_as(report, twin(report["begin"], RULES["sgd"]))


def test_gradients_of_several_backward_passes_add_up(tmp_path):
    reports = run("tables", tmp_path, 1, 2, touch=True, accumulate=2)
    for report in reports:
        expected = twin(report["begin"], RULES["sgd"])
        np.testing.assert_allclose(report["rows"]["first"], expected[1]["first"], 1e-5, 1e-6)


def test_rows_are_saved_and_loaded_by_other_numbers_of_processes(tmp_path):
    saved = str(tmp_path / "saved")
    first = run("tables", tmp_path, 2, 2, touch=True, save=saved, optimizer="adagrad")[0]
    (tmp_path / "one").mkdir()
    again, = run("tables", tmp_path / "one", 1, 1, load=saved, steps=0, optimizer="adagrad")
    for name, rows in first["rows"].items():
        np.testing.assert_array_equal(again["rows"][name], rows)


def test_a_process_alone_loads_what_it_saved(tmp_path):
    saved = str(tmp_path / "saved")
    first, = run("tables", tmp_path, save=saved, optimizer="adam")
    again, = run("tables", tmp_path, load=saved, steps=0, optimizer="adam")
    for name, rows in first["rows"].items():
        np.testing.assert_array_equal(again["rows"][name], rows)


def test_workers_may_leave_without_saying_so(tmp_path):
    reports = run("tables", tmp_path, 1, 2, touch=True, stop=False)
    assert len(reports) == 2


def test_an_exception_of_a_worker_is_named(tmp_path):
    done = run("tables", tmp_path, 1, 2, touch=True, fail_at=2, steps=50, check=False)
    assert done.returncode != 0
    assert "worker 1 failed with exit code 1; stopping all processes" in done.stderr, done.stderr
    assert "OSError: a disk is full" in done.stderr


def test_rows_appear_in_training_only(tmp_path):
    for report in run("missing", tmp_path, 2, 1):
        assert np.all(np.array(report["unseen"]) == 0)
        assert np.all((np.array(report["seen"]) >= 1) & (np.array(report["seen"]) <= 2))
        assert report["again"] == report["seen"] and report["leaf"] is False


def test_workers_with_fewer_batches(tmp_path):
    rows = {i: r["rows"] for i, r in enumerate(run("uneven", tmp_path, 1, 2))}
    # Two steps of both, by the mean of two workers; then three of worker 1 alone.
    assert rows[1] == [-1.0, -4.0]


def test_asynchronous_steps_count_by_themselves(tmp_path):
    for report in run("asynchronous", tmp_path, 1, 2):
        assert report["mode"] == "async" and report["row"] == -7.0


# --- ranks -----------------------------------------------------------------------------------------


def by_name(report):
    return {name: np.array(value) for name, value in report["parameters"].items()}


def test_ranks_have_the_same_bits(tmp_path):
    first, second = run("ranks", tmp_path, ranks=2)
    assert first["parameters"] == second["parameters"]
    assert first["unused"] and second["unused"]
    assert first["tracked"] == second["tracked"] == 3


@pytest.mark.parametrize("options", [{}, {"bucket": 1e-4}, {"accumulate": 2}, {"sizes": [6, 2]}])
def test_ranks_train_as_one_process(options, tmp_path):
    """'odd' is used by the last rank only, and starts with 1: its gradient is that of a part."""
    (tmp_path / "alone").mkdir()
    reports = run("ranks", tmp_path, ranks=2, **options)
    assert reports[0]["parameters"] == reports[1]["parameters"]
    sizes = options.get("sizes", [4, 4])
    net = ranks_oracle(sizes)
    for name, value in by_name(reports[0]).items():
        np.testing.assert_allclose(value, net[name], rtol=1e-4, atol=1e-5)


def ranks_oracle(sizes):
    """Two ranks in one process: gradients of the mean over all examples."""
    torch.manual_seed(0)
    words, norm = torch.nn.Embedding(ROWS, DIM), torch.nn.BatchNorm1d(DIM)
    top, unused = torch.nn.Linear(DIM, 1), torch.nn.Linear(3, 3)
    odd = torch.nn.Parameter(torch.ones(()))
    named = {"words": words, "norm": norm, "top": top, "unused": unused}
    parameters = {f"{n}.{p}": v for n, m in named.items() for p, v in m.named_parameters()}
    parameters["odd"] = odd
    optimizer = torch.optim.Adam(parameters.values(), 0.01, weight_decay=0.1)
    for step in range(6):
        ids, labels = batch(step)
        optimizer.zero_grad()
        out = top(words(ids).sum(1))
        scale = torch.cat([torch.ones(sizes[0], 1), odd.expand(sizes[1], 1)])
        torch.nn.functional.mse_loss(out * scale, labels).backward()
        optimizer.step()
    return {name: value.detach().numpy() for name, value in parameters.items()}


def test_a_rank_alone_changes_nothing(tmp_path):
    report, = run("ranks", tmp_path)
    assert report["tracked"] == 3 and report["unused"]


def test_ranks_with_different_models_are_told(tmp_path):
    for report in run("different", tmp_path, ranks=2):
        assert "the parameters of rank 1 are not those of rank 0" in report["error"]


def test_scripts_of_pytorch_start_under_the_launcher(tmp_path):
    first, second = run("gloo", tmp_path, ranks=2)
    assert first["sum"] == second["sum"] == 3.0 and first["size"] == 2
    assert (first["local"], second["local"]) == (0, 1)
    np.testing.assert_array_equal(first["grad"], second["grad"])


# --- in this process -------------------------------------------------------------------------------


@pytest.fixture
def table():
    rg.seed(3)
    made = rt.Embedding(10, 2, 1, optimizer=rg.optimizer.SGD(0.5), initializer=Uniform(-1, 1))
    with rt.start(made):
        yield made


def test_gradients_flow_through_autograd(table):
    ids = torch.tensor([[2, 3], [3, 1]])
    before = table(ids).detach().clone()
    optimizer = rt.TableOptimizer(table)
    (table(ids) * torch.tensor([[[1.0], [2.0]], [[3.0], [4.0]]])).sum().backward()
    optimizer.step()
    after = table(ids).detach()
    # Row 3 stands in two places; row 1 is the padding.
    np.testing.assert_allclose(after[0, 0], before[0, 0] - 0.5, rtol=1e-6)
    np.testing.assert_allclose(after[0, 1], before[0, 1] - 2.5, rtol=1e-6)
    assert torch.all(after[1, 1] == 0)


def test_forgotten_gradients_do_not_count(table):
    ids = torch.tensor([5])
    before = table(ids).detach().clone()
    optimizer = rt.TableOptimizer(table)
    table(ids).sum().backward()
    optimizer.zero_grad()
    optimizer.step()
    assert torch.equal(table(ids).detach(), before)


def test_no_gradients_when_they_are_not_asked_for(table):
    with torch.no_grad():
        assert not table(torch.tensor([2])).requires_grad
    table.eval()
    assert not table(torch.tensor([2])).requires_grad
    table.train()
    assert table(torch.tensor([2])).requires_grad


@pytest.mark.parametrize("dtype", [torch.int32, torch.int16, torch.uint8])
def test_ids_of_any_integer_type(table, dtype):
    ids = torch.tensor([[4], [9]])
    assert torch.equal(table(ids.to(dtype)), table(ids))
    assert table(torch.empty(0, 3, dtype=dtype)).shape == (0, 3, 2)


def test_wrong_ids_are_named(table):
    with pytest.raises(IndexError, match="id 10 is not among its 10 rows"):
        table(torch.tensor([10]))
    with pytest.raises(IndexError, match="id -1 is not"):
        table(torch.tensor([-1]))
    with pytest.raises(TypeError, match="should be a tensor of integers"):
        table(torch.tensor([1.0]))


def test_rows_are_no_part_of_the_module(table):
    assert list(table.parameters()) == [] and table.state_dict() == {}
    with pytest.raises(TypeError, match="cannot be copied"):
        copy.deepcopy(table)
    with pytest.raises(TypeError, match="Job.save"):
        pickle.dumps(table)
    assert "10, 2, padding_idx=1" in repr(table) and "SGD" in repr(table)


def test_what_cannot_be_honoured_is_refused():
    with pytest.raises(RuntimeError, match="call regatta.torch.start"):
        rt.Embedding(3, 2, optimizer=rg.optimizer.SGD(0.1))(torch.tensor([1]))
    with pytest.raises(TypeError, match="one of regatta.optimizer"):
        rt.Embedding(3, 2, optimizer=torch.optim.SGD)
    clip = rg.nn.ClipGradByGlobalNorm(1.0)
    with pytest.raises(ValueError, match="grad_clip"):
        rt.Embedding(3, 2, optimizer=rg.optimizer.SGD(0.1, grad_clip=clip))
    with pytest.raises(ValueError, match="no regatta.torch.Embedding"):
        rt.start(torch.nn.Linear(2, 2))
    with pytest.raises(ValueError, match="mode should be 'sync' or 'async'"):
        rt.start(rt.Embedding(3, 2, optimizer=rg.optimizer.SGD(0.1)), mode="geo")


def test_tensors_are_fed_as_they_are():
    main = rg.static.Program()
    with rg.static.program_guard(main, rg.static.Program()):
        x = rg.static.data("x", [-1, 3], "float32")
        out = rg.scale(x, 2.0)
    exe = rg.static.Executor()
    for tensor in (torch.arange(6.0).reshape(2, 3), torch.arange(6.0).reshape(3, 2).T):
        got, = exe.run(main, feed={"x": tensor}, fetch_list=[out])
        np.testing.assert_array_equal(got, 2 * tensor.numpy())
        assert torch.equal(torch.from_dlpack(got), 2 * tensor)
