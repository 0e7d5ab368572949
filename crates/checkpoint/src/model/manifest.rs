//! What a model says about itself: where it comes from, its tables, and every file with size and
//! checksum. Written last, so a directory with a manifest was complete.

use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::manifest::{name_problem, read_checked, write_checked};
use crate::{Checksum, Error, FORMAT_VERSION, MANIFEST_FILE};

/// The word by which a manifest of a model differs from that of a checkpoint.
const KIND: &str = "model";

/// Everything about a model except program and values.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelManifest {
    pub(super) format: u32,
    pub(super) kind: String,
    /// Where it comes from.
    pub about: ModelAbout,
    /// Parameters that are looked up by id, with their rows in files of their own.
    pub tables: Vec<ModelTable>,
    /// All other files.
    pub files: Vec<ModelFile>,
}

/// Where a model comes from.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelAbout {
    /// Its name.
    pub name: String,
    /// Number of the checkpoint that it was made of, if it was.
    pub serial: Option<u64>,
    /// Steps of training, if they are known.
    pub step: Option<u64>,
    /// The resolved configuration of its training, or null.
    pub config: Value,
    /// What makes its inputs of raw values, if its features were declared.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub features: Option<Value>,
}

/// A file with its size and checksum.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelFile {
    /// Its name within the directory.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// XXH3 of its bytes.
    pub checksum: Checksum,
}

/// A table of a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ModelTable {
    /// Name of the parameter.
    pub name: String,
    /// How many rows there are.
    pub rows: u64,
    /// Floats per row.
    pub dim: usize,
    /// How a row is written.
    pub encoding: Encoding,
    /// Largest difference between a value and what is left of it in this encoding.
    pub max_error: f64,
    /// The file of ids in the order of rows; without one, the id is the number of the row.
    pub keys: Option<String>,
    /// The file of rows.
    pub values: String,
}

/// How the floats of a row are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Encoding {
    /// As they are.
    #[default]
    F32,
    /// The upper half of their bits, rounded to the nearest.
    Bf16,
    /// A factor for the row (f32), then whole numbers from -127 to 127.
    Int8,
}

impl Encoding {
    /// Bytes of a row of `dim` floats.
    pub fn row_bytes(self, dim: usize) -> usize {
        match self {
            Encoding::F32 => 4 * dim,
            Encoding::Bf16 => 2 * dim,
            Encoding::Int8 => 4 + dim,
        }
    }

    /// Appends a row to `out`; gives the largest difference that reading it back will show.
    pub fn write(self, row: &[f32], out: &mut Vec<u8>) -> f64 {
        let from = out.len();
        match self {
            Encoding::F32 => row.iter().for_each(|x| out.extend(x.to_le_bytes())),
            Encoding::Bf16 => row.iter().for_each(|&x| out.extend(to_bf16(x).to_le_bytes())),
            Encoding::Int8 => {
                let largest = row.iter().fold(0.0_f32, |m, x| m.max(x.abs()));
                let scale = largest / 127.0;
                out.extend(scale.to_le_bytes());
                let step = |x: &f32| if scale > 0.0 { (x / scale).round() as i8 } else { 0 };
                out.extend(row.iter().map(|x| step(x) as u8));
            }
        }
        if self == Encoding::F32 {
            return 0.0;
        }
        let mut back = vec![0.0; row.len()];
        self.read(&out[from..], &mut back);
        let differences = row.iter().zip(&back).map(|(a, b)| f64::from((a - b).abs()));
        differences.fold(0.0, f64::max)
    }

    /// Reads a row that [`Encoding::write`] wrote.
    ///
    /// # Panics
    /// If there are fewer bytes than such a row has.
    pub fn read(self, bytes: &[u8], row: &mut [f32]) {
        match self {
            Encoding::F32 => {
                for (x, b) in row.iter_mut().zip(bytes.as_chunks::<4>().0) {
                    *x = f32::from_le_bytes(*b);
                }
            }
            Encoding::Bf16 => {
                for (x, b) in row.iter_mut().zip(bytes.as_chunks::<2>().0) {
                    *x = f32::from_bits(u32::from(u16::from_le_bytes(*b)) << 16);
                }
            }
            Encoding::Int8 => {
                let (scale, steps) = bytes.split_at(4);
                let scale = f32::from_le_bytes([scale[0], scale[1], scale[2], scale[3]]);
                for (x, b) in row.iter_mut().zip(steps) {
                    *x = f32::from(*b as i8) * scale;
                }
            }
        }
    }
}

/// To the nearest, ties to even; NaN stays NaN.
fn to_bf16(x: f32) -> u16 {
    let bits = x.to_bits();
    if x.is_nan() {
        return (bits >> 16) as u16 | 0x40;
    }
    ((bits.wrapping_add(0x7fff + ((bits >> 16) & 1))) >> 16) as u16
}

impl ModelManifest {
    pub(super) fn new(about: ModelAbout) -> ModelManifest {
        let (format, kind) = (FORMAT_VERSION, KIND.to_string());
        ModelManifest { format, kind, about, tables: Vec::new(), files: Vec::new() }
    }

    /// Reads the manifest of the model in `dir`.
    ///
    /// # Errors
    /// If it is not there, of another version, damaged, or of something else.
    pub fn read(dir: &Path) -> Result<ModelManifest, Error> {
        let path = dir.join(MANIFEST_FILE);
        let tree: Value = read_checked(&path)?;
        let corrupt = |reason: String| Error::corrupt(&path, reason);
        if tree.get("serial").is_some() && tree.get("progress").is_some() {
            let reason = "this is a checkpoint, not a model; `regatta export` makes one of it";
            return Err(Error::refused(dir, reason.to_string()));
        }
        let manifest: ModelManifest = serde_json::from_value(tree)
            .map_err(|e| corrupt(format!("no manifest of a model: {e}")))?;
        if manifest.kind != KIND {
            return Err(corrupt(format!("it is of a '{}', not of a model", manifest.kind)));
        }
        manifest.check().map_err(corrupt)?;
        Ok(manifest)
    }

    pub(super) fn write(&self, dir: &Path) -> Result<(), Error> {
        write_checked(&dir.join(MANIFEST_FILE), self)
    }

    /// The file of that name.
    pub fn file(&self, name: &str) -> Option<&ModelFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// Names are joined to paths, and sizes are relied on.
    fn check(&self) -> Result<(), String> {
        if let Some(problem) = self.files.iter().find_map(|file| name_problem(&file.name)) {
            return Err(problem);
        }
        for table in &self.tables {
            let size = |name: &str, row: usize| {
                let file = self.file(name).ok_or_else(|| format!("it does not list '{name}'"))?;
                let expected = table.rows.checked_mul(row as u64);
                if expected != Some(file.bytes) {
                    let (name, rows, bytes) = (&file.name, table.rows, file.bytes);
                    return Err(format!("'{name}' of {rows} rows cannot have {bytes} bytes"));
                }
                Ok(())
            };
            if table.dim == 0 || table.dim > 1 << 20 {
                return Err(format!("table '{}' has rows of {} floats", table.name, table.dim));
            }
            size(&table.values, table.encoding.row_bytes(table.dim))?;
            table.keys.as_deref().map_or(Ok(()), |keys| size(keys, 8))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_come_back_within_the_error_that_is_reported() {
        let row: Vec<f32> = (0..9).map(|i| (i as f32 - 4.3) * 0.037).collect();
        for encoding in [Encoding::F32, Encoding::Bf16, Encoding::Int8] {
            let mut bytes = Vec::new();
            let error = encoding.write(&row, &mut bytes);
            assert_eq!(bytes.len(), encoding.row_bytes(row.len()));
            let mut back = vec![0.0; row.len()];
            encoding.read(&bytes, &mut back);
            let worst = row.iter().zip(&back).map(|(a, b)| f64::from((a - b).abs()));
            assert_eq!(worst.fold(0.0, f64::max), error);
            // Half a step: 2^-9 of the value, or a 254th of the largest one.
            let bound = match encoding {
                Encoding::F32 => 0.0,
                Encoding::Bf16 => 0.172 / 512.0,
                Encoding::Int8 => 0.172 / 253.0,
            };
            assert!(error <= bound, "{encoding:?}: {error}");
        }
        let mut bytes = Vec::new();
        Encoding::Int8.write(&[0.0, 0.0], &mut bytes);
        assert_eq!(bytes, [0; 6], "a row of zeros has no step");
        assert!(f32::from_bits(u32::from(to_bf16(f32::NAN)) << 16).is_nan());
    }
}
