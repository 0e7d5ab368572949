//! `regatta export`: a checkpoint, a saved epoch or a model becomes files that anyone can use.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::Context;
use regatta_checkpoint::{Encoding, ModelManifest, ModelTable, PROGRAM_FILE};
use regatta_predict::files::{self, Format};
use regatta_rec::{Config, ModelSource};

use super::remote::{Target, local};
use super::{Outcome, vectors};

/// Exports a trained model, merging the shards of all servers.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A checkpoint, a directory of checkpoints (the newest is taken), the folder of an epoch, or a
    /// model that predicts, for other formats; a path or the address of a remote store.
    from: PathBuf,
    /// The directory to make, or the address in a remote store; a model that is there is replaced.
    #[arg(long, value_name = "DIR")]
    pub(super) to: PathBuf,
    /// What to write: a model for predict and serve, or plain files of weights.
    #[arg(long, value_enum, default_value_t = ExportFormat::Regatta)]
    format: ExportFormat,
    /// Write rows of tables in fewer bits.
    #[arg(long, value_enum)]
    quantize: Option<Quantize>,
    /// Largest size of all tables together within an ONNX file, in MB.
    #[arg(long, value_name = "MB", default_value_t = 512)]
    table_limit: u64,
    /// Write vectors of items and users for a search of nearest neighbours instead: <name>.npy with
    /// their ids in <name>.ids.npy. Of models with two towers, those of the examples of --data.
    #[arg(long, conflicts_with_all = ["format", "quantize", "table_limit"])]
    vectors: bool,
    /// With --vectors: a directory of files of the format of the test data, or a synthetic:// URL;
    /// else the test data of the configuration.
    #[arg(long, value_name = "DIR", requires = "vectors")]
    pub(super) data: Option<String>,
    /// With --vectors: the column of csv, tsv or parquet data that holds the ids of the examples;
    /// else they are numbered from 0.
    #[arg(long, value_name = "COLUMN", requires = "vectors")]
    pub(super) id_column: Option<String>,
    /// The YAML file of the training, if another than what the checkpoint or epoch says itself.
    #[arg(short = 'm', long = "config", value_name = "CONFIG")]
    pub(super) config: Option<PathBuf>,
    /// Values that override the file.
    #[arg(short = 'o', long = "opt", value_name = "section.key=value", num_args = 1..)]
    pub(super) overrides: Vec<String>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum ExportFormat {
    /// A model for `regatta predict` and `regatta serve`.
    Regatta,
    /// One file of named tensors; tables as ids and rows.
    Safetensors,
    /// One .npy file for each tensor; tables as ids and rows.
    Npy,
    /// Paddle's `part-` files: a folder for each parameter, a line for each row.
    Text,
    /// Paddle's older files: `<table>.shard/<table>.block0.txt`, dense parameters in binary.
    Block,
    /// One Parquet file for each parameter: columns `id` and `values`.
    Parquet,
    /// The whole model, tables included, as one model.onnx for onnxruntime and others.
    Onnx,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Quantize {
    /// 16 bits.
    Bf16,
    /// 8 bits and a factor for each row.
    Int8,
}

pub(crate) fn run(args: &Args) -> anyhow::Result<Outcome> {
    let format = match args.format {
        ExportFormat::Regatta => None,
        ExportFormat::Safetensors => Some(Format::Safetensors),
        ExportFormat::Npy => Some(Format::Npy),
        ExportFormat::Text => Some(Format::Text),
        ExportFormat::Block => Some(Format::Block),
        ExportFormat::Parquet => Some(Format::Parquet),
        ExportFormat::Onnx => {
            Some(Format::Onnx { table_limit: args.table_limit.saturating_mul(1_000_000) })
        }
    };
    if format.is_some() && args.quantize.is_some() {
        anyhow::bail!("--quantize is for models that predict: other formats hold all bits");
    }
    let encoding = match args.quantize {
        None => Encoding::F32,
        Some(Quantize::Bf16) => Encoding::Bf16,
        Some(Quantize::Int8) => Encoding::Int8,
    };
    let from = local(&args.from, None)?;
    if args.vectors {
        return vectors::export(&from, args);
    }
    if from.join(PROGRAM_FILE).exists() {
        return convert(&from, args, format);
    }
    let trained = ModelSource::open(&from)?;
    let config = config_of(&trained, &from, args.config.as_deref(), &args.overrides)?;
    let target = Target::new(&args.to)?;
    let Some(format) = format else {
        let manifest = export(&trained, &config, &target.path(), encoding)?;
        target.finish()?;
        report(&args.to, &manifest)?;
        return Ok(Outcome::Done);
    };
    let scratch = Scratch::beside(&target.path())?;
    export(&trained, &config, scratch.path(), encoding)?;
    write_files(scratch.path(), args, target, format)
}

/// A model that predicts, as training, `save_inference_model` or `jit.save` of Python wrote it.
fn convert(model: &Path, args: &Args, format: Option<Format>) -> anyhow::Result<Outcome> {
    let Some(format) = format else {
        let model = model.display();
        anyhow::bail!("{model} is a model for predict and serve: name another --format");
    };
    write_files(model, args, Target::new(&args.to)?, format)
}

fn write_files(
    model: &Path,
    args: &Args,
    target: Target,
    format: Format,
) -> anyhow::Result<Outcome> {
    let written = files::convert(model, &target.path(), format)?;
    target.finish()?;
    let mut out = io::stdout().lock();
    for (name, what) in written {
        writeln!(out, "{name}: {what}")?;
    }
    writeln!(out, "written to {}", args.to.display())?;
    Ok(Outcome::Done)
}

/// The configuration of a trained model: the file that the user names, or what it says itself.
pub(super) fn config_of(
    trained: &ModelSource,
    from: &Path,
    file: Option<&Path>,
    overrides: &[String],
) -> anyhow::Result<Config> {
    if let Some(file) = file {
        return Ok(Config::load(file, overrides)?);
    }
    trained.config(overrides)?.with_context(|| {
        let from = from.display();
        format!("{from} does not say what model it is: name its YAML file with --config")
    })
}

/// Exports a model that predicts; notes go to standard error.
pub(super) fn export(
    trained: &ModelSource,
    config: &Config,
    to: &Path,
    encoding: Encoding,
) -> anyhow::Result<ModelManifest> {
    Ok(regatta_rec::export(trained, config, to, encoding, &mut |note| eprintln!("note: {note}"))?)
}

fn report(to: &Path, manifest: &ModelManifest) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for table in &manifest.tables {
        writeln!(out, "{}", describe(table))?;
    }
    let bytes: u64 = manifest.files.iter().map(|file| file.bytes).sum();
    let name = &manifest.about.name;
    writeln!(out, "model {name}, {:.1} MB, written to {}", bytes as f64 / 1e6, to.display())?;
    Ok(())
}

fn describe(table: &ModelTable) -> String {
    let (name, rows, dim) = (&table.name, table.rows, table.dim);
    match table.encoding {
        Encoding::F32 => format!("table {name}: {rows} rows of {dim} floats"),
        encoding => format!(
            "table {name}: {rows} rows of {dim} floats as {}, off by {:e} at most",
            if encoding == Encoding::Bf16 { "bf16" } else { "int8" },
            table.max_error
        ),
    }
}

/// A directory for a while, beside what is made of it.
pub(super) struct Scratch(PathBuf);

impl Scratch {
    pub(super) fn beside(path: &Path) -> anyhow::Result<Scratch> {
        let name = path.file_name().with_context(|| format!("'{}' has no name", path.display()))?;
        let name = format!(".{}.{}.model", name.to_string_lossy(), std::process::id());
        let scratch = path.with_file_name(name);
        if scratch.exists() {
            std::fs::remove_dir_all(&scratch)?;
        }
        Ok(Scratch(scratch))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
