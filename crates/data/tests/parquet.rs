//! Parquet files against the same tables in CSV.
#![cfg(feature = "parquet")]

mod support;

use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parquet::basic::Compression;
use parquet::data_type::{ByteArray, ByteArrayType, DoubleType, Int32Type, Int64Type};
use parquet::file::properties::WriterProperties;
use parquet::file::writer::SerializedFileWriter;
use parquet::schema::parser::parse_message_type;
use regatta_data::*;
use regatta_features::{Feature, Features, Kind, Learned, Transform};

const ROWS: usize = 10_000;

fn schema() -> Schema {
    let slots = vec![Slot::label("y"), Slot::dense("dense_input", 2), Slot::ids("tags")];
    Schema::new([slots, vec![Slot::fixed_ids("user", 1), Slot::ids("list")]].concat()).unwrap()
}

fn features() -> Vec<Feature> {
    let buckets = 1 << 20;
    vec![
        Feature::new("y", Kind::Label { threshold: None }).of_columns(["click"]),
        Feature::new("numbers", Kind::Raw).of_columns(["price", "age"]),
        Feature::new("tags", Kind::Hash { buckets: 1000 }).split_at(b'|'),
        Feature::new("user", Kind::Id { buckets }),
        Feature::new("list", Kind::Id { buckets }).split_at(b' '),
    ]
}

fn transform(features: Vec<Feature>) -> Transform {
    Transform::new(&Features::new(features).unwrap(), &Learned::default()).unwrap()
}

/// Whether the optional values of a row are there, and how long its list is.
fn shape(row: usize) -> (bool, usize) {
    (!row.is_multiple_of(3), row % 4)
}

fn write_parquet(path: &Path, codec: Compression, first_user: i64) {
    let message = "message rows {
        required int32 click; optional double price; required int64 age; optional binary tags (UTF8);
        required int64 user (UINT_64); repeated int64 list;
    }";
    let schema = Arc::new(parse_message_type(message).unwrap());
    let properties = WriterProperties::builder().set_compression(codec).build();
    let file = File::create(path).unwrap();
    let mut writer = SerializedFileWriter::new(file, schema, Arc::new(properties)).unwrap();
    for rows in [0..ROWS / 3, ROWS / 3..ROWS] {
        let mut group = writer.next_row_group().unwrap();
        let there: Vec<usize> = rows.clone().filter(|r| shape(*r).0).collect();
        let defined: Vec<i16> = rows.clone().map(|r| i16::from(shape(r).0)).collect();
        macro_rules! column {
            ($t:ty, $values:expr, $def:expr, $rep:expr) => {
                let values: Vec<_> = $values;
                let mut column = group.next_column().unwrap().unwrap();
                column.typed::<$t>().write_batch(&values, $def, $rep).unwrap();
                column.close().unwrap();
            };
        }
        column!(Int32Type, rows.clone().map(|r| (r % 2) as i32).collect(), None, None);
        column!(DoubleType, there.iter().map(|r| *r as f64 / 8.0).collect(), Some(&defined), None);
        column!(Int64Type, rows.clone().map(|r| r as i64 % 90).collect(), None, None);
        let tags =
            there.iter().map(|r| ByteArray::from(format!("t{}|t{}", r % 7, r % 11).as_str()));
        column!(ByteArrayType, tags.collect(), Some(&defined), None);
        column!(Int64Type, rows.clone().map(|r| first_user + r as i64).collect(), None, None);
        let (mut values, mut def, mut rep) = (Vec::new(), Vec::new(), Vec::new());
        for row in rows {
            let n = shape(row).1;
            values.extend((0..n).map(|i| (row + i) as i64));
            def.extend(std::iter::repeat_n(1, n).chain((n == 0).then_some(0)));
            rep.extend((0..n.max(1)).map(|i| i16::from(i > 0)));
        }
        column!(Int64Type, values, Some(&def), Some(&rep));
        group.close().unwrap();
    }
    writer.close().unwrap();
}

fn csv() -> String {
    let row = |r: usize| {
        let (there, n) = shape(r);
        let price = if there { format!("{}", r as f64 / 8.0) } else { String::new() };
        let tags = if there { format!("t{}|t{}", r % 7, r % 11) } else { String::new() };
        let list: Vec<String> = (0..n).map(|i| (r + i).to_string()).collect();
        format!("{},{price},{},{tags},{r},{}\n", r % 2, r % 90, list.join(" "))
    };
    "click,price,age,tags,user,list\n"
        .chars()
        .chain((0..ROWS).flat_map(|r| row(r).chars().collect::<Vec<_>>()))
        .collect()
}

fn load(format: Format, file: PathBuf) -> Result<Vec<Batch>, Error> {
    let source = Source::files(schema(), format, vec![file])?;
    let mut batches = DataLoader::new(source, LoaderOptions::new(512))?.pass(0)?;
    let mut all = Vec::new();
    while let Some(batch) = batches.next()? {
        all.push(batch);
    }
    Ok(all)
}

#[test]
fn the_same_table_in_both_formats() {
    let dir = tempfile::tempdir().unwrap();
    let text = support::write(dir.path(), "a.csv", csv());
    let expected = load(Format::Table(Table::csv(transform(features()))), text).unwrap();
    for codec in
        [Compression::UNCOMPRESSED, Compression::SNAPPY, Compression::ZSTD(Default::default())]
    {
        let file = dir.path().join("a.parquet");
        write_parquet(&file, codec, 0);
        let read = load(Format::Parquet(RowUse::Records(transform(features()))), file).unwrap();
        let values = |b: &[Batch]| b.iter().map(|b| b.values().to_vec()).collect::<Vec<_>>();
        assert!(values(&read) == values(&expected), "{codec}");
    }
}

#[test]
fn mistakes_name_file_and_row() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.parquet");
    write_parquet(&file, Compression::UNCOMPRESSED, 0);
    let mut other = features();
    other[0].columns = vec!["clicks".into()];
    let error = load(Format::Parquet(RowUse::Records(transform(other))), file.clone())
        .unwrap_err()
        .to_string();
    assert!(error.ends_with("a.parquet: there is no column 'clicks'"), "{error}");
    let mut other = features();
    other[3].columns = vec!["tags".into()];
    let error = load(Format::Parquet(RowUse::Records(transform(other))), file.clone())
        .unwrap_err()
        .to_string();
    let expected = "a.parquet:2: column 1: expected an id from 0 to 1048575 in column 'tags', \
                    found 't1|t1'";
    assert!(error.ends_with(expected), "{error}");
    let rubbish = support::write(dir.path(), "b.parquet", "rubbish");
    let error = load(Format::Parquet(RowUse::Records(transform(features()))), rubbish)
        .unwrap_err()
        .to_string();
    assert!(error.contains("b.parquet: "), "{error}");
    let source = Source::files(
        schema(),
        Format::Parquet(RowUse::Records(transform(features()))),
        vec![file],
    )
    .unwrap();
    assert!(source.with_pipe_command("cat").is_err());
}
