//! Broadcast of much data: from rank to rank, each passing on what it has while more comes.

use std::io::IoSlice;

use crate::call::Call;
use crate::error::Result;
use crate::header::HEADER_LEN;

/// Fills `data` on all ranks with what it holds on `root`.
pub(crate) fn broadcast(call: &mut Call<'_>, data: &mut [u8], root: usize) -> Result<()> {
    let size = call.size;
    let position = (call.rank + size - root) % size;
    let prev = (position > 0).then(|| (call.rank + size - 1) % size);
    let next = (position + 1 < size).then(|| (call.rank + 1) % size);
    let total = HEADER_LEN + data.len();
    let head = call.header.encode();
    let mut their_head = [0; HEADER_LEN];
    // The root has everything from the start; the rank without a successor has nothing to send.
    let mut got = if prev.is_some() { 0 } else { total };
    let mut sent = if next.is_some() { 0 } else { total };
    while got < total || sent < total {
        let mut progress = false;
        if let Some(prev) = prev.filter(|_| got < total) {
            let into = match got.checked_sub(HEADER_LEN) {
                None => &mut their_head[got..],
                Some(at) => &mut data[at..],
            };
            let n = call.try_read(prev, into)?;
            got += n;
            progress |= n > 0;
            if n > 0 && got == HEADER_LEN {
                call.check(prev, &their_head)?;
            }
        }
        // The header leaves at once: it announces this rank's operation, not the root's.
        let ready = got.max(HEADER_LEN);
        if let Some(next) = next.filter(|_| sent < ready) {
            let body = sent.saturating_sub(HEADER_LEN)..ready - HEADER_LEN;
            let bufs = [&head[sent.min(HEADER_LEN)..], &data[body]].map(IoSlice::new);
            let n = call.try_write(next, &bufs)?;
            sent += n;
            progress |= n > 0;
        }
        if !progress {
            let reads = prev.filter(|_| got < total);
            let writes = next.filter(|_| sent < ready);
            call.wait(reads.as_slice(), writes.as_slice())?;
        }
    }
    Ok(())
}
