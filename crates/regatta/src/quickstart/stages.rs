//! One program on its way: its text after each pass.

use regatta_ir::Error;
use regatta_passes::{
    Backward, MemoryReuse, Optimizer, backward, clip, insert_updates, memory_reuse, prune,
    regularize,
};

use super::Model;

/// What a pass made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stage {
    /// The pass, and what it is for.
    pub title: String,
    /// The text of the program after it.
    pub text: String,
}

/// All programs of a model, in the order in which the passes of `minimize`, inference and the
/// executor make them. Passes that have nothing to do are left out.
///
/// # Errors
/// As the passes.
pub fn stages(model: &Model, optimizer: &Optimizer, batch: usize) -> Result<Vec<Stage>, Error> {
    let mut stages = Vec::new();
    let mut show = |title: &str, program: &regatta_ir::Program| {
        stages.push(Stage { title: title.into(), text: program.to_string() });
    };
    let mut programs = model.programs.clone();
    show("build: the startup program gives parameters their first values", &programs.startup);
    show("build: the main program is the forward computation", &programs.main);

    let (main, mut grads) = backward(&programs.main, &model.loss, &Backward::default())?;
    programs.main = main;
    show("backward: gradients of the loss", &programs.main);
    if let Some(how) = optimizer.clip {
        (programs.main, grads) = clip(&programs.main, &grads, how)?;
        show("clip: limits on gradients", &programs.main);
    }
    let before = grads.clone();
    (programs.main, grads) = regularize(&programs.main, &grads, optimizer.regularizer)?;
    if grads != before {
        show("regularize: penalties on parameters", &programs.main);
    }
    let Optimizer { rule, learning_rate, schedule, .. } = optimizer;
    let (programs, _) = insert_updates(&programs, &grads, rule, *learning_rate, schedule)?;
    show("insert_updates: the training program", &programs.main);
    show("insert_updates: its startup program, with optimizer state", &programs.startup);

    show("prune: what a prediction needs", &prune(&programs.main, &[&model.prediction])?);

    let options = MemoryReuse { skip: vec![model.loss.clone()], skip_grads: false, batch };
    let (shared, report) = memory_reuse(&programs.main, &options)?;
    let title = format!(
        "memory_reuse: temporaries share buffers, {} instead of {} bytes at batch size {batch}",
        report.after, report.before
    );
    show(&title, &shared);
    Ok(stages)
}
