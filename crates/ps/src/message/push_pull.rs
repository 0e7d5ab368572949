//! Push and pull in one exchange: a [`Push`] followed by a [`Pull`]; the reply is that of the pull.

use regatta_net::Buf;

use super::bytes::Reader;
use super::{Gradients, Pull, PullSpec, Push};
use crate::Error;
use crate::route::{Destination, Route};

/// A push, and a pull of the values after it.
#[derive(Debug, Clone, PartialEq)]
pub struct PushPull {
    /// Applied first.
    pub push: Push,
    /// Answered then.
    pub pull: Pull,
}

impl PushPull {
    /// Writes the request to one server.
    pub(crate) fn encode(
        sequence: u64,
        (gradients, pushed): (&Gradients<'_>, &[Route]),
        (spec, pulled): (&PullSpec<'_>, &[Route]),
        to: &Destination<'_>,
        room: impl FnOnce(usize) -> Buf,
    ) -> Buf {
        let mut buf = room(gradients.payload_len(pushed, to) + spec.payload_len(pulled, to));
        gradients.encode(sequence, pushed, to, &mut buf);
        spec.encode(pulled, to, &mut buf);
        buf
    }

    /// Reads a whole payload.
    ///
    /// # Errors
    /// If it is not both.
    pub fn decode(payload: &[u8]) -> Result<PushPull, Error> {
        let mut r = Reader::new(payload);
        let (push, pull) = (Push::read(&mut r)?, Pull::read(&mut r)?);
        r.end()?;
        Ok(PushPull { push, pull })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::testing::{job, room};

    #[test]
    fn both_come_back_and_nothing_else_is_taken_for_both() {
        let (tables, pieces) = job(1, false);
        let to = Destination { server: 0, tables: &tables, pieces: &pieces[0] };
        let rows: [(&[u64], &[f32]); 1] = [(&[4, 5], &[1.0, 2.0])];
        let gradients = Gradients { step: 1, examples: 2, dense: &[], tables: &rows, mark: None };
        let keys: [&[u64]; 1] = [&[6]];
        let spec = PullSpec { step: 2, test: true, dense: true, keys: &keys, counts: &[] };
        let (pushed, pulled) = ([Route::new(&[4, 5], 1)], [Route::new(&[6], 1)]);
        let buf = PushPull::encode(3, (&gradients, &pushed), (&spec, &pulled), &to, room);
        let PushPull { push, pull } = PushPull::decode(&buf).unwrap();
        assert_eq!((push.sequence, push.step, pull.step), (3, 1, 2));
        assert_eq!(push.table(0).unwrap().keys.of(&buf), [4, 5]);
        assert_eq!(pull.tables[0].keys.of(&buf), [6]);
        assert!(Push::decode(&buf).is_err() && PushPull::decode(&buf[..buf.len() - 8]).is_err());
    }
}
