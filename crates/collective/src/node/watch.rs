//! The watch thread of a rank: accepts connections, reads what other ranks say on their control
//! connections, and notices who is silent. It sleeps nearly always.

use std::collections::HashMap;
use std::io::IoSliceMut;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

use regatta_net::handshake::{self, Hello, REQUESTS, Refusal, Rejection};
use regatta_net::{Role, counted};
use rustix::event::{PollFd, PollFlags};

use crate::error::Error;
use crate::fate::{Activity, lock};
use crate::header::{HEADER_LEN, Header};
use crate::socket::{ReadOutcome, Socket, poll_for};

use super::dial::Listeners;
use super::greet::{Purpose, read_hello};
use super::{Control, HANDSHAKE, Shared};

/// Handshakes in flight at a time, beyond those of the ranks themselves.
const SPARE_HANDSHAKES: usize = 64;
/// Data connections that wait to be taken. Groups are made one after the other, so few do.
const MAX_WAITING: usize = 4096;

/// Frames of control connections: a length, a kind, a payload.
pub(crate) mod frame {
    pub(crate) const BEAT: u8 = 1;
    /// What does your group do? Payload: the group.
    pub(crate) const ASK: u8 = 2;
    /// The answer: group, 0 for not begun, 1 for outside or 2 for inside the operation that
    /// follows.
    pub(crate) const ANSWER: u8 = 3;
    /// Why this rank has given up, as text.
    pub(crate) const ABORT: u8 = 4;
    /// This rank has done its part.
    pub(crate) const GOODBYE: u8 = 5;

    const HEAD: usize = 5;
    const MAX_PAYLOAD: usize = 64 << 10;

    pub(crate) fn encode(kind: u8, payload: &[u8]) -> Vec<u8> {
        let payload = &payload[..payload.len().min(MAX_PAYLOAD)];
        let mut out = (payload.len() as u32).to_le_bytes().to_vec();
        out.push(kind);
        out.extend_from_slice(payload);
        out
    }

    /// Takes the first complete frame off `bytes`. `Err` for bytes that are none.
    pub(crate) fn take(bytes: &mut Vec<u8>) -> Result<Option<(u8, Vec<u8>)>, ()> {
        let Some(head) = bytes.first_chunk::<HEAD>() else { return Ok(None) };
        let len = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
        let kind = head[4];
        if len > MAX_PAYLOAD {
            return Err(());
        }
        if bytes.len() < HEAD + len {
            return Ok(None);
        }
        let payload = bytes[HEAD..HEAD + len].to_vec();
        bytes.drain(..HEAD + len);
        Ok(Some((kind, payload)))
    }
}

/// What the thread keeps of each rank.
struct Inbox {
    bytes: Vec<u8>,
    last: Instant,
}

pub(crate) fn run(shared: &Arc<Shared>, listeners: &Listeners) {
    let beat_every = shared.config.peer_timeout / 4;
    let mut heard: HashMap<usize, Inbox> = HashMap::new();
    let mut beat_at = Instant::now() + beat_every;
    while !shared.stopping.load(Ordering::Acquire) {
        let controls: Vec<Arc<Control>> = shared.controls();
        let open = |control: &&Arc<Control>| !shared.fate.has_left(control.rank);
        let controls: Vec<&Arc<Control>> = controls.iter().filter(open).collect();
        let ready = wait(shared, listeners, &controls, beat_at);
        while let Some(socket) = listeners.accept() {
            begin_handshake(shared, socket);
        }
        for (control, ready) in controls.iter().zip(ready) {
            let heard = heard
                .entry(control.rank)
                .or_insert_with(|| Inbox { bytes: Vec::new(), last: Instant::now() });
            if ready {
                listen(shared, control, heard);
            }
            check_silence(shared, control, heard);
        }
        if Instant::now() >= beat_at {
            shared.report_refusals();
            shared.notify_all(frame::BEAT, &[]);
            beat_at = Instant::now() + beat_every;
        }
        if shared.fate.has_failed() {
            // Ended connections stay readable: do not turn in circles over them.
            thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Waits for something to do; says which control connections are readable.
fn wait(
    shared: &Shared,
    listeners: &Listeners,
    controls: &[&Arc<Control>],
    until: Instant,
) -> Vec<bool> {
    let mut fds =
        vec![PollFd::new(&shared.wake, PollFlags::IN), PollFd::new(&listeners.unix, PollFlags::IN)];
    fds.extend(listeners.tcp.iter().map(|tcp| PollFd::new(&**tcp, PollFlags::IN)));
    let first = fds.len();
    fds.extend(controls.iter().map(|control| PollFd::new(&control.socket, PollFlags::IN)));
    let more = controls.iter().any(|control| control.socket.has_more());
    let until = if more { Instant::now() } else { until };
    // An error here would repeat at once; the deadlines of operations still hold.
    let _ = poll_for(&mut fds, until.saturating_duration_since(Instant::now()));
    let ready = fds[first..].iter().map(|fd| !fd.revents().is_empty());
    let ready = ready.zip(controls).map(|(ready, control)| ready || control.socket.has_more());
    let ready = ready.collect();
    let mut drain = [0; 8];
    let _ = rustix::io::read(&shared.wake, &mut drain);
    ready
}

fn check_silence(shared: &Shared, control: &Control, heard: &Inbox) {
    let silence = heard.last.elapsed();
    if silence > shared.config.peer_timeout {
        let problem = format!("nothing heard for {} s", silence.as_secs());
        shared.fail(&Error::RankLost { rank: control.rank, problem });
    }
}

/// Reads what a rank says.
fn listen(shared: &Shared, control: &Control, heard: &mut Inbox) {
    let rank = control.rank;
    let mut buf = [0; 4096];
    loop {
        match control.socket.try_read(&mut [IoSliceMut::new(&mut buf)]) {
            Ok(ReadOutcome::Bytes(n)) => heard.bytes.extend_from_slice(&buf[..n]),
            Ok(ReadOutcome::Nothing) => break,
            Ok(ReadOutcome::End) => {
                take_frames(shared, control, heard);
                if !shared.fate.has_left(rank) {
                    let problem = "its process ended without a goodbye".to_owned();
                    shared.fail(&Error::RankLost { rank, problem });
                }
                return;
            }
            Err(error) => {
                take_frames(shared, control, heard);
                shared.fail(&Error::RankLost { rank, problem: error.to_string() });
                return;
            }
        }
    }
    heard.last = Instant::now();
    take_frames(shared, control, heard);
}

fn take_frames(shared: &Shared, control: &Control, heard: &mut Inbox) {
    loop {
        match frame::take(&mut heard.bytes) {
            Ok(Some((kind, payload))) => obey(shared, control, kind, &payload),
            Ok(None) => return,
            Err(()) => {
                let problem = "it sent something senseless".to_owned();
                return shared.fail(&Error::RankLost { rank: control.rank, problem });
            }
        }
    }
}

fn obey(shared: &Shared, control: &Control, kind: u8, payload: &[u8]) {
    match kind {
        frame::ASK => {
            if let Some(group) = payload.first_chunk() {
                let doing = shared.fate.doing(u64::from_le_bytes(*group));
                control.send(frame::ANSWER, &encode_answer(group, doing));
            }
        }
        frame::ANSWER => {
            if let Some((group, doing)) = decode_answer(payload) {
                lock(&shared.answers).insert((group, control.rank), doing);
                shared.answered.notify_all();
            }
        }
        frame::ABORT => {
            let why = String::from_utf8_lossy(payload).into_owned();
            shared.fail(&Error::Aborted { by: control.rank, why });
        }
        frame::GOODBYE => shared.fate.leave(control.rank),
        // Beats, and what later versions may add.
        _ => {}
    }
}

fn encode_answer(group: &[u8; 8], doing: Option<Activity>) -> Vec<u8> {
    let mut out = group.to_vec();
    match doing {
        None => out.push(0),
        Some(doing) => {
            out.push(1 + u8::from(doing.inside));
            out.extend_from_slice(&doing.header.encode());
        }
    }
    out
}

fn decode_answer(payload: &[u8]) -> Option<(u64, Option<Activity>)> {
    let (group, rest) = payload.split_first_chunk()?;
    let (state, header) = rest.split_first()?;
    let doing = match state {
        0 => None,
        state => Some(Activity {
            header: Header::decode(header.first_chunk::<HEADER_LEN>()?)?,
            inside: *state == 2,
        }),
    };
    Some((u64::from_le_bytes(*group), doing))
}

/// Handshakes run on threads of their own, so that a silent stranger delays nobody.
fn begin_handshake(shared: &Arc<Shared>, socket: Socket) {
    let limit = SPARE_HANDSHAKES + shared.about.size;
    if shared.handshakes.fetch_add(1, Ordering::AcqRel) >= limit {
        shared.handshakes.fetch_sub(1, Ordering::AcqRel);
        let problem = format!("{limit} handshakes are in flight");
        return shared.turn_away(socket.address(), problem);
    }
    let for_thread = shared.clone();
    let spawned = thread::Builder::new().name("collective-greet".to_owned()).spawn(move || {
        admit(&for_thread, socket);
        for_thread.handshakes.fetch_sub(1, Ordering::AcqRel);
    });
    if spawned.is_err() {
        // The dialler tries again.
        shared.handshakes.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The accepting half of a connection from another rank.
fn admit(shared: &Shared, socket: Socket) {
    let (address, token) = (socket.address(), &shared.config.token);
    let Ok(stream) = socket.stream() else { return };
    let me = (shared.about.identity(), &shared.about.encode()[..]);
    let hello = handshake::accept(stream, me, token, HANDSHAKE, |hello| {
        may_enter(shared, hello).map_err(Refusal::Denied)
    });
    match hello.map(|(hello, session)| (read_hello(&hello), session)) {
        Ok((Some((Purpose::Control, about)), session)) => {
            if let Err(error) = shared.admit_control(socket.encrypted(session), about) {
                shared.fail(&error);
            }
        }
        Ok((Some((Purpose::Data(group), about)), session)) => {
            let socket = socket.encrypted(session);
            lock(&shared.lobby).data.insert((group, about.rank), socket);
            shared.arrived.notify_all();
        }
        Err(Rejection::Refused(problem)) => shared.turn_away(address, problem),
        // A probe; and `may_enter` lets nobody in whose hello cannot be read.
        Ok((None, _)) | Err(Rejection::Left) => {}
    }
}

fn may_enter(shared: &Shared, hello: &Hello) -> Result<(), String> {
    if hello.protocol == REQUESTS {
        return Err(format!("the ranks have met already, with a {}", hello.from));
    }
    let (from, size) = (hello.from.index as usize, shared.about.size);
    let Some((purpose, _)) = read_hello(hello).filter(|_| hello.from.role == Role::Rank) else {
        return Err("its hello is not that of a rank".to_owned());
    };
    if from >= size || from == shared.rank() {
        return Err(format!("there is no rank {from} among {}", counted(size, "rank")));
    }
    match purpose {
        Purpose::Control if lock(&shared.lobby).controls[from].is_some() => {
            Err(format!("another process is rank {from} already"))
        }
        // Its control connection may be complete there and not yet here.
        Purpose::Data(_) if !shared.await_control(from, Instant::now() + HANDSHAKE / 2) => {
            Err(format!("rank {from} has not joined"))
        }
        Purpose::Data(_) if lock(&shared.lobby).data.len() >= MAX_WAITING => {
            Err("too many connections wait".to_owned())
        }
        _ => Ok(()),
    }
}
