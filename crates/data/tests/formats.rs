//! Real files of every format through a loader.

mod support;

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use proptest::prelude::*;
use regatta_data::*;
use regatta_features::{Feature, Features, Kind, Learned, Transform};
use regatta_tensor::Value;
use support::*;

fn sample(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name)
}

fn load(schema: Schema, format: Format, files: Vec<PathBuf>) -> Vec<Batch> {
    let source = Source::files(schema, format, files).unwrap();
    let loader = DataLoader::new(source, LoaderOptions::new(32)).unwrap();
    let (mut batches, mut all) = (loader.pass(0).unwrap(), Vec::new());
    while let Some(batch) = batches.next().unwrap() {
        all.push(batch);
    }
    all
}

fn ids(batch: &Batch, name: &str) -> Vec<u64> {
    batch.get(name).unwrap().as_dense().unwrap().u64().to_vec()
}

#[test]
fn the_criteo_sample_of_paddlerec() {
    let format = Format::Criteo(Criteo::paddle());
    let batches = load(Schema::criteo(), format, vec![sample("dnn/sample_train.txt")]);
    assert_eq!(batches.iter().map(Batch::examples).collect::<Vec<_>>(), [32, 32, 16]);
    let first = &batches[0];
    assert_eq!((ids(first, "1")[0], ids(first, "26")[0]), (737_395, 306_163));
    let dense = first.get("dense_input").unwrap().as_dense().unwrap();
    assert_eq!(dense.shape(), [32, 13]);
    assert_eq!(dense.f32()[..3], [0.0, 0.004_975_124_3, 0.05]);
    assert_eq!(first.get("label").unwrap().as_dense().unwrap().i64()[..2], [0, 1]);
    let names: Vec<&str> = first.iter().map(|(name, _)| name).collect();
    assert_eq!((names[0], names[1], names[27]), ("label", "1", "dense_input"));
}

#[test]
fn the_same_records_in_multislot_text() {
    let dir = tempfile::tempdir().unwrap();
    let format = Format::Criteo(Criteo::paddle());
    let text = std::fs::read_to_string(sample("dnn/sample_train.txt")).unwrap();
    let mut parser = format.parser(&Schema::criteo(), PartKey { pass: 0, file: 0 }).unwrap();
    let mut records = Records::new(&Schema::criteo());
    text.lines().for_each(|l| parser.parse_line(1, l.as_bytes(), &mut records).unwrap());
    let mut out = Vec::new();
    write_records(&records, &TextFormat::MultiSlot, &mut out).unwrap();
    let multislot = load(Schema::criteo(), Format::MultiSlot, vec![write(dir.path(), "a", out)]);
    let criteo = load(Schema::criteo(), format, vec![sample("dnn/sample_train.txt")]);
    assert_eq!(multislot, criteo);
}

#[test]
fn the_word2vec_sample_of_paddlerec() {
    let dictionary = Dictionary::load(
        &sample("word2vec/word_count_dict.txt"),
        &sample("word2vec/word_id_dict.txt"),
    );
    let dictionary = Arc::new(dictionary.unwrap());
    assert_eq!((dictionary.len(), dictionary.id("the")), (85, Some(1)));
    let samples = SkipGram::new(dictionary.clone(), 5, 5, Tokens::Ids, 1).unwrap();
    let file = sample("word2vec/convert_sample.txt");
    let batches = load(samples.schema(), Format::SkipGram(samples), vec![file]);
    let n: usize = batches.iter().map(Batch::examples).sum();
    assert!((1104..11_040).contains(&n), "{n} samples of 1104 words");
    for batch in &batches {
        let negatives = batch.get("neg_label").unwrap().as_dense().unwrap();
        assert_eq!(negatives.shape(), [batch.examples(), 5]);
        assert!(negatives.u64().iter().all(|w| *w < 85));
    }
    let slots = ["a", "b", "c", "d"].map(|n| Slot::fixed_ids(n, 1)).to_vec();
    let questions = load(
        Schema::new(slots).unwrap(),
        Format::Analogy(dictionary),
        vec![sample("word2vec/analogy.txt")],
    );
    assert_eq!(questions.iter().map(Batch::examples).sum::<usize>(), 200);
    assert_eq!(ids(&questions[0], "a"), [0; 32], "Athens is not in the small dictionary");
}

#[test]
fn packed_files_are_unpacked_by_suffix() {
    let dir = tempfile::tempdir().unwrap();
    let text = lines(0..5000);
    let (first, second) = text.split_at(lines(0..100).len());
    let gz = |text: &str| {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        out.write_all(text.as_bytes()).unwrap();
        out.finish().unwrap()
    };
    let zst = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
    let plain = load(schema(), Format::MultiSlot, vec![write(dir.path(), "a.txt", &text)]);
    // Two members, or frames, one after the other, as `cat` makes them.
    for (name, bytes) in [
        ("a.gz", [gz(first), gz(second)].concat()),
        ("a.txt.zst", [zst(first), zst(second)].concat()),
        ("a.zstd", zst(&text)),
    ] {
        let file = write(dir.path(), name, &bytes);
        let packed = load(schema(), Format::MultiSlot, vec![file.clone()]);
        assert!(packed == plain, "{name}");
        let source = Source::files(schema(), Format::MultiSlot, vec![file]).unwrap();
        let piped = source.with_pipe_command("cat").unwrap();
        let loader = DataLoader::new(piped, LoaderOptions::new(5000)).unwrap();
        assert_eq!(read(&loader).unwrap(), [(0..5000).collect::<Vec<i64>>()], "{name} in a pipe");
        let cut = write(dir.path(), &format!("cut-{name}"), &bytes[..bytes.len() - 20]);
        for command in [None, Some("cat")] {
            let mut source = Source::files(schema(), Format::MultiSlot, vec![cut.clone()]).unwrap();
            if let Some(command) = command {
                source = source.with_pipe_command(command).unwrap();
            }
            let loader = DataLoader::new(source, LoaderOptions::new(5000)).unwrap();
            let error = read(&loader).unwrap_err().to_string();
            assert!(error.contains(&format!("cut-{name}")), "{error}");
        }
    }
}

#[test]
fn odd_ends_of_files_and_lines() {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("no-last-newline", "1 0 1 0\n1 1 2 1 1"),
        ("crlf", "1 0 1 0\r\n1 1 2 1 1\r\n"),
        ("blank-lines", "\n1 0 1 0\n  \n\r\n1 1 2 1 1\n\n"),
        ("tabs", "1\t0\t1\t0\t\n1\t1\t2\t1\t1\n"),
    ] {
        let file = write(dir.path(), name, text);
        let empty = write(dir.path(), "empty", "");
        let source = Source::files(schema(), Format::MultiSlot, vec![empty, file]).unwrap();
        let loader = DataLoader::new(source, LoaderOptions::new(8)).unwrap();
        assert_eq!(read(&loader).unwrap(), [[0, 1]], "{name}");
    }
}

#[test]
fn a_very_long_line() {
    let dir = tempfile::tempdir().unwrap();
    let n = 1_000_000;
    let text = format!("1 7 {n}{}\n", " 123456789".repeat(n));
    let file = write(dir.path(), "long", format!("{}{text}{}", lines(0..2), lines(2..3)));
    let batches = load(schema(), Format::MultiSlot, vec![file.clone()]);
    let Some(Value::Ragged(ids)) = batches[0].get("a") else { panic!("ids are ragged") };
    assert_eq!(ids.offsets()[2..4], [3, 3 + n as u32]);
    let source = Source::files(schema(), Format::MultiSlot, vec![file]).unwrap();
    let bounded = source.with_max_line_bytes(1 << 20);
    let loader = DataLoader::new(bounded.clone(), LoaderOptions::new(8)).unwrap();
    let error = read(&loader).unwrap_err().to_string();
    assert!(
        error.ends_with(
            "long:3: column 1: expected a shorter line, found one beyond max_line_bytes"
        )
    );
    let loader = DataLoader::new(bounded.with_max_bad_lines(1), LoaderOptions::new(8)).unwrap();
    assert_eq!(read(&loader).unwrap(), [[0, 1, 2]]);
}

#[test]
fn tables_with_a_header_in_every_file() {
    let dir = tempfile::tempdir().unwrap();
    let a = write(dir.path(), "a.csv", "y,a\n0,0\n1,1|1\n");
    let b = write(dir.path(), "b.csv", "a,y\n2|2|2,2\n");
    let format = Format::Table(Table::csv(label_and_ids(["y", "a"])));
    let source = Source::files(schema(), format, vec![a, b]).unwrap();
    let loader = DataLoader::new(source, LoaderOptions::new(8)).unwrap();
    assert_eq!(read(&loader).unwrap(), [[0, 1, 2]]);
}

/// A label and any number of ids, of these columns.
fn label_and_ids([label, ids]: [&str; 2]) -> Transform {
    let features = Features::new(vec![
        Feature::new("y", Kind::Label { threshold: None }).of_columns([label]),
        Feature::new("a", Kind::Id { buckets: 1 << 40 }).of_columns([ids]).split_at(b'|'),
    ]);
    Transform::new(&features.unwrap(), &Learned::default()).unwrap()
}

#[test]
fn quoted_fields_over_several_lines() {
    let dir = tempfile::tempdir().unwrap();
    let open = |text: &str| {
        let file = write(dir.path(), "a.csv", text);
        let format = Format::Table(Table::csv(label_and_ids(["y", "a"])));
        let source = Source::files(schema(), format, vec![file]).unwrap();
        DataLoader::new(source, LoaderOptions::new(8)).unwrap()
    };
    let head = "\u{feff}y,a,\"no\r\nte\"\r\n0,0,\"one\r\n\r\ntwo, three\"\r\n";
    assert_eq!(read(&open(&format!("{head}1.0,\"1|\n1\",\n"))).unwrap(), [[0, 1]]);
    let wrong = |rest: &str| {
        let error = read(&open(&format!("{head}{rest}"))).unwrap_err().to_string();
        error.split("a.csv:").nth(1).unwrap().to_string()
    };
    // The header takes the lines 1 and 2, the first record 3 to 5.
    let label = "6: column 1: expected a label (a whole number) in column 'y', found '1.5'";
    assert_eq!(wrong("1.5,1,\n"), label);
    let after = "7: column 2: expected a delimiter after a quoted field, found 'z'";
    assert_eq!(wrong("1,\"x\n\"z,\n"), after);
    assert_eq!(wrong("1,1|1,\"\n\"\nz,x,\n").split(':').next(), Some("8"));
    // The quote that is never closed is named where it is opened.
    let open = wrong("1,\"a\nb\",\"c\n2,d,e\n");
    assert!(open.starts_with("7: column 4: expected a closing quote, found "), "{open}");
}

/// Formats with schemas that they can fill.
fn all_formats() -> Vec<(Schema, Format)> {
    let words = ["<UNK>", "a", "b"].map(|w| (w.to_string(), 5)).to_vec();
    let dictionary = Arc::new(Dictionary::new(words).unwrap());
    let samples = |tokens| SkipGram::new(dictionary.clone(), 3, 2, tokens, 1).unwrap();
    let four = ["a", "b", "c", "d"].map(|n| Slot::fixed_ids(n, 1)).to_vec();
    let transform = label_and_ids(["0", "1"]);
    vec![
        (schema(), Format::MultiSlot),
        (Schema::criteo(), Format::MultiSlot),
        (schema(), Format::Criteo(Criteo::by_name(&schema()))),
        (Schema::criteo(), Format::CriteoRaw(CriteoRaw::default())),
        (schema(), Format::Table(Table { header: false, ..Table::csv(transform) })),
        (samples(Tokens::Ids).schema(), Format::SkipGram(samples(Tokens::Ids))),
        (samples(Tokens::Words).schema(), Format::SkipGram(samples(Tokens::Words))),
        (Schema::new(four).unwrap(), Format::Analogy(dictionary)),
    ]
}

proptest! {
    #[test]
    fn no_line_makes_a_parser_panic(
        lines in prop::collection::vec(
            prop_oneof![
                prop::collection::vec(any::<u8>(), 0..40),
                "[0-9 .:,|\t\"ayx-]{0,60}".prop_map(String::into_bytes),
            ],
            1..8,
        )
    ) {
        for (schema, format) in all_formats() {
            let mut parser = format.parser(&schema, PartKey { pass: 0, file: 0 }).unwrap();
            let mut out = Records::new(&schema);
            for (i, line) in lines.iter().enumerate() {
                let complete = out.len();
                if parser.parse_line(i as u64 + 1, line, &mut out).is_err() {
                    out.truncate(complete);
                }
            }
            // Whatever was accepted makes a batch of the right shape.
            let n = out.len();
            prop_assert_eq!(Batch::assemble(out, Vec::new()).examples(), n);
        }
    }
}
