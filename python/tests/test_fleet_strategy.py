"""Strategies: names, types, copies, text."""
import copy
import pickle

import pytest

from regatta.distributed import fleet


def test_defaults_are_those_of_paddle():
    strategy = fleet.DistributedStrategy()
    assert strategy.a_sync is True
    assert strategy.amp is False
    assert strategy.fuse_grad_size_in_MB == 32
    assert strategy.adam_d2sum is False
    assert strategy.sparse_table_configs == []
    configs = strategy.a_sync_configs
    assert configs["k_steps"] == -1
    assert configs["heter_worker_device_guard"] == "cpu"
    assert strategy.lars_configs["lars_coeff"] == pytest.approx(0.001)
    assert strategy.trainer_desc_configs["dump_fields"] == []
    assert strategy.build_strategy.fuse_bn_add_act_ops is True


def test_partial_dicts_keep_the_rest():
    strategy = fleet.DistributedStrategy()
    strategy.a_sync_configs = {"k_steps": 100}
    strategy.a_sync_configs = {"send_queue_size": 8}
    assert strategy.a_sync_configs["k_steps"] == 100
    assert strategy.a_sync_configs["send_queue_size"] == 8
    assert strategy.a_sync_configs["max_merge_var_num"] == 1


def test_a_dict_that_was_read_writes_through():
    strategy = fleet.DistributedStrategy()
    configs = strategy.a_sync_configs
    configs["k_steps"] = 7
    assert strategy.a_sync_configs["k_steps"] == 7
    strategy.a_sync_configs = configs
    assert strategy.a_sync_configs["k_steps"] == 7
    with pytest.raises(TypeError, match="cannot be removed"):
        del configs["k_steps"]
    configs["k_steps"] = None
    assert strategy.a_sync_configs["k_steps"] == -1


def test_recompute_as_document_002_has_it():
    strategy = fleet.DistributedStrategy()
    strategy.recompute = True
    strategy.recompute_configs = {
        "checkpoints": ["x", "y"],
        "enable_offload": True,
        "checkpoint_shape": [100, 512, 1024],
    }
    assert strategy.recompute_configs["checkpoints"] == ["x", "y"]
    assert strategy.recompute_configs["checkpoint_shape"] == [100, 512, 1024]


def test_misspelt_names_get_the_nearest():
    strategy = fleet.DistributedStrategy()
    with pytest.raises(AttributeError, match="did you mean 'a_sync'"):
        strategy.a_snyc = True
    with pytest.raises(AttributeError, match="did you mean 'a_sync'"):
        strategy.a_snyc
    with pytest.raises(ValueError, match="did you mean 'k_steps'"):
        strategy.a_sync_configs = {"k_step": 1}
    with pytest.raises(AttributeError, match="num_threads"):
        strategy.execution_strategy.num_thread = 2
    assert strategy == fleet.DistributedStrategy()


@pytest.mark.parametrize(
    "old, new",
    [
        ("forward_recompute", "recompute"),
        ("recompute_checkpoints", "recompute_configs.checkpoints"),
        ("use_local_sgd", "localsgd"),
        ("FLAGS_sync_nccl_allreduce", "sync_nccl_allreduce"),
        ("FLAGS_fuse_parameter_memory_size", "fuse_grad_size_in_MB"),
        ("FLAGS_fuse_parameter_groups_size", "fuse_grad_size_in_TFLOPS"),
    ],
)
def test_renamed_options_say_the_new_name(old, new):
    strategy = fleet.DistributedStrategy()
    with pytest.raises(AttributeError, match=f"{old} is now called {new}"):
        setattr(strategy, old, True)


def test_wrong_types():
    strategy = fleet.DistributedStrategy()
    with pytest.raises(TypeError, match="a_sync should be true or false, but is 1"):
        strategy.a_sync = 1
    with pytest.raises(TypeError, match="a_sync should be true or false"):
        strategy.a_sync = "true"
    with pytest.raises(TypeError, match="k_steps should be an integer"):
        strategy.a_sync_configs = {"k_steps": 1.5}
    with pytest.raises(TypeError, match="should be a dict of options"):
        strategy.a_sync_configs = 3
    with pytest.raises(TypeError):
        strategy.a_sync = None
    with pytest.raises(TypeError, match="neither a number"):
        strategy.nccl_comm_num = object()
    assert strategy == fleet.DistributedStrategy()


def test_groups_as_attributes():
    strategy = fleet.DistributedStrategy()
    strategy.execution_strategy.num_threads = 4
    assert strategy.execution_strategy.num_threads == 4
    other = fleet.DistributedStrategy()
    other.execution_strategy = strategy.execution_strategy
    assert other.execution_strategy.num_threads == 4


def test_tables():
    strategy = fleet.DistributedStrategy()
    strategy.sparse_table_configs = {}
    assert strategy.sparse_table_configs == []
    rate = "table_parameters.embedding.accessor.embed_sgd_param.adagrad.learning_rate"
    strategy.sparse_table_configs = {"embedding": {rate: 0.5}}
    table = strategy.sparse_table_configs[0]
    assert table["table_name"] == "embedding"
    assert table["accessor"]["embed_sgd_param"]["learning_rate"] == 0.5
    strategy.sparse_table_configs = {"embedding": {"memory_mb": 64, "ssd_dir": "/cold"}}
    assert strategy.sparse_table_configs[0]["memory_mb"] == 64
    strategy.fleet_desc_configs = {"embedding": {"sparse_embedx_dim": 9}}
    assert strategy.fleet_desc_configs[0]["sparse_embedx_dim"] == 9


def changed():
    strategy = fleet.DistributedStrategy()
    strategy.a_sync_configs = {"k_steps": 100}
    strategy.amp = True
    strategy.amp_configs = {"custom_white_list": ["softmax", 'a "quoted", name']}
    strategy.fs_client_param = {"uri": "hdfs://a:1"}
    return strategy


def test_copies_and_equality():
    strategy = changed()
    pickled = pickle.loads(pickle.dumps(strategy))
    for other in (copy.deepcopy(strategy), copy.copy(strategy), pickled):
        assert other == strategy and other is not strategy
        other.amp = False
        assert other != strategy
    assert strategy != 3


def test_files(tmp_path):
    strategy, other = changed(), fleet.DistributedStrategy()
    path = str(tmp_path / "strategy.prototxt")
    strategy.save_to_prototxt(path)
    other.load_from_prototxt(path)
    assert other == strategy
    assert other.amp_configs["custom_white_list"] == ["softmax", 'a "quoted", name']
    (tmp_path / "bad").write_text("amp: true\nampp: true\n")
    with pytest.raises(ValueError, match=r"bad:2: there is no option 'ampp'; did you mean 'amp'"):
        other.load_from_prototxt(str(tmp_path / "bad"))


def test_print_shows_all_and_marks_changes():
    text = repr(changed())
    assert "\n* a_sync_configs.k_steps" in text and "(default: -1)" in text
    assert "\n  a_sync " in text
    assert text.splitlines()[0].startswith("DistributedStrategy, 4 of ")


def test_what_cannot_be_honoured_is_an_error():
    strategy = fleet.DistributedStrategy()
    strategy.pipeline = True
    with pytest.raises(ValueError, match="pipeline is not implemented"):
        fleet.Fleet().init(is_collective=True, strategy=strategy)
    own = fleet.Fleet()
    own.init()
    strategy = fleet.DistributedStrategy()
    strategy.localsgd = True
    import regatta as rg

    with pytest.raises(ValueError, match="localsgd is for collective training"):
        own.distributed_optimizer(rg.optimizer.SGD(0.1), strategy)
    with pytest.raises(TypeError, match="should be a fleet.DistributedStrategy"):
        own.distributed_optimizer(rg.optimizer.SGD(0.1), {"a_sync": True})


def test_adam_d2sum_is_said_to_be_left_out():
    strategy = fleet.DistributedStrategy()
    strategy.adam_d2sum = True
    with pytest.warns(UserWarning, match="adam_d2sum"):
        fleet.Fleet().init(strategy=strategy)


def test_tables_on_cards_are_left_out_with_a_warning():
    from regatta.distributed.fleet.base.fleet_base import _native

    strategy = fleet.DistributedStrategy()
    strategy.a_sync = True
    strategy.a_sync_configs = {"use_ps_gpu": 1, "k_steps": 0}
    with pytest.warns(UserWarning, match="rows stay on the parameter servers"):
        native = _native(strategy, False)
    native.check(False)
    assert strategy.a_sync_configs["use_ps_gpu"] == 1, "what the user wrote is as it was"
