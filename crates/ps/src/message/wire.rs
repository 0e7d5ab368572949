//! Payloads in fewer bytes, for networks: floats in 16 bits, ids in as few bytes as the largest of
//! them needs.
//!
//! A plain payload goes in, and comes out again at the other end, floats rounded; nothing else
//! knows of it.

use std::fmt;
use std::str::FromStr;

use regatta_kernels::half::{Half, narrow, widen};
use regatta_net::Buf;

use super::bytes::{MAX_ITEMS, MAX_TABLES, Reader, pad};
use super::{Kind, Pull, Push};
use crate::Error;

/// How pulls and pushes travel. A request says how its own values do, and is answered alike.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Wire {
    /// As they are in memory: floats in 32 bits, ids in 64.
    #[default]
    F32,
    /// Floats as IEEE 754 binary16: 11 bits of precision, magnitudes from 6e-8 to 65504, which is
    /// what larger ones become.
    F16,
    /// Floats as bfloat16: 8 bits of precision, the range of f32.
    Bf16,
}

/// Their names, as people write them.
const NAMES: [(Wire, &str); 3] = [(Wire::F32, "f32"), (Wire::F16, "f16"), (Wire::Bf16, "bf16")];

const LARGEST_F16: f32 = 65504.0;

/// Where the kind of a request says how it travels.
const SHIFT: u32 = 8;

impl FromStr for Wire {
    type Err = String;

    fn from_str(text: &str) -> Result<Wire, String> {
        let found = NAMES.into_iter().find(|(_, name)| *name == text);
        found.map(|(wire, _)| wire).ok_or_else(|| format!("'{text}' is none of f32, f16, bf16"))
    }
}

impl fmt::Display for Wire {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = NAMES.into_iter().find(|(wire, _)| wire == self);
        f.write_str(name.map_or("", |(_, name)| name))
    }
}

impl Wire {
    /// The kind of a frame with such a request.
    pub fn kind(self, kind: Kind) -> u16 {
        (self as u16) << SHIFT | kind as u16
    }

    /// The kind of a request, and how it travels.
    ///
    /// # Errors
    /// If it is no kind, or none that can travel so.
    pub fn of(kind: u16) -> Result<(Wire, Kind), Error> {
        let wire = NAMES.into_iter().map(|(wire, _)| wire).find(|w| *w as u16 == kind >> SHIFT);
        let known = Kind::try_from(kind & ((1 << SHIFT) - 1));
        match (wire, known) {
            (Some(Wire::F32), Ok(known)) => Ok((Wire::F32, known)),
            (Some(wire), Ok(known @ (Kind::Pull | Kind::Push | Kind::PushPull))) => {
                Ok((wire, known))
            }
            _ => Err(Error::malformed(format!("unknown request kind {kind}"))),
        }
    }

    fn half(self) -> Option<Half> {
        match self {
            Wire::F32 => None,
            Wire::F16 => Some(Half::F16),
            Wire::Bf16 => Some(Half::Bf16),
        }
    }

    /// Makes a plain request shorter; `room` gives a buffer for that many bytes.
    ///
    /// # Errors
    /// If it is not a request of that kind.
    pub fn pack(
        self,
        kind: Kind,
        plain: Buf,
        room: impl FnOnce(usize) -> Buf,
    ) -> Result<Buf, Error> {
        let Some(half) = self.half() else { return Ok(plain) };
        // Ids never take more than before, but for the word that says how many bytes they take.
        let to = room(plain.len() + 64);
        Transcoder { from: Reader::new(&plain), to, convert: &Narrow(half) }.run(kind)
    }

    /// The plain request that was packed.
    ///
    /// # Errors
    /// If it is none.
    pub fn unpack(
        self,
        kind: Kind,
        packed: Buf,
        room: impl FnOnce(usize) -> Buf,
    ) -> Result<Buf, Error> {
        let Some(half) = self.half() else { return Ok(packed) };
        let to = room(3 * packed.len());
        Transcoder { from: Reader::new(&packed), to, convert: &Widen(half) }.run(kind)
    }

    /// Makes an answer shorter, which is floats and nothing else.
    ///
    /// # Errors
    /// If it is something else.
    pub fn pack_answer(self, plain: Buf, room: impl FnOnce(usize) -> Buf) -> Result<Buf, Error> {
        let Some(half) = self.half() else { return Ok(plain) };
        let floats = bytemuck::try_cast_slice::<u8, f32>(&plain[..]);
        let floats = floats.map_err(|_| Error::malformed("an answer that is not floats"))?;
        let mut to = room(2 * floats.len());
        put_narrow(half, floats, &mut to);
        Ok(to)
    }

    /// The answer that was packed.
    ///
    /// # Errors
    /// If it is none.
    pub fn unpack_answer(self, packed: Buf, room: impl FnOnce(usize) -> Buf) -> Result<Buf, Error> {
        let Some(half) = self.half() else { return Ok(packed) };
        let bits = bytemuck::try_cast_slice::<u8, u16>(&packed[..]);
        let bits = bits.map_err(|_| Error::malformed("an answer that is not 16-bit floats"))?;
        let mut to = room(4 * bits.len());
        put_wide(half, bits, &mut to)?;
        Ok(to)
    }
}

/// Changes the form of one array.
trait Convert {
    fn floats(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error>;
    fn keys(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error>;
}

struct Narrow(Half);

impl Convert for Narrow {
    fn floats(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error> {
        put_narrow(self.0, from.items(n, "floats")?, to);
        Ok(())
    }

    fn keys(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error> {
        put_keys(from.items(n, "keys")?, to);
        Ok(())
    }
}

struct Widen(Half);

impl Convert for Widen {
    fn floats(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error> {
        put_wide(self.0, from.items(n, "floats")?, to)
    }

    fn keys(&self, n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error> {
        take_keys(n, from, to)
    }
}

/// Copies a request from one form to the other. The messages say which arrays come in which order.
pub(super) struct Transcoder<'p, 'c> {
    from: Reader<'p>,
    to: Buf,
    convert: &'c dyn Convert,
}

impl<'p> Transcoder<'p, '_> {
    fn run(mut self, kind: Kind) -> Result<Buf, Error> {
        if matches!(kind, Kind::Push | Kind::PushPull) {
            Push::transcode(&mut self)?;
        }
        if matches!(kind, Kind::Pull | Kind::PushPull) {
            Pull::transcode(&mut self)?;
        }
        self.from.end()?;
        Ok(self.to)
    }

    /// Words of a head, which are the same in both forms.
    pub(super) fn words(&mut self, n: usize) -> Result<&'p [u64], Error> {
        let words = self.from.items(n, "head")?;
        self.to.extend_from_slice(bytemuck::cast_slice(words));
        Ok(words)
    }

    /// A number of tables, if it is a possible one.
    pub(super) fn n_tables(&self, n: u64) -> Result<usize, Error> {
        if n > MAX_TABLES {
            return Err(Error::malformed(format!("{n} tables, more than {MAX_TABLES}")));
        }
        Ok(n as usize)
    }

    pub(super) fn floats(&mut self, n: u64) -> Result<(), Error> {
        self.convert.floats(limited(n)?, &mut self.from, &mut self.to)?;
        self.next_array()
    }

    pub(super) fn keys(&mut self, n: u64) -> Result<(), Error> {
        self.convert.keys(limited(n)?, &mut self.from, &mut self.to)?;
        self.next_array()
    }

    /// Counts are the same in both forms.
    pub(super) fn counts(&mut self, n: u64) -> Result<(), Error> {
        let counts: &[u32] = self.from.items(limited(n)?, "counts")?;
        self.to.extend_from_slice(bytemuck::cast_slice(counts));
        self.next_array()
    }

    fn next_array(&mut self) -> Result<(), Error> {
        pad(&mut self.to);
        self.from.skip_padding()
    }
}

fn limited(n: u64) -> Result<usize, Error> {
    if n > MAX_ITEMS {
        return Err(Error::malformed(format!("an array of {n}, more than {MAX_ITEMS}")));
    }
    Ok(n as usize)
}

fn put_narrow(half: Half, floats: &[f32], to: &mut Buf) {
    let bits: &mut [u16] = bytemuck::cast_slice_mut(to.grow(2 * floats.len()));
    match half {
        Half::Bf16 => narrow(half, floats, bits),
        // An infinity would spoil a parameter for good; the largest number does not.
        Half::F16 => {
            let mut limited = [0.0; 256];
            let parts = bits.chunks_mut(limited.len()).zip(floats.chunks(limited.len()));
            for (bits, floats) in parts {
                for (limited, x) in limited.iter_mut().zip(floats) {
                    *limited = x.clamp(-LARGEST_F16, LARGEST_F16);
                }
                narrow(half, &limited[..floats.len()], bits);
            }
        }
    }
}

fn put_wide(half: Half, bits: &[u16], to: &mut Buf) -> Result<(), Error> {
    let floats = bytemuck::try_cast_slice_mut::<u8, f32>(to.grow(4 * bits.len()));
    widen(half, bits, floats.map_err(|_| Error::malformed("a buffer is not aligned"))?);
    Ok(())
}

/// How many bytes each takes, then their lowest bytes.
fn put_keys(keys: &[u64], to: &mut Buf) {
    let all = keys.iter().fold(0, |all, key| all | key);
    let width = (8 - all.leading_zeros() as usize / 8).max(1);
    to.extend_from_slice(&(width as u64).to_le_bytes());
    let bytes = to.grow(keys.len() * width);
    for (bytes, key) in bytes.chunks_exact_mut(width).zip(keys) {
        bytes.copy_from_slice(&key.to_le_bytes()[..width]);
    }
}

fn take_keys(n: usize, from: &mut Reader<'_>, to: &mut Buf) -> Result<(), Error> {
    let width = from.u64("bytes of a key")?;
    if !(1..=8).contains(&width) {
        return Err(Error::malformed(format!("keys of {width} bytes")));
    }
    let width = width as usize;
    let bytes = from.take(n.saturating_mul(width), "keys")?;
    for (to, bytes) in to.grow(n * 8).chunks_exact_mut(8).zip(bytes.chunks_exact(width)) {
        to[..width].copy_from_slice(bytes);
        to[width..].fill(0);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use regatta_net::Pool;

    use super::*;
    use crate::message::PushPull;

    fn buf(bytes: &[u8]) -> Buf {
        let mut buf = Pool::default().take(bytes.len());
        buf.extend_from_slice(bytes);
        buf
    }

    fn room(n: usize) -> Buf {
        Pool::default().take(n)
    }

    fn put<T: bytemuck::Pod>(to: &mut Buf, items: &[T]) {
        to.extend_from_slice(bytemuck::cast_slice(items));
        pad(to);
    }

    /// A push of one table, and a pull of other keys behind it.
    fn push_pull(dense: &[f32], keys: &[u64], others: &[u64], counted: bool) -> Buf {
        let mut to = room(0);
        let grads: Vec<f32> = keys.iter().flat_map(|&k| [k as f32, 0.5, -3.0]).collect();
        let mark: [u64; 10] = [0, 5, 6, 7, 8, 9, 1, 10, 11, 1];
        put(&mut to, &[1, 2, 3, dense.len() as u64, 1, mark.len() as u64]);
        put(&mut to, &[0, keys.len() as u64, grads.len() as u64]);
        put(&mut to, &mark);
        put(&mut to, dense);
        put(&mut to, keys);
        put(&mut to, &grads);
        let counts: Vec<u32> = others.iter().map(|k| *k as u32).filter(|_| counted).collect();
        put(&mut to, &[3, 2, 1, 0, others.len() as u64, counts.len() as u64]);
        put(&mut to, others);
        put(&mut to, &counts);
        to
    }

    proptest! {
        /// Small whole numbers come back as they were, and so do all ids.
        #[test]
        fn what_is_packed_comes_back(
            dense in prop::collection::vec((-64i32..64).prop_map(|x| x as f32), 0..40),
            keys in prop::collection::vec(0u64..128, 0..40),
            others in prop::collection::vec(any::<u64>(), 0..40),
            bits in 0u32..64,
            counted: bool,
        ) {
            let others: Vec<u64> = others.into_iter().map(|k| k >> bits).collect();
            let plain = push_pull(&dense, &keys, &others, counted);
            for wire in [Wire::F16, Wire::Bf16] {
                let packed = wire.pack(Kind::PushPull, buf(&plain), room).unwrap();
                let back = wire.unpack(Kind::PushPull, packed, room).unwrap();
                prop_assert_eq!(&back[..], &plain[..]);
                let PushPull { push, pull } = PushPull::decode(&back).unwrap();
                prop_assert_eq!(push.dense.of(&back), &dense[..]);
                prop_assert_eq!(pull.tables[0].keys.of(&back), &others[..]);
            }
        }

        /// Anything at all is an error or a request, and takes at most eight times its bytes.
        #[test]
        fn garbage_is_unpacked_or_refused(
            mut numbers in prop::collection::vec(0u64..9, 0..60),
            at in 0usize..60,
            number: u64,
            cut in 0usize..8,
        ) {
            if let Some(x) = numbers.get_mut(at) {
                *x = number;
            }
            let bytes: &[u8] = bytemuck::cast_slice(&numbers);
            let bytes = &bytes[..bytes.len().saturating_sub(cut)];
            for kind in [Kind::Pull, Kind::Push, Kind::PushPull] {
                if let Ok(plain) = Wire::Bf16.unpack(kind, buf(bytes), room) {
                    prop_assert!(plain.len() <= 8 * bytes.len() + 64);
                }
                let _ = Wire::F16.pack(kind, buf(bytes), room);
            }
        }
    }

    #[test]
    fn it_takes_fewer_bytes() {
        let keys: Vec<u64> = (0..1000).map(|i| i * 1000).collect();
        let plain = push_pull(&[1.0; 5000], &keys, &keys, false);
        let n = plain.len();
        let packed = Wire::Bf16.pack(Kind::PushPull, plain, room).unwrap();
        // 8,000 floats in 2 bytes instead of 4, 2,000 ids in 3 instead of 8.
        assert!(packed.len() < n - 16_000 - 10_000 + 64, "{} of {n}", packed.len());
    }

    #[test]
    fn answers_are_rounded_and_nothing_else() {
        let plain = [1.0f32, 0.1, -3.5, 1e6];
        let packed = Wire::Bf16.pack_answer(buf(bytemuck::cast_slice(&plain)), room).unwrap();
        assert_eq!(packed.len(), 8);
        let back = Wire::Bf16.unpack_answer(packed, room).unwrap();
        let back: &[f32] = bytemuck::cast_slice(&back);
        assert_eq!(back, [1.0, 0.100_097_656, -3.5, 999_424.0]);
        let packed = Wire::F16.pack_answer(buf(bytemuck::cast_slice(&plain)), room).unwrap();
        let back = Wire::F16.unpack_answer(packed, room).unwrap();
        assert_eq!(bytemuck::cast_slice::<u8, f32>(&back), [1.0, 0.099_975_586, -3.5, 65504.0]);
        assert!(Wire::F16.unpack_answer(buf(&[1, 2, 3]), room).is_err());
        let same = Wire::F32.pack_answer(buf(&[1, 2, 3]), room).unwrap();
        assert_eq!(&same[..], [1, 2, 3]);
    }

    #[test]
    fn names_and_kinds() {
        for (wire, name) in NAMES {
            assert_eq!((name.parse(), wire.to_string()), (Ok(wire), name.to_string()));
            assert_eq!(Wire::of(wire.kind(Kind::Push)).unwrap(), (wire, Kind::Push));
        }
        assert!("fp8".parse::<Wire>().is_err());
        assert_eq!(Wire::of(Kind::Control as u16).unwrap(), (Wire::F32, Kind::Control));
        // Only pulls and pushes travel otherwise.
        for kind in [Wire::F16.kind(Kind::Geo), Wire::Bf16.kind(Kind::Control), 3 << 8 | 1, 99] {
            assert!(Wire::of(kind).is_err(), "{kind}");
        }
        let empty = Wire::F16.unpack(Kind::Pull, buf(&[]), room);
        assert!(empty.is_err());
        let mut heads_alone = room(0);
        put(&mut heads_alone, &[7u64, 2, 0]);
        let plain = Wire::F16.unpack(Kind::Pull, heads_alone, room).unwrap();
        assert_eq!(Pull::decode(&plain).unwrap().step, 7);
    }
}
