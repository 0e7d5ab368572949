//! TensorBoard event files: records with a length and checksums around a few protobuf fields.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::Error;

/// Writes scalars into an event file that TensorBoard shows as curves.
#[derive(Debug)]
pub struct EventWriter {
    path: PathBuf,
    out: BufWriter<File>,
    clock: fn() -> SystemTime,
}

impl EventWriter {
    /// A new file in `dir`, which is made if need be; `clock` gives the time of points.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn create(dir: &Path, clock: fn() -> SystemTime) -> Result<EventWriter, Error> {
        let now = since_epoch(clock());
        // TensorBoard takes every file with `tfevents` in its name; pid and nanoseconds tell runs
        // apart.
        let name = format!(
            "events.out.tfevents.{}.{}.{}",
            now.as_secs(),
            std::process::id(),
            now.subsec_nanos()
        );
        let path = dir.join(name);
        let fail = |source| Error::Write { path: path.clone(), source };
        std::fs::create_dir_all(dir).map_err(fail)?;
        let out = BufWriter::new(File::create_new(&path).map_err(fail)?);
        let mut writer = EventWriter { path, out, clock };
        writer.write(&record(&version_event(now.as_secs_f64())))?;
        writer.flush()?;
        Ok(writer)
    }

    /// Adds one point to each of some curves.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn scalars(&mut self, step: u64, values: &[(&str, f64)]) -> Result<(), Error> {
        let now = since_epoch((self.clock)());
        for (tag, value) in values {
            let event = scalar_event(now.as_secs_f64(), step, tag, *value as f32);
            self.write(&record(&event))?;
        }
        Ok(())
    }

    /// Lets readers see what was added.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn flush(&mut self) -> Result<(), Error> {
        self.out.flush().map_err(|source| Error::Write { path: self.path.clone(), source })
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), Error> {
        let path = &self.path;
        self.out.write_all(bytes).map_err(|source| Error::Write { path: path.clone(), source })
    }
}

fn since_epoch(time: SystemTime) -> Duration {
    time.duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO)
}

/// `Event { wall_time = 1: double, file_version = 3: string }`.
fn version_event(time: f64) -> Vec<u8> {
    let mut event = Vec::new();
    double(&mut event, 1, time);
    bytes(&mut event, 3, b"brain.Event:2");
    event
}

/// `Event { wall_time = 1, step = 2: int64, summary = 5: Summary { value = 1: Value { tag = 1:
/// string, simple_value = 2: float } } }`.
fn scalar_event(time: f64, step: u64, tag: &str, value: f32) -> Vec<u8> {
    let mut point = Vec::new();
    bytes(&mut point, 1, tag.as_bytes());
    point.push(2 << 3 | 5);
    point.extend(value.to_le_bytes());
    let mut summary = Vec::new();
    bytes(&mut summary, 1, &point);
    let mut event = Vec::new();
    double(&mut event, 1, time);
    event.push(2 << 3);
    varint(&mut event, step);
    bytes(&mut event, 5, &summary);
    event
}

fn double(out: &mut Vec<u8>, field: u8, value: f64) {
    out.push(field << 3 | 1);
    out.extend(value.to_le_bytes());
}

fn bytes(out: &mut Vec<u8>, field: u8, value: &[u8]) {
    out.push(field << 3 | 2);
    varint(out, value.len() as u64);
    out.extend(value);
}

fn varint(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// A TFRecord: length, checksum of the length, data, checksum of the data.
fn record(data: &[u8]) -> Vec<u8> {
    let length = (data.len() as u64).to_le_bytes();
    let mut out = Vec::with_capacity(data.len() + 16);
    out.extend(length);
    out.extend(masked_crc(&length).to_le_bytes());
    out.extend(data);
    out.extend(masked_crc(data).to_le_bytes());
    out
}

/// CRC-32C, rotated and shifted so that checksums of checksums stay good.
fn masked_crc(data: &[u8]) -> u32 {
    crc32c(data).rotate_right(15).wrapping_add(0xa282_ead8)
}

fn crc32c(data: &[u8]) -> u32 {
    const POLYNOMIAL: u32 = 0x82f6_3b78;
    let mut crc = !0_u32;
    for &byte in data {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = if crc & 1 == 1 { crc >> 1 ^ POLYNOMIAL } else { crc >> 1 };
        }
    }
    !crc
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_castagnoli() {
        // RFC 3720, section B.4.
        assert_eq!(crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(crc32c(&[0; 32]), 0x8a91_36aa);
    }

    /// The bytes that TensorBoard's own writer makes for the same event.
    #[test]
    fn records_to_the_byte() {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        let scalar = hex(&record(&scalar_event(1.5, 300, "train/loss", 0.25)));
        assert_eq!(
            scalar,
            concat!(
                "2100000000000000017becf6",
                "09000000000000f83f10ac022a130a110a0a747261696e2f6c6f7373150000803e",
                "6557981f"
            )
        );
        let version =
            "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c";
        assert_eq!(hex(&record(&version_event(1.5))), version);
    }
}
