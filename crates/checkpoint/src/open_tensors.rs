//! A safetensors file of which tensors are read one by one or in pieces: a large one need not fit
//! into memory twice.

use std::collections::{BTreeMap, HashSet};
use std::fmt;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use bytemuck::{Pod, Zeroable};
use regatta_tensor::{DType, Data, Tensor};
use safetensors::tensor::{Dtype, Metadata as Header, TensorInfo};
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};

use crate::checksum::{Checksum, NO_CHECKSUM, Summing, damaged};
use crate::rows::read_at;
use crate::tensors::{CHECKSUM_KEY, checksum_digits};
use crate::{Error, Metadata, TensorFile};

/// Bytes that are read at once when a file is compared with its checksum.
const CHUNK: u64 = 1 << 20;

/// A safetensors file that is open for reading; its header is read and fits the size of the file.
#[derive(Debug)]
pub struct OpenTensors<B = File> {
    path: PathBuf,
    bytes: B,
    header: Header,
    /// Where the elements begin.
    start: u64,
    /// The checksum that the file holds of itself.
    checksum: Option<Checksum>,
    /// What the file says about itself.
    pub metadata: Metadata,
}

/// Bytes that are read from any place.
pub(crate) trait Bytes {
    fn len(&self) -> io::Result<u64>;
    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()>;
}

impl Bytes for File {
    fn len(&self) -> io::Result<u64> {
        Ok(self.metadata()?.len())
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        read_at(self, into, offset)
    }
}

impl Bytes for &[u8] {
    fn len(&self) -> io::Result<u64> {
        Ok((**self).len() as u64)
    }

    fn read_at(&self, into: &mut [u8], offset: u64) -> io::Result<()> {
        let found = usize::try_from(offset).ok().and_then(|at| self.get(at..)?.get(..into.len()));
        into.copy_from_slice(found.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

impl OpenTensors {
    /// Opens a file and reads its header.
    ///
    /// # Errors
    /// If the file is missing, truncated or no safetensors file, or if it holds a name twice.
    pub fn open(path: impl AsRef<Path>) -> Result<OpenTensors, Error> {
        let path = path.as_ref();
        OpenTensors::new(path, File::open(path).map_err(Error::io("read", path))?)
    }

    /// Reads numbers of a tensor of `f32`, from number `from` on.
    ///
    /// # Errors
    /// If there is no such tensor, it is of another type or shorter, or the file cannot be read.
    pub fn read_f32(&self, name: &str, from: usize, into: &mut [f32]) -> Result<(), Error> {
        self.read_some(name, DType::F32, from, into)
    }

    /// Reads numbers of a tensor of `u64`, from number `from` on.
    ///
    /// # Errors
    /// As [`OpenTensors::read_f32`].
    pub fn read_u64(&self, name: &str, from: usize, into: &mut [u64]) -> Result<(), Error> {
        self.read_some(name, DType::U64, from, into)
    }
}

#[expect(private_bounds, reason = "files are opened by path; bytes are for the crate itself")]
impl<B: Bytes> OpenTensors<B> {
    pub(crate) fn new(path: &Path, bytes: B) -> Result<OpenTensors<B>, Error> {
        let len = bytes.len().map_err(Error::io("read", path))?;
        let text = header_text(path, &bytes, len)?;
        let header = header(&text, len).map_err(|reason| Error::corrupt(path, reason))?;
        let mut metadata: Metadata =
            header.metadata().clone().unwrap_or_default().into_iter().collect();
        let checksum = metadata.remove(CHECKSUM_KEY).map(Checksum::try_from).transpose();
        let checksum = checksum.map_err(|reason| Error::corrupt(path, reason))?;
        let (path, start) = (path.to_path_buf(), 8 + text.len() as u64);
        Ok(OpenTensors { path, bytes, header, start, checksum, metadata })
    }

    /// Whether the file holds a checksum of itself.
    pub fn has_checksum(&self) -> bool {
        self.checksum.is_some()
    }

    /// Reads the whole file and compares it with the checksum that it holds.
    ///
    /// # Errors
    /// If it is damaged, or holds none.
    pub fn check(&self) -> Result<(), Error> {
        let Some(expected) = self.checksum else { return Err(self.corrupt(NO_CHECKSUM.into())) };
        let fail = |e| Error::io("read", &self.path)(e);
        let mut text = vec![0; self.start as usize];
        self.bytes.read_at(&mut text, 0).map_err(fail)?;
        let Some(digits) = checksum_digits(&text) else {
            return Err(self.corrupt(NO_CHECKSUM.into()));
        };
        text[digits].fill(b'0');
        let mut summing = Summing::new(io::sink());
        let mut sum = || {
            summing.write_all(&text)?;
            let (mut at, len) = (self.start, self.bytes.len()?);
            while at < len {
                text.resize((len - at).min(CHUNK) as usize, 0);
                self.bytes.read_at(&mut text, at)?;
                summing.write_all(&text)?;
                at += text.len() as u64;
            }
            Ok(())
        };
        sum().map_err(fail)?;
        match summing.sum().1 {
            found if found == expected => Ok(()),
            found => Err(self.corrupt(damaged(found, expected))),
        }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The names of the tensors, in the order of the file.
    pub fn names(&self) -> Vec<String> {
        self.header.offset_keys()
    }

    /// Element type and shape of a tensor.
    ///
    /// # Errors
    /// If there is no such tensor, or its element type is none of ours.
    pub fn describe(&self, name: &str) -> Result<(DType, &[usize]), Error> {
        let info = self.info(name)?;
        Ok((self.dtype(name, info)?, &info.shape))
    }

    /// Reads a tensor.
    ///
    /// # Errors
    /// As [`OpenTensors::describe`], or if the file cannot be read.
    pub fn read(&self, name: &str) -> Result<Tensor, Error> {
        let (dtype, shape) = self.describe(name)?;
        let data = match dtype {
            DType::F32 => Data::F32(self.read_whole(name)?),
            DType::F16 => Data::F16(self.read_whole(name)?),
            DType::BF16 => Data::BF16(self.read_whole(name)?),
            DType::I64 => Data::I64(self.read_whole(name)?),
            DType::U64 => Data::U64(self.read_whole(name)?),
        };
        Tensor::new(shape, data).map_err(|e| self.corrupt(format!("'{name}': {e}")))
    }

    pub(crate) fn read_all(&self) -> Result<TensorFile, Error> {
        let named = self.names().into_iter().map(|name| Ok((name.clone(), self.read(&name)?)));
        let tensors = named.collect::<Result<BTreeMap<String, Tensor>, Error>>()?;
        Ok(TensorFile { tensors, metadata: self.metadata.clone() })
    }

    fn read_some<T: Pod>(
        &self,
        name: &str,
        dtype: DType,
        from: usize,
        into: &mut [T],
    ) -> Result<(), Error> {
        let (found, _) = self.describe(name)?;
        if found != dtype {
            return Err(self.corrupt(format!("'{name}' is of type {found}, not {dtype}")));
        }
        self.read_elements(name, from, into)
    }

    fn read_whole<T: Pod + Zeroable>(&self, name: &str) -> Result<Vec<T>, Error> {
        let (begin, end) = self.info(name)?.data_offsets;
        let mut elements = vec![T::zeroed(); (end - begin) / size_of::<T>()];
        self.read_elements(name, 0, &mut elements)?;
        Ok(elements)
    }

    fn read_elements<T: Pod>(&self, name: &str, from: usize, into: &mut [T]) -> Result<(), Error> {
        let (begin, end) = self.info(name)?.data_offsets;
        let n = (end - begin) / size_of::<T>();
        if from.checked_add(into.len()).is_none_or(|to| to > n) {
            let len = into.len();
            return Err(self.corrupt(format!("'{name}' has {n} numbers, not {len} from {from} on")));
        }
        let offset = self.start + (begin + from * size_of::<T>()) as u64;
        let into = bytemuck::cast_slice_mut(into);
        self.bytes.read_at(into, offset).map_err(Error::io("read", &self.path))
    }

    fn info(&self, name: &str) -> Result<&TensorInfo, Error> {
        self.header.info(name).ok_or_else(|| self.corrupt(format!("it holds no '{name}'")))
    }

    fn dtype(&self, name: &str, info: &TensorInfo) -> Result<DType, Error> {
        match info.dtype {
            Dtype::F32 => Ok(DType::F32),
            Dtype::F16 => Ok(DType::F16),
            Dtype::BF16 => Ok(DType::BF16),
            Dtype::I64 => Ok(DType::I64),
            Dtype::U64 => Ok(DType::U64),
            other => Err(self.corrupt(format!(
                "'{name}' is of type {other:?}; f32, f16, bf16, i64 and u64 can be read"
            ))),
        }
    }

    fn corrupt(&self, reason: String) -> Error {
        Error::corrupt(&self.path, reason)
    }
}

/// The text of the header of a file that is at least long enough for it.
fn header_text(path: &Path, bytes: &impl Bytes, len: u64) -> Result<Vec<u8>, Error> {
    let corrupt = |reason: String| Error::corrupt(path, reason);
    let mut begin = [0; 9];
    let begin = &mut begin[..len.min(9) as usize];
    bytes.read_at(begin, 0).map_err(Error::io("read", path))?;
    let Some((length, first)) = begin.split_first_chunk::<8>() else {
        return Err(corrupt(format!("truncated: {len} bytes are too few for a safetensors file")));
    };
    if first.first().is_some_and(|&b| b != b'{') {
        return Err(corrupt("not a safetensors file: it does not begin with a header".into()));
    }
    let (length, follow) = (u64::from_le_bytes(*length), len - 8);
    if length > follow {
        return Err(corrupt(format!(
            "truncated or not a safetensors file: the header should have {length} bytes, but only \
             {follow} follow"
        )));
    }
    let mut text = vec![0; length as usize];
    bytes.read_at(&mut text, 8).map_err(Error::io("read", path))?;
    Ok(text)
}

/// The header of a file of that many bytes, or what is wrong with it.
fn header(text: &[u8], len: u64) -> Result<Header, String> {
    if let Some(name) = duplicate_key(text) {
        return Err(format!("holds '{name}' twice"));
    }
    let header: Header = serde_json::from_slice(text).map_err(|e| match e.is_data() {
        true => format!("not a safetensors file: {e}"),
        false => format!("not a safetensors file: invalid JSON in header: {e}"),
    })?;
    let expected = (8 + text.len() as u64).saturating_add(header.data_len() as u64);
    if len < expected {
        return Err(format!("truncated: {expected} bytes expected, {len} found"));
    }
    if len > expected {
        return Err(format!("{} bytes too many after the last tensor", len - expected));
    }
    Ok(header)
}

/// The first key of a JSON object that comes twice. The library would take the last one.
fn duplicate_key(header: &[u8]) -> Option<String> {
    struct Keys;
    impl<'de> Visitor<'de> for Keys {
        type Value = Option<String>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an object")
        }

        fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Option<String>, A::Error> {
            let (mut seen, mut twice) = (HashSet::new(), None);
            while let Some((key, _)) = map.next_entry::<String, IgnoredAny>()? {
                if let Some(key) = seen.replace(key) {
                    twice.get_or_insert(key);
                }
            }
            Ok(twice)
        }
    }
    serde_json::Deserializer::from_slice(header).deserialize_map(Keys).ok().flatten()
}
