//! Where to split the forward ops when no checkpoint is named.
//!
//! With `n` activations of one size, keeping about every `sqrt(n)`-th of them needs least: that
//! many checkpoints, and as many activations of the one segment that is being repeated.

use regatta_ir::{Block, Op, Role, VarType};

use super::Forward;

/// Stands for sizes that are known at run time only; only the ratio of sizes counts.
const NOMINAL: usize = 256;

/// Positions of ops behind which the program is split: segments keep about equally much, and each
/// ends where least crosses. None if there is too little to gain.
pub(super) fn choose(block: &Block, forward: &Forward<'_>) -> Vec<usize> {
    let n = block.ops.iter().filter(|op| op.role == Role::Forward).count();
    let kept = kept_for_gradients(block, forward);
    let activations = kept.iter().filter(|bytes| **bytes > 0).count();
    let segments = (activations as f64).sqrt().round() as usize;
    if segments < 2 {
        return Vec::new();
    }
    let per_segment = kept.iter().sum::<usize>() / segments;
    let crossing: Vec<usize> = (0..n).map(|i| crossing_bytes(block, forward, i)).collect();
    let mut boundaries = Vec::new();
    let (mut start, mut sum) = (0, 0);
    for i in 0..n {
        sum += kept[i];
        if sum < per_segment {
            continue;
        }
        // Of the second half of the segment, the last position where least crosses.
        let mut before = 0;
        let late = (start..=i).filter(|&j| {
            before += kept[j];
            2 * before >= per_segment
        });
        let Some(end) = late.min_by_key(|&j| (crossing[j], i - j)) else { continue };
        boundaries.push(end);
        start = end + 1;
        sum = kept[start..=i].iter().sum();
        if boundaries.len() + 1 == segments {
            break;
        }
    }
    // Behind the last op there is nothing left to gain.
    boundaries.retain(|&end| end + 1 < n);
    boundaries
}

/// Bytes that each forward op makes and backward ops read.
fn kept_for_gradients(block: &Block, forward: &Forward<'_>) -> Vec<usize> {
    let mut kept = vec![0; block.ops.len()];
    let backward = block.ops.iter().filter(|op| op.role == Role::Backward);
    let mut read: Vec<&str> = backward.flat_map(Op::input_vars).collect();
    read.sort_unstable();
    read.dedup();
    for var in read {
        if let Some(&i) = forward.writer.get(var) {
            kept[i] += bytes(&block.vars[var].ty);
        }
    }
    kept
}

fn crossing_bytes(block: &Block, forward: &Forward<'_>, end: usize) -> usize {
    forward.crossing(&[end]).into_iter().map(|v| bytes(&block.vars[v].ty)).sum()
}

fn bytes(ty: &VarType) -> usize {
    let dims = ty.shape.iter().map(|&d| usize::try_from(d).unwrap_or(NOMINAL));
    dims.fold(ty.dtype.size(), usize::saturating_mul)
}
