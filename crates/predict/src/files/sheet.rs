//! Named columns of texts and floats, row by row: scores beside what they belong to.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use super::write_error;
use crate::Error;

/// A file of named columns: Parquet if its name ends with `.parquet`, with tabs if it ends with
/// `.tsv`, else with commas. The number of a worker may follow (`scores.parquet.1`).
pub struct Sheet {
    path: PathBuf,
    kind: Kind,
    rows: u64,
}

enum Kind {
    Lines {
        file: BufWriter<File>,
        separator: u8,
    },
    #[cfg(feature = "parquet")]
    Parquet(Box<super::parquet::Columns>),
}

impl Sheet {
    /// Makes the file.
    ///
    /// # Errors
    /// If it cannot be made, or this program writes no Parquet.
    pub fn create(path: &Path) -> Result<Sheet, Error> {
        let numbered =
            path.extension().is_some_and(|e| e.to_string_lossy().parse::<usize>().is_ok());
        let stem = path.with_extension("");
        let format = if numbered { &stem } else { path };
        let extension = format.extension().map(|e| e.to_string_lossy().to_lowercase());
        let kind = match extension.as_deref() {
            Some("parquet") => parquet(path)?,
            extension => Kind::Lines {
                file: BufWriter::new(File::create(path).map_err(write_error(path))?),
                separator: if extension == Some("tsv") { b'\t' } else { b',' },
            },
        };
        Ok(Sheet { path: path.to_path_buf(), kind, rows: 0 })
    }

    /// Appends rows: columns of texts, then of floats, all of the same length and the same at every
    /// call.
    ///
    /// # Errors
    /// If they cannot be written.
    pub fn write(
        &mut self,
        texts: &[(&str, Vec<String>)],
        floats: &[(String, Vec<f32>)],
    ) -> Result<(), Error> {
        let rows = floats.first().map_or(0, |(_, values)| values.len());
        if rows == 0 {
            return Ok(());
        }
        let first = self.rows == 0;
        self.rows += rows as u64;
        match &mut self.kind {
            Kind::Lines { file, separator } => {
                write_lines(file, *separator, first, texts, floats).map_err(write_error(&self.path))
            }
            #[cfg(feature = "parquet")]
            Kind::Parquet(columns) => {
                columns.append(texts, floats).map_err(|e| parquet_error(&self.path, e))
            }
        }
    }

    /// Closes the file and gives the number of its rows.
    ///
    /// # Errors
    /// If the rest cannot be written.
    pub fn finish(self) -> Result<u64, Error> {
        match self.kind {
            Kind::Lines { file, .. } => {
                file.into_inner().map_err(|e| write_error(&self.path)(e.into_error()))?;
            }
            #[cfg(feature = "parquet")]
            Kind::Parquet(columns) => {
                columns.finish().map_err(|e| parquet_error(&self.path, e))?;
            }
        }
        Ok(self.rows)
    }
}

#[cfg(feature = "parquet")]
fn parquet(path: &Path) -> Result<Kind, Error> {
    let file = File::create(path).map_err(write_error(path))?;
    Ok(Kind::Parquet(Box::new(super::parquet::Columns::new(file))))
}

#[cfg(not(feature = "parquet"))]
fn parquet(path: &Path) -> Result<Kind, Error> {
    let reason = "this program was built without the feature 'parquet'";
    Err(Error::Input(format!("{}: {reason}", path.display())))
}

#[cfg(feature = "parquet")]
fn parquet_error(path: &Path, error: parquet::errors::ParquetError) -> Error {
    use parquet::errors::ParquetError;
    let source = match error {
        ParquetError::External(source) => match source.downcast::<io::Error>() {
            Ok(source) => *source,
            Err(other) => io::Error::other(other),
        },
        other => io::Error::other(other),
    };
    write_error(path)(source)
}

fn write_lines(
    file: &mut impl Write,
    separator: u8,
    first: bool,
    texts: &[(&str, Vec<String>)],
    floats: &[(String, Vec<f32>)],
) -> io::Result<()> {
    let mut line = |fields: &mut dyn Iterator<Item = String>| {
        for (i, field) in fields.enumerate() {
            if i > 0 {
                file.write_all(&[separator])?;
            }
            file.write_all(field.as_bytes())?;
        }
        file.write_all(b"\n")
    };
    if first {
        let names = texts.iter().map(|(name, _)| *name);
        let names = names.chain(floats.iter().map(|(name, _)| name.as_str()));
        line(&mut names.map(|name| quoted(name, separator)))?;
    }
    for row in 0..floats.first().map_or(0, |(_, values)| values.len()) {
        let texts = texts.iter().map(|(_, values)| quoted(&values[row], separator));
        line(&mut texts.chain(floats.iter().map(|(_, values)| values[row].to_string())))?;
    }
    Ok(())
}

/// A field that reads back as it is.
fn quoted(text: &str, separator: u8) -> String {
    let special = |byte: u8| byte == separator || b"\"\r\n".contains(&byte);
    match text.bytes().any(special) {
        true => format!("\"{}\"", text.replace('"', "\"\"")),
        false => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_read_back() {
        let mut out = Vec::new();
        let texts = [("user", vec!["a,b".to_string(), "say \"x\"".into(), String::new()])];
        let floats = [("score".to_string(), vec![0.5, 0.25, 1.0])];
        write_lines(&mut out, b',', true, &texts, &floats).unwrap();
        let expected = "user,score\n\"a,b\",0.5\n\"say \"\"x\"\"\",0.25\n,1\n";
        assert_eq!(String::from_utf8(out).unwrap(), expected);
        assert_eq!(
            (quoted("a,b", b'\t'), quoted("a\tb", b'\t')),
            ("a,b".into(), "\"a\tb\"".into())
        );
    }
}
