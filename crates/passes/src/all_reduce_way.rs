//! How all-reduced values travel: in half precision, or first within a node and then between nodes.

use regatta_ir::{Attr, Error, Program};

use crate::{checked, refused};

/// Rounds gradients to f16 on their way between ranks, and back to f32 where they are added up.
/// What is larger than 65504 becomes infinite.
///
/// # Errors
/// If the program all-reduces nothing.
pub fn fp16_all_reduce(program: &Program) -> Result<Program, Error> {
    with_attr(program, "fp16_all_reduce", "wire", "f16".into())
}

/// Adds up within groups of `node_ranks` neighbouring ranks first, then between the groups.
///
/// # Errors
/// If groups of that size do not divide the ranks into at least two groups of at least two.
pub fn hierarchical_all_reduce(
    program: &Program,
    ranks: usize,
    node_ranks: usize,
) -> Result<Program, Error> {
    const PASS: &str = "hierarchical_all_reduce";
    if node_ranks < 2 || ranks <= node_ranks || !ranks.is_multiple_of(node_ranks) {
        let reason = format!(
            "{ranks} ranks cannot be divided into several groups of {node_ranks} \
             (hierarchical_allreduce_inter_nranks)"
        );
        return refused(PASS, reason);
    }
    with_attr(program, PASS, "node_ranks", Attr::Int(node_ranks as i64))
}

fn with_attr(program: &Program, pass: &str, name: &str, value: Attr) -> Result<Program, Error> {
    let mut program = program.clone();
    let ops = program.block_mut().ops.iter_mut();
    let mut changed = 0;
    for op in ops.filter(|op| op.kind == "all_reduce_start") {
        op.attrs.insert(name.to_string(), value.clone());
        changed += 1;
    }
    if changed == 0 {
        return refused(pass, "the program all-reduces nothing; apply data_parallel first");
    }
    checked(program)
}
