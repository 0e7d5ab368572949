//! Ranks as threads of the test.

use std::thread;

use regatta_collective::Group;
use regatta_data::Batch;
use regatta_exec::{Options, Scope, run_startup};
use regatta_fleet::collective::plan_ranks;
use regatta_fleet::{DistributedStrategy, Error};
use regatta_ir::Programs;
use regatta_train::{Backend, PassEnd, Ranks};

use super::losses_of;

/// What a rank has at the end.
pub(crate) struct Rank {
    pub(crate) losses: Vec<f32>,
    pub(crate) scope: Scope,
    pub(crate) end: PassEnd,
    pub(crate) text: String,
}

/// Trains with one rank per list of batches.
pub(crate) fn train_ranks(
    programs: &Programs,
    loss: &str,
    strategy: &DistributedStrategy,
    parts: &[Vec<Batch>],
) -> Vec<Rank> {
    let all = try_ranks(programs, loss, strategy, parts, Options::default());
    all.into_iter().map(|rank| rank.unwrap()).collect()
}

pub(crate) fn try_ranks(
    programs: &Programs,
    loss: &str,
    strategy: &DistributedStrategy,
    parts: &[Vec<Batch>],
    options: Options,
) -> Vec<Result<Rank, Error>> {
    let groups = Group::in_memory(parts.len()).unwrap();
    thread::scope(|s| {
        let ranks: Vec<_> = groups
            .into_iter()
            .zip(parts)
            .map(|(group, batches)| {
                let options = options.clone();
                s.spawn(move || rank(programs, loss, strategy, group, batches, options))
            })
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn rank(
    programs: &Programs,
    loss: &str,
    strategy: &DistributedStrategy,
    group: Group,
    batches: &[Batch],
    options: Options,
) -> Result<Rank, Error> {
    let number = group.rank();
    let plan = plan_ranks(programs, strategy, number, group.size())?;
    let mut trainer = Ranks::new(programs, plan, group, options, loss, &strategy.to_yaml())?;
    let mut scope = Scope::new();
    run_startup(&trainer.plan().each.startup, &mut scope)?;
    // Other ranks begin with other values, which those of rank 0 must replace.
    for name in programs.main.param_names().iter().filter(|_| number > 0) {
        scope.get_mut(name).unwrap().f32_mut().fill(number as f32);
    }
    trainer.start(&mut scope, false)?;
    let losses = losses_of(&mut trainer, &mut scope, loss, batches)?;
    let end = trainer.pass_end();
    for (name, state) in trainer.collect_states(&scope)? {
        scope.set(&name, state);
    }
    Ok(Rank { losses, scope, end, text: trainer.plan().text() })
}

/// The bits of all parameters.
pub(crate) fn checksum(programs: &Programs, scope: &Scope) -> Vec<u32> {
    let params = programs.main.param_names();
    params
        .iter()
        .flat_map(|name| scope.get(name).unwrap().f32().iter().map(|x| x.to_bits()))
        .collect()
}
