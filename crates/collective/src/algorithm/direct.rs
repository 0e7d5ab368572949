//! Reductions by direct exchange, in the order of ranks: the result of every element is
//! `((x0 op x1) op x2) op ...`, computed at one place or alike at all.

use crate::call::Call;
use crate::error::Result;
use crate::reduce::{Element, ReduceOp, part};

use super::exchange::{Announce, Incoming, Into, Outgoing, exchange};

/// All-reduce of little data: everybody sends everything to everybody, and all compute the same.
pub(crate) fn all_reduce_small<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    let from_others = contributions::<T>(scratch, (call.size - 1) * data.len());
    {
        let bytes: &[u8] = bytemuck::cast_slice(data);
        let outgoing: Vec<_> = call.others().map(|to| Outgoing { to, bytes }).collect();
        exchange(call, Announce::Header, &outgoing, &mut incoming(call, from_others, data.len()))?;
    }
    combine_in_order(call, data, from_others, op);
    Ok(())
}

/// Reduces everybody's part of `data`: afterwards `data[part(rank)]` is finished, the rest is as it
/// was.
pub(crate) fn reduce_scatter<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    let (len, size) = (data.len(), call.size);
    let mine = part(len, size, call.rank);
    let from_others = contributions::<T>(scratch, (size - 1) * mine.len());
    let outgoing: Vec<_> = call
        .others()
        .map(|to| Outgoing { to, bytes: bytemuck::cast_slice(&data[part(len, size, to)]) })
        .collect();
    exchange(call, Announce::Header, &outgoing, &mut incoming(call, from_others, mine.len()))?;
    combine_in_order(call, &mut data[mine], from_others, op);
    Ok(())
}

/// Everybody's part goes to everybody, or to `root` only.
pub(crate) fn gather_parts(
    call: &mut Call<'_>,
    data: &mut [u8],
    parts: impl Fn(usize) -> std::ops::Range<usize>,
    root: Option<usize>,
) -> Result<()> {
    let mine = data[parts(call.rank)].to_vec();
    let wanted = |to: &usize| root.is_none_or(|root| root == *to);
    let outgoing: Vec<_> =
        call.others().filter(wanted).map(|to| Outgoing { to, bytes: &mine }).collect();
    let mut incoming = Vec::new();
    if wanted(&call.rank) {
        let mut rest = data;
        let mut at = 0;
        for from in 0..call.size {
            let part = parts(from);
            let (_, after) = std::mem::take(&mut rest).split_at_mut(part.start - at);
            let (slice, after) = after.split_at_mut(part.len());
            (rest, at) = (after, part.end);
            if from != call.rank {
                incoming.push(Incoming { from, into: Into::Slice(slice) });
            }
        }
    }
    exchange(call, Announce::Nothing, &outgoing, &mut incoming)
}

/// Room for the contributions of the other ranks.
fn contributions<T: Element>(scratch: &mut Vec<u64>, len: usize) -> &mut [T] {
    let words = (len * size_of::<T>()).div_ceil(8);
    if scratch.len() < words {
        scratch.resize(words, 0);
    }
    &mut bytemuck::cast_slice_mut(&mut scratch[..words])[..len]
}

/// Where the others' contributions go: in the order of ranks, this one left out.
fn incoming<'b, T: Element>(
    call: &Call<'_>,
    from_others: &'b mut [T],
    len: usize,
) -> Vec<Incoming<'b>> {
    let ranks = (0..call.size).filter(|rank| *rank != call.rank);
    if len == 0 {
        return ranks.map(|from| Incoming { from, into: Into::Slice(&mut []) }).collect();
    }
    let slices = from_others.chunks_exact_mut(len).map(bytemuck::cast_slice_mut);
    ranks.zip(slices).map(|(from, slice)| Incoming { from, into: Into::Slice(slice) }).collect()
}

/// Combines this rank's contribution, in `mine`, with those of the others, in the order of ranks.
fn combine_in_order<T: Element>(
    call: &Call<'_>,
    mine: &mut [T],
    from_others: &mut [T],
    op: ReduceOp,
) {
    let len = mine.len();
    if len == 0 {
        return;
    }
    // The running result is in the first contribution; ranks below this one come before `mine`.
    let (before, after) = from_others.split_at_mut(call.rank * len);
    if let Some((first, more)) = before.split_at_mut_checked(len) {
        for other in more.chunks_exact(len) {
            T::combine(op, first, other);
        }
        T::combine(op, first, mine);
        mine.copy_from_slice(first);
    }
    for other in after.chunks_exact(len) {
        T::combine(op, mine, other);
    }
    T::finish(op, mine, call.size);
}
