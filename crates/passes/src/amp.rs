//! Mixed precision: chosen ops compute on 16-bit floats, the others in f32, and gradients are
//! scaled so that they do not vanish.
//!
//! Reading order: [`AmpConfig`], [`amp()`] (before backward: casts), [`scale_loss()`] (after
//! backward), [`unscale()`] (once the gradients of all ranks are added up), [`skip_overflowed()`]
//! (after the updates). `minimize` applies them in this order.

mod lists;

use std::collections::{HashMap, HashSet};

use regatta_ir::{Block, Error, Layout, Op, Origin, Program, Programs, Role, VarType, grad_name};
use regatta_ops::update_rule;
use regatta_optim::LossScaling;
use regatta_tensor::DType;

use crate::infer_types::{insert_op, push_op};
use crate::{ParamGrad, checked, refuse_buffers, refused};

use lists::{Lists, Place};

/// The factor on the loss.
pub const LOSS_SCALING: &str = "@LOSS_SCALING@";
/// 1 if a gradient of this step is NaN or infinite, else 0. Where ranks hold different gradients,
/// its maximum over all ranks is what every rank must see.
pub const FOUND_INF: &str = "@FOUND_INF@";
const GOOD_STEPS: &str = "@LOSS_SCALING_GOOD_STEPS@";
const BAD_STEPS: &str = "@LOSS_SCALING_BAD_STEPS@";

/// A 16-bit float.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Precision {
    /// The range of f32 with 8 bits of precision; needs no loss scaling.
    Bf16,
    /// 11 bits of precision, up to 65504.
    Fp16,
}

impl Precision {
    fn dtype(self) -> DType {
        match self {
            Precision::Bf16 => DType::BF16,
            Precision::Fp16 => DType::F16,
        }
    }
}

/// What is computed in 16 bits, and how gradients are kept from vanishing.
#[derive(Debug, Clone, PartialEq)]
pub struct AmpConfig {
    /// The 16-bit type.
    pub precision: Precision,
    /// Compute everything in 16 bits that is not on the black list, not only what is on the white
    /// list and what follows from that. Parameters are then used in 16 bits; what is updated and
    /// saved are their f32 masters.
    pub pure: bool,
    /// The factor on the loss; none leaves gradients as they are and checks nothing.
    pub loss_scaling: Option<LossScaling>,
    /// Kinds of ops that compute in 16 bits, beyond those that do anyway.
    pub custom_white_list: Vec<String>,
    /// Kinds of ops that compute in f32, beyond those that do anyway.
    pub custom_black_list: Vec<String>,
    /// Ops that read or write one of these variables compute in f32.
    pub custom_black_varnames: Vec<String>,
}

impl AmpConfig {
    /// bf16 without loss scaling.
    pub fn bf16() -> AmpConfig {
        AmpConfig {
            precision: Precision::Bf16,
            pure: false,
            loss_scaling: None,
            custom_white_list: Vec::new(),
            custom_black_list: Vec::new(),
            custom_black_varnames: Vec::new(),
        }
    }

    /// fp16 with dynamic loss scaling.
    pub fn fp16() -> AmpConfig {
        AmpConfig {
            precision: Precision::Fp16,
            loss_scaling: Some(LossScaling::default()),
            ..AmpConfig::bf16()
        }
    }
}

/// Lets ops compute in 16 bits: white ones always, black ones never, others if all activations that
/// they read are in 16 bits already (in pure mode, always). Casts are put where the type changes,
/// one per variable and type. Variables keep their names.
///
/// # Errors
/// If a list names an unknown op or variable, puts an op on both lists or one on the white list
/// that cannot compute in 16 bits, or the program has gradients already.
pub fn amp(program: &Program, config: &AmpConfig) -> Result<Program, Error> {
    refuse_buffers(program, "amp")?;
    if let Some(op) = program.block().ops.iter().find(|op| op.role != Role::Forward) {
        let reason = format!("the program has gradients already (op {}); apply amp first", op.kind);
        return refused("amp", reason);
    }
    if let Some(op) = program.block().ops.iter().find(|op| touches_half(program.block(), op)) {
        return refused("amp", format!("op {} computes in 16 bits already", op.kind));
    }
    let lists = Lists::new(config)?;
    for name in &config.custom_black_varnames {
        program.block().var(name, "amp: custom_black_varnames")?;
    }
    let mut rewrite = Rewrite::new(program, config, lists);
    for op in &program.block().ops {
        rewrite.op(op)?;
    }
    checked(rewrite.finish())
}

fn touches_half(block: &Block, op: &Op) -> bool {
    op.input_vars()
        .chain(op.output_vars())
        .any(|v| block.vars.get(v).is_some_and(|v| v.ty.dtype.is_half()))
}

/// A program on its way to mixed precision.
struct Rewrite<'a> {
    config: &'a AmpConfig,
    lists: Lists,
    half: DType,
    black_vars: HashSet<&'a str>,
    /// Those of ops are declared again, with the types that they now have.
    out: Program,
    stopped: HashSet<&'a str>,
    /// Casts made so far.
    casts: HashMap<(String, DType), String>,
}

impl<'a> Rewrite<'a> {
    fn new(program: &'a Program, config: &'a AmpConfig, lists: Lists) -> Rewrite<'a> {
        let mut out = program.clone();
        let block = out.block_mut();
        block.ops.clear();
        block.vars.retain(|_, var| var.origin != Origin::Temp);
        let temps = program.block().vars.values().filter(|v| v.origin == Origin::Temp);
        Rewrite {
            config,
            lists,
            half: config.precision.dtype(),
            black_vars: config.custom_black_varnames.iter().map(String::as_str).collect(),
            out,
            stopped: temps.filter(|v| v.stop_gradient).map(|v| v.name.as_str()).collect(),
            casts: HashMap::new(),
        }
    }

    fn op(&mut self, op: &Op) -> Result<(), Error> {
        let wanted = if self.computes_in_half(op)? { self.half } else { DType::F32 };
        let mut op = op.clone();
        let floats: Vec<String> =
            op.input_vars().filter(|v| self.is_dense_float(v)).map(str::to_string).collect();
        for var in floats {
            if self.ty(&var).dtype != wanted {
                let converted = self.cast(&var, wanted)?;
                op.rename_input(&var, &converted);
            }
        }
        let outputs: Vec<String> = op.output_vars().map(str::to_string).collect();
        push_op(self.out.block_mut(), op)?;
        for name in outputs {
            if self.stopped.contains(name.as_str()) {
                self.stop_gradient(&name);
            }
        }
        Ok(())
    }

    fn computes_in_half(&self, op: &Op) -> Result<bool, Error> {
        let floats: Vec<&str> = op.input_vars().filter(|v| self.is_dense_float(v)).collect();
        let black_var =
            op.input_vars().chain(op.output_vars()).any(|v| self.black_vars.contains(v));
        if floats.is_empty() || black_var {
            return Ok(false);
        }
        Ok(match self.lists.place(&op.kind) {
            Place::White => true,
            Place::Black => false,
            Place::Follows if self.config.pure => true,
            Place::Follows => {
                // Parameters are converted as needed; only what was computed decides.
                let mut computed = floats.iter().filter(|v| self.origin(v) != Origin::Param);
                computed.clone().next().is_some() && computed.all(|v| self.ty(v).dtype == self.half)
            }
        })
    }

    fn ty(&self, var: &str) -> &VarType {
        &self.out.block().vars[var].ty
    }

    fn origin(&self, var: &str) -> Origin {
        self.out.block().vars[var].origin
    }

    fn is_dense_float(&self, var: &str) -> bool {
        let var = self.out.block().vars.get(var);
        var.is_some_and(|v| v.ty.dtype.is_float() && v.ty.layout == Layout::Dense)
    }

    fn stop_gradient(&mut self, name: &str) {
        if let Some(var) = self.out.block_mut().vars.get_mut(name) {
            var.stop_gradient = true;
        }
    }

    /// The variable in another type; cast where it is first wanted so.
    fn cast(&mut self, var: &str, to: DType) -> Result<String, Error> {
        if let Some(made) = self.casts.get(&(var.to_string(), to)) {
            return Ok(made.clone());
        }
        let name = format!("{var}@{}", to.to_string().to_uppercase());
        let op = Op::new("cast").attr("dtype", to.to_string()).input("X", var).output("Out", &name);
        push_op(self.out.block_mut(), op)?;
        if self.out.block().vars[var].stop_gradient {
            self.stop_gradient(&name);
        }
        self.casts.insert((var.to_string(), to), name.clone());
        Ok(name)
    }

    /// Variables that no op mentioned are dropped with the temporaries.
    fn finish(self) -> Program {
        self.out
    }
}

/// Multiplies the gradient that backward begins with by the factor on the loss, which becomes state
/// of both programs.
///
/// # Errors
/// If there is no gradient of `loss`, or it is scaled already.
pub fn scale_loss(programs: &Programs, loss: &str, how: &LossScaling) -> Result<Programs, Error> {
    refuse_buffers(&programs.main, "scale_loss")?;
    how.validate().map_err(|e| Error::Pass { pass: "amp".into(), reason: e.to_string() })?;
    let mut programs = programs.clone();
    programs.add_state(LOSS_SCALING, VarType::f32([1]), f64::from(how.initial))?;
    if how.dynamic {
        for name in [GOOD_STEPS, BAD_STEPS] {
            programs.add_state(name, VarType::dense(DType::I64, [1]), 0.0)?;
        }
    }
    let grad = grad_name(loss);
    let block = programs.main.block_mut();
    let is_seed = |op: &Op| op.role == Role::Backward && op.output_vars().any(|v| v == grad);
    let Some(at) = block.ops.iter().position(is_seed) else {
        return refused("scale_loss", format!("nothing makes '{grad}'; call backward first"));
    };
    let plain = format!("{grad}@UNSCALED");
    let mut seed = block.vars.shift_remove(&grad).expect("an op makes it");
    seed.name.clone_from(&plain);
    block.declare(seed)?;
    block.ops[at].rename_output(&grad, &plain);
    let op = Op::new("scale_by").input("X", &plain).input("Factor", LOSS_SCALING);
    insert_op(block, at + 1, op.output("Out", &grad).role(Role::Backward))?;
    programs.main = checked(programs.main)?;
    Ok(programs)
}

/// Looks for NaN and infinities in all gradients ([`FOUND_INF`]) and divides them by the factor on
/// the loss. Gradients of several ranks must have been added up before.
///
/// # Errors
/// If the loss was not scaled.
pub fn unscale(program: &Program, grads: &[ParamGrad]) -> Result<(Program, Vec<ParamGrad>), Error> {
    refuse_buffers(program, "unscale")?;
    if grads.is_empty() {
        return refused("unscale", "there are no gradients");
    }
    let mut program = program.clone();
    let block = program.block_mut();
    let check = Op::new("check_finite")
        .inputs("X", grads.iter().map(|g| g.grad.as_str()))
        .output("FoundInf", FOUND_INF);
    push_op(block, check.role(Role::Optimize))?;
    let mut result = grads.to_vec();
    for g in &mut result {
        let out = format!("{}@UNSCALED", g.grad);
        let op = Op::new("unscale").input("X", &g.grad).input("Scale", LOSS_SCALING);
        push_op(block, op.output("Out", &out).role(Role::Optimize))?;
        g.grad = out;
    }
    Ok((checked(program)?, result))
}

/// Leaves out all updates of a step in which gradients were found to overflow, and lets the factor
/// on the loss follow.
///
/// # Errors
/// If gradients were not checked before.
pub fn skip_overflowed(program: &Program, how: &LossScaling) -> Result<Program, Error> {
    refuse_buffers(program, "skip_overflowed")?;
    let mut program = program.clone();
    let block = program.block_mut();
    block.var(FOUND_INF, "skip_overflowed")?;
    for op in &mut block.ops {
        if update_rule(op)?.is_some() {
            add_flag(op, FOUND_INF);
        }
    }
    if how.dynamic {
        push_op(block, update_scale(how).role(Role::Optimize))?;
    }
    checked(program)
}

/// Adds a flag to those that make an update be left out.
fn add_flag(op: &mut Op, flag: &str) {
    match op.inputs.iter_mut().find(|(slot, _)| slot == "Skip") {
        Some((_, flags)) => flags.push(flag.to_string()),
        None => op.inputs.push(("Skip".to_string(), vec![flag.to_string()])),
    }
}

fn update_scale(how: &LossScaling) -> Op {
    Op::new("update_loss_scaling")
        .input("FoundInf", FOUND_INF)
        .input("Scale", LOSS_SCALING)
        .input("GoodSteps", GOOD_STEPS)
        .input("BadSteps", BAD_STEPS)
        .attr("incr_every_n_steps", how.incr_every_n_steps)
        .attr("decr_every_n_nan_or_inf", how.decr_every_n_nan_or_inf)
        .attr("incr_ratio", decimal(how.incr_ratio))
        .attr("decr_ratio", decimal(how.decr_ratio))
        .output("ScaleOut", LOSS_SCALING)
        .output("GoodStepsOut", GOOD_STEPS)
        .output("BadStepsOut", BAD_STEPS)
}

/// The decimal that prints like the float: 0.8, not 0.800000011920929.
fn decimal(x: f32) -> f64 {
    x.to_string().parse().expect("a printed float can be read")
}
