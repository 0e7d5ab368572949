//! Paddle's layout before `part-`: `<table>.shard/<table>.block<server>.txt` holds a line for each
//! row, `id count unseen_days is_entry v,v,..` with tabs between, and the `.meta` file beside it
//! says what the numbers of a row are. Dense parameters are files of their name in Paddle's binary
//! format.

use std::fs;
use std::path::{Path, PathBuf};

use regatta_checkpoint::OpenModel;
use regatta_tensor::{Data, Tensor};

use super::lines::{files, id, number, read_lines, write_lines};
use super::{Rows, Source, read_rows, shape_text, write_error};
use crate::Error;

/// What follows the name of a table in the name of its folder.
const FOLDER: &str = ".shard";

/// Whether a directory has this layout.
pub(super) fn is_here(dir: &Path) -> bool {
    files(dir, "", FOLDER).is_ok_and(|found| !found.is_empty())
}

/// Writes a model.
pub(super) fn write(
    model: &Path,
    opened: &OpenModel,
    to: &Path,
) -> Result<Vec<(String, String)>, Error> {
    let mut written = Vec::new();
    for table in &opened.manifest.tables {
        let (name, dim) = (&table.name, table.dim);
        let rows = read_rows(model, &opened.manifest, table)?;
        let folder = to.join(file_name(name)? + FOLDER);
        fs::create_dir(&folder).map_err(write_error(&folder))?;
        let lines = rows.ids.iter().zip(rows.values.chunks_exact(dim)).map(|(id, row)| {
            let row: Vec<String> = row.iter().map(ToString::to_string).collect();
            // Seen often enough, and just now.
            format!("{id}\t1\t0\t1\t{}", row.join(","))
        });
        write_lines(&folder.join(format!("{name}.block0.txt")), lines)?;
        let n = rows.ids.len();
        let meta = [
            format!("param={name}"),
            "shard_id=0".into(),
            "row_names=Param".into(),
            format!("row_dims={dim}"),
            format!("count={n}"),
        ];
        write_lines(&folder.join(format!("{name}.block0.meta")), meta.into_iter())?;
        written.push((format!("{name}{FOLDER}"), format!("{n} rows of {dim} floats")));
    }
    for (name, tensor) in &opened.params {
        let path = to.join(file_name(name)?);
        fs::write(&path, dense_bytes(name, tensor)?).map_err(write_error(&path))?;
        written.push((name.clone(), shape_text(tensor)));
    }
    Ok(written)
}

fn file_name(name: &str) -> Result<String, Error> {
    match name.contains(['/', '\\']) || name.starts_with('.') {
        true => Err(Error::Input(format!("'{name}' cannot be the name of a file"))),
        false => Ok(name.to_string()),
    }
}

/// Before the elements of a dense parameter: a version (u32) and no levels of detail (u64), another
/// version (u32), the length of a description (i32), and the description: element type and
/// dimensions as protobuf fields.
const BEFORE: [u8; 16] = [0; 16];
/// `data_type` is field 1; 5 is f32.
const F32_FIELD: [u8; 2] = [0x08, 5];
/// `dims` is field 2, a number for each.
const DIM_FIELD: u8 = 0x10;

fn dense_bytes(name: &str, tensor: &Tensor) -> Result<Vec<u8>, Error> {
    let Data::F32(values) = tensor.data() else {
        let reason = format!("'{name}' is {}, but this layout is written with f32", tensor.dtype());
        return Err(Error::Input(reason));
    };
    let mut description = F32_FIELD.to_vec();
    for &dim in tensor.shape() {
        description.push(DIM_FIELD);
        push_varint(&mut description, dim as u64);
    }
    let mut bytes = BEFORE.to_vec();
    bytes.extend((description.len() as i32).to_le_bytes());
    bytes.extend(description);
    bytes.extend(values.iter().flat_map(|x| x.to_le_bytes()));
    Ok(bytes)
}

fn push_varint(bytes: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        bytes.push(value as u8 | 0x80);
        value >>= 7;
    }
    bytes.push(value as u8);
}

/// The elements of a dense parameter, if its file is whole and of that shape.
fn dense_values(bytes: &[u8], shape: &[usize]) -> Result<Vec<f32>, String> {
    let (before, rest) = bytes.split_at_checked(16).ok_or("it is truncated")?;
    if before != BEFORE {
        return Err("it does not begin as Paddle's files of tensors do".into());
    }
    let (len, rest) = rest.split_at_checked(4).ok_or("it is truncated")?;
    let len = usize::try_from(i32::from_le_bytes([len[0], len[1], len[2], len[3]])).ok();
    let (description, elements) =
        len.and_then(|len| rest.split_at_checked(len)).ok_or("it is truncated")?;
    let dims = description.strip_prefix(&F32_FIELD[..]).ok_or("its elements are not f32")?;
    let dims = read_dims(dims).ok_or("its description makes no sense")?;
    if dims != shape {
        return Err(format!("its shape is {dims:?}, not {shape:?}"));
    }
    let expected = 4 * shape.iter().product::<usize>();
    if elements.len() != expected {
        return Err(format!("it holds {} of {expected} bytes of elements", elements.len()));
    }
    Ok(elements.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect())
}

fn read_dims(mut bytes: &[u8]) -> Option<Vec<usize>> {
    let mut dims = Vec::new();
    while let Some((&field, rest)) = bytes.split_first() {
        if field != DIM_FIELD {
            return None;
        }
        let end = rest.iter().position(|byte| byte & 0x80 == 0).filter(|end| *end < 9)?;
        let value =
            rest[..=end].iter().rev().fold(0_u64, |n, byte| n << 7 | u64::from(byte & 0x7f));
        dims.push(usize::try_from(value).ok()?);
        bytes = &rest[end + 1..];
    }
    Some(dims)
}

/// Such a directory, to be read.
pub(super) struct Reader<'a> {
    dir: &'a Path,
}

impl<'a> Reader<'a> {
    pub(super) fn new(dir: &'a Path) -> Reader<'a> {
        Reader { dir }
    }
}

impl Source for Reader<'_> {
    fn rows(&self, name: &str, dim: usize) -> Result<Option<Rows>, Error> {
        let folder = self.dir.join(format!("{name}{FOLDER}"));
        if !folder.is_dir() {
            return Ok(None);
        }
        let blocks = files(&folder, &format!("{name}.block"), ".txt")?;
        if blocks.is_empty() {
            return Err(Error::Input(format!("{} holds no blocks", folder.display())));
        }
        let mut rows = Rows::default();
        let mut seen = std::collections::HashSet::new();
        for path in blocks {
            let Meta { width, at, count } = Meta::read(&path.with_extension("meta"), dim)?;
            let before = rows.ids.len();
            read_lines(&path, |line| {
                let words: Vec<&str> = line.split('\t').collect();
                let &[key, _, _, _, values] = &words[..] else {
                    return Err(format!("{} of 5 fields", words.len()));
                };
                let key = id(key)?;
                if !seen.insert(key) {
                    return Err(format!("id {key} is there twice"));
                }
                let numbers: Vec<f32> = values.split(',').map(number).collect::<Result<_, _>>()?;
                if numbers.len() != width {
                    return Err(format!("{} of {width} numbers", numbers.len()));
                }
                rows.ids.push(key);
                rows.values.extend(&numbers[at..at + dim]);
                Ok(())
            })?;
            let n = rows.ids.len() - before;
            if n != count {
                let path = path.display();
                return Err(Error::Input(format!("{path}: {n} rows, but its .meta says {count}")));
            }
        }
        Ok(Some(rows))
    }

    fn values(&self, name: &str, shape: &[usize]) -> Result<Option<Vec<f32>>, Error> {
        let path: PathBuf = self.dir.join(name);
        if !path.is_file() {
            return Ok(None);
        }
        let bytes = fs::read(&path).map_err(|source| Error::Map { path: path.clone(), source })?;
        let wrong = |reason| Error::Input(format!("{}: {reason}", path.display()));
        dense_values(&bytes, shape).map(Some).map_err(wrong)
    }
}

/// What the numbers of a row are.
struct Meta {
    /// How many there are.
    width: usize,
    /// Where the weights begin.
    at: usize,
    /// Number of rows.
    count: usize,
}

impl Meta {
    fn read(path: &Path, dim: usize) -> Result<Meta, Error> {
        let mut fields = std::collections::BTreeMap::new();
        read_lines(path, |line| match line.split_once('=') {
            Some((key, value)) => {
                fields.insert(key.to_string(), value.to_string());
                Ok(())
            }
            None => Err("expected key=value".into()),
        })?;
        let wrong = |reason: String| Error::Input(format!("{}: {reason}", path.display()));
        let field = |key: &str| {
            let value = fields.get(key).map(|value| value.trim());
            value.ok_or_else(|| wrong(format!("it does not say {key}=")))
        };
        let count = field("count")?;
        let count = count.parse().map_err(|_| wrong(format!("'{count}' is no count")))?;
        let names: Vec<&str> = field("row_names")?.split(',').collect();
        let dims = field("row_dims")?.split(',').map(|n| n.trim().parse::<usize>());
        let dims = dims.collect::<Result<Vec<_>, _>>();
        let dims = dims.map_err(|e| wrong(format!("row_dims: {e}")))?;
        let Some(place) = names.iter().position(|name| name.trim() == "Param") else {
            return Err(wrong(format!("no Param among the rows' {names:?}")));
        };
        if dims.len() != names.len() || dims[place] != dim {
            return Err(wrong(format!(
                "rows of {names:?} {dims:?}, but Param has {dim} floats here"
            )));
        }
        Ok(Meta { width: dims.iter().sum(), at: dims[..place].iter().sum(), count })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_parameters_come_back_and_bad_files_are_told_apart() {
        let tensor =
            Tensor::from_f32(&[2, 200], (0..400).map(|i| i as f32 * 0.1).collect()).unwrap();
        let bytes = dense_bytes("w", &tensor).unwrap();
        assert_eq!(dense_values(&bytes, &[2, 200]).unwrap(), tensor.f32());
        // Versions, no levels, 7 bytes that describe f32[2, 200].
        assert_eq!(bytes[16..25], [7, 0, 0, 0, 8, 5, 0x10, 2, 0x10]);
        for (bytes, shape, says) in [
            (&bytes[..10], [2, 200], "truncated"),
            (&bytes[..22], [2, 200], "truncated"),
            (&bytes[..100], [2, 200], "of 1600 bytes"),
            (&bytes[..], [200, 2], "its shape is [2, 200]"),
            (&b"{\"no\": \"file of Paddle's, but long enough\"}"[..], [2, 200], "does not begin"),
        ] {
            let said = dense_values(bytes, &shape).unwrap_err();
            assert!(said.contains(says), "{said}");
        }
        assert_eq!(read_dims(&[0x10]), None);
        assert_eq!(read_dims(&[0x10, 0x80]), None);
        assert_eq!(read_dims(&[0x12, 1]), None);
    }
}
