//! The status of every reply: done, refused with a reason, or come to the snapshot first.
//!
//! A worker that is gone will ask again or be missed, so a failure to send is not an error here.

use regatta_net::{Buf, Responder};

use crate::Error;

/// The payload is what was asked for.
const OK: u32 = 0;
/// The payload is a reason, as text.
const REFUSED: u32 = 1;
/// A reply to a pull without values, or to a geo exchange as usual: a snapshot of the job is open,
/// and the worker must take part in it before it continues.
const SNAPSHOT: u32 = 2;
/// As `REFUSED`: the worker was lost, and may ask to take part again.
const DROPPED: u32 = 3;

/// Sends a payload.
pub(crate) fn reply(responder: Responder, payload: &[u8]) {
    let _ = responder.reply(OK, &[payload]);
}

/// As [`reply`], with a buffer of the responder.
pub(crate) fn reply_owned(responder: Responder, payload: Buf) {
    let _ = responder.reply_owned(OK, payload);
}

/// Sends a payload to a worker that must take part in a snapshot, if one is open.
pub(crate) fn reply_with_snapshot(responder: Responder, payload: &[u8], open: bool) {
    let _ = responder.reply(if open { SNAPSHOT } else { OK }, &[payload]);
}

/// Replies to a pull without values: the worker must take part in the snapshot first.
pub(crate) fn defer(responder: Responder) {
    let _ = responder.reply(SNAPSHOT, &[]);
}

/// Says no.
pub(crate) fn refuse(responder: Responder, reason: &str) {
    let _ = responder.reply(REFUSED, &[reason.as_bytes()]);
}

/// Says no, for the reason of an error.
pub(crate) fn refuse_for(responder: Responder, error: &Error) {
    match error {
        Error::Dropped { reason, .. } => {
            let _ = responder.reply(DROPPED, &[reason.as_bytes()]);
        }
        other => refuse(responder, &other.to_string()),
    }
}

/// Why a server says no.
pub(crate) struct Refusal {
    pub(crate) reason: String,
    pub(crate) is_dropped: bool,
}

/// The payload, and whether the worker must take part in a snapshot; or why the server says no.
pub(crate) fn read(reply: regatta_net::Reply) -> Result<(Buf, bool), Refusal> {
    match reply.status {
        OK => Ok((reply.payload, false)),
        SNAPSHOT => Ok((reply.payload, true)),
        status => Err(Refusal {
            reason: String::from_utf8_lossy(&reply.payload).into_owned(),
            is_dropped: status == DROPPED,
        }),
    }
}
