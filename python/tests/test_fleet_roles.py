"""What a process is, and calls in the wrong order."""
import sys

import pytest

from regatta.distributed import fleet
from regatta.distributed.fleet.base import role_maker

SERVERS = ["127.0.0.1:36011", "127.0.0.1:36012"]


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    import os

    for name in list(os.environ):
        if name.startswith(("PADDLE_", "TRAINING_ROLE", "OMPI", "PMI", "SLURM")):
            monkeypatch.delenv(name)


def test_a_process_without_a_job_is_a_worker_alone():
    own = fleet.Fleet()
    own.init(role_maker.PaddleCloudRoleMaker())
    assert own.is_worker() and own.is_first_worker() and not own.is_server()
    assert (own.worker_num(), own.server_num(), own.worker_index()) == (1, 0, 0)
    assert own.node_num() == 1 and own.local_rank() == 0 and not own.is_coordinator()
    assert own.util.all_reduce([1, 2], "sum").tolist() == [1, 2]
    assert own.util.all_gather(3) == [3]
    own.barrier_worker()


def test_user_defined_roles():
    role = role_maker.UserDefinedRoleMaker(
        current_id=1, role=role_maker.Role.SERVER, worker_num=2, server_endpoints=SERVERS)
    own = fleet.Fleet()
    own.init(role)
    assert own.is_server() and own.server_index() == 1 and own.worker_num() == 2
    assert own.server_endpoints() == SERVERS
    assert own.server_endpoints(to_string=True) == ",".join(SERVERS)
    assert role._is_server() and role._worker_num() == 2 and role._role_id() == 1
    ranks = role_maker.UserDefinedRoleMaker(
        is_collective=True, current_id=0, worker_endpoints=SERVERS)
    assert ranks._worker_num() == 2 and ranks._get_trainer_endpoint() == SERVERS[0]
    with pytest.raises(ValueError, match="current_id is 2, but with 2 servers"):
        role_maker.UserDefinedRoleMaker(
            current_id=2, role=role_maker.Role.SERVER, worker_num=2, server_endpoints=SERVERS)
    with pytest.raises(ValueError, match="needs server_endpoints"):
        role_maker.UserDefinedRoleMaker(current_id=0, role=role_maker.Role.WORKER, worker_num=2)


def test_the_environment_of_launchers(monkeypatch):
    monkeypatch.setattr(fleet.fleet, "_job", None)
    monkeypatch.setenv("TRAINING_ROLE", "TRAINER")
    monkeypatch.setenv("PADDLE_PSERVERS_IP_PORT_LIST", ",".join(SERVERS))
    monkeypatch.setenv("PADDLE_TRAINERS_NUM", "3")
    monkeypatch.setenv("PADDLE_TRAINER_ID", "2")
    own = fleet.Fleet()
    own.init()
    assert own.worker_index() == 2 and own.worker_num() == 3 and own.server_num() == 2
    files = [f"f{i}" for i in range(7)]
    assert own.util.get_file_shard(files) == ["f5", "f6"]
    import regatta.distributed as dist

    assert (dist.get_rank(), dist.get_world_size()) == (2, 3)
    with pytest.raises(ValueError, match="leave out is_collective"):
        fleet.Fleet().init(is_collective=True)


def test_calls_before_init():
    own = fleet.Fleet()
    with pytest.raises(RuntimeError, match=r"fleet.worker_num: call fleet.init\(\) first"):
        own.worker_num()
    own.init()
    with pytest.raises(RuntimeError, match="minimize"):
        own.init_worker()
    with pytest.raises(RuntimeError, match="distributed_optimizer"):
        own.minimize(None)
    with pytest.raises(RuntimeError, match="not a server"):
        own.run_server()
    with pytest.raises(TypeError, match="role_maker should be"):
        own.init("worker")


def test_programs_of_fleets_are_gone():
    for name in ("main_program", "_origin_program"):
        with pytest.raises(AttributeError, match="paddle.static.default_main_program"):
            getattr(fleet, name)
        with pytest.raises(AttributeError, match="paddle.static.default_main_program"):
            getattr(fleet.Fleet(), name)
    with pytest.raises(AttributeError, match="CommunicateTopology is not in Regatta"):
        fleet.CommunicateTopology


def test_what_is_not_implemented_says_so():
    own = fleet.Fleet()
    own.init()
    with pytest.raises(NotImplementedError, match="save_persistables"):
        own.save_one_table(0, "x", 0)
    with pytest.raises(NotImplementedError, match="mode 1"):
        own.save_persistables(None, "x", mode=1)
    with pytest.raises(NotImplementedError, match=r"one of \[0, 1\] is not implemented"):
        import regatta.distributed as dist

        dist.new_group([0, 1])


def test_entries():
    import regatta.distributed as dist

    assert dist.CountFilterEntry(3)._to_attr() == "count_filter_entry:3"
    assert dist.ShowClickEntry("s", "c")._to_attr() == "show_click_entry:s:c"
    with pytest.raises(ValueError, match="between 0 and 1"):
        dist.ProbabilityEntry(1.5)


def test_launch_ps_adds_what_is_missing(monkeypatch):
    import importlib

    launch = importlib.import_module("regatta.distributed.launch")
    seen = []
    monkeypatch.setattr("regatta.__main__.main", lambda argv: seen.append(argv) or 0)
    monkeypatch.delenv("REGATTA_PADDLE", raising=False)
    launch.launch_ps(["--worker_num", "3", "train.py", "--server_num", "9"])
    launch.launch_ps(["train.py"])
    monkeypatch.setenv("REGATTA_PADDLE", "1")
    launch.launch(["--gpus=0,1", "train.py"])
    python, rest = [sys.executable, "-u"], ["train.py", "--server_num", "9"]
    assert seen == [
        ["launch", "--server_num", "2", "--worker_num", "3", *python, *rest],
        ["launch", "--worker_num", "2", "--server_num", "2", *python, "train.py"],
        ["launch", "--gpus=0,1", *python, "-m", "regatta.paddle", "train.py"],
    ]
