//! Exchanges several gradients at once: few large messages instead of many small ones.

use std::collections::HashMap;

use regatta_ir::{Attr, Block, Error, Op, Program};

use crate::infer_types::insert_op;
use crate::{checked, refuse_buffers};

/// How large the messages become.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct FuseAllReduce {
    /// Gradients are put together up to this size (`fuse_grad_size_in_MB`).
    pub bucket_mb: f64,
    /// Limit of the bucket that is exchanged last, which nothing can overlap with any more
    /// (`last_comm_group_size_MB`).
    pub last_bucket_mb: f64,
    /// Most gradients in a bucket (`fuse_grad_size_in_num`); as many as fit if not given.
    pub max_count: Option<usize>,
}

impl Default for FuseAllReduce {
    fn default() -> FuseAllReduce {
        FuseAllReduce { bucket_mb: 32.0, last_bucket_mb: 1.0, max_count: None }
    }
}

/// Largest number of outputs of a kernel.
const MAX_IN_BUCKET: usize = 64;

/// Puts the all-reduces of dense gradients together into buckets, in the order in which the
/// gradients are made: a bucket starts when its last gradient is there, and is waited for where the
/// first of them is used. Row-sparse gradients travel alone.
///
/// # Errors
/// If the program shares memory already.
pub fn fuse_all_reduce(program: &Program, how: &FuseAllReduce) -> Result<Program, Error> {
    refuse_buffers(program, "fuse_all_reduce")?;
    let mut program = program.clone();
    let block = program.block_mut();
    for bucket in buckets(block, how) {
        fuse(block, &bucket)?;
    }
    checked(program)
}

/// One all-reduce of one gradient.
struct Single {
    name: String,
    bytes: usize,
    /// Exchanges that travel in different ways cannot be put together.
    way: Vec<Attr>,
}

fn buckets(block: &Block, how: &FuseAllReduce) -> Vec<Vec<String>> {
    let singles = block.ops.iter().filter(|op| op.kind == "all_reduce_start").map(|op| {
        let numel = |v: &str| block.vars.get(v).and_then(|v| v.ty.numel()).unwrap_or(0);
        Single {
            name: op.str("name").expect("exchanges have names").to_string(),
            bytes: op.input_vars().map(numel).sum::<usize>() * 4,
            way: ["wire", "node_ranks"].map(|attr| op.attrs[attr].clone()).to_vec(),
        }
    });
    // From the gradient that is made last, so that the limit of the last bucket can be kept.
    let singles: Vec<Single> = singles.collect();
    let mut buckets: Vec<Vec<&Single>> = Vec::new();
    let max_count = how.max_count.unwrap_or(MAX_IN_BUCKET).min(MAX_IN_BUCKET);
    for single in singles.iter().rev() {
        let limit =
            if buckets.len() <= 1 { how.last_bucket_mb.min(how.bucket_mb) } else { how.bucket_mb };
        let fits = |bucket: &Vec<&Single>| {
            let bytes: usize = bucket.iter().map(|s| s.bytes).sum::<usize>() + single.bytes;
            bytes as f64 <= limit * f64::from(1 << 20)
                && bucket.len() < max_count
                && bucket[0].way == single.way
        };
        match buckets.last_mut() {
            Some(bucket) if fits(bucket) => bucket.push(single),
            _ => buckets.push(vec![single]),
        }
    }
    let in_order = |bucket: Vec<&Single>| bucket.iter().rev().map(|s| s.name.clone()).collect();
    buckets.into_iter().rev().map(in_order).collect()
}

fn fuse(block: &mut Block, names: &[String]) -> Result<(), Error> {
    if names.len() < 2 {
        return Ok(());
    }
    let in_bucket = |op: &Op, kind: &str| {
        op.kind == kind && op.str("name").is_ok_and(|name| names.iter().any(|n| n == name))
    };
    let mut vars: HashMap<String, String> = HashMap::new();
    for op in block.ops.iter().filter(|op| in_bucket(op, "all_reduce_start")) {
        vars.insert(op.str("name")?.to_string(), op.ins("X")[0].clone());
    }
    let vars: Vec<String> = names.iter().map(|name| vars[name].clone()).collect();
    let vars = || vars.iter().map(String::as_str);
    let handle = format!("{}@BUCKET", names[0]);
    let last_start = block.ops.iter().rposition(|op| in_bucket(op, "all_reduce_start"));
    let last_start = last_start.expect("the bucket was made of them");
    let role = block.ops[last_start].role;
    let mut start = Op::new("all_reduce_start").inputs("X", vars()).output("Handle", &handle);
    start.attrs = block.ops[last_start].attrs.clone();
    start.attrs.insert("name".into(), handle.as_str().into());
    insert_op(block, last_start + 1, start.role(role))?;
    let first_wait = block.ops.iter().position(|op| in_bucket(op, "all_reduce_wait"));
    let first_wait = first_wait.expect("what is started is waited for");
    let wait = Op::new("all_reduce_wait")
        .input("Handle", &handle)
        .inputs("X", vars())
        .attr("name", handle.as_str())
        .outputs("XOut", vars());
    insert_op(block, first_wait, wait.role(role))?;
    let old: Vec<String> = names.to_vec();
    let is_old = |op: &Op| {
        op.kind.starts_with("all_reduce_")
            && op.str("name").is_ok_and(|n| old.iter().any(|o| o == n))
    };
    let gone: Vec<String> = block
        .ops
        .iter()
        .filter(|op| is_old(op) && op.kind == "all_reduce_start")
        .flat_map(|op| op.outs("Handle").to_vec())
        .collect();
    block.ops.retain(|op| !is_old(op));
    gone.iter().for_each(|handle| {
        block.vars.shift_remove(handle);
    });
    // The bucket is known by the name of its first exchange.
    for op in block.ops.iter_mut().filter(|op| op.str("name").is_ok_and(|n| n == handle)) {
        op.attrs.insert("name".into(), names[0].as_str().into());
    }
    Ok(())
}
