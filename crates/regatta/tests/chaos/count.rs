//! How often every example is in the parameters of a trained model.
//!
//! Every example has an id of its own, and its row starts at a value that follows from the id. With
//! plain SGD every application of the example moves the row by about the same distance: the labels
//! of a batch are balanced, so the bias stays near 0, and steps are small. An undisturbed run of
//! two epochs gives value and distance of every row. The counts of undisturbed runs in all modes
//! are whole numbers to within 0.04.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use regatta_checkpoint::load_tensors;
use regatta_tensor::Data;

pub(crate) const EXAMPLES: usize = 24_000;
pub(crate) const BATCH: usize = 8;
const FILES: usize = 12;

/// Counts that are further from a whole number are none.
const TOLERANCE: f64 = 0.3;

/// The folder of the examples in several files.
pub(crate) const SEVERAL: &str = "several";
/// The folder of the same examples in one file, which workers divide record by record.
pub(crate) const ONE: &str = "one";

/// Writes the examples as text of `multislot`: label, id, and a float that adds nothing. The files
/// hold whole batches, so that every step of a worker has the same size. The records of a worker
/// have both labels in turn, however many workers there are.
pub(crate) fn write_data(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    write_files(&folder.join(SEVERAL), FILES);
    write_files(&folder.join(ONE), 1);
}

fn write_files(folder: &Path, files: usize) {
    std::fs::create_dir(folder).unwrap();
    const { assert!(EXAMPLES.is_multiple_of(FILES * BATCH)) };
    let mut id = 0;
    for file in 0..files {
        let mut text = String::new();
        for _ in 0..EXAMPLES / files {
            id += 1;
            writeln!(text, "1 {} 1 {id} 1 0.0", (id / 6) % 2).unwrap();
        }
        std::fs::write(folder.join(format!("part-{file:02}")), text).unwrap();
    }
}

/// All values of a saved model in a form that does not depend on the number of servers: rows by
/// id, dense parameters whole.
pub(crate) type Values = BTreeMap<String, Vec<u8>>;

/// Reads a saved model.
pub(crate) fn read_values(folder: &Path) -> Result<Values, String> {
    let mut values = Values::new();
    let files = crate::system::entries(folder);
    if files.is_empty() {
        return Err(format!("there is no model at {}", folder.display()));
    }
    for path in files.iter().filter(|path| path.extension().is_some_and(|e| e == "safetensors")) {
        let tensors = load_tensors(path).map_err(|e| e.to_string())?.tensors;
        let tensors: BTreeMap<String, Vec<u8>> =
            tensors.iter().map(|(name, value)| (name.clone(), bytes(value.data()))).collect();
        for (name, value) in &tensors {
            if let Some((table, what)) = name.strip_prefix("table/").and_then(|n| n.split_once('/'))
            {
                if what != "keys" {
                    let keys = &tensors[&format!("table/{table}/keys")];
                    add_rows(&mut values, table, what, keys, value);
                }
            } else {
                // Partitions of dense parameters come in the order of servers.
                values.entry(name.clone()).or_default().extend(value);
            }
        }
    }
    Ok(joined(values))
}

fn bytes(data: &Data) -> Vec<u8> {
    match data {
        Data::F32(v) => v.iter().flat_map(|x| x.to_bits().to_le_bytes()).collect(),
        Data::U64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        Data::I64(v) => v.iter().flat_map(|x| x.to_le_bytes()).collect(),
        other => panic!("{other:?}"),
    }
}

fn add_rows(values: &mut Values, table: &str, what: &str, keys: &[u8], rows: &[u8]) {
    let n = keys.len() / 8;
    if n == 0 {
        return;
    }
    for (key, row) in keys.chunks_exact(8).zip(rows.chunks_exact(rows.len() / n)) {
        let key = u64::from_le_bytes(key.try_into().unwrap());
        values.insert(format!("{table}/{key}/{what}"), row.to_vec());
    }
}

/// `dense/fc_0.w_0/<offset>/moment1` of all servers become `fc_0.w_0/moment1`.
fn joined(values: Values) -> Values {
    let mut joined = Values::new();
    let mut parts: BTreeMap<String, BTreeMap<usize, Vec<u8>>> = BTreeMap::new();
    for (name, value) in values {
        let fields: Vec<&str> = name.split('/').collect();
        match fields[..] {
            ["dense", parameter, offset, state] => {
                let offset = offset.parse().unwrap();
                parts.entry(format!("{parameter}/{state}")).or_default().insert(offset, value);
            }
            _ => _ = joined.insert(name, value),
        }
    }
    joined.extend(
        parts.into_iter().map(|(name, parts)| (name, parts.into_values().flatten().collect())),
    );
    joined
}

/// The weight of every example; nothing for one that has no row.
fn weights(values: &Values) -> Vec<Option<f64>> {
    let weight = |id: usize| {
        let row = values.get(&format!("SparseFeatWeights/{id}/rows"))?;
        Some(f64::from(f32::from_le_bytes(row[..4].try_into().unwrap())))
    };
    (1..=EXAMPLES).map(weight).collect()
}

/// Where rows start, and how far an application moves them.
pub(crate) struct Reference {
    initial: Vec<f64>,
    distance: Vec<f64>,
}

impl Reference {
    /// From the first two epochs of an undisturbed run.
    pub(crate) fn new(first: &Values, second: &Values) -> Reference {
        let [first, second] = [first, second].map(weights);
        let both = || first.iter().zip(&second).map(|(a, b)| (a.unwrap(), b.unwrap()));
        let reference = Reference {
            initial: both().map(|(a, b)| 2.0 * a - b).collect(),
            distance: both().map(|(a, b)| b - a).collect(),
        };
        assert!(reference.distance.iter().all(|d| (0.005..0.02).contains(&d.abs())));
        reference
    }

    /// Compares a model with one in which every example was applied `epochs` times.
    pub(crate) fn count(&self, values: &Values, epochs: usize) -> Counts {
        let mut counts = Counts::default();
        for (i, weight) in weights(values).into_iter().enumerate() {
            let moved = weight.map_or(0.0, |w| w - self.initial[i]);
            let n = moved / self.distance[i];
            if (n - n.round()).abs() > TOLERANCE {
                counts.unclear.push((i + 1, n));
            } else if n.round() < epochs as f64 {
                counts.lost.push((i + 1, n));
            } else if n.round() > epochs as f64 {
                counts.repeated.push((i + 1, n));
            }
        }
        counts
    }
}

/// Examples that were not applied as often as they should be, with how often they were.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) lost: Vec<(usize, f64)>,
    pub(crate) repeated: Vec<(usize, f64)>,
    pub(crate) unclear: Vec<(usize, f64)>,
}

impl Counts {
    pub(crate) fn describe(&self) -> Vec<String> {
        let lists = [
            ("too seldom", &self.lost),
            ("too often", &self.repeated),
            ("a fraction of times", &self.unclear),
        ];
        let text = |(what, list): &(&str, &Vec<(usize, f64)>)| {
            let (id, n) = list.first()?;
            Some(format!("{} examples were applied {what} (id {id}: {n:.2})", list.len()))
        };
        lists.iter().filter_map(text).collect()
    }
}

/// What differs between two models that should be equal.
pub(crate) fn difference(expected: &Values, found: &Values) -> Option<String> {
    let names: std::collections::BTreeSet<&String> = expected.keys().chain(found.keys()).collect();
    let differ: Vec<&String> =
        names.into_iter().filter(|name| expected.get(*name) != found.get(*name)).collect();
    let first = differ.first()?;
    Some(format!("{} values differ from those of an undisturbed run, {first} first", differ.len()))
}
