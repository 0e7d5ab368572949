//! Named tensors in one safetensors file, to the bit.

use std::collections::BTreeMap;
use std::io::{self, Write};
use std::path::Path;

use regatta_tensor::{DType, Data, Tensor};
use serde_json::json;

use crate::Error;
use crate::checksum::Summing;
use crate::open_tensors::OpenTensors;
use crate::publish::publish_file;
use crate::spool::Spool;

/// Free text about a file, by key.
pub type Metadata = BTreeMap<String, String>;

/// What a safetensors file holds.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct TensorFile {
    /// The tensors by name.
    pub tensors: BTreeMap<String, Tensor>,
    /// What was said about them.
    pub metadata: Metadata,
}

/// The key of the header under which safetensors keeps its metadata.
const METADATA: &str = "__metadata__";

/// The key of the metadata under which a file holds its own checksum, which is that of the whole
/// file with zeros in the place of the digits.
pub(crate) const CHECKSUM_KEY: &str = "regatta.checksum";

/// Writes tensors to a safetensors file, replacing an old one only once the new one is complete.
/// The file holds a checksum of itself. The same tensors and metadata give the same bytes, in
/// whatever order they come.
///
/// # Errors
/// If two tensors have one name, or the file cannot be written. The old file then stays.
pub fn save_tensors<'t, N: AsRef<str>>(
    path: impl AsRef<Path>,
    tensors: impl IntoIterator<Item = (N, &'t Tensor)>,
    metadata: &Metadata,
) -> Result<(), Error> {
    let columns = tensors.into_iter().map(|(name, tensor)| (name, Column::Memory(tensor)));
    save_columns(path.as_ref(), columns.collect(), metadata)
}

/// As [`save_tensors`], of values in memory and in files.
pub(crate) fn save_columns<N: AsRef<str>>(
    path: &Path,
    columns: Vec<(N, Column<'_>)>,
    metadata: &Metadata,
) -> Result<(), Error> {
    let mut metadata = metadata.clone();
    metadata.insert(CHECKSUM_KEY.to_string(), "0".repeat(CHECKSUM_DIGITS));
    let mut prepared = Prepared::of_columns(columns, &metadata)?;
    prepared.seal().map_err(Error::io("write", path))?;
    publish_file(path, |file| prepared.write(file))
}

/// Digits of a checksum.
const CHECKSUM_DIGITS: usize = 16;

/// Where the digits of the checksum are in a header that holds one.
pub(crate) fn checksum_digits(header: &[u8]) -> Option<std::ops::Range<usize>> {
    // Quotes within names and values have a backslash before them, and the value of a tensor's name
    // is an object: nothing else looks like this.
    let mark = format!("\"{CHECKSUM_KEY}\":\"");
    let found = header.windows(mark.len()).position(|window| window == mark.as_bytes())?;
    let start = found + mark.len();
    let end = start + CHECKSUM_DIGITS;
    (header.get(end) == Some(&b'"')).then_some(start..end)
}

/// The values of a tensor.
pub(crate) enum Column<'t> {
    /// In memory.
    Memory(&'t Tensor),
    /// In a file, because they are more than memory should hold.
    Spool(&'t Spool),
}

impl Column<'_> {
    fn dtype(&self) -> DType {
        match self {
            Column::Memory(tensor) => tensor.dtype(),
            Column::Spool(spool) => spool.dtype(),
        }
    }

    fn shape(&self) -> Vec<usize> {
        match self {
            Column::Memory(tensor) => tensor.shape().to_vec(),
            Column::Spool(spool) => spool.shape(),
        }
    }

    fn write(&self, file: &mut impl Write) -> io::Result<()> {
        match self {
            Column::Memory(tensor) => file.write_all(element_bytes(tensor)),
            Column::Spool(spool) => spool.copy_to(file),
        }
    }
}

/// Tensors in the order of a file, and its header.
pub(crate) struct Prepared<'t, N> {
    columns: Vec<(N, Column<'t>)>,
    header: String,
}

impl<'t, N: AsRef<str>> Prepared<'t, N> {
    pub(crate) fn new(tensors: Vec<(N, &'t Tensor)>, metadata: &Metadata) -> Result<Self, Error> {
        let columns = tensors.into_iter().map(|(name, tensor)| (name, Column::Memory(tensor)));
        Prepared::of_columns(columns.collect(), metadata)
    }

    fn of_columns(mut columns: Vec<(N, Column<'t>)>, metadata: &Metadata) -> Result<Self, Error> {
        // 8-byte elements first keeps everything aligned, as the format asks for; then by name.
        columns.sort_by(|(a, x), (b, y)| {
            y.dtype().size().cmp(&x.dtype().size()).then_with(|| a.as_ref().cmp(b.as_ref()))
        });
        let header = header(&columns, metadata)?;
        Ok(Prepared { columns, header })
    }

    /// Puts the checksum of the file into its header.
    fn seal(&mut self) -> io::Result<()> {
        let mut summing = Summing::new(io::sink());
        self.write(&mut summing)?;
        if let Some(digits) = checksum_digits(self.header.as_bytes()) {
            self.header.replace_range(digits, &summing.sum().1.to_string());
        }
        Ok(())
    }

    pub(crate) fn write(&self, file: &mut impl Write) -> io::Result<()> {
        file.write_all(&(self.header.len() as u64).to_le_bytes())?;
        file.write_all(self.header.as_bytes())?;
        self.columns.iter().try_for_each(|(_, column)| column.write(file))
    }
}

/// Reads all tensors of a safetensors file, written here or elsewhere. One that holds a checksum is
/// compared with it.
///
/// # Errors
/// If the file is missing, truncated, damaged or no safetensors file, or if it holds an element
/// type other than f32, f16, bf16, i64 and u64, or one name twice.
pub fn load_tensors(path: impl AsRef<Path>) -> Result<TensorFile, Error> {
    let file = OpenTensors::open(path)?;
    if file.has_checksum() {
        file.check()?;
    }
    file.read_all()
}

/// As [`load_tensors`], of a file that was written here.
///
/// # Errors
/// As [`load_tensors`], or if it holds no checksum.
pub fn load_checked(path: impl AsRef<Path>) -> Result<TensorFile, Error> {
    let file = OpenTensors::open(path)?;
    file.check()?;
    file.read_all()
}

/// The tensors in the bytes of a safetensors file.
pub(crate) fn parse_tensors(path: &Path, bytes: &[u8]) -> Result<TensorFile, Error> {
    OpenTensors::new(path, bytes)?.read_all()
}

/// The type of a tensor as programs write it: `f32[2, 3]`.
pub(crate) fn type_text(tensor: &Tensor) -> String {
    format!("{}{:?}", tensor.dtype(), tensor.shape())
}

/// The JSON header. The library's own writer keeps metadata in a hash map, so that equal files
/// would differ in their bytes.
fn header<N: AsRef<str>>(
    columns: &[(N, Column<'_>)],
    metadata: &Metadata,
) -> Result<String, Error> {
    let mut entries = BTreeMap::new();
    if !metadata.is_empty() {
        entries.insert(METADATA, json!(metadata));
    }
    let mut at = 0;
    for (name, column) in columns {
        let name = name.as_ref();
        let bad = |reason: &str| Error::Name { name: name.into(), reason: reason.into() };
        if name == METADATA {
            return Err(bad("the format keeps it for itself"));
        }
        let shape = column.shape();
        let end = at + shape.iter().product::<usize>() * column.dtype().size();
        let dtype = match column.dtype() {
            DType::F32 => "F32",
            DType::F16 => "F16",
            DType::BF16 => "BF16",
            DType::I64 => "I64",
            DType::U64 => "U64",
        };
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        if entries.insert(name, entry).is_some() {
            return Err(bad("there are two of it"));
        }
        at = end;
    }
    let mut text = json!(entries).to_string();
    // Elements start at a multiple of 8.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    Ok(text)
}

#[cfg(target_endian = "big")]
compile_error!("files hold little-endian numbers, and are written from memory as they stand there");

/// The elements as files hold them. Floats go by their bits: no payload of a NaN is lost.
pub(crate) fn element_bytes(tensor: &Tensor) -> &[u8] {
    match tensor.data() {
        Data::F32(v) => bytemuck::cast_slice(v),
        Data::F16(v) | Data::BF16(v) => bytemuck::cast_slice(v),
        Data::I64(v) => bytemuck::cast_slice(v),
        Data::U64(v) => bytemuck::cast_slice(v),
    }
}
