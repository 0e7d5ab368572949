//! The lists of passes: their order, and what the executor's list leaves.

use regatta_ir::{Act, Program, Programs, Regularizer, VarType};
use regatta_optim::{Momentum, Rule};
use regatta_passes::pipeline::{EXECUTION, RANKS, Rewrite, apply_passes};
use regatta_passes::{
    AmpConfig, Backward, Clip, FuseAllReduce, Lowering, LoweringOptions, Optimizer, RankPrograms,
    RankSettings, RecomputeConfig, Sharding, minimize, minimize_watched,
};
use regatta_tensor::DType;

fn model() -> (Programs, String) {
    let mut b = regatta_ops::builder(1);
    let x = b.data("x", DType::F32, &[-1, 4]).unwrap();
    let y = b.data("y", DType::F32, &[-1, 1]).unwrap();
    let h = b.fc(&x, 3, Act::Relu).unwrap();
    let h = b.fc(&h, 3, Act::Relu).unwrap();
    let p = b.fc(&h, 1, Act::None).unwrap();
    let cost = b.square_error_cost(&p, &y).unwrap();
    let loss = b.mean(&cost).unwrap().name().to_string();
    (b.finish(), loss)
}

fn momentum() -> Optimizer {
    Optimizer::new(Rule::Momentum(Momentum::default()), 0.1)
}

/// Names of the passes as they are applied, and the names of what each has made.
fn recorded<'a>(names: &'a mut Vec<String>) -> impl FnMut(&str, &str, &dyn Rewrite) + use<'a> {
    |name, about, made| {
        assert!(!about.is_empty() && !made.programs().is_empty(), "{name}");
        names.push(name.to_string());
    }
}

#[test]
fn training_passes_apply_in_the_order_of_their_list() {
    let (programs, loss) = model();
    let mut names = Vec::new();
    let all = Optimizer {
        regularizer: Some(Regularizer::L2(0.1)),
        clip: Some(Clip::GlobalNorm(1.0)),
        amp: Some(AmpConfig::fp16()),
        recompute: Some(RecomputeConfig::default()),
        ..momentum()
    };
    let what = Backward::default();
    let made = minimize_watched(&programs, &loss, &all, &what, &mut recorded(&mut names)).unwrap();
    let expected = [
        "build",
        "amp",
        "backward",
        "recompute",
        "scale_loss",
        "unscale",
        "clip",
        "regularize",
        "insert_updates",
        "skip_overflowed",
    ];
    assert_eq!(names, expected);
    assert_eq!(made.programs.main, minimize(&programs, &loss, &all, &what).unwrap().programs.main);
    let mut few = Vec::new();
    minimize_watched(&programs, &loss, &momentum(), &what, &mut recorded(&mut few)).unwrap();
    assert_eq!(few, ["build", "backward", "regularize", "insert_updates"]);
}

#[test]
fn passes_of_ranks_apply_where_their_settings_say() {
    let (programs, loss) = model();
    let programs = minimize(&programs, &loss, &momentum(), &Backward::default()).unwrap().programs;
    let names_of = |settings: RankSettings| {
        let mut names = Vec::new();
        let made = RankPrograms::new(&programs, settings, &mut recorded(&mut names)).unwrap();
        (names, made)
    };
    let fuse = FuseAllReduce { bucket_mb: 32.0, last_bucket_mb: 1.0, max_count: None };
    let together = RankSettings {
        ranks: 2,
        sharding: Some(Sharding { ranks: 2, rank: 0, stage: 1 }),
        fp16_all_reduce: true,
        fuse_all_reduce: Some(fuse),
        gradient_merge: Some(true),
        ..RankSettings::default()
    };
    let (names, made) = names_of(together.clone());
    let expected =
        ["data_parallel", "sharding", "fp16_all_reduce", "fuse_all_reduce", "gradient_merge"];
    assert_eq!(names, expected);
    assert_eq!(made.then.unwrap().name, "merged_update");
    // Ranks that train apart exchange parameters with a program of its own.
    let (names, made) = names_of(RankSettings { local: true, ..together });
    assert_eq!(names, ["local_sgd", "fp16_all_reduce", "fuse_all_reduce"]);
    assert!(!made.each.main.to_string().contains("all_reduce"), "{}", made.each.main);
    assert!(made.then.unwrap().to_string().contains("all_reduce_start"));
    let listed: Vec<&str> = RANKS.iter().map(|pass| pass.name).collect();
    assert!(names.iter().all(|name| listed.contains(&name.as_str())));
}

fn lowered(program: &Program, loss: &str, options: LoweringOptions) -> (Lowering, Vec<String>) {
    let typed = |name: &str, width| (name.to_string(), VarType::f32([10, width]));
    let feeds = [typed("x", 4), typed("y", 1)];
    let mut lowering = Lowering::new(program, &feeds, &[loss.to_string()], 10, options);
    let mut names = Vec::new();
    apply_passes(EXECUTION, &mut lowering, &mut recorded(&mut names)).unwrap();
    (lowering, names)
}

#[test]
fn the_executor_gets_fused_ops_with_memory_and_types() {
    let (programs, loss) = model();
    let main = minimize(&programs, &loss, &momentum(), &Backward::default()).unwrap().programs.main;
    let options = LoweringOptions { threads: 1, fuse: true, memory_reuse: true };
    let (one, names) = lowered(&main, &loss, options);
    assert_eq!(names, ["fuse", "split_batch", "memory_reuse", "concrete_types"]);
    let [program] = one.programs().try_into().unwrap();
    let text = program.to_string();
    assert!(text.contains("fc_grad_through_relu(") && text.contains("buffer=b0"), "{text}");
    assert!(text.contains("data x: f32[10, 4]") && !text.contains("[-1"), "{text}");
    assert!(regatta_ir::text::parse(&text).is_ok());

    let (two, _) = lowered(&main, &loss, LoweringOptions { threads: 2, ..options });
    let programs = two.programs();
    let names: Vec<&str> = programs.iter().map(|program| program.name.as_str()).collect();
    assert_eq!(names, ["main.part0", "main.part1", "main.rest"]);
    let ranges: Vec<_> = two.segments.iter().map(|segment| segment.range.clone()).collect();
    assert_eq!(ranges, [0..5, 5..10, 0..10]);
    let texts: Vec<String> = programs.iter().map(Program::to_string).collect();
    assert!(texts[0].contains("data x: f32[5, 4]") && !texts[0].contains("momentum("));
    assert!(texts[2].contains("momentum(") && !texts[2].contains("= fc("), "{}", texts[2]);
    let ops = |i: usize| two.segments[i].program.block().ops.len();
    assert_eq!(ops(0) + ops(2), one.segments[0].program.block().ops.len());

    let (plain, names) =
        lowered(&main, &loss, LoweringOptions { threads: 1, fuse: false, memory_reuse: false });
    assert_eq!(names, ["split_batch", "concrete_types"]);
    assert_eq!(plain.segments[0].program, main);
}
