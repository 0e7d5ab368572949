//! What a meeting knows: who has which seat, who waits for what. Events in, answers out; no sockets
//! and no clock.

use std::collections::BTreeMap;

use super::{Answer, CARDS, END, WATCH};

/// Where a guest sits down.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Admission {
    /// On these seats.
    Seats(Vec<usize>),
    /// On the first free one, which is called so from then on.
    Any(String),
}

/// One of those who are expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seat {
    /// What it is called.
    pub name: String,
    /// The guest that has it.
    pub guest: Option<u64>,
    /// Somebody had it and left.
    pub left: bool,
}

/// Answers that are due now.
pub(super) type Answers<R> = Vec<(R, Answer)>;

/// The state of a meeting. A guest is known by a number that never changes, `R` is how it is
/// answered. A guest may repeat itself: the last `R` counts.
#[derive(Debug)]
pub(super) struct Desk<R> {
    pub(super) seats: Vec<Seat>,
    /// By round and guest: what it sent, and who waits for the answer.
    rounds: BTreeMap<(u32, u64), (Vec<u8>, Option<R>)>,
    /// Why the meeting is over, if it is.
    pub(super) over: Option<String>,
}

impl<R> Desk<R> {
    pub(super) fn new(seats: Vec<String>) -> Desk<R> {
        let seat = |name| Seat { name, guest: None, left: false };
        Desk { seats: seats.into_iter().map(seat).collect(), rounds: BTreeMap::new(), over: None }
    }

    /// A guest comes, for the first time or again.
    pub(super) fn admit(&mut self, id: u64, admission: Admission) -> Result<(), String> {
        if self.over.is_some() || self.seats.iter().any(|seat| seat.guest == Some(id)) {
            return Ok(());
        }
        let seats = match admission {
            Admission::Seats(seats) => seats,
            Admission::Any(name) => {
                let free = self.seats.iter().position(|seat| seat.guest.is_none());
                let free = free.ok_or_else(|| format!("all {} have come", self.seats.len()))?;
                self.seats[free].name = name;
                vec![free]
            }
        };
        if let Some(taken) = seats.iter().find(|seat| self.seats[**seat].guest.is_some()) {
            return Err(format!("another process is {} already", self.seats[*taken].name));
        }
        seats.into_iter().for_each(|seat| self.seats[seat].guest = Some(id));
        Ok(())
    }

    /// A guest sends its part of a round. `None` for a reply if it needs no answer.
    pub(super) fn gather(
        &mut self,
        round: u32,
        id: u64,
        bytes: Vec<u8>,
        reply: Option<R>,
    ) -> Answers<R> {
        if let Some(why) = &self.over {
            return reply.into_iter().map(|reply| (reply, Answer::Over(why.clone()))).collect();
        }
        self.rounds.insert((round, id), (bytes, reply));
        let Some(all) = self.collected(round) else { return Vec::new() };
        let waiting = self.rounds.range_mut((round, 0)..=(round, u64::MAX));
        let waiting = waiting.filter_map(|(_, (_, reply))| reply.take());
        waiting.map(|reply| (reply, Answer::All(all.clone()))).collect()
    }

    /// The parts of all guests, in the order of their first seats, if all seats are taken and all
    /// guests have sent theirs.
    pub(super) fn collected(&self, round: u32) -> Option<Vec<Vec<u8>>> {
        let mut all: Vec<(u64, &Vec<u8>)> = Vec::new();
        for seat in self.seats.iter().filter(|_| round != WATCH) {
            let id = seat.guest?;
            if !all.iter().any(|(known, _)| *known == id) {
                all.push((id, &self.rounds.get(&(round, id))?.0));
            }
        }
        (round != WATCH).then(|| all.into_iter().map(|(_, bytes)| bytes.clone()).collect())
    }

    /// The connection to a guest has ended. Its seats become free if it is early enough; returns
    /// their names if the others miss it.
    pub(super) fn leave(&mut self, id: u64) -> Option<String> {
        let has_ended = self.rounds.contains_key(&(END, id)) || self.over.is_some();
        let has_begun = self.collected(CARDS).is_some();
        let mut names = Vec::new();
        for seat in self.seats.iter_mut().filter(|seat| seat.guest == Some(id)) {
            names.push(seat.name.clone());
            if !has_begun {
                (seat.guest, seat.left) = (None, true);
            }
        }
        if !has_begun {
            self.rounds.retain(|(_, guest), _| *guest != id);
        }
        (has_begun && !has_ended && !names.is_empty()).then(|| names.join(", "))
    }

    /// The meeting is over for all, unless it was already.
    pub(super) fn fail(&mut self, why: String) -> Answers<R> {
        let why = self.over.get_or_insert(why).clone();
        let waiting = self.rounds.values_mut().filter_map(|(_, reply)| reply.take());
        waiting.map(|reply| (reply, Answer::Over(why.clone()))).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A desk of three ranks; replies are the numbers of guests.
    fn desk() -> Desk<u64> {
        Desk::new((0..3).map(|rank| format!("rank {rank}")).collect())
    }

    fn join(desk: &mut Desk<u64>, id: u64, rank: usize) -> Answers<u64> {
        desk.admit(id, Admission::Seats(vec![rank])).unwrap();
        desk.gather(CARDS, id, vec![rank as u8], Some(id))
    }

    fn all(answers: Answers<u64>) -> Vec<u64> {
        let expected = Answer::All(vec![vec![0], vec![1], vec![2]]);
        answers.into_iter().map(|(to, answer)| (to, assert_eq!(answer, expected)).0).collect()
    }

    fn over(answers: Answers<u64>, why: &str) -> Vec<u64> {
        let expected = Answer::Over(why.to_owned());
        answers.into_iter().map(|(to, answer)| (to, assert_eq!(answer, expected)).0).collect()
    }

    fn begun() -> Desk<u64> {
        let mut desk = desk();
        assert!(join(&mut desk, 72, 2).is_empty());
        assert!(join(&mut desk, 70, 0).is_empty());
        assert_eq!(desk.collected(CARDS), None);
        assert_eq!(all(join(&mut desk, 71, 1)), [70, 71, 72]);
        desk
    }

    #[test]
    fn all_hear_of_all_in_the_order_of_seats_when_the_last_comes() {
        let desk = begun();
        assert!(desk.seats.iter().all(|seat| seat.guest.is_some()));
        assert_eq!(desk.collected(CARDS).unwrap(), [[0], [1], [2]]);
    }

    #[test]
    fn seats_are_taken_once_and_a_repeated_card_changes_nothing() {
        let mut desk = desk();
        assert!(join(&mut desk, 71, 1).is_empty());
        let twin = desk.admit(99, Admission::Seats(vec![1]));
        assert_eq!(twin.unwrap_err(), "another process is rank 1 already");
        assert!(join(&mut desk, 71, 1).is_empty(), "the same guest, connected again");
        desk.admit(70, Admission::Seats(vec![0])).unwrap();
        assert!(desk.gather(CARDS, 70, vec![0], None).is_empty(), "one that needs no answer");
        assert_eq!(all(join(&mut desk, 72, 2)), [71, 72]);
        assert_eq!(all(join(&mut desk, 71, 1)), [71], "it did not hear the answer");
    }

    #[test]
    fn who_leaves_early_makes_room() {
        let mut desk = desk();
        join(&mut desk, 71, 1);
        assert_eq!(desk.leave(71), None);
        assert_eq!(desk.leave(71), None);
        let left: Vec<_> = desk.seats.iter().map(|seat| (seat.guest, seat.left)).collect();
        assert_eq!(left, [(None, false), (None, true), (None, false)]);
        join(&mut desk, 81, 1);
        join(&mut desk, 70, 0);
        assert_eq!(all(join(&mut desk, 72, 2)), [70, 72, 81]);
    }

    #[test]
    fn some_guests_take_several_seats_and_some_any() {
        let mut desk = desk();
        desk.admit(7, Admission::Seats(vec![2, 0])).unwrap();
        assert!(desk.gather(CARDS, 7, b"pair".to_vec(), Some(7)).is_empty());
        desk.admit(8, Admission::Any("eight".to_owned())).unwrap();
        assert_eq!(desk.seats[1].name, "eight");
        let answers = desk.gather(CARDS, 8, b"any".to_vec(), Some(8));
        let cards = Answer::All(vec![b"pair".to_vec(), b"any".to_vec()]);
        assert_eq!(answers, [(7, cards.clone()), (8, cards)]);
        let late = desk.admit(9, Admission::Any("nine".to_owned()));
        assert_eq!(late.unwrap_err(), "all 3 have come");
        assert_eq!(desk.leave(7).unwrap(), "rank 0, rank 2");
    }

    #[test]
    fn rounds_wait_for_all_and_do_not_mix() {
        let mut desk = begun();
        assert!(desk.gather(1, 70, vec![0], Some(70)).is_empty());
        assert!(desk.gather(2, 71, vec![1], Some(171)).is_empty());
        assert!(desk.gather(1, 71, vec![1], Some(71)).is_empty());
        assert_eq!(all(desk.gather(1, 72, vec![2], Some(72))), [70, 71, 72]);
        assert!(desk.gather(2, 70, vec![0], Some(170)).is_empty());
        assert_eq!(all(desk.gather(2, 72, vec![2], Some(172))), [170, 171, 172]);
    }

    #[test]
    fn a_failure_reaches_all_who_wait_and_all_who_come_later() {
        let mut desk = begun();
        for id in 70..73 {
            assert!(desk.gather(WATCH, id, vec![], Some(id)).is_empty(), "watching has no end");
        }
        assert!(desk.gather(1, 71, vec![], Some(171)).is_empty());
        assert_eq!(over(desk.fail("broken".to_owned()), "broken"), [171, 70, 71, 72]);
        assert_eq!(desk.fail("again".to_owned()), []);
        assert_eq!(desk.over.as_deref(), Some("broken"));
        assert_eq!(over(desk.gather(1, 72, vec![], Some(72)), "broken"), [72]);
        assert_eq!(desk.leave(72), None, "nobody needs it any more");
    }

    #[test]
    fn who_has_ended_is_not_missed() {
        let mut desk = begun();
        desk.gather(END, 71, vec![], None);
        assert_eq!(desk.leave(71), None);
        assert_eq!(desk.leave(72), Some("rank 2".to_owned()));
        assert_eq!(desk.leave(99), None, "it was never here");
        assert_eq!(desk.collected(END), None);
        desk.gather(END, 70, vec![], None);
        desk.gather(END, 72, vec![], None);
        assert!(desk.collected(END).is_some());
    }
}
