//! The program of one parameter server: what it holds and how that is updated.

use std::ops::Range;

use regatta_ir::{Error, Op, Origin, Program, Programs, VarDef, VarType};
use regatta_optim::Rule;
use regatta_tensor::DType;

use crate::updates::{add_schedule, insert_update};
use crate::{ParamGrad, Split, checked};

/// A partition of a dense parameter, held by a server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerPartition {
    /// Name of the partition, such as `fc_0.w_0.block1`.
    pub name: String,
    /// The parameter that it is a slice of.
    pub param: String,
    /// Elements of the flattened parameter.
    pub range: Range<usize>,
}

/// Makes the program of a server that holds these partitions and its partition of every table.
/// Gradients are its inputs. Its startup program gives the partitions the values that one machine
/// would start with.
///
/// # Errors
/// If a partition names an unknown parameter.
pub fn split_server(
    split: &Split,
    startup: &Program,
    partitions: &[ServerPartition],
) -> Result<Programs, Error> {
    let mut programs =
        Programs { main: Program::new("pserver"), startup: Program::new("pserver_startup") };
    add_schedule(&mut programs, split.learning_rate, &split.schedule)?;
    for partition in partitions {
        let spec = split.dense.iter().find(|d| d.name == partition.param).ok_or_else(|| {
            Error::UnknownVar { op: "split_server".into(), var: partition.param.clone() }
        })?;
        init_partition(&mut programs.startup, startup, partition, &spec.shape)?;
        let ty = VarType::f32([partition.range.len() as i64]);
        let grad = VarDef::new(regatta_ir::grad_name(&partition.name), ty.clone(), Origin::Data);
        hold(&mut programs, &partition.name, ty, grad, &spec.rule, spec.lr_scale)?;
    }
    for table in &split.tables {
        let ty = VarType::f32([table.rows as i64, table.dim as i64]);
        let grad = VarDef::new(regatta_ir::grad_name(&table.name), ty.rows(), Origin::Data);
        let block = programs.startup.block_mut();
        block.declare(VarDef::new(&table.name, ty.clone(), Origin::Param))?;
        block.ops.push(table.init.clone());
        hold(&mut programs, &table.name, ty, grad, &table.rule, table.lr_scale)?;
    }
    programs.main = checked(programs.main)?;
    programs.startup = checked(programs.startup)?;
    Ok(programs)
}

/// Declares a parameter with its gradient as an input, and appends its update.
fn hold(
    programs: &mut Programs,
    name: &str,
    ty: VarType,
    grad: VarDef,
    rule: &Rule,
    lr_scale: f64,
) -> Result<(), Error> {
    let mut param = VarDef::new(name, ty, Origin::Param);
    param.param.lr_scale = lr_scale;
    let pair = ParamGrad { param: name.to_string(), grad: grad.name.clone() };
    let block = programs.main.block_mut();
    block.declare(param)?;
    block.declare(grad)?;
    insert_update(programs, &pair, rule)
}

/// Initial values of a partition: a slice of those of the whole parameter.
fn init_partition(
    to: &mut Program,
    from: &Program,
    partition: &ServerPartition,
    shape: &[usize],
) -> Result<(), Error> {
    let ops = &from.block().ops;
    let init = ops.iter().find(|op| op.output_vars().any(|v| v == partition.param));
    let init = init.ok_or_else(|| Error::UnknownVar {
        op: "split_server".into(),
        var: partition.param.clone(),
    })?;
    let block = to.block_mut();
    let n = shape.iter().product::<usize>() as i64;
    if !block.vars.contains_key(&partition.param) {
        let ty = VarType::dense(DType::F32, shape.iter().map(|&d| d as i64).collect::<Vec<_>>());
        block.declare(VarDef::new(&partition.param, ty, Origin::Temp))?;
        block.ops.push(init.clone());
    }
    let flat = format!("{}@FLAT", partition.name);
    block.declare(VarDef::new(&flat, VarType::f32([n]), Origin::Temp))?;
    let ty = VarType::f32([partition.range.len() as i64]);
    block.declare(VarDef::new(&partition.name, ty, Origin::Param))?;
    let reshape = Op::new("reshape").input("X", &partition.param).attr("shape", vec![n]);
    block.ops.push(reshape.output("Out", &flat));
    let slice = Op::new("slice")
        .input("X", &flat)
        .attr("axis", 0i64)
        .attr("start", partition.range.start as i64)
        .attr("end", partition.range.end as i64);
    block.ops.push(slice.output("Out", &partition.name));
    Ok(())
}
