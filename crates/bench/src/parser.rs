//! MultiSlot text into batches, beside reading the same file without looking at it.

use std::io::Read;
use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result};
use regatta_data::{
    Dataset, Format, QueueDataset, QueueOptions, Source, Synthetic, TextFormat, write_synthetic,
};
use serde::Serialize;

/// Speeds of one thread.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Bytes of the file.
    pub bytes: u64,
    /// Gigabytes per second into batches.
    pub gb_per_sec: f64,
    /// Examples per second into batches.
    pub examples_per_sec: f64,
    /// Gigabytes per second of plain reads of the same file, which is in the page cache.
    pub read_gb_per_sec: f64,
}

/// Writes a click log of about N examples to a folder, and reads it.
///
/// # Errors
/// If files cannot be written or read.
pub fn measure(folder: &Path, examples: u64) -> Result<Report> {
    let url = format!("synthetic://ctr?examples={examples}&slots=26&dense=13&vocab=38461");
    let synthetic = Synthetic::parse(&url)?;
    let files = write_synthetic(&synthetic, folder, 1, &TextFormat::MultiSlot)?;
    let file = files.first().context("one file was written")?;
    let bytes = std::fs::metadata(file)?.len();
    let source = Source::files(synthetic.schema(), Format::MultiSlot, files.clone())?;
    let dataset = QueueDataset::new(source, QueueOptions::new(512))?;
    let (mut parse, mut read) = (f64::INFINITY, f64::INFINITY);
    for _ in 0..5 {
        let begin = Instant::now();
        plain_read(file)?;
        read = read.min(begin.elapsed().as_secs_f64());
        let begin = Instant::now();
        let mut batches = dataset.pass(0)?;
        while let Some(batch) = batches.next()? {
            batches.recycle(batch);
        }
        parse = parse.min(begin.elapsed().as_secs_f64());
    }
    Ok(Report {
        bytes,
        gb_per_sec: bytes as f64 / parse / 1e9,
        examples_per_sec: examples as f64 / parse,
        read_gb_per_sec: bytes as f64 / read / 1e9,
    })
}

fn plain_read(file: &Path) -> Result<()> {
    let mut input = std::fs::File::open(file)?;
    let mut block = vec![0; 256 * 1024];
    while input.read(&mut block)? > 0 {}
    Ok(())
}
