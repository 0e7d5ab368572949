//! The fields of a model: ids with their vectors, and floats. They are numbered slots of one table,
//! as PaddleRec's readers yield them, or declared features, each with a table of its own.

use regatta_data::{Schema, Slot, SlotKind};
use regatta_features::{DENSE, Feature, Features, Kind, Pooling, SlotKind as Given};
use regatta_ir::{Builder, Embedding, Pool, Var};
use regatta_tensor::DType;

use super::Model;
use crate::{Error, Hyper};

/// What a model looks at.
pub struct Fields {
    ids: Ids,
    /// `f32[batch, width]`, if there are floats.
    pub dense: Option<Var>,
}

enum Ids {
    /// All of one table.
    Slots(Vec<Var>),
    Declared(Vec<Declared>),
}

/// A declared feature of ids.
struct Declared {
    name: String,
    /// The name of its table and the rows of it.
    table: String,
    rows: i64,
    dim: Option<i64>,
    ids: Var,
    /// With a weight for each id.
    weights: Option<Var>,
    pool: Pool,
}

/// What tables of declared features are called: those of vectors, and those of single weights.
pub(super) const VECTORS: &str = "emb";
pub(super) const LINEAR: &str = "linear";

/// Hyper-parameters that say what the inputs are, and mean nothing beside declared features.
pub(crate) const INPUT_KEYS: [&str; 11] = [
    "sparse_inputs_slots",
    "sparse_feature_number",
    "dense_input_dim",
    "hash_ids",
    "num_field",
    "feature_values",
    "feature_size",
    "slot_num",
    "dict_dim",
    "item_count",
    "cat_count",
];

impl Fields {
    /// Numbered slots, and floats.
    pub fn slots(slots: Vec<Var>, dense: Option<Var>) -> Fields {
        Fields { ids: Ids::Slots(slots), dense }
    }

    /// Declared features, but for those named in `except`.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn declared(
        features: &Features,
        b: &mut Builder,
        except: &[&str],
    ) -> Result<Fields, Error> {
        let mut ids = Vec::new();
        for feature in features.ids().filter(|f| !except.contains(&f.name.as_str())) {
            ids.push(Declared::new(features, feature, b)?);
        }
        let width = features.dense_width() as i64;
        let dense = (width > 0).then(|| b.data(DENSE, DType::F32, &[-1, width])).transpose()?;
        Ok(Fields { ids: Ids::Declared(ids), dense })
    }

    /// How many fields of ids there are.
    pub fn len(&self) -> usize {
        match &self.ids {
            Ids::Slots(slots) => slots.len(),
            Ids::Declared(ids) => ids.len(),
        }
    }

    /// How many floats there are.
    pub fn dense_width(&self, b: &Builder) -> Result<i64, Error> {
        self.dense.as_ref().map_or(Ok(0), |dense| Ok(b.ty(dense)?.shape[1]))
    }

    /// The floats.
    ///
    /// # Errors
    /// If there are none.
    pub fn needed_dense(&self, model: &str) -> Result<&Var, Error> {
        self.dense.as_ref().ok_or_else(|| {
            let reason = format!("model {model} needs floats: one of raw, log or standardize");
            Error::key("features", reason)
        })
    }

    /// The vectors of all fields in a row, `[batch, width]`; nothing without fields. `table` is the
    /// table of numbered slots; those of features are made like it.
    ///
    /// # Errors
    /// If a name is taken.
    pub fn flat(&self, b: &mut Builder, table: &Embedding) -> Result<Option<Var>, Error> {
        match &self.ids {
            Ids::Slots(slots) if slots.is_empty() => Ok(None),
            Ids::Slots(slots) => {
                let embedded = b.embedding(&slots.iter().collect::<Vec<_>>(), table)?;
                Ok(Some(b.reshape(&embedded, &[-1, slots.len() as i64 * table.dim])?))
            }
            Ids::Declared(ids) => {
                let mut rows = Vec::new();
                for field in ids {
                    let dim = field.dim.unwrap_or(table.dim);
                    let vector = field.vector(b, &Embedding { dim, ..table.clone() }, VECTORS)?;
                    rows.push(b.reshape(&vector, &[-1, dim])?);
                }
                join(b, rows, 1)
            }
        }
    }

    /// The vectors and the floats in a row, `[batch, width]`.
    ///
    /// # Errors
    /// If there is neither.
    pub fn flat_with_dense(&self, b: &mut Builder, table: &Embedding) -> Result<Var, Error> {
        let flat = self.flat(b, table)?;
        row(b, flat, self.dense.clone())
    }

    /// The vectors of all fields, `[batch, fields, dim]`, all of one length.
    ///
    /// # Errors
    /// If there are none, or a feature has vectors of another length.
    pub fn stacked(&self, b: &mut Builder, table: &Embedding, role: &str) -> Result<Var, Error> {
        match &self.ids {
            Ids::Slots(slots) => Ok(b.embedding(&slots.iter().collect::<Vec<_>>(), table)?),
            Ids::Declared(ids) => {
                let mut vectors = Vec::new();
                for field in ids {
                    if role == VECTORS && field.dim.is_some_and(|dim| dim != table.dim) {
                        let key = format!("features.{}.dim", field.name);
                        let reason = format!(
                            "this model combines vectors of all features, which are of one length \
                             ({}): leave it out",
                            table.dim
                        );
                        return Err(Error::key(key, reason));
                    }
                    vectors.push(field.vector(b, table, role)?);
                }
                join(b, vectors, 1)?
                    .ok_or_else(|| Error::key("features", "this model needs a feature with ids"))
            }
        }
    }
}

/// Vectors and floats in a row.
///
/// # Errors
/// If there is neither.
pub(super) fn row(b: &mut Builder, flat: Option<Var>, dense: Option<Var>) -> Result<Var, Error> {
    join(b, flat.into_iter().chain(dense).collect(), 1)?.ok_or_else(|| {
        Error::key("features", "there are labels only: a model needs something to look at")
    })
}

/// All of them as one; nothing for none.
fn join(b: &mut Builder, mut parts: Vec<Var>, axis: i64) -> Result<Option<Var>, Error> {
    Ok(match parts.len() {
        0 | 1 => parts.pop(),
        _ => Some(b.concat(&parts.iter().collect::<Vec<_>>(), axis)?),
    })
}

impl Declared {
    fn new(features: &Features, feature: &Feature, b: &mut Builder) -> Result<Declared, Error> {
        let table = features.table(feature).ok_or_else(|| {
            Error::key(format!("features.{}", feature.name), "has no table of vectors")
        })?;
        let (ids, weights) = inputs(feature, b)?;
        Ok(Declared {
            name: feature.name.clone(),
            table: table.name,
            rows: table.rows as i64,
            dim: table.dim.map(|dim| dim as i64),
            ids,
            weights,
            pool: pool(feature.pooling),
        })
    }

    /// Its vector, `[batch, 1, dim]`.
    fn vector(&self, b: &mut Builder, like: &Embedding, role: &str) -> Result<Var, Error> {
        let table = table_of(&self.table, self.rows, like, role);
        let vectors = b.embedding(&[&self.ids], &Embedding { pool: self.pool, ..table })?;
        let Some(weights) = &self.weights else { return Ok(vectors) };
        let n = b.ty(weights)?.shape[1];
        let weights = b.reshape(weights, &[-1, n, 1])?;
        let weighed = b.elementwise_mul(&vectors, &weights)?;
        Ok(b.reduce_sum(&weighed, &[1], true)?)
    }
}

/// The table of a feature, made like that of numbered slots. Row 0 stands for missing values.
pub(super) fn table_of(name: &str, rows: i64, like: &Embedding, role: &str) -> Embedding {
    let table = like.table.clone().named(format!("{name}_{role}"));
    Embedding { rows, table, hash: false, padding_idx: Some(0), ..like.clone() }
}

/// Declares the slots of a feature of ids.
fn inputs(feature: &Feature, b: &mut Builder) -> Result<(Var, Option<Var>), Error> {
    let name = &feature.name;
    Ok(match (feature.weight, feature.length) {
        (Some(_), Some(n)) => {
            let n = n as i64;
            let ids = b.data(name, DType::U64, &[-1, n])?;
            (ids, Some(b.data(&feature.weights_slot(), DType::F32, &[-1, n])?))
        }
        _ if feature.is_multi() => (b.sparse_data(name)?, None),
        _ => (b.data(name, DType::U64, &[-1, 1])?, None),
    })
}

fn pool(pooling: Pooling) -> Pool {
    match pooling {
        Pooling::Sum => Pool::Sum,
        Pooling::Mean => Pool::Mean,
        Pooling::Sqrtn => Pool::Sqrtn,
        Pooling::Max => Pool::Max,
    }
}

impl Model {
    /// What an example looks like: as the model's hyper-parameters say, or as its features do.
    ///
    /// # Errors
    /// If the model takes no features, or lacks a label.
    pub fn schema_of(&self, h: &Hyper) -> Result<Schema, Error> {
        let Some(features) = h.features() else { return (self.schema)(h) };
        if !self.takes_features {
            let reason = format!("model {} takes no features of its own", self.name);
            return Err(Error::key("features", reason));
        }
        let own = (self.schema)(h)?;
        let labels = own.slots().iter().filter(|slot| slot.kind == SlotKind::Label);
        let labels: Vec<&str> = labels.map(|slot| slot.name.as_str()).collect();
        if let Some(label) = labels.iter().find(|label| !features.labels().any(|l| l == **label)) {
            let reason = format!(
                "model {} learns '{label}', and no feature of kind label has that name; if its \
                 column is called otherwise, add column: NAME",
                self.name
            );
            return Err(Error::key("features", reason));
        }
        if let Some(other) = features.labels().find(|label| !labels.contains(label)) {
            let (name, labels) = (self.name, labels.join(", "));
            let reason = format!("model {name} learns {labels}, and has no label '{other}'");
            return Err(Error::key(format!("features.{other}"), reason));
        }
        let slots = features.slots().into_iter().map(|slot| match slot.kind {
            Given::Label => Slot::label(slot.name),
            Given::Floats(n) => Slot::dense(slot.name, n),
            Given::Ids => Slot::ids(slot.name),
            Given::FixedIds(n) => Slot::fixed_ids(slot.name, n),
        });
        Ok(Schema::new(slots.collect())?)
    }
}

/// Pairs of a target and the sequence of such values, in order of name.
pub(super) fn pairs(features: &Features) -> Vec<(&Feature, &Feature)> {
    let sequences = features.ids().filter_map(|f| match &f.kind {
        Kind::Sequence { of } => Some((features.find(of)?, f)),
        _ => None,
    });
    sequences.collect()
}
