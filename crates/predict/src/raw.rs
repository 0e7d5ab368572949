//! Rows of raw values become a batch, by the features that the model was trained with.

use regatta_features::{Error as FeatureError, Sink, Transform, Value as Raw};
use regatta_tensor::{Data, Ragged, Tensor, Value};

use crate::{Error, InputKind, Model};

/// Rows that are collected for a batch.
pub struct RawRows {
    transform: Transform,
    columns: Vec<Column>,
    /// The column of each slot of the transform.
    targets: Vec<Option<usize>>,
    rows: usize,
}

/// The values of one input.
struct Column {
    name: String,
    /// Values of a row, unless there are any number.
    width: Option<usize>,
    values: Data,
    offsets: Vec<u32>,
}

impl RawRows {
    /// For a model whose features were declared; nothing for others.
    pub fn new(model: &Model) -> Option<RawRows> {
        let transform = model.transform()?.clone();
        let column = |input: &crate::Input| {
            let (width, values) = match input.kind {
                InputKind::Ids(n) => (Some(n), Data::U64(Vec::new())),
                InputKind::RaggedIds => (None, Data::U64(Vec::new())),
                InputKind::Floats(n) => (Some(n), Data::F32(Vec::new())),
                InputKind::Ints(n) => (Some(n), Data::I64(Vec::new())),
            };
            Column { name: input.name.clone(), width, values, offsets: vec![0] }
        };
        let columns: Vec<Column> = model.inputs().iter().map(column).collect();
        let target = |name: &str| columns.iter().position(|column| column.name == name);
        let targets = transform.slots().iter().map(|slot| target(&slot.name)).collect();
        Some(RawRows { transform, columns, targets, rows: 0 })
    }

    /// The columns that a row has values for, in this order.
    pub fn columns(&self) -> &[String] {
        self.transform.columns()
    }

    /// Adds a row.
    ///
    /// # Errors
    /// Names the row, from 0, and the column with a value that its feature cannot take. The rows
    /// cannot be used then.
    pub fn push(&mut self, row: &[Raw<'_>]) -> Result<(), Error> {
        let RawRows { transform, columns, targets, rows } = self;
        transform.apply(row, &mut Filler { columns, targets }).map_err(|error| match error {
            FeatureError::Value { column, expected, found, .. } => Error::Input(format!(
                "row {rows}, column '{column}': {expected} was expected, but {found} was given"
            )),
            other => Error::Input(other.to_string()),
        })?;
        for column in columns {
            let len = match &column.values {
                Data::U64(values) => values.len(),
                Data::I64(values) => values.len(),
                Data::F32(values) => values.len(),
                Data::F16(values) | Data::BF16(values) => values.len(),
            };
            column.offsets.push(len as u32);
        }
        *rows += 1;
        Ok(())
    }

    /// The inputs of the model, by name.
    ///
    /// # Errors
    /// If the features do not give all of them.
    pub fn batch(self) -> Result<Vec<(String, Value)>, Error> {
        let rows = self.rows;
        let value = |Column { name, width, values, offsets }: Column| {
            let value: Option<Value> = match width {
                Some(width) => Tensor::new(&[rows, width], values).ok().map(Value::from),
                None => Ragged::new(values, offsets).ok().map(Value::from),
            };
            let lacks = || Error::Input(format!("the features do not give input '{name}'"));
            value.ok_or_else(lacks).map(|value| (name.clone(), value))
        };
        self.columns.into_iter().map(value).collect()
    }
}

struct Filler<'a> {
    columns: &'a mut [Column],
    targets: &'a [Option<usize>],
}

impl Sink for Filler<'_> {
    fn label(&mut self, _: usize, _: i64) {}

    fn id(&mut self, slot: usize, id: u64) {
        if let Some(at) = self.targets[slot]
            && let Data::U64(values) = &mut self.columns[at].values
        {
            values.push(id);
        }
    }

    fn float(&mut self, slot: usize, value: f32) {
        if let Some(at) = self.targets[slot]
            && let Data::F32(values) = &mut self.columns[at].values
        {
            values.push(value);
        }
    }
}
