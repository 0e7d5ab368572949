//! The frame: a fixed 64-byte header and a payload. In: bytes of a stream. Out: headers and
//! payloads.
//!
//! | offset | size | field (all little-endian) |
//! |---|---|---|
//! | 0 | 4 | magic, `RGTA` |
//! | 4 | 2 | protocol version |
//! | 6 | 2 | kind; 0xff00 and above belong to this crate |
//! | 8 | 4 | flags, owned by the layer above |
//! | 12 | 4 | status, replies only; 0xffff_0000 and above belong to this crate |
//! | 16 | 8 | request id, echoed by the reply |
//! | 24 | 4 | index of the sender |
//! | 28 | 4 | zero |
//! | 32 | 8 | payload length |
//! | 40 | 4 | 0: the payload follows; n: it is in slot n - 1 of the sender's shared memory |
//! | 44 | 12 | zero |
//! | 56 | 8 | checksum of bytes 0 to 55 |
//!
//! Magic and version keep their offsets in all versions, so that two versions recognise each other.
//! The checksum recognises garbage and a reader that lost its position; it does not protect against
//! an attacker, and the payload has none beyond that of the transport.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::arena::PeerArena;
use crate::pool::{Buf, Pool};
use crate::stream::{Stream, is_timeout};

/// Bytes in a header.
pub const HEADER_LEN: usize = 64;
/// Version of the protocol that this build speaks.
pub const VERSION: u16 = 4;
/// Kinds from here on are not available to the layer above.
pub const FIRST_RESERVED_KIND: u16 = 0xff00;
/// Status codes from here on are not available to the layer above.
pub const FIRST_RESERVED_STATUS: u32 = 0xffff_0000;

pub(crate) const MAGIC: [u8; 4] = *b"RGTA";

/// Kinds of this crate's own frames.
pub(crate) mod kind {
    pub(crate) const HELLO: u16 = 0xff01;
    pub(crate) const CHALLENGE: u16 = 0xff02;
    pub(crate) const PROOF: u16 = 0xff03;
    pub(crate) const WELCOME: u16 = 0xff04;
    pub(crate) const REFUSED: u16 = 0xff05;
    pub(crate) const HEARTBEAT: u16 = 0xff06;
    pub(crate) const GOODBYE: u16 = 0xff07;
    /// Comes with the file behind the sender's shared memory.
    pub(crate) const ARENA: u16 = 0xff08;
}

/// Status codes of replies that this crate writes for the layer above.
pub(crate) mod status {
    pub(crate) const HANDLER_PANICKED: u32 = 0xffff_0001;
    pub(crate) const NO_REPLY: u32 = 0xffff_0002;
    pub(crate) const REPLY_TOO_LARGE: u32 = 0xffff_0003;

    pub(crate) fn describe(status: u32) -> String {
        match status {
            HANDLER_PANICKED => "its handler panicked; see its log".to_owned(),
            NO_REPLY => "its handler dropped the request without a reply".to_owned(),
            REPLY_TOO_LARGE => "the reply is larger than this client accepts".to_owned(),
            other => format!("status {other:#x}"),
        }
    }
}

/// A decoded header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Header {
    /// What the payload is.
    pub kind: u16,
    /// Free for the layer above.
    pub flags: u32,
    /// 0 in requests.
    pub status: u32,
    /// Which request this is or answers.
    pub request: u64,
    /// Index of the sender in its role.
    pub sender: u32,
    /// Bytes of the payload.
    pub payload_len: u64,
    /// Where it is in the sender's shared memory; `None` if it follows.
    pub slot: Option<u32>,
}

impl Header {
    /// The bytes of this header.
    pub fn encode(&self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[0..4].copy_from_slice(&MAGIC);
        bytes[4..6].copy_from_slice(&VERSION.to_le_bytes());
        bytes[6..8].copy_from_slice(&self.kind.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.status.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.request.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.sender.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.payload_len.to_le_bytes());
        let slot = self.slot.map_or(0, |slot| slot + 1);
        bytes[40..44].copy_from_slice(&slot.to_le_bytes());
        let sum = checksum(&bytes);
        bytes[56..64].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads a header and checks everything about it but the payload length.
    ///
    /// # Errors
    /// Which check failed.
    pub fn decode(bytes: &[u8; HEADER_LEN]) -> Result<Header, BadFrame> {
        if bytes[0..4] != MAGIC {
            return Err(BadFrame::NotAFrame([bytes[0], bytes[1], bytes[2], bytes[3]]));
        }
        let version = u16::from_le_bytes(array(bytes, 4));
        if version != VERSION {
            return Err(BadFrame::Version(version));
        }
        if u64::from_le_bytes(array(bytes, 56)) != checksum(bytes) {
            return Err(BadFrame::Checksum);
        }
        if bytes[28..32].iter().chain(&bytes[44..56]).any(|&b| b != 0) {
            return Err(BadFrame::Reserved);
        }
        Ok(Header {
            kind: u16::from_le_bytes(array(bytes, 6)),
            flags: u32::from_le_bytes(array(bytes, 8)),
            status: u32::from_le_bytes(array(bytes, 12)),
            request: u64::from_le_bytes(array(bytes, 16)),
            sender: u32::from_le_bytes(array(bytes, 24)),
            payload_len: u64::from_le_bytes(array(bytes, 32)),
            slot: u32::from_le_bytes(array(bytes, 40)).checked_sub(1),
        })
    }
}

fn array<const N: usize>(bytes: &[u8; HEADER_LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn checksum(bytes: &[u8; HEADER_LEN]) -> u64 {
    (0..7).fold(0x9e37_79b9_7f4a_7c15, |sum, word| {
        let mixed =
            (sum ^ u64::from_le_bytes(array(bytes, word * 8))).wrapping_mul(0xff51_afd7_ed55_8ccd);
        mixed ^ (mixed >> 29)
    })
}

/// Bytes that are not a frame of this protocol.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum BadFrame {
    /// The first bytes are not the magic.
    NotAFrame([u8; 4]),
    /// A frame of another protocol version.
    Version(u16),
    /// The header does not match its checksum.
    Checksum,
    /// Bytes that must be zero are not.
    Reserved,
    /// The payload is longer than allowed here.
    TooLarge {
        /// What the header says.
        len: u64,
        /// The limit.
        limit: u64,
    },
    /// A frame that makes no sense at this point.
    Unexpected {
        /// Its kind.
        kind: u16,
    },
    /// The payload of one of this crate's own frames cannot be read.
    Malformed(&'static str),
}

impl fmt::Display for BadFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            BadFrame::NotAFrame(bytes) => write!(f, "not a frame (begins with {bytes:02x?})"),
            BadFrame::Version(version) => write!(f, "protocol version {version}, not {VERSION}"),
            BadFrame::Checksum => f.write_str("header checksum does not match"),
            BadFrame::Reserved => f.write_str("reserved header bytes are not zero"),
            BadFrame::TooLarge { len, limit } => {
                write!(f, "payload of {len} bytes, more than the limit of {limit}")
            }
            BadFrame::Unexpected { kind } => write!(f, "unexpected frame of kind {kind:#x}"),
            BadFrame::Malformed(what) => write!(f, "malformed {what}"),
        }
    }
}

/// Why no frame could be read.
#[derive(Debug)]
pub(crate) enum ReadError {
    /// The stream ended inside a frame.
    Truncated,
    /// Nothing came for this long.
    Silence(Duration),
    Io(io::Error),
    Bad(BadFrame),
}

impl fmt::Display for ReadError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReadError::Truncated => f.write_str("connection closed in the middle of a frame"),
            ReadError::Silence(limit) => {
                write!(f, "nothing heard for {} s", limit.as_secs_f32())
            }
            ReadError::Io(error) => error.fmt(f),
            ReadError::Bad(bad) => bad.fmt(f),
        }
    }
}

impl From<BadFrame> for ReadError {
    fn from(bad: BadFrame) -> ReadError {
        ReadError::Bad(bad)
    }
}

/// How long a read may take.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    /// Each read until the stream's own timeout, which is this long.
    Silence(Duration),
    /// All reads together until this instant, however many bytes trickle in.
    Deadline(Instant, Duration),
}

/// Reads frames from a stream: headers and small payloads through a staging area, so that many
/// small frames cost one system call; the rest of a large payload straight into its buffer.
pub(crate) struct FrameReader {
    staging: Box<[u8]>,
    start: usize,
    end: usize,
    /// Where payloads are that do not follow their headers.
    arena: Option<Arc<PeerArena>>,
    /// Reads that brought something.
    heard: Arc<AtomicU64>,
}

impl FrameReader {
    pub(crate) fn new() -> FrameReader {
        FrameReader::staging(16 << 10)
    }

    /// One that reads no byte beyond the frame it is asked for: what follows is somebody else's.
    pub(crate) fn without_staging() -> FrameReader {
        FrameReader::staging(HEADER_LEN)
    }

    fn staging(len: usize) -> FrameReader {
        let (staging, heard) = (vec![0; len].into_boxed_slice(), Arc::default());
        FrameReader { staging, start: 0, end: 0, arena: None, heard }
    }

    /// A number that changes whenever something comes.
    pub(crate) fn heard(&self) -> Arc<AtomicU64> {
        self.heard.clone()
    }

    /// Bytes that somebody else has read from the stream are the first ones of the next frame.
    pub(crate) fn give_back(&mut self, bytes: &[u8]) {
        if bytes.len() > self.staging.len() {
            self.staging = vec![0; bytes.len()].into_boxed_slice();
        }
        self.staging[..bytes.len()].copy_from_slice(bytes);
        (self.start, self.end) = (0, bytes.len());
    }

    /// The next header, or `None` when the stream ended between two frames.
    pub(crate) fn header(
        &mut self,
        stream: &dyn Stream,
        limit: u64,
        patience: Patience,
    ) -> Result<Option<Header>, ReadError> {
        while self.end - self.start < HEADER_LEN {
            if self.start > 0 {
                self.staging.copy_within(self.start..self.end, 0);
                self.end -= self.start;
                self.start = 0;
            }
            let n = read(stream, &mut self.staging[self.end..], patience)?;
            if n == 0 {
                return if self.end == 0 { Ok(None) } else { Err(ReadError::Truncated) };
            }
            self.end += n;
            self.heard.fetch_add(1, Ordering::Relaxed);
            // Garbage shorter than a header is refused without waiting for the rest of it.
            let seen = self.end.min(MAGIC.len());
            if self.staging[..seen] != MAGIC[..seen] {
                let mut begin = [0; 4];
                begin[..seen].copy_from_slice(&self.staging[..seen]);
                return Err(BadFrame::NotAFrame(begin).into());
            }
        }
        let mut bytes = [0; HEADER_LEN];
        bytes.copy_from_slice(&self.staging[self.start..self.start + HEADER_LEN]);
        self.start += HEADER_LEN;
        let header = Header::decode(&bytes)?;
        if header.payload_len > limit {
            return Err(BadFrame::TooLarge { len: header.payload_len, limit }.into());
        }
        if header.slot.is_some() && self.arena.is_none() {
            return Err(BadFrame::Malformed("slot of a payload").into());
        }
        Ok(Some(header))
    }

    /// The sender shares its memory: a frame of kind [`kind::ARENA`] came, and with it a file.
    pub(crate) fn share(&mut self, stream: &dyn Stream) -> Result<(), ReadError> {
        let file = stream.take_file().filter(|_| self.arena.is_none());
        let file = file.ok_or(BadFrame::Unexpected { kind: kind::ARENA })?;
        self.arena = Some(PeerArena::open(&file).map_err(ReadError::Io)?);
        Ok(())
    }

    /// The payload of the frame with the last header, wherever it is.
    pub(crate) fn body(
        &mut self,
        stream: &dyn Stream,
        header: &Header,
        pool: &Pool,
        patience: Patience,
    ) -> Result<Buf, ReadError> {
        let len = header.payload_len as usize;
        if let (Some(slot), Some(arena)) = (header.slot, &self.arena) {
            let loan = arena.loan(slot, len).ok_or(BadFrame::Malformed("slot of a payload"))?;
            return Ok(pool.received(loan));
        }
        let mut payload = pool.take(len);
        self.payload(stream, payload.grow(len), patience)?;
        Ok(payload)
    }

    /// Fills `payload` with the bytes after the last header.
    pub(crate) fn payload(
        &mut self,
        stream: &dyn Stream,
        payload: &mut [u8],
        patience: Patience,
    ) -> Result<(), ReadError> {
        let staged = payload.len().min(self.end - self.start);
        payload[..staged].copy_from_slice(&self.staging[self.start..self.start + staged]);
        self.start += staged;
        let mut done = staged;
        while done < payload.len() {
            match read(stream, &mut payload[done..], patience)? {
                0 => return Err(ReadError::Truncated),
                n => done += n,
            }
            self.heard.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }
}

fn read(stream: &dyn Stream, buf: &mut [u8], patience: Patience) -> Result<usize, ReadError> {
    loop {
        let limit = match patience {
            Patience::Silence(limit) => limit,
            Patience::Deadline(deadline, limit) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(ReadError::Silence(limit));
                }
                stream.set_read_timeout(Some(left)).map_err(ReadError::Io)?;
                limit
            }
        };
        match stream.read(buf) {
            Ok(n) => return Ok(n),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if is_timeout(&e) => return Err(ReadError::Silence(limit)),
            Err(e) => return Err(ReadError::Io(e)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Header {
        let slot = Some(6);
        let payload_len = 1 << 40;
        Header { kind: 7, flags: 1, status: 2, request: u64::MAX, sender: 3, payload_len, slot }
    }

    #[test]
    fn header_round_trip() {
        assert_eq!(Header::decode(&sample().encode()), Ok(sample()));
    }

    #[test]
    fn every_flipped_bit_is_noticed() {
        for bit in 0..HEADER_LEN * 8 {
            let mut bytes = sample().encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(Header::decode(&bytes).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn an_old_version_is_named_whatever_the_rest_looks_like() {
        let mut bytes = [0xaa; HEADER_LEN];
        bytes[..4].copy_from_slice(b"RGTA");
        bytes[4..6].copy_from_slice(&9u16.to_le_bytes());
        assert_eq!(Header::decode(&bytes), Err(BadFrame::Version(9)));
    }

    #[cfg(target_os = "linux")]
    mod shared {
        use std::os::unix::net::UnixStream;

        use super::*;
        use crate::arena::Arena;
        use crate::stream::{Unix, write_all};

        const PATIENCE: Patience = Patience::Silence(Duration::from_secs(20));

        fn pair() -> (Unix, Unix) {
            let (a, b) = UnixStream::pair().unwrap();
            (Unix::new(a), Unix::new(b))
        }

        fn send(stream: &Unix, header: &Header) {
            let bytes = header.encode();
            let never = || Err(io::ErrorKind::TimedOut.into());
            write_all(stream, &mut [io::IoSlice::new(&bytes)], never).unwrap();
        }

        #[test]
        fn a_payload_is_where_its_header_says() {
            let (a, b) = pair();
            let (mut reader, pool) = (FrameReader::new(), Pool::default());
            let arena = Arena::share(&a, 0).unwrap().unwrap();
            let header = reader.header(&b, 0, PATIENCE).unwrap().unwrap();
            assert_eq!(header.kind, kind::ARENA);
            reader.share(&b).unwrap();
            let mut sent = pool.take_shared(100_000, Some(&arena));
            sent.extend_from_slice(&[7; 100_000]);
            let slot = Some(sent.lend(&arena).unwrap());
            send(&a, &Header { kind: 1, payload_len: 100_000, slot, ..Header::default() });
            drop(sent);
            let header = reader.header(&b, 100_000, PATIENCE).unwrap().unwrap();
            let mut body = reader.body(&b, &header, &pool, PATIENCE).unwrap();
            assert_eq!(body[..], [7; 100_000]);
            // What is changed is a copy; the slot is free again then.
            body[0] = 8;
            body.extend_from_slice(&[9]);
            assert_eq!((body[0], body[1], body[100_000], body.len()), (8, 7, 9, 100_001));
            let again = pool.take_shared(100_000, Some(&arena));
            assert_eq!(again.lend(&arena), slot);
        }

        #[test]
        fn slots_that_are_none_cost_the_connection() {
            let refused = |outcome: Result<Option<Header>, ReadError>| match outcome {
                Err(ReadError::Bad(BadFrame::Malformed("slot of a payload"))) => {}
                other => panic!("{:?}", other.map_err(|e| e.to_string())),
            };
            let (a, b) = pair();
            let (mut reader, pool) = (FrameReader::new(), Pool::default());
            send(&a, &Header { slot: Some(0), ..Header::default() });
            refused(reader.header(&b, 0, PATIENCE));
            assert!(reader.share(&b).is_err(), "no file came");
            let _arena = Arena::share(&a, 0).unwrap().unwrap();
            reader.header(&b, 0, PATIENCE).unwrap().unwrap();
            reader.share(&b).unwrap();
            for slot in [0, 7, 8, u32::MAX - 1] {
                let header = Header { slot: Some(slot), payload_len: 5, ..Header::default() };
                refused(reader.body(&b, &header, &pool, PATIENCE).map(|_| None));
            }
            let _second = Arena::share(&a, 0).unwrap().unwrap();
            reader.header(&b, 0, PATIENCE).unwrap().unwrap();
            assert!(reader.share(&b).is_err(), "one for a connection");
        }
    }
}
