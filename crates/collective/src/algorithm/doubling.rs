//! All-reduce of little data by recursive doubling: in every round each rank exchanges all it has
//! with one partner, twice as far away as the one before, and has then the sum over twice as many
//! ranks. Messages are few, and messages are what an all-reduce of little data costs.
//!
//! Partners combine in the same order, the lower half first: all ranks hold the same bits.

use crate::call::Call;
use crate::error::Result;
use crate::reduce::{Element, ReduceOp};

use super::direct::bytes_of;
use super::exchange::{Announce, Incoming, Into, Outgoing, exchange};

/// How often a rank sends all it has.
pub(crate) fn rounds(size: usize) -> usize {
    size.next_power_of_two().ilog2() as usize
}

pub(crate) fn all_reduce<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    let theirs = bytemuck::cast_slice_mut(bytes_of(scratch, size_of_val(data)));
    // As many as a power of two take part in the rounds; the others give what they have to one of
    // those before, and get the result after.
    let paired = 1 << call.size.ilog2();
    if call.rank >= paired {
        send(call, data, call.rank - paired)?;
        return receive(call, data, call.rank - paired);
    }
    let guest = Some(call.rank + paired).filter(|guest| *guest < call.size);
    if let Some(guest) = guest {
        receive(call, theirs, guest)?;
        T::combine(op, data, theirs);
    }
    let mut distance = 1;
    while distance < paired {
        combine_with(call, data, op, call.rank ^ distance, theirs)?;
        distance *= 2;
    }
    T::finish(op, data, call.size);
    match guest {
        Some(guest) => send(call, data, guest),
        None => Ok(()),
    }
}

/// Both partners get the same: what the lower one has, combined with what the higher one has.
fn combine_with<T: Element>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    partner: usize,
    theirs: &mut [T],
) -> Result<()> {
    let outgoing = [Outgoing { to: partner, bytes: bytemuck::cast_slice(data) }];
    let into = Into::Slice(bytemuck::cast_slice_mut(theirs));
    exchange(call, Announce::Header, &outgoing, &mut [Incoming { from: partner, into }])?;
    if call.rank < partner {
        T::combine(op, data, theirs);
    } else {
        T::combine(op, theirs, data);
        data.copy_from_slice(theirs);
    }
    Ok(())
}

fn send<T: Element>(call: &mut Call<'_>, data: &[T], to: usize) -> Result<()> {
    let bytes = bytemuck::cast_slice(data);
    exchange(call, Announce::Header, &[Outgoing { to, bytes }], &mut [])
}

fn receive<T: Element>(call: &mut Call<'_>, data: &mut [T], from: usize) -> Result<()> {
    let into = Into::Slice(bytemuck::cast_slice_mut(data));
    exchange(call, Announce::Header, &[], &mut [Incoming { from, into }])
}
