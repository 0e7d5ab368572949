//! Where the processes of a job find each other. One of them is the [`Host`]; each of the others,
//! and the host itself if it likes, is a [`Guest`] that dials it with the job token.
//!
//! ```text
//! guest                                       host
//!   GATHER  round, bytes                -->
//!              <--  the bytes of all, when every seat is taken and all have sent theirs
//!   FAIL    reason                      -->   the meeting is over for all
//! ```
//!
//! The first round is that of cards, with which guests take their seats; in the last one they say
//! that they have done their part. Every answer may instead be that the meeting is over, and why: a
//! guest was lost, somebody failed, or not all came in time. A guest that leaves before all seats
//! are taken leaves its seat free.
//!
//! What a card says, and which seats it takes, is up to the caller ([`Admission`]). The bookkeeping
//! is plain data (`desk`); `host` and `guest` connect it to a [`Server`](crate::Server) and a
//! [`Client`](crate::Client).

mod desk;
mod guest;
mod host;

pub use desk::{Admission, Seat};
pub use guest::Guest;
pub use host::{Admit, Host};

/// Kinds of requests.
const GATHER: u16 = 1;
const FAIL: u16 = 2;

/// The round of cards.
pub const CARDS: u32 = 0;
/// A round without an end, for guests that want to hear when the meeting is over.
pub const WATCH: u32 = u32::MAX - 1;
/// The round of guests that have done their part.
const END: u32 = u32::MAX;

/// Status of a reply that says that the meeting is over.
const OVER: u32 = 1;

/// What a guest hears.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Answer {
    /// What each guest sent, in the order of their seats.
    All(Vec<Vec<u8>>),
    /// The meeting is over for this guest, and why.
    Over(String),
}

impl Answer {
    /// The status and the payload of the reply.
    fn encode(&self) -> (u32, Vec<u8>) {
        match self {
            Answer::Over(why) => (OVER, why.clone().into_bytes()),
            Answer::All(all) => {
                let part =
                    |bytes: &Vec<u8>| [&(bytes.len() as u64).to_le_bytes()[..], bytes].concat();
                (0, all.iter().flat_map(part).collect())
            }
        }
    }

    fn decode(status: u32, payload: &[u8]) -> Answer {
        if status == OVER {
            return Answer::Over(String::from_utf8_lossy(payload).into_owned());
        }
        let (mut all, mut rest) = (Vec::new(), payload);
        while let Some((len, after)) = rest.split_first_chunk() {
            let len = usize::try_from(u64::from_le_bytes(*len)).unwrap_or(usize::MAX);
            let Some((bytes, after)) = after.split_at_checked(len) else { break };
            all.push(bytes.to_vec());
            rest = after;
        }
        match rest {
            [] => Answer::All(all),
            _ => Answer::Over("the host sent an answer that cannot be read".to_owned()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_round_trip() {
        for answer in [
            Answer::All(vec![]),
            Answer::All(vec![b"one".to_vec(), vec![], b"three".to_vec()]),
            Answer::Over("somebody fell".to_owned()),
        ] {
            let (status, payload) = answer.encode();
            assert_eq!(Answer::decode(status, &payload), answer);
        }
        for garbage in [&[9; 12][..], &[0; 5], &[8, 0, 0, 0, 0, 0, 0, 0, 1]] {
            assert!(matches!(Answer::decode(0, garbage), Answer::Over(_)), "{garbage:?}");
        }
    }
}
