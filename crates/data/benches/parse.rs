//! Parsing speed of each format, next to what reading alone would give.
//!
//! `cargo bench -p regatta-data` makes some files of synthetic data (or
//! `cargo bench -p regatta-data -- MEGABYTES` of them), then prints for each format MB/s and
//! examples/s of one reader thread, of the parser alone, and of a plain read that only counts line
//! ends. Best of some rounds, as other work on the machine only ever adds time.

use std::fs::File;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_data::{
    Criteo, CriteoRaw, DataLoader, Dataset, Format, InMemoryDataset, LoaderOptions, MemoryOptions,
    PartKey, Records, Schema, SkipGram, Source, Synthetic, Table, TextFormat, Tokens,
    write_synthetic,
};
use regatta_features::{Feature, Features, Kind, Learned, Transform};

const ROUNDS: usize = 9;

struct Case {
    name: &'static str,
    schema: Schema,
    format: Format,
    file: PathBuf,
}

fn main() {
    let megabytes = std::env::args().skip(1).find_map(|a| a.parse().ok()).unwrap_or(16u64);
    let dir = tempfile::tempdir().expect("a directory for the files");
    println!("{megabytes} MB per format, batch 512, one thread, best of {ROUNDS}\n");
    println!(
        "{:<22} {:>10} {:>12} {:>10} {:>12} {:>12}",
        "format", "file MB/s", "examples/s", "parse MB/s", "examples/s", "memchr MB/s"
    );
    let cases = cases(dir.path(), megabytes << 20);
    cases.iter().for_each(report);
    println!("\n{:<44} {:>12}", "batches of multislot records", "examples/s");
    report_datasets(&cases[0], megabytes);
}

/// Speed of the ways from records to batches.
fn report_datasets(case: &Case, megabytes: u64) {
    let (schema, format) = (case.schema.clone(), case.format.clone());
    let source = Source::files(schema, format, vec![case.file.clone()]).expect("a source");
    let print = |name: &str, dataset: &dyn Dataset| {
        let (time, examples) = best(|| drain(dataset));
        println!("{name:<44} {:>12.0}", examples as f64 / time.as_secs_f64());
    };
    let limited = case.schema.slots().iter().map(|slot| slot.clone().below(1 << 40)).collect();
    let limited = Schema::new(limited).expect("the same slots");
    let limited = Source::files(limited, case.format.clone(), vec![case.file.clone()]);
    let plain = LoaderOptions::new(512);
    print("in file order", &DataLoader::new(source.clone(), plain.clone()).expect("a loader"));
    let limited = DataLoader::new(limited.expect("a source"), plain).expect("a loader");
    print("in file order, ids and labels checked", &limited);
    let shuffled = LoaderOptions { shuffle_buffer: 10_000, ..LoaderOptions::new(512) };
    print("shuffle buffer of 10000", &DataLoader::new(source.clone(), shuffled).expect("a loader"));
    let mut memory = InMemoryDataset::new(source, MemoryOptions::new(512)).expect("a dataset");
    memory.load_into_memory().expect("well-formed lines");
    print("from memory, in file order", &memory);
    memory.local_shuffle(1).expect("loaded");
    print("from memory, shuffled", &memory);
    let url = format!("synthetic://ctr?examples={}", megabytes * 1000);
    let synthetic = Source::synthetic(&url).expect("a URL");
    print(
        "synthetic://ctr",
        &DataLoader::new(synthetic, LoaderOptions::new(512)).expect("a loader"),
    );
}

fn report(case: &Case) {
    let bytes = std::fs::metadata(&case.file).expect("the file").len();
    let (newlines, _) = best(|| (count_lines(&case.file), 0));
    let (dataset, examples) = best(|| read_dataset(case));
    let (parser, parsed) = best(|| parse_only(case));
    assert_eq!(examples, parsed);
    let rate = |n: u64, time: Duration| n as f64 / time.as_secs_f64();
    println!(
        "{:<22} {:>10.0} {:>12.0} {:>10.0} {:>12.0} {:>12.0}",
        case.name,
        rate(bytes, dataset) / 1e6,
        rate(examples, dataset),
        rate(bytes, parser) / 1e6,
        rate(parsed, parser),
        rate(bytes, newlines) / 1e6,
    );
}

/// The shortest time of some rounds, and what the last one returned.
fn best(mut round: impl FnMut() -> (Duration, u64)) -> (Duration, u64) {
    let rounds: Vec<_> = (0..ROUNDS).map(|_| round()).collect();
    let time = rounds.iter().map(|r| r.0).min().expect("some rounds");
    (time, rounds[0].1)
}

/// Reads the file block by block and counts line ends.
fn count_lines(file: &Path) -> Duration {
    let begin = Instant::now();
    let mut input = File::open(file).expect("the file");
    let (mut block, mut lines) = (vec![0; 256 * 1024], 0);
    while let Ok(n @ 1..) = input.read(&mut block) {
        lines += memchr::memchr_iter(b'\n', &block[..n]).count();
    }
    std::hint::black_box(lines);
    begin.elapsed()
}

/// Reads the file as training does: a reader thread, a queue, recycled batches.
fn read_dataset(case: &Case) -> (Duration, u64) {
    let (schema, format) = (case.schema.clone(), case.format.clone());
    let source = Source::files(schema, format, vec![case.file.clone()]).expect("a source");
    let loader = DataLoader::new(source, LoaderOptions::new(512)).expect("a loader");
    drain(&loader)
}

/// One pass, with recycled batches.
fn drain(dataset: &dyn Dataset) -> (Duration, u64) {
    let begin = Instant::now();
    let mut batches = dataset.pass(0).expect("a pass");
    while let Some(batch) = batches.next().expect("well-formed lines") {
        batches.recycle(batch);
    }
    (begin.elapsed(), batches.position().examples)
}

/// Parses the lines of the file from memory.
fn parse_only(case: &Case) -> (Duration, u64) {
    let text = std::fs::read(&case.file).expect("the file");
    let key = PartKey { pass: 0, file: 0 };
    let mut parser = case.format.parser(&case.schema, key).expect("a format of lines");
    let mut records = Records::new(&case.schema);
    let (mut start, mut number, mut examples) = (0, 0, 0);
    let begin = Instant::now();
    for end in memchr::memchr_iter(b'\n', &text) {
        number += 1;
        parser.parse_line(number, &text[start..end], &mut records).expect("well-formed lines");
        start = end + 1;
        if records.len() >= 512 {
            examples += records.len() as u64;
            records.clear();
        }
    }
    (begin.elapsed(), examples + records.len() as u64)
}

/// A file of each format, all but the corpus with the same records.
fn cases(dir: &Path, bytes: u64) -> Vec<Case> {
    let examples = bytes / 400;
    let write = |url: &str, name: &str, format: TextFormat| {
        let synthetic = Synthetic::parse(url).expect("a URL");
        let files = write_synthetic(&synthetic, &dir.join(name), 1, &format).expect("files");
        (synthetic, files.into_iter().next().expect("one file"))
    };
    let url = format!("synthetic://ctr?examples={examples}");
    let (synthetic, multislot) = write(&url, "multislot", TextFormat::MultiSlot);
    let schema = synthetic.schema();
    let (_, criteo) = write(&url, "criteo", TextFormat::Criteo(Criteo::paddle()));
    let many = format!("synthetic://ctr?examples={}&ids_per_slot=20&dense=0", examples / 8);
    let (ragged, ids) = write(&many, "ids", TextFormat::MultiSlot);
    let (raw, csv) = (dir.join("raw.tsv"), dir.join("table.csv"));
    write_tables(&synthetic, &raw, &csv);
    let corpus_url = format!("synthetic://corpus?examples={}&length=20", examples / 8);
    let (corpus, sentences) = write(&corpus_url, "corpus", TextFormat::MultiSlot);
    let dictionary = corpus.dictionary().expect("a corpus has a dictionary");
    let samples = SkipGram::new(dictionary, 5, 5, Tokens::Ids, 1).expect("samples");
    let case =
        |name, schema: &Schema, format, file| Case { name, schema: schema.clone(), format, file };
    vec![
        case("multislot", &schema, Format::MultiSlot, multislot),
        case("multislot, ids only", &ragged.schema(), Format::MultiSlot, ids),
        case("criteo", &schema, Format::Criteo(Criteo::paddle()), criteo),
        case("criteo raw", &schema, Format::CriteoRaw(CriteoRaw::default()), raw),
        case("csv", &schema, Format::Table(table()), csv),
        case("skip-gram", &samples.schema(), Format::SkipGram(samples.clone()), sentences),
    ]
}

/// The records as raw Criteo lines and as CSV.
fn write_tables(synthetic: &Synthetic, raw: &Path, csv: &Path) {
    let create = |path| std::io::BufWriter::new(File::create(path).expect("a file"));
    let (mut raw, mut csv) = (create(raw), create(csv));
    let mut records = Records::new(&synthetic.schema());
    for start in (0..synthetic.examples()).step_by(512) {
        records.clear();
        synthetic.generate(start..(start + 512).min(synthetic.examples()), &mut records);
        let batch = regatta_data::Batch::assemble(records.clone(), Vec::new());
        let dense = |slot: usize| batch.values()[slot].as_dense().expect("dense slots");
        for row in 0..batch.examples() {
            let label = dense(0).i64()[row];
            let floats = &dense(27).f32()[13 * row..13 * (row + 1)];
            write!(raw, "{label}").expect("a line");
            write!(csv, "{label}").expect("a line");
            for x in floats {
                write!(raw, "\t{}", (x * 100.0) as i64).expect("a line");
                write!(csv, ",{x}").expect("a line");
            }
            for slot in 1..=26 {
                let id = dense(slot).u64()[row];
                write!(raw, "\t{id:08x}").expect("a line");
                write!(csv, ",{id}").expect("a line");
            }
            writeln!(raw).expect("a line");
            writeln!(csv).expect("a line");
        }
    }
}

fn table() -> Table {
    let numbers = (1..=13).map(|i| i.to_string());
    let id = |i: usize| {
        let kind = Kind::Id { buckets: 1 << 40 };
        Feature::new(i.to_string(), kind).of_columns([(13 + i).to_string()])
    };
    let mut features = vec![
        Feature::new("label", Kind::Label { threshold: None }).of_columns(["0"]),
        Feature::new("numbers", Kind::Raw).of_columns(numbers),
    ];
    features.extend((1..=26).map(id));
    let features = Features::new(features).expect("they fit together");
    let transform = Transform::new(&features, &Learned::default()).expect("nothing is learned");
    Table { header: false, ..Table::csv(transform) }
}
