//! The part of the protobuf encoding that ONNX files need: fields of numbers, texts, bytes and
//! messages within messages. Numbers of fields are those of `onnx.proto`; each is named where it is
//! written.

use std::io::{self, Write};

/// A message that is put together field by field. A message that becomes a field of another is not
/// copied: tables are large.
#[derive(Debug, Default)]
pub(super) struct Message {
    chunks: Vec<Vec<u8>>,
    len: usize,
}

/// How the value of a field is written.
const VARINT: u64 = 0;
const BYTES: u64 = 2;
const FOUR_BYTES: u64 = 5;

impl Message {
    pub(super) fn new() -> Message {
        Message::default()
    }

    /// A whole number.
    pub(super) fn int(mut self, field: u64, value: i64) -> Message {
        self.tag(field, VARINT);
        self.varint(value as u64);
        self
    }

    /// A float.
    pub(super) fn float(mut self, field: u64, value: f32) -> Message {
        self.tag(field, FOUR_BYTES);
        self.put(&value.to_le_bytes());
        self
    }

    /// A text.
    pub(super) fn text(self, field: u64, value: &str) -> Message {
        self.bytes(field, value.as_bytes().to_vec())
    }

    /// Several texts.
    pub(super) fn texts(self, field: u64, values: &[&str]) -> Message {
        values.iter().fold(self, |message, value| message.text(field, value))
    }

    /// Bytes as they are.
    pub(super) fn bytes(mut self, field: u64, value: Vec<u8>) -> Message {
        self.tag(field, BYTES);
        self.varint(value.len() as u64);
        self.len += value.len();
        self.chunks.push(value);
        self
    }

    /// Several whole numbers as one field.
    pub(super) fn ints(self, field: u64, values: &[i64]) -> Message {
        let mut packed = Vec::with_capacity(values.len());
        values.iter().for_each(|value| push_varint(&mut packed, *value as u64));
        self.bytes(field, packed)
    }

    /// A message within this one.
    pub(super) fn message(mut self, field: u64, inner: Message) -> Message {
        self.tag(field, BYTES);
        self.varint(inner.len as u64);
        self.len += inner.len;
        self.chunks.extend(inner.chunks);
        self
    }

    /// Several messages of one kind.
    pub(super) fn messages(self, field: u64, all: impl IntoIterator<Item = Message>) -> Message {
        all.into_iter().fold(self, |message, inner| message.message(field, inner))
    }

    /// How many bytes it takes.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.chunks.iter().try_for_each(|chunk| to.write_all(chunk))
    }

    fn tag(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, value: u64) {
        let mut bytes = Vec::with_capacity(10);
        push_varint(&mut bytes, value);
        self.put(&bytes);
    }

    /// Small fields share a chunk.
    fn put(&mut self, bytes: &[u8]) {
        match self.chunks.last_mut().filter(|chunk| chunk.len() < 4096) {
            Some(chunk) => chunk.extend_from_slice(bytes),
            None => self.chunks.push(bytes.to_vec()),
        }
        self.len += bytes.len();
    }
}

/// Seven bits per byte, the lowest first; the highest bit says that more follow.
fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(message: &Message) -> Vec<u8> {
        let mut out = Vec::new();
        message.write(&mut out).unwrap();
        assert_eq!(out.len(), message.len());
        out
    }

    #[test]
    fn fields_are_encoded_as_the_format_says() {
        // The examples of the description of the encoding, and what follows from its rules.
        assert_eq!(bytes(&Message::new().int(1, 150)), [0x08, 0x96, 0x01]);
        assert_eq!(bytes(&Message::new().text(2, "testing")), *b"\x12\x07testing");
        let inner = Message::new().int(1, 150);
        assert_eq!(bytes(&Message::new().message(3, inner)), [0x1a, 0x03, 0x08, 0x96, 0x01]);
        assert_eq!(
            bytes(&Message::new().ints(6, &[3, 270, 86942])),
            [0x32, 0x06, 0x03, 0x8e, 0x02, 0x9e, 0xa7, 0x05]
        );
        assert_eq!(bytes(&Message::new().float(2, 1.0)), [0x15, 0, 0, 0x80, 0x3f]);
        let negative = bytes(&Message::new().int(3, -1));
        assert_eq!(negative, [&[0x18][..], &[0xff; 9], &[0x01]].concat());
        assert_eq!(bytes(&Message::new().int(20, 0)), [0xa0, 0x01, 0x00]);
    }

    #[test]
    fn large_fields_are_moved_not_merged() {
        let table = Message::new().text(8, "t").bytes(9, vec![7; 10_000]);
        let all = Message::new().message(1, table).text(2, "end");
        let out = bytes(&all);
        assert!(out.starts_with(b"\x0a"));
        assert!(out.ends_with(b"\x12\x03end"));
        assert_eq!(out.iter().filter(|b| **b == 7).count(), 10_000);
    }
}
