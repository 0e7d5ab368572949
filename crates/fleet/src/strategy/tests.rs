//! Text forms both ways, and every kind of refusal.

use std::collections::BTreeSet;
use std::time::Duration;

use proptest::prelude::*;
use regatta_optim::{Adam, Momentum, Rule, Sgd};
use regatta_ps::{AsyncConfig, Mode};

use super::*;

fn refusal(strategy: &DistributedStrategy, used_for: Use) -> String {
    strategy.check(used_for).unwrap_err().to_string()
}

#[test]
fn defaults_can_be_honoured_everywhere() {
    let strategy = DistributedStrategy::new();
    strategy.check(Use::Collective).unwrap();
    strategy.check(Use::ParameterServer).unwrap();
    assert_eq!(strategy.changed(), []);
    assert_eq!(strategy.ps_mode().unwrap(), Mode::default());
}

#[test]
fn both_text_forms_hold_every_option() {
    let mut strategy = DistributedStrategy::new();
    strategy.mode = StrategyMode::Ps;
    strategy.amp_configs.decr_ratio = 0.5;
    strategy.recompute_configs.checkpoints = vec!["fc_0.tmp_0".into(), "a \"b\"\n\\".into()];
    strategy.dgc_configs.sparsity = vec![0.75, 0.999, 1e-9];
    strategy.gradient_scale_configs.scale_strategy = ScaleStrategy::Sum;
    strategy.sharding_configs.sharding_degree = Some(2);
    strategy.sparse_table_configs = vec![
        TableParameter { table_name: "embedding".into(), ..Default::default() },
        TableParameter { shard_num: 7, ..Default::default() },
    ];
    strategy.fleet_desc_configs = vec![FleetDescConfigs::default()];
    let yaml = strategy.to_yaml();
    assert_eq!(DistributedStrategy::from_yaml(&yaml).unwrap(), strategy, "{yaml}");
    let text = strategy.to_prototxt();
    assert_eq!(DistributedStrategy::from_prototxt(&text).unwrap(), strategy, "{text}");
}

#[test]
fn tables_may_have_rows_on_disk() {
    let text = "sparse_table_configs:\n  - {table_name: emb, memory_mb: 64, ssd_dir: /cold}\n";
    let strategy = DistributedStrategy::from_yaml(text).unwrap();
    strategy.check(Use::ParameterServer).unwrap();
    let tiers = strategy.tiers().unwrap();
    assert_eq!((tiers["emb"].memory_mb, tiers["emb"].lookahead), (64, 8));
    let error = strategy.check(Use::Collective).unwrap_err().to_string();
    assert!(error.contains("sparse_table_configs is for parameter servers"), "{error}");
    for (table, want) in [
        ("{table_name: e, ssd_dir: /x}", "sparse_table_configs['e'].ssd_dir needs memory_mb"),
        ("{table_name: e, lookahead: 3}", "sparse_table_configs['e'].lookahead needs memory_mb"),
        ("{table_name: e, memory_mb: 3}", "sparse_table_configs['e'].ssd_dir must be set"),
        ("{memory_mb: 3, ssd_dir: /x}", "memory_mb needs table_name"),
        ("{table_name: e, shard_num: 7}", "sparse_table_configs['e'].shard_num is not implemented"),
        (
            "{table_name: e, memory_mb: 3, ssd_dir: /x, lookahead: 0}",
            "sparse_table_configs['e'].lookahead should be from 1 to 256, but is 0",
        ),
    ] {
        let text = format!("sparse_table_configs: [{table}]");
        let strategy = DistributedStrategy::from_yaml(&text).unwrap();
        let error = strategy.check(Use::ParameterServer).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
    }
}

#[test]
fn files_say_their_form_by_their_name() {
    let dir = tempfile::tempdir().unwrap();
    let strategy = DistributedStrategy { gradient_merge: true, ..Default::default() };
    for name in ["s.yaml", "s.prototxt"] {
        let path = dir.path().join(name);
        strategy.save(&path).unwrap();
        assert_eq!(DistributedStrategy::load(&path).unwrap(), strategy);
    }
    let path = dir.path().join("bad.yaml");
    std::fs::write(&path, "amp: true\nlocalsdg: true\n").unwrap();
    let error = DistributedStrategy::load(&path).unwrap_err().to_string();
    let want = "bad.yaml:2: there is no option 'localsdg'; did you mean 'localsgd'?";
    assert!(error.ends_with(want), "{error}");
    let error = DistributedStrategy::load(dir.path().join("none.yaml")).unwrap_err().to_string();
    assert!(error.contains("none.yaml"), "{error}");
}

#[test]
fn what_paddle_writes_can_be_read() {
    let text = "mode: COLLECTIVE\namp: true\nfuse_grad_size_in_MB: 16\nrecompute_configs {\n  \
                checkpoints: \"a\"\n  checkpoints: \"b\"\n}\namp_configs {\n  \
                init_loss_scaling: 1024.0\n}\n";
    let strategy = DistributedStrategy::from_prototxt(text).unwrap();
    assert!(strategy.amp && strategy.fuse_grad_size_in_mb == 16);
    assert_eq!(strategy.recompute_configs.checkpoints, ["a", "b"]);
    assert_eq!(strategy.amp_configs.init_loss_scaling, 1024.0);
}

#[test]
fn unknown_options_and_wrong_types_are_named() {
    for (yaml, want) in [
        ("a_sync: 1", "strategy:1: a_sync should be true or false, but is 1"),
        ("a_sync: 'true'", "strategy:1: a_sync should be true or false, but is \"true\""),
        (
            "amp: true\namp_configs: {decr_ratio: x}",
            "strategy:2: amp_configs.decr_ratio should be a number, but is x",
        ),
        (
            "nccl_comm_num: -1",
            "strategy:1: nccl_comm_num should be an integer of at least 0, but is -1",
        ),
        (
            "nccl_comm_num: 1.5",
            "strategy:1: nccl_comm_num should be an integer of at least 0, but is 1.5",
        ),
        (
            "mode: ps",
            "strategy:1: mode should be one of COLLECTIVE, PS, PIPELINE, HETER, but is ps",
        ),
        ("amp_configs: 3", "strategy:1: amp_configs should be a group of options, but is 3"),
        ("amp: [true, false]", "strategy:1: amp should be true or false, but is [true, false]"),
        (
            "amp_configs: {init_loss: 1}",
            "strategy:1: there is no option 'init_loss' in amp_configs (options: dtype, ",
        ),
        ("forward_recompute: true", "strategy:1: forward_recompute is now called recompute"),
        (
            "recompute_checkpoints: [a]",
            "strategy:1: recompute_checkpoints is now called recompute_configs.checkpoints",
        ),
        ("use_local_sgd: true", "strategy:1: use_local_sgd is now called localsgd"),
        (
            "FLAGS_fuse_parameter_memory_size: 32",
            "strategy:1: FLAGS_fuse_parameter_memory_size is now called fuse_grad_size_in_MB",
        ),
        (
            "FLAGS_fuse_parameter_groups_size: 32",
            "strategy:1: FLAGS_fuse_parameter_groups_size is now called fuse_grad_size_in_TFLOPS",
        ),
        (
            "FLAGS_communicator_send_queue_size: 2",
            "strategy:1: FLAGS_communicator_send_queue_size is now called \
             a_sync_configs.send_queue_size",
        ),
        (
            "FLAGS_rpc_deadline: 2",
            "strategy:1: FLAGS_rpc_deadline is a process flag, and flags are not part of a \
             strategy; remove it",
        ),
    ] {
        let error = DistributedStrategy::from_yaml(yaml).unwrap_err().to_string();
        assert!(error.starts_with(want), "{error}\nexpected {want}");
    }
    let twice = DistributedStrategy::from_prototxt("amp: true\namp: false").unwrap_err();
    assert_eq!(twice.to_string(), "strategy:2: amp is written 2 times");
}

/// New names that the table of old ones promises must exist.
#[test]
fn present_names_exist() {
    let options = DistributedStrategy::new().options();
    let mut groups: BTreeSet<&str> = DistributedStrategy::NAMES.iter().copied().collect();
    groups.extend(options.iter().map(|(path, _)| path.as_str()));
    for old in ["forward_recompute", "use_local_sgd", "geo_sgd_need_push_nums", "use_amp"] {
        let new = renamed::new_name(old).unwrap();
        assert!(groups.contains(new), "{new}");
    }
    for (name, _) in check::listed() {
        assert!(
            groups.contains(name)
                || name == "sharding_configs.sharding_degree"
                || name == "a_sync_configs.staleness",
            "{name} is not an option"
        );
    }
}

#[test]
fn what_is_not_honoured_is_refused() {
    let base = DistributedStrategy::new;
    let mut s = base();
    s.pipeline = true;
    s.cudnn_exhaustive_search = true;
    assert_eq!(
        refusal(&s, Use::Collective),
        "strategy: pipeline is not implemented; cudnn_exhaustive_search has no effect on CPUs: \
         leave it at its default"
    );
    type Change = fn(&mut DistributedStrategy);
    let switches: [(Change, &str); 10] = [
        (|s| s.tensor_parallel = true, "tensor_parallel is not implemented"),
        (|s| s.qat = true, "qat is not implemented"),
        (|s| s.asp = true, "asp is not implemented"),
        (|s| s.auto = true, "auto is not implemented"),
        (|s| s.semi_auto = true, "semi_auto is not implemented"),
        (|s| s.elastic = true, "elastic is not implemented"),
        (|s| s.is_fl_ps_mode = true, "is_fl_ps_mode is not implemented"),
        (|s| s.nccl_comm_num = 2, "nccl_comm_num has no effect on CPUs"),
        (|s| s.build_strategy.enable_inplace = true, "build_strategy.enable_inplace is not impl"),
        (|s| s.a_sync_configs.use_ps_gpu = 1, "a_sync_configs.use_ps_gpu is not implemented"),
    ];
    for (change, want) in switches {
        let mut s = base();
        change(&mut s);
        for used_for in [Use::Collective, Use::ParameterServer] {
            let error = refusal(&s, used_for);
            assert!(error.starts_with(&format!("strategy: {want}")), "{error}");
        }
    }
    let mut s = base();
    s.sharding = true;
    s.sharding_configs.stage = 3;
    assert!(refusal(&s, Use::Collective).contains("stage is 3"));
}

#[test]
fn options_of_the_other_training_are_refused() {
    let s = DistributedStrategy { lamb: true, ..Default::default() };
    s.check(Use::Collective).unwrap();
    assert_eq!(
        refusal(&s, Use::ParameterServer),
        "strategy: lamb is for collective training: give the optimizer the rule Lamb instead"
    );
    let mut s = DistributedStrategy::new();
    s.a_sync_configs.k_steps = 10;
    s.check(Use::ParameterServer).unwrap();
    assert_eq!(
        refusal(&s, Use::Collective),
        "strategy: a_sync_configs.k_steps is for parameter servers"
    );
    let s = DistributedStrategy { mode: StrategyMode::Ps, ..Default::default() };
    assert_eq!(
        refusal(&s, Use::Collective),
        "strategy: mode is PS, but the training is collective"
    );
}

/// A group whose switch is off is not used, so nothing in it can be wrong.
#[test]
fn groups_wait_for_their_switch() {
    let mut s = DistributedStrategy::new();
    s.amp_configs.use_optimizer_fp16 = true;
    s.check(Use::Collective).unwrap();
    s.amp = true;
    assert!(refusal(&s, Use::Collective).contains("amp_configs.use_optimizer_fp16"));
}

#[test]
fn options_that_exclude_each_other_are_both_named() {
    let s = DistributedStrategy { localsgd: true, gradient_merge: true, ..Default::default() };
    assert_eq!(
        refusal(&s, Use::Collective),
        "strategy: localsgd and gradient_merge exclude each other: workers that train apart do \
         not exchange gradients"
    );
    let mut s = DistributedStrategy { a_sync: false, ..Default::default() };
    s.a_sync_configs.k_steps = 5;
    let error = refusal(&s, Use::ParameterServer);
    assert!(error.contains("a_sync is false, but a_sync_configs.k_steps"), "{error}");
}

#[test]
fn update_rules_must_fit() {
    let (sgd, adam) = (Rule::Sgd(Sgd {}), Rule::Adam(Adam::default()));
    let momentum = Rule::Momentum(Momentum::default());
    let lars = DistributedStrategy { lars: true, ..Default::default() };
    lars.check_rule(&momentum).unwrap();
    assert_eq!(
        lars.check_rule(&adam).unwrap_err().to_string(),
        "strategy: lars needs the optimizer momentum, but it is adam"
    );
    let lamb = DistributedStrategy { lamb: true, ..Default::default() };
    lamb.check_rule(&adam).unwrap();
    assert!(lamb.check_rule(&sgd).is_err());
    let local = DistributedStrategy { localsgd: true, ..Default::default() };
    local.check_rule(&sgd).unwrap();
    assert!(local.check_rule(&adam).is_err());
}

#[test]
fn modes_of_parameter_servers() {
    let mode = |change: fn(&mut DistributedStrategy)| {
        let mut s = DistributedStrategy::new();
        change(&mut s);
        s.ps_mode().map_err(|e| e.to_string())
    };
    assert_eq!(mode(|s| s.a_sync = false), Ok(Mode::Sync));
    assert_eq!(mode(|s| s.a_sync_configs.k_steps = 100), Ok(Mode::Geo { every: 100 }));
    assert_eq!(mode(|s| s.a_sync_configs.half_async = true), Ok(Mode::HalfAsync));
    let bounded = mode(|s| s.a_sync_configs.staleness = Some(3));
    assert_eq!(bounded, Ok(Mode::Bounded { staleness: 3 }));
    let Ok(Mode::Async(c)) = mode(|s| {
        s.a_sync_configs.independent_recv_thread = true;
        s.a_sync_configs.max_merge_var_num = 4;
    }) else {
        panic!("asynchronous")
    };
    let expected = AsyncConfig { max_merge_var_num: 4, ..AsyncConfig::default() };
    assert_eq!(c, expected);
    let waits = mode(|s| s.a_sync_configs.send_wait_times = Some(3));
    let merge_wait = Some(Duration::from_millis(30));
    assert_eq!(waits, Ok(Mode::Async(AsyncConfig { merge_wait, ..AsyncConfig::default() })));
    for (result, want) in [
        (
            mode(|s| {
                s.a_sync_configs.k_steps = 2;
                s.a_sync_configs.half_async = true;
            }),
            "a_sync_configs.half_async and a_sync_configs.k_steps ask for different modes",
        ),
        (
            mode(|s| {
                s.a_sync = false;
                s.a_sync_configs.max_merge_var_num = 2;
            }),
            "a_sync_configs.max_merge_var_num tunes asynchronous training, but the mode is sync",
        ),
        (
            mode(|s| s.a_sync_configs.thread_pool_size = 4),
            "strategy: a_sync_configs.thread_pool_size should be 1, but is 4: requests",
        ),
        (
            mode(|s| s.a_sync_configs.send_queue_size = 0),
            "strategy: a_sync_configs.send_queue_size should be at least 1, but is 0",
        ),
        (
            mode(|s| {
                s.a_sync_configs.independent_recv_thread = true;
                s.a_sync_configs.pull_ahead = 0;
            }),
            "strategy: a_sync_configs.independent_recv_thread should not be set with pull_ahead 0",
        ),
    ] {
        let error = result.unwrap_err();
        assert!(error.contains(want), "{error}");
    }
}

proptest! {
    #[test]
    fn any_strategy_survives_both_text_forms(
        switches in prop::collection::vec(any::<bool>(), 4),
        numbers in prop::collection::vec(any::<u64>(), 3),
        ratio in any::<f32>().prop_filter("equal to itself", |x| x.is_finite()),
        texts in prop::collection::vec(any::<String>(), 0..4),
        k_steps in any::<i64>(),
    ) {
        let mut s = DistributedStrategy::new();
        (s.amp, s.lars) = (switches[0], switches[1]);
        (s.a_sync, s.split_data) = (switches[2], switches[3]);
        (s.nccl_comm_num, s.fuse_grad_size_in_mb) = (numbers[0], numbers[1]);
        s.a_sync_configs.staleness = Some(numbers[2]);
        s.amp_configs.incr_ratio = ratio;
        s.lamb_configs.exclude_from_weight_decay = texts.clone();
        s.fs_client_param.uri = texts.concat();
        s.a_sync_configs.k_steps = k_steps;
        prop_assert_eq!(&DistributedStrategy::from_yaml(&s.to_yaml()).unwrap(), &s);
        prop_assert_eq!(&DistributedStrategy::from_prototxt(&s.to_prototxt()).unwrap(), &s);
    }

    #[test]
    fn no_text_makes_the_readers_panic(text in ".{0,200}") {
        let _ = DistributedStrategy::from_prototxt(&text);
        let _ = DistributedStrategy::from_yaml(&text);
    }
}
