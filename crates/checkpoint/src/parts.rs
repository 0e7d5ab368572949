//! Parts of a checkpoint other than tables: tensors and plain bytes. Each is written under its own
//! name into a draft, forced to disk, and reported with size and checksum.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use regatta_tensor::Tensor;

use crate::checksum::{Checksum, Summing, damaged};
use crate::manifest::{Content, Part, name_problem};
use crate::tensors::{Prepared, parse_tensors};
use crate::{Error, Metadata, TensorFile};

/// Where a file says what the checksums of its tensors are.
const SUMS_KEY: &str = "regatta.checksums";

/// Writes named tensors as a part of a draft, to the bit. Each tensor has a checksum of its own
/// beside that of the file, so that damage can be told by name.
///
/// # Errors
/// If two tensors have one name, the name of the part is no file name, or the file cannot be
/// written.
pub fn write_tensors<'t, N: AsRef<str>>(
    draft: &Path,
    name: &str,
    tensors: impl IntoIterator<Item = (N, &'t Tensor)>,
    metadata: &Metadata,
) -> Result<Part, Error> {
    let tensors: Vec<(N, &Tensor)> = tensors.into_iter().collect();
    let sums =
        tensors.iter().map(|(name, t)| (name.as_ref().to_string(), Checksum::of_elements(t)));
    let sums: BTreeMap<String, Checksum> = sums.collect();
    let mut metadata = metadata.clone();
    let text = serde_json::to_string(&sums).map_err(|e| Error::refused(draft, e.to_string()))?;
    metadata.insert(SUMS_KEY.to_string(), text);
    let prepared = Prepared::new(tensors, &metadata)?;
    write_part(draft, name, Content::Tensors, |file| prepared.write(file))
}

/// Writes bytes as a part of a draft.
///
/// # Errors
/// If the name of the part is no file name, or the file cannot be written.
pub fn write_bytes(draft: &Path, name: &str, bytes: &[u8]) -> Result<Part, Error> {
    write_part(draft, name, Content::Bytes, |file| file.write_all(bytes))
}

/// Reads a part with tensors and compares it with its checksums.
///
/// # Errors
/// If it is missing, truncated, changed or no such file.
pub fn read_tensors(dir: &Path, part: &Part) -> Result<TensorFile, Error> {
    let bytes = read_bytes_unchecked(dir, part)?;
    let path = dir.join(&part.name);
    if Checksum::of(&bytes) != part.checksum {
        return Err(Error::corrupt(&path, damage(&path, &bytes, part)));
    }
    let mut file = parse_tensors(&path, &bytes)?;
    file.metadata.remove(SUMS_KEY);
    Ok(file)
}

/// Reads a part with bytes and compares it with its checksum.
///
/// # Errors
/// If it is missing, truncated or changed.
pub fn read_bytes(dir: &Path, part: &Part) -> Result<Vec<u8>, Error> {
    let bytes = read_bytes_unchecked(dir, part)?;
    if Checksum::of(&bytes) != part.checksum {
        let path = dir.join(&part.name);
        return Err(Error::corrupt(&path, differs(&bytes, part)));
    }
    Ok(bytes)
}

/// Creates a part's file; a name that leads elsewhere is refused.
pub(crate) fn create_part(draft: &Path, name: &str) -> Result<(PathBuf, File), Error> {
    if let Some(problem) = name_problem(name) {
        return Err(Error::refused(draft, problem));
    }
    let path = draft.join(name);
    // A participant that tries again begins again.
    let file = File::create(&path).map_err(Error::io("write", &path))?;
    Ok((path, file))
}

fn write_part(
    draft: &Path,
    name: &str,
    content: Content,
    write: impl FnOnce(&mut Summing<BufWriter<File>>) -> io::Result<()>,
) -> Result<Part, Error> {
    let (path, file) = create_part(draft, name)?;
    let mut summing = Summing::new(BufWriter::with_capacity(1 << 20, file));
    let sum = || {
        write(&mut summing)?;
        let sum = summing.sum();
        summing.into_inner().into_inner().map_err(|e| e.into_error())?.sync_all()?;
        Ok(sum)
    };
    let (bytes, checksum) = sum().map_err(Error::io("write", &path))?;
    Ok(Part { name: name.to_string(), bytes, checksum, content })
}

fn read_bytes_unchecked(dir: &Path, part: &Part) -> Result<Vec<u8>, Error> {
    let path = dir.join(&part.name);
    let bytes = fs::read(&path).map_err(Error::io("read", &path))?;
    if bytes.len() as u64 != part.bytes {
        let reason = format!("it has {} of {} bytes", bytes.len(), part.bytes);
        return Err(Error::corrupt(&path, reason));
    }
    Ok(bytes)
}

fn differs(bytes: &[u8], part: &Part) -> String {
    damaged(Checksum::of(bytes), part.checksum)
}

/// Says which tensors of a damaged file are damaged, if that can be told.
pub(crate) fn damage(path: &Path, bytes: &[u8], part: &Part) -> String {
    let whole = differs(bytes, part);
    let Ok(file) = parse_tensors(path, bytes) else { return format!("{whole} (in its header)") };
    let sums = file.metadata.get(SUMS_KEY).and_then(|text| serde_json::from_str(text).ok());
    let Some(sums): Option<BTreeMap<String, Checksum>> = sums else {
        return format!("{whole} (in its header)");
    };
    let bad = |name: &&String| {
        file.tensors.get(*name).is_none_or(|tensor| Checksum::of_elements(tensor) != sums[*name])
    };
    let names: Vec<String> = sums.keys().filter(bad).map(|name| format!("'{name}'")).collect();
    match names.is_empty() {
        true => format!("{whole} (in its header)"),
        false => format!("{whole} (in {})", names.join(", ")),
    }
}
