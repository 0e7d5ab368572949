//! `regatta export --vectors`: vectors of items and users, for a search of nearest neighbours.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Result, bail};
use regatta_checkpoint::{Encoding, PROGRAM_FILE, publish_dir};
use regatta_predict::files::write_npy;
use regatta_predict::{Error as PredictError, Model};
use regatta_rec::config::InferenceExport;
use regatta_rec::data::Data;
use regatta_rec::network::Network;
use regatta_rec::{Config, ModelSource, Vectors, table_vectors, towers};
use regatta_tensor::{Tensor, Value};

use super::Outcome;
use super::export::{Args, Scratch, config_of, export as export_model};
use super::predict::{kept_slot, reading_with, with_data};
use super::remote::Target;

/// What the vectors of the towers are called.
const TOWERS: [&str; 2] = ["queries", "documents"];

/// Vectors, and their ids as texts where a column says them.
struct Named {
    vectors: Vectors,
    texts: Option<Vec<String>>,
}

pub(super) fn export(from: &Path, args: &Args) -> Result<Outcome> {
    if from.join(PROGRAM_FILE).exists() {
        let from = from.display();
        bail!("{from}: --vectors takes a checkpoint or the folder of an epoch, not a model");
    }
    if args.to.exists() {
        bail!("{} is there already: name a folder that is not", args.to.display());
    }
    let trained = ModelSource::open(from)?;
    let overrides = with_data(&args.overrides, args.data.as_ref())?;
    let config = config_of(&trained, from, args.config.as_deref(), &overrides)?;
    let network = Network::build(&config)?;
    let target = Target::new(&args.to)?;
    let all = match (table_vectors(&trained, &config, &network)?, towers(&network)) {
        (Some(_), _) if args.data.is_some() || args.id_column.is_some() => bail!(
            "--data and --id-column are for models with two towers: the vectors of model {} are \
             rows of tables, which have ids",
            config.model.name
        ),
        (Some(vectors), _) => {
            vectors.into_iter().map(|vectors| Named { vectors, texts: None }).collect()
        }
        (None, Some(towers)) => {
            let scratch = Scratch::beside(&target.path())?;
            from_towers(&trained, &config, &network, towers, args, scratch.path())?
        }
        (None, None) => bail!(
            "model {} has no vectors of items and users: it scores them together",
            config.model.name
        ),
    };
    let mut written = Vec::new();
    publish_dir(&target.path(), |to| -> Result<()> {
        all.iter().try_for_each(|named| write(to, named, &mut written))
    })?;
    target.finish()?;
    let mut out = io::stdout().lock();
    for line in written {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "written to {}", args.to.display())?;
    Ok(Outcome::Done)
}

fn write(to: &Path, named: &Named, written: &mut Vec<String>) -> Result<()> {
    let Vectors { name, ids, values, dim } = &named.vectors;
    let put = |file: String, tensor: &Tensor| -> Result<()> {
        let path = to.join(file);
        Ok(write_npy(&path, tensor).map_err(|source| PredictError::Write { path, source })?)
    };
    put(format!("{name}.npy"), &Tensor::from_f32(&[ids.len(), *dim], values.clone())?)?;
    let ids_file = match &named.texts {
        None => {
            put(format!("{name}.ids.npy"), &Tensor::from_u64(&[ids.len()], ids.clone())?)?;
            format!("{name}.ids.npy")
        }
        Some(texts) => {
            let (file, text) = (format!("{name}.ids.txt"), texts.join("\n") + "\n");
            let path = to.join(&file);
            fs::write(&path, text).map_err(|source| PredictError::Write { path, source })?;
            file
        }
    };
    written.push(format!("{name}.npy: {} vectors of {dim} floats, ids in {ids_file}", ids.len()));
    Ok(())
}

/// Computes the vectors of both towers for all examples of the data.
fn from_towers(
    trained: &ModelSource,
    config: &Config,
    network: &Network,
    towers: [String; 2],
    args: &Args,
    scratch: &Path,
) -> Result<Vec<Named>> {
    let mut wanted = config.clone();
    let fetches = Some(towers.to_vec());
    wanted.runner.inference = Some(InferenceExport { feeds: None, fetches });
    export_model(trained, &wanted, scratch, Encoding::F32)?;
    let model = Model::open(scratch)?;
    let inputs: Vec<String> = model.inputs().iter().map(|input| input.name.clone()).collect();
    let mut session = model.session()?;
    let column: Vec<String> = args.id_column.iter().cloned().collect();
    let (reading, schema) = reading_with(("--id-column", &column), config, network)?;
    let mut data = Data::open(config, &reading, &schema)?;
    let (mut batches, _) = data.pass(0)?;
    let (mut values, mut dims) = ([vec![], vec![]], [1, 1]);
    let (mut texts, mut examples) = (Vec::new(), 0);
    while let Some(batch) = batches.next()? {
        let feeds: Vec<(&str, &Value)> =
            batch.iter().filter(|(name, _)| inputs.iter().any(|input| input == name)).collect();
        let scored = session.score(&feeds)?;
        for (tower, tensor) in scored.iter().enumerate() {
            dims[tower] = tensor.numel() / batch.examples().max(1);
            let rows = tensor.f32().chunks_exact(dims[tower]);
            rows.for_each(|row| values[tower].extend(unit(row)));
        }
        for name in &column {
            let ids = 0..batch.examples();
            texts.extend(ids.map(|row| batch.text(&kept_slot(name), row).unwrap_or_default()));
        }
        examples += batch.examples();
        batches.recycle(batch);
    }
    let bad = batches.bad_lines();
    if bad.count > 0 {
        eprintln!("note: {} malformed lines were skipped", bad.count);
    }
    if let Some(text) = texts.iter().find(|text: &&String| text.contains('\n')) {
        bail!("--id-column: the id {text:?} has several lines, but a line is an id");
    }
    let (ids, texts) = ids(examples, texts, !column.is_empty());
    let vectors = TOWERS.into_iter().zip(values).zip(dims);
    let named = vectors.map(|((name, values), dim)| Named {
        vectors: Vectors { name: name.to_string(), ids: ids.clone(), values, dim },
        texts: texts.clone(),
    });
    Ok(named.collect())
}

/// Numbers as ids, and texts where those are none.
fn ids(examples: usize, texts: Vec<String>, named: bool) -> (Vec<u64>, Option<Vec<String>>) {
    let counted = (0..examples as u64).collect();
    if !named {
        return (counted, None);
    }
    match texts.iter().map(|text| text.parse().ok()).collect::<Option<Vec<u64>>>() {
        Some(ids) => (ids, None),
        None => (counted, Some(texts)),
    }
}

/// The same direction with length 1: inner products of such vectors are cosines.
fn unit(row: &[f32]) -> impl Iterator<Item = f32> + '_ {
    let length = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>().sqrt();
    let scale = if length > 0.0 { 1.0 / length } else { 0.0 };
    row.iter().map(move |x| (f64::from(*x) * scale) as f32)
}
