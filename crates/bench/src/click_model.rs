//! The click model of `bench/compare` (26 slots of dimension 9 and 13 floats through 400-400-400-2)
//! as an export that nobody had to train: weights are initial values, rows are drawn.

use std::path::Path;

use anyhow::{Context, Result};
use regatta_checkpoint::{EachRow, Encoding, ModelAbout, ModelSpec, TableRows, save_model};
use regatta_exec::{Scope, run_startup};
use regatta_ir::Origin;
use regatta_passes::prune;
use regatta_rec::Config;
use regatta_rec::network::Network;
use regatta_table::row_order;
use regatta_tensor::Rng;

/// Slots of an example.
pub const SLOTS: u64 = 26;
/// Floats of a row.
pub const DIM: usize = 9;

/// The configuration with `rows` ids, reading `data`.
///
/// # Errors
/// If `folder` cannot be written to.
pub fn config(folder: &Path, rows: u64, data: &str, overrides: &[String]) -> Result<Config> {
    let yaml = format!(
        "model: dnn
runner:
  train_data_dir: {data:?}
  test_data_dir: {data:?}
  train_batch_size: 512
  infer_batch_size: 512
  drop_last: False
hyper_parameters:
  optimizer: {{class: Adam, learning_rate: 0.001}}
  sparse_inputs_slots: {}
  sparse_feature_number: {rows}
  sparse_feature_dim: {DIM}
  dense_input_dim: 13
  fc_sizes: [400, 400, 400]
",
        SLOTS + 1
    );
    let file = folder.join(format!("click-{rows}.yaml"));
    std::fs::write(&file, yaml).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(Config::load(&file, overrides)?)
}

/// Synthetic examples whose ids are those of a table of `rows` rows.
pub fn examples(rows: u64, examples: u64) -> String {
    let vocab = (rows - 1) / SLOTS;
    format!("synthetic://ctr?slots={SLOTS}&vocab={vocab}&dense=13&seed=1&examples={examples}")
}

/// Writes the export with the ids `0..rows`, in the form that tables of servers have: rows by id.
///
/// # Errors
/// If it cannot be written.
pub fn export(folder: &Path, rows: u64, to: &Path) -> Result<()> {
    let data = examples(rows, 1);
    let config_of = |rows| config(folder, rows, &data, &[]);
    let config = config_of(rows)?;
    let network = Network::build(&config)?;
    // The same network with a small table has the same other values.
    let mut scope = Scope::new();
    run_startup(&Network::build(&config_of(2)?)?.forward.startup, &mut scope)?;
    let fetches: Vec<&str> = network.heads.iter().map(|head| head.predict.as_str()).collect();
    let program = prune(&network.forward.main, &fetches)?;
    let inputs = program.block().vars.values().filter(|var| var.origin == Origin::Data);
    let feeds: Vec<&str> = inputs.map(|var| var.name.as_str()).collect();
    let (name, config) = ("dnn".to_string(), config.to_json());
    let about = ModelAbout { name, config, ..ModelAbout::default() };
    let (feeds, fetches) = (&feeds[..], &fetches[..]);
    let spec = ModelSpec { program: &program, feeds, fetches, about, encoding: Encoding::F32 };
    save_model(to, &spec, |name| scope.get(name), |_| Ok(TableRows::ById(drawn(rows))))?;
    Ok(())
}

fn drawn<'a>(rows: u64) -> EachRow<'a> {
    Box::new(move |put| {
        let mut ids: Vec<u64> = (0..rows).collect();
        ids.sort_unstable_by_key(|id| row_order(*id));
        let (rng, mut row) = (Rng::new(7, 0), [0.0_f32; DIM]);
        ids.iter().try_for_each(|&id| {
            for (i, x) in row.iter_mut().enumerate() {
                *x = 2.0 * rng.unit_f32(id * DIM as u64 + i as u64) - 1.0;
            }
            put(id, &row)
        })
    })
}
