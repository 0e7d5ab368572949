//! Synthetic data into files.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use super::Synthetic;
use super::corpus::Corpus;
use crate::files::split_range;
use crate::format::{TextFormat, write_records};
use crate::{Error, Records};

/// Records that are made before they are written.
const BLOCK: u64 = 1024;

/// Writes a synthetic source to `n_files` files `part-00000.txt`, ... in `dir`, which is made if
/// need be, and returns their paths. Read in order, they give the records of the source.
///
/// A `corpus` is written as PaddleRec lays one out, whatever the format: sentences of word ids in
/// `train/`, the two dictionaries in `dict/`, analogy questions in `test/analogy.txt`.
///
/// A file gets its name when it is complete.
///
/// # Errors
/// If `n_files` is 0, or a file cannot be written.
pub fn write_synthetic(
    source: &Synthetic,
    dir: &Path,
    n_files: usize,
    format: &TextFormat,
) -> Result<Vec<PathBuf>, Error> {
    if n_files == 0 {
        return Err(Error::config("cannot write to 0 files"));
    }
    match source.generator.corpus() {
        Some(corpus) => write_corpus(source, corpus, dir, n_files),
        None => write_parts(dir, n_files, source.examples, |range, out| {
            let mut records = Records::new(&source.schema());
            for start in (range.start..range.end).step_by(BLOCK as usize) {
                records.clear();
                source.generate(start..(start + BLOCK).min(range.end), &mut records);
                write_records(&records, format, out)?;
            }
            Ok(())
        }),
    }
}

fn write_corpus(
    source: &Synthetic,
    corpus: &Corpus,
    dir: &Path,
    n_files: usize,
) -> Result<Vec<PathBuf>, Error> {
    let train = write_parts(&dir.join("train"), n_files, source.examples, |range, out| {
        for i in range {
            let words: Vec<String> =
                corpus.sentence(source.first + i).iter().map(u64::to_string).collect();
            writeln!(out, "{}", words.join(" "))?;
        }
        Ok(())
    })?;
    let dictionary = corpus.dictionary();
    let word = |id: u64| dictionary.word(id).expect("ids of the dictionary");
    let ids = 0..dictionary.len() as u64;
    write_file(&dir.join("dict"), "word_count_dict.txt", |out| {
        let mut counted = ids.clone().zip(dictionary.counts());
        counted.try_for_each(|(id, n)| writeln!(out, "{} {n}", word(id)))
    })?;
    write_file(&dir.join("dict"), "word_id_dict.txt", |out| {
        ids.clone().try_for_each(|id| writeln!(out, "{} {id}", word(id)))
    })?;
    write_file(&dir.join("test"), "analogy.txt", |out| {
        corpus.analogies().into_iter().try_for_each(|q| writeln!(out, "{}", q.map(word).join(" ")))
    })?;
    Ok(train)
}

/// Writes examples to numbered files, contiguous ranges each.
fn write_parts(
    dir: &Path,
    n_files: usize,
    examples: u64,
    write: impl Fn(std::ops::Range<u64>, &mut dyn Write) -> std::io::Result<()>,
) -> Result<Vec<PathBuf>, Error> {
    let part = |i: usize| {
        let range = split_range(examples as usize, i, n_files);
        let range = range.start as u64..range.end as u64;
        write_file(dir, &format!("part-{i:05}.txt"), |out| write(range.clone(), out))
    };
    (0..n_files).map(part).collect()
}

/// Writes under a hidden name, which readers pass over, and renames at the end.
fn write_file(
    dir: &Path,
    name: &str,
    write: impl FnOnce(&mut dyn Write) -> std::io::Result<()>,
) -> Result<PathBuf, Error> {
    let (path, hidden) = (dir.join(name), dir.join(format!(".{name}.tmp")));
    let run = || {
        std::fs::create_dir_all(dir)?;
        let mut out = BufWriter::with_capacity(1 << 18, File::create(&hidden)?);
        write(&mut out)?;
        out.into_inner().map_err(|e| e.into_error())?.sync_all()?;
        std::fs::rename(&hidden, &path)
    };
    run().map_err(|e| {
        let _ = std::fs::remove_file(&hidden);
        Error::io(&path, e)
    })?;
    Ok(path)
}
