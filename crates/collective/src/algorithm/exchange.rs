//! Sends to several members and receives from several, all at the same time.

use std::io::IoSlice;

use crate::call::Call;
use crate::error::Result;
use crate::header::HEADER_LEN;

/// Bytes for one member.
pub(crate) struct Outgoing<'b> {
    pub(crate) to: usize,
    pub(crate) bytes: &'b [u8],
}

/// Where bytes from one member go.
pub(crate) struct Incoming<'b> {
    pub(crate) from: usize,
    pub(crate) into: Into<'b>,
}

/// Where bytes go.
pub(crate) enum Into<'b> {
    /// A buffer that is filled.
    Slice(&'b mut [u8]),
    /// As many as the sender's header says.
    Vec(&'b mut Vec<u8>),
}

impl Into<'_> {
    fn bytes(&mut self) -> &mut [u8] {
        match self {
            Into::Slice(slice) => slice,
            Into::Vec(vec) => vec,
        }
    }
}

/// Whether the header of the operation goes before the bytes. It does in the first exchange of an
/// operation, at least to everybody who will be heard from; later ones follow on the same streams.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Announce {
    Header,
    Nothing,
}

/// Performs all of `outgoing` and `incoming`.
pub(crate) fn exchange(
    call: &mut Call<'_>,
    announce: Announce,
    outgoing: &[Outgoing<'_>],
    incoming: &mut [Incoming<'_>],
) -> Result<()> {
    let header = call.header.encode();
    let head: &[u8] = if announce == Announce::Header { &header } else { &[] };
    let mut sent = vec![0; outgoing.len()];
    let mut got = vec![0; incoming.len()];
    let mut heads = vec![[0; HEADER_LEN]; incoming.len()];
    let (mut reads, mut writes) = (Vec::new(), Vec::new());
    loop {
        let mut progress = false;
        reads.clear();
        writes.clear();
        for (out, sent) in outgoing.iter().zip(&mut sent) {
            progress |= push(call, head, out, sent)?;
            if *sent < head.len() + out.bytes.len() {
                writes.push(out.to);
            }
        }
        for ((incoming, got), their_head) in incoming.iter_mut().zip(&mut got).zip(&mut heads) {
            let (more, done) = pull(call, head.len(), incoming, got, their_head)?;
            progress |= more;
            if !done {
                reads.push(incoming.from);
            }
        }
        if reads.is_empty() && writes.is_empty() {
            return Ok(());
        }
        if !progress {
            call.wait(&reads, &writes)?;
        }
    }
}

/// Sends what can be sent.
fn push(call: &mut Call<'_>, head: &[u8], out: &Outgoing<'_>, sent: &mut usize) -> Result<bool> {
    let total = head.len() + out.bytes.len();
    if *sent == total {
        return Ok(false);
    }
    let head_rest = &head[(*sent).min(head.len())..];
    let body_rest = &out.bytes[sent.saturating_sub(head.len())..];
    let n = call.try_write(out.to, &[IoSlice::new(head_rest), IoSlice::new(body_rest)])?;
    *sent += n;
    Ok(n > 0)
}

/// Receives what has come: whether it was anything, and whether it was all.
fn pull(
    call: &mut Call<'_>,
    head_len: usize,
    incoming: &mut Incoming<'_>,
    got: &mut usize,
    their_head: &mut [u8; HEADER_LEN],
) -> Result<(bool, bool)> {
    let before = *got;
    if *got < head_len {
        // A buffer is filled by the same read as the header; how long a vector is, the header says.
        let body: &mut [u8] = match &mut incoming.into {
            Into::Slice(slice) => slice,
            Into::Vec(_) => &mut [],
        };
        *got += call.try_read_both(incoming.from, &mut their_head[*got..], body)?;
        if *got < head_len {
            return Ok((*got > before, false));
        }
        let len = call.check(incoming.from, their_head)?;
        if let Into::Vec(vec) = &mut incoming.into {
            vec.resize(len, 0);
        }
    }
    let total = head_len + incoming.into.bytes().len();
    // What a read has not filled is not there yet.
    if *got < total && (before >= head_len || *got == head_len) {
        let rest = &mut incoming.into.bytes()[*got - head_len..];
        *got += call.try_read(incoming.from, rest)?;
    }
    Ok((*got > before, *got == total))
}
