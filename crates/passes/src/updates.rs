//! Appends the update of every parameter and the state that it needs.

use regatta_ir::{Error, Op, Programs, Role, VarType};
use regatta_ops::{schedule_op, update_op};
use regatta_optim::{Per, RowRule, Rule, Schedule};
use regatta_tensor::DType;

use crate::infer_types::push_op;
use crate::{ParamGrad, checked, refuse_buffers};

/// Name of the learning rate variable.
pub(crate) const LEARNING_RATE: &str = "learning_rate_0";
/// Counts optimizer steps for the learning-rate schedule.
pub(crate) const STEP: &str = "@LR_STEP@";

/// Appends one update op per gradient, its states (`<param>_<state>_0`) with their initial values
/// in the startup program, the learning rate and, unless it is constant, its schedule.
///
/// # Errors
/// If the rule or the schedule is impossible.
pub fn insert_updates(
    programs: &Programs,
    grads: &[ParamGrad],
    rule: &Rule,
    learning_rate: f64,
    schedule: &Schedule,
) -> Result<(Programs, Vec<Op>), Error> {
    let bad = |e: regatta_optim::Error| Error::Pass {
        pass: "insert_updates".into(),
        reason: e.to_string(),
    };
    refuse_buffers(&programs.main, "insert_updates")?;
    rule.validate().map_err(bad)?;
    schedule.validate(learning_rate).map_err(bad)?;
    let mut programs = programs.clone();
    let first = programs.main.block().ops.len();
    add_schedule(&mut programs, learning_rate, schedule)?;
    for g in grads {
        insert_update(&mut programs, g, rule)?;
    }
    programs.main = checked(programs.main)?;
    programs.startup = checked(programs.startup)?;
    let ops = programs.main.block().ops[first..].to_vec();
    Ok((programs, ops))
}

/// Declares the learning rate and, unless it is constant, appends the op that changes it.
pub(crate) fn add_schedule(
    programs: &mut Programs,
    learning_rate: f64,
    schedule: &Schedule,
) -> Result<(), Error> {
    if *schedule == Schedule::Constant {
        return programs.add_state(LEARNING_RATE, VarType::f32([1]), learning_rate);
    }
    let first = f64::from(schedule.lr(learning_rate, 0));
    programs.add_state(LEARNING_RATE, VarType::f32([1]), first)?;
    programs.add_state(STEP, VarType::dense(DType::I64, [1]), 0.0)?;
    let op = schedule_op(learning_rate, schedule)
        .input("Step", STEP)
        .input("LearningRate", LEARNING_RATE)
        .output("StepOut", STEP)
        .output("LearningRateOut", LEARNING_RATE);
    push_op(programs.main.block_mut(), op.role(Role::Optimize))
}

/// Appends the update of one parameter and declares its states.
pub(crate) fn insert_update(
    programs: &mut Programs,
    g: &ParamGrad,
    rule: &Rule,
) -> Result<(), Error> {
    let block = programs.main.block();
    let param = block.var(&g.param, "insert_updates")?.clone();
    let mut states = Vec::new();
    for state in rule.states() {
        let name = format!("{}_{}_0", param.name, state.name);
        let ty = match state.per {
            Per::Element => param.ty.clone(),
            Per::Row | Per::Scalar => VarType::f32([1]),
        };
        programs.add_state(&name, ty, f64::from(state.initial))?;
        states.push(name);
    }
    let names = || states.iter().map(String::as_str);
    let mut op = update_op(rule)?
        .input("Param", &param.name)
        .input("Grad", &g.grad)
        .input("LearningRate", LEARNING_RATE)
        .attr("lr_scale", param.param.lr_scale)
        .output("ParamOut", &param.name);
    if !states.is_empty() {
        op = op.inputs("States", names()).outputs("StatesOut", names());
    }
    push_op(programs.main.block_mut(), op.role(Role::Optimize))
}
