//! Reductions by direct exchange, in the order of ranks: the result of every element is
//! `((x0 op x1) op x2) op ...`, computed at one place or alike at all.

use std::ops::Range;

use crate::call::Call;
use crate::error::Result;
use crate::reduce::{Carrier, Element, Plain, ReduceOp, part, reduce_in_order};

use super::exchange::{Announce, Incoming, Into, Outgoing, exchange};

/// Elements of an all-reduce of much data in flight at a time: bounds the scratch space.
const AT_A_TIME: usize = 4 << 20;

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
    let part_len = mine.len() * size_of::<T>();
    let from_others = bytes_of(scratch, (size - 1) * part_len);
    let outgoing: Vec<_> = call
        .others()
        .map(|to| Outgoing { to, bytes: bytemuck::cast_slice(&data[part(len, size, to)]) })
        .collect();
    exchange(call, Announce::Header, &outgoing, &mut incoming(call, from_others, part_len))?;
    reduce_mine(call, &mut data[mine], from_others, op, Plain);
    Ok(())
}

/// All-reduce in another format: everybody reduces its part of the rounded contributions and sends
/// the rounded result.
pub(crate) fn all_reduce_as<T: Element, C: Carrier<T>>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    carrier: C,
    scratch: &mut Vec<u64>,
) -> Result<()> {
    let mut announce = Announce::Header;
    let len = data.len();
    for i in 0..len.div_ceil(AT_A_TIME).max(1) {
        let chunk = &mut data[i * AT_A_TIME..((i + 1) * AT_A_TIME).min(len)];
        all_reduce_chunk(call, chunk, op, carrier, scratch, announce)?;
        announce = Announce::Nothing;
    }
    Ok(())
}

fn all_reduce_chunk<T: Element, C: Carrier<T>>(
    call: &mut Call<'_>,
    data: &mut [T],
    op: ReduceOp,
    carrier: C,
    scratch: &mut Vec<u64>,
    announce: Announce,
) -> Result<()> {
    let (len, size) = (data.len(), call.size);
    let bytes_of_part = |rank: usize| {
        let part = part(len, size, rank);
        part.start * C::WIDTH..part.end * C::WIDTH
    };
    let mine = part(len, size, call.rank);
    let part_len = mine.len() * C::WIDTH;
    // Contributions are cast to numbers: they begin at a multiple of any width.
    let encoded_len = (len * C::WIDTH).next_multiple_of(8);
    let (encoded, from_others) =
        bytes_of(scratch, encoded_len + (size - 1) * part_len).split_at_mut(encoded_len);
    let encoded = &mut encoded[..len * C::WIDTH];
    carrier.put(data, encoded);
    let outgoing: Vec<_> =
        call.others().map(|to| Outgoing { to, bytes: &encoded[bytes_of_part(to)] }).collect();
    exchange(call, announce, &outgoing, &mut incoming(call, from_others, part_len))?;
    reduce_mine(call, &mut data[mine.clone()], from_others, op, carrier);
    carrier.put(&data[mine], &mut encoded[bytes_of_part(call.rank)]);
    gather_parts(call, encoded, bytes_of_part, None)?;
    carrier.get(encoded, data);
    Ok(())
}

/// Everybody's part goes to everybody, or to `root` only.
pub(crate) fn gather_parts(
    call: &mut Call<'_>,
    data: &mut [u8],
    parts: impl Fn(usize) -> Range<usize>,
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

/// `len` bytes of scratch space.
pub(crate) fn bytes_of(scratch: &mut Vec<u64>, len: usize) -> &mut [u8] {
    let words = len.div_ceil(8);
    if scratch.len() < words {
        scratch.resize(words, 0);
    }
    &mut bytemuck::cast_slice_mut(&mut scratch[..words])[..len]
}

/// Where the others' contributions of `len` bytes go: in the order of ranks, this one left out.
fn incoming<'b>(call: &Call<'_>, from_others: &'b mut [u8], len: usize) -> Vec<Incoming<'b>> {
    let ranks = (0..call.size).filter(|rank| *rank != call.rank);
    if len == 0 {
        return ranks.map(|from| Incoming { from, into: Into::Slice(&mut []) }).collect();
    }
    let slices = from_others.chunks_exact_mut(len);
    ranks.zip(slices).map(|(from, slice)| Incoming { from, into: Into::Slice(slice) }).collect()
}

/// Reduces this rank's contribution, in `mine`, with those of the others.
fn reduce_mine<T: Element, C: Carrier<T>>(
    call: &Call<'_>,
    mine: &mut [T],
    from_others: &[u8],
    op: ReduceOp,
    carrier: C,
) {
    let len = mine.len() * C::WIDTH;
    let input = |other: usize| {
        let position = if other < call.rank { other } else { other - 1 };
        &from_others[position * len..][..len]
    };
    reduce_in_order(carrier, op, (call.rank, call.size), mine, input, |_, _| ());
}
