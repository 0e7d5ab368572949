//! Raw values of a request become the inputs of a model by its features.

use std::fmt;
use std::sync::Arc;

use regatta_features::{Error, Sink, Transform, Value};
use regatta_tensor::Data;
use serde::Deserializer;
use serde::de::{DeserializeSeed, Error as _, MapAccess, SeqAccess, Visitor};

use crate::About;
use crate::rows::{Column, Rows};

/// The raw values of the row that is being parsed. Its memory serves the next one.
#[derive(Debug, Default)]
pub(crate) struct RawRow {
    /// The texts of all values, one after the other.
    text: Vec<u8>,
    /// A value for each column; none for those that have not come.
    cells: Vec<Option<Cell>>,
    /// The column of the rows for each slot of the features.
    targets: Vec<Option<usize>>,
}

#[derive(Debug, Clone, PartialEq)]
enum Cell {
    Missing,
    /// From this byte of the texts to that one.
    Text(usize, usize),
    Int(i128),
    Float(f64),
    List(Vec<Cell>),
}

impl RawRow {
    pub(crate) fn new(about: &About) -> RawRow {
        let Some(transform) = &about.transform else { return RawRow::default() };
        let column = |name: &String| about.features.iter().position(|f| f.name == *name);
        RawRow {
            text: Vec::new(),
            cells: vec![None; transform.columns().len()],
            targets: transform.slots().iter().map(|slot| column(&slot.name)).collect(),
        }
    }

    /// Forgets the row.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.cells.fill(None);
    }
}

/// The columns of one example.
pub(crate) struct RawExample<'r> {
    pub(crate) rows: &'r mut Rows,
    pub(crate) transform: Arc<Transform>,
}

impl<'de> Visitor<'de> for RawExample<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object with the columns of an example")
    }

    fn visit_map<M: MapAccess<'de>>(self, mut map: M) -> Result<(), M::Error> {
        let RawExample { rows, transform } = self;
        rows.raw.clear();
        let mut guess = 0;
        while let Some(at) = map.next_key_seed(Name { transform: &transform, guess })? {
            guess = at + 1;
            let cell = map.next_value_seed(CellOf { text: &mut rows.raw.text })?;
            if rows.raw.cells[at].replace(cell).is_some() {
                let what = format!("column '{}' is given twice", transform.columns()[at]);
                return Err(M::Error::custom(what));
            }
        }
        finish(rows, &transform).map_err(M::Error::custom)
    }
}

/// Ends a row: its values become those of the model's inputs.
fn finish(rows: &mut Rows, transform: &Transform) -> Result<(), String> {
    let Rows { raw: RawRow { text, cells, targets }, columns, .. } = rows;
    let mut lists = Vec::new();
    for (name, cell) in transform.columns().iter().zip(&*cells) {
        match cell {
            None => {
                return Err(format!("column '{name}' is missing; null says that it has no value"));
            }
            Some(cell) => lists.push(values(cell, text)),
        }
    }
    // Lists live in vectors of their own, which must stay where they are.
    let value = |column: usize| match (&cells[column], &lists[column][..]) {
        (Some(Cell::List(_)), values) => Value::List(values),
        (_, [value]) => *value,
        _ => Value::Missing,
    };
    let mut filler = Filler { targets, columns };
    transform.apply_with(value, &mut filler).map_err(|error| match error {
        Error::Value { column, expected, found, .. } => {
            format!("column '{column}': {expected} was expected, but {found} was given")
        }
        other => other.to_string(),
    })?;
    for column in targets.iter().flatten() {
        columns[*column].end_row();
    }
    rows.end_row().map_err(|feature| format!("no column gives input '{}'", feature.name))
}

/// The value of a cell, or those of its list.
fn values<'a>(cell: &Cell, text: &'a [u8]) -> Vec<Value<'a>> {
    let one = |cell: &Cell| match cell {
        Cell::Text(from, to) => Value::Text(&text[*from..*to]),
        Cell::Int(x) => Value::Int(*x),
        Cell::Float(x) => Value::Float(*x),
        Cell::Missing | Cell::List(_) => Value::Missing,
    };
    match cell {
        Cell::List(cells) => cells.iter().map(one).collect(),
        other => vec![one(other)],
    }
}

struct Filler<'a> {
    targets: &'a [Option<usize>],
    columns: &'a mut [Column],
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

/// A name becomes the number of a column; `guess` is tried first, because clients keep to an order.
struct Name<'r> {
    transform: &'r Transform,
    guess: usize,
}

impl<'de> DeserializeSeed<'de> for Name<'_> {
    type Value = usize;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<usize, D::Error> {
        json.deserialize_str(self)
    }
}

impl Visitor<'_> for Name<'_> {
    type Value = usize;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the name of a column")
    }

    fn visit_str<E: serde::de::Error>(self, name: &str) -> Result<usize, E> {
        let columns = self.transform.columns();
        if columns.get(self.guess).is_some_and(|column| column == name) {
            return Ok(self.guess);
        }
        let found = columns.binary_search_by(|column| column.as_str().cmp(name));
        found.map_err(|_| {
            let names = columns.iter().map(String::as_str);
            E::custom(match regatta_ir::nearest(name, names) {
                Some(near) => format!("there is no column '{name}'; did you mean '{near}'?"),
                None => format!("there is no column '{name}'; there are {}", columns.join(", ")),
            })
        })
    }
}

/// A value: a text, a number, null, or a list of these.
struct CellOf<'r> {
    text: &'r mut Vec<u8>,
}

impl<'de> DeserializeSeed<'de> for CellOf<'_> {
    type Value = Cell;

    fn deserialize<D: Deserializer<'de>>(self, json: D) -> Result<Cell, D::Error> {
        json.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for CellOf<'_> {
    type Value = Cell;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a text, a number, null, or a list of these")
    }

    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Cell, E> {
        let from = self.text.len();
        self.text.extend_from_slice(text.as_bytes());
        Ok(Cell::Text(from, self.text.len()))
    }

    fn visit_u64<E: serde::de::Error>(self, x: u64) -> Result<Cell, E> {
        Ok(Cell::Int(x.into()))
    }

    fn visit_i64<E: serde::de::Error>(self, x: i64) -> Result<Cell, E> {
        Ok(Cell::Int(x.into()))
    }

    fn visit_f64<E: serde::de::Error>(self, x: f64) -> Result<Cell, E> {
        Ok(Cell::Float(x))
    }

    fn visit_bool<E: serde::de::Error>(self, x: bool) -> Result<Cell, E> {
        Ok(Cell::Int(x.into()))
    }

    fn visit_unit<E: serde::de::Error>(self) -> Result<Cell, E> {
        Ok(Cell::Missing)
    }

    fn visit_seq<S: SeqAccess<'de>>(self, mut values: S) -> Result<Cell, S::Error> {
        let mut cells = Vec::new();
        while let Some(cell) = values.next_element_seed(CellOf { text: &mut *self.text })? {
            if let Cell::List(_) = cell {
                return Err(S::Error::custom("a list of lists: write weights as \"value:weight\""));
            }
            cells.push(cell);
        }
        Ok(Cell::List(cells))
    }
}
