//! What a rank says before the data of an operation: enough for the other end to notice that it
//! does something else.

use std::fmt;

use crate::reduce::{ReduceOp, Wire};

/// Bytes of an encoded header.
pub(crate) const HEADER_LEN: usize = 128;
/// Longer names are truncated in headers and messages.
const NAME_LEN: usize = 80;
const MAGIC: [u8; 4] = *b"rgc1";

/// What kind of operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    AllReduce = 1,
    Reduce,
    Broadcast,
    BroadcastBytes,
    AllGather,
    AllGatherBytes,
    ReduceScatter,
    Scatter,
    Send,
    Barrier,
    Split,
}

const KINDS: [(Kind, &str); 11] = [
    (Kind::AllReduce, "all_reduce"),
    (Kind::Reduce, "reduce"),
    (Kind::Broadcast, "broadcast"),
    (Kind::BroadcastBytes, "broadcast_bytes"),
    (Kind::AllGather, "all_gather"),
    (Kind::AllGatherBytes, "all_gather_bytes"),
    (Kind::ReduceScatter, "reduce_scatter"),
    (Kind::Scatter, "scatter"),
    (Kind::Send, "send"),
    (Kind::Barrier, "barrier"),
    (Kind::Split, "split"),
];

/// What the elements are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Dtype {
    F32 = 1,
    F64 = 2,
    Bytes = 3,
}

const DTYPES: [(Dtype, &str); 3] =
    [(Dtype::F32, "f32"), (Dtype::F64, "f64"), (Dtype::Bytes, "bytes")];
const REDUCE_OPS: [ReduceOp; 5] =
    [ReduceOp::Sum, ReduceOp::Max, ReduceOp::Min, ReduceOp::Prod, ReduceOp::Mean];
const WIRES: [Wire; 3] = [Wire::F32, Wire::Bf16, Wire::F16];

/// One operation as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) group: u64,
    /// Counts the operations of the group; for `send`, those from one rank to another.
    pub(crate) seq: u64,
    pub(crate) kind: Kind,
    pub(crate) dtype: Dtype,
    pub(crate) reduce: Option<ReduceOp>,
    pub(crate) wire: Option<Wire>,
    pub(crate) root: Option<usize>,
    /// Elements. Ranks may differ in it only where the operation says so.
    pub(crate) len: u64,
    name: [u8; NAME_LEN],
    name_len: u8,
}

impl Header {
    pub(crate) fn new(kind: Kind, dtype: Dtype, name: &str, len: usize) -> Header {
        let mut end = name.len().min(NAME_LEN);
        while !name.is_char_boundary(end) {
            end -= 1;
        }
        let mut bytes = [0; NAME_LEN];
        bytes[..end].copy_from_slice(&name.as_bytes()[..end]);
        Header {
            group: 0,
            seq: 0,
            kind,
            dtype,
            reduce: None,
            wire: None,
            root: None,
            len: len as u64,
            name: bytes,
            name_len: end as u8,
        }
    }

    pub(crate) fn numbered(self, group: u64, seq: u64) -> Header {
        Header { group, seq, ..self }
    }

    pub(crate) fn reduce(self, op: ReduceOp) -> Header {
        Header { reduce: Some(op), ..self }
    }

    pub(crate) fn wire(self, wire: Wire) -> Header {
        Header { wire: Some(wire), ..self }
    }

    pub(crate) fn root(self, root: usize) -> Header {
        Header { root: Some(root), ..self }
    }

    pub(crate) fn name(&self) -> &str {
        str::from_utf8(&self.name[..usize::from(self.name_len)]).unwrap_or("?")
    }

    /// Whether ranks may come with different lengths: the receiver takes what it is given.
    fn any_len(&self) -> bool {
        matches!(self.kind, Kind::BroadcastBytes | Kind::AllGatherBytes)
    }

    /// Whether `theirs` is the same operation as this one.
    pub(crate) fn agrees_with(&self, theirs: &Header) -> bool {
        let len = if self.any_len() { theirs.len } else { self.len };
        Header { len, ..*self } == *theirs
    }

    /// Whether a rank in `theirs` will never come to this operation: its turn has come, and it does
    /// something else. Messages from one rank to another are counted apart.
    pub(crate) fn conflicts_with(&self, theirs: &Header) -> bool {
        let counted = self.kind != Kind::Send && theirs.kind != Kind::Send;
        counted && self.seq == theirs.seq && !self.agrees_with(theirs)
    }

    pub(crate) fn encode(&self) -> [u8; HEADER_LEN] {
        let mut out = [0; HEADER_LEN];
        out[..4].copy_from_slice(&MAGIC);
        out[4] = self.kind as u8;
        out[5] = self.dtype as u8;
        out[6] = self.reduce.map_or(0, |op| op as u8);
        out[7] = self.wire.map_or(0, |wire| wire as u8);
        out[8..16].copy_from_slice(&self.group.to_le_bytes());
        out[16..24].copy_from_slice(&self.seq.to_le_bytes());
        out[24..32].copy_from_slice(&self.len.to_le_bytes());
        let root = self.root.map_or(u32::MAX, |root| root as u32);
        out[32..36].copy_from_slice(&root.to_le_bytes());
        out[36] = self.name_len;
        out[40..40 + NAME_LEN].copy_from_slice(&self.name);
        out
    }

    /// `None` for bytes that are no header.
    pub(crate) fn decode(bytes: &[u8; HEADER_LEN]) -> Option<Header> {
        let u64_at = |at: usize| bytes[at..at + 8].try_into().map(u64::from_le_bytes).ok();
        if bytes[..4] != MAGIC || usize::from(bytes[36]) > NAME_LEN {
            return None;
        }
        let root = u32::from_le_bytes(bytes[32..36].try_into().ok()?);
        Some(Header {
            kind: KINDS.iter().find(|(kind, _)| *kind as u8 == bytes[4])?.0,
            dtype: DTYPES.iter().find(|(dtype, _)| *dtype as u8 == bytes[5])?.0,
            reduce: REDUCE_OPS.into_iter().find(|op| *op as u8 == bytes[6]),
            wire: WIRES.into_iter().find(|wire| *wire as u8 == bytes[7]),
            group: u64_at(8)?,
            seq: u64_at(16)?,
            len: u64_at(24)?,
            root: (root != u32::MAX).then_some(root as usize),
            name: bytes[40..40 + NAME_LEN].try_into().ok()?,
            name_len: bytes[36],
        })
    }
}

/// For example ``all_reduce(sum) `fc_0.w_0` #12 (1000 f32)``.
impl fmt::Display for Header {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = KINDS.iter().find(|(kind, _)| *kind == self.kind).map_or("?", |(_, text)| text);
        f.write_str(kind)?;
        if let Some(op) = self.reduce {
            write!(f, "({op})")?;
        }
        write!(f, " `{}` #{}", self.name(), self.seq)?;
        if self.kind != Kind::Barrier {
            let dtype = DTYPES.iter().find(|(d, _)| *d == self.dtype).map_or("?", |(_, text)| text);
            write!(f, " ({} {dtype}", self.len)?;
            if let Some(wire) = self.wire.filter(|wire| *wire != Wire::F32) {
                write!(f, " as {wire}")?;
            }
            f.write_str(")")?;
        }
        match self.root {
            Some(root) if self.kind == Kind::Send => write!(f, " to rank {root}"),
            Some(root) => write!(f, " from or to rank {root}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_round_trip_and_garbage_is_refused() {
        let name = "ä".repeat(60);
        let header = Header::new(Kind::AllReduce, Dtype::F32, &name, 7)
            .reduce(ReduceOp::Max)
            .wire(Wire::Bf16)
            .root(3);
        assert_eq!(header.name(), "ä".repeat(40));
        let bytes = header.encode();
        assert_eq!(Header::decode(&bytes), Some(header));
        let mut bad = bytes;
        bad[4] = 200;
        assert_eq!(Header::decode(&bad), None);
        assert_eq!(Header::decode(&[0; HEADER_LEN]), None);
    }

    #[test]
    fn only_operations_that_say_so_may_differ_in_length() {
        let of = |kind, len| Header::new(kind, Dtype::Bytes, "x", len);
        assert!(!of(Kind::AllReduce, 3).agrees_with(&of(Kind::AllReduce, 4)));
        assert!(of(Kind::AllGatherBytes, 3).agrees_with(&of(Kind::AllGatherBytes, 4)));
        assert!(!of(Kind::AllGatherBytes, 3).agrees_with(&of(Kind::AllGather, 3)));
    }

    #[test]
    fn texts_name_operation_and_tensor() {
        let header = Header::new(Kind::AllReduce, Dtype::F32, "w", 9);
        let header = header.reduce(ReduceOp::Sum).wire(Wire::F16);
        assert_eq!(header.to_string(), "all_reduce(sum) `w` #0 (9 f32 as f16)");
        assert_eq!(Header::new(Kind::Barrier, Dtype::Bytes, "b", 0).to_string(), "barrier `b` #0");
    }
}
