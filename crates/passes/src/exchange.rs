//! What the trainer program of a job with parameter servers exchanges, as data. The training loop
//! performs it before and after the program runs, because it waits for the network and overlaps
//! with other steps.

use std::fmt;

/// The lookups of one table.
#[derive(Debug, Clone, PartialEq)]
pub struct TableExchange {
    /// Name of the table.
    pub name: String,
    /// Floats per row.
    pub dim: usize,
    /// Inputs that hold ids, and the names under which the program takes them as local rows.
    pub inputs: Vec<(String, String)>,
    /// The id that stands for nothing.
    pub padding: Option<u64>,
    /// Ids are taken modulo this number.
    pub modulo: Option<u64>,
    /// The input that takes the pulled rows.
    pub pulled: String,
    /// The row-sparse gradient to push; none in a program that only predicts.
    pub grad: Option<String>,
}

/// Everything that a trainer program exchanges.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Exchange {
    /// Tables in the order in which they are numbered.
    pub tables: Vec<TableExchange>,
    /// Gradients to send, in the order of the parameters.
    pub grads: Vec<String>,
    /// Dense parameters to receive.
    pub params: Vec<String>,
}

impl TableExchange {
    fn write_pull(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ids: Vec<&str> = self.inputs.iter().map(|(ids, _)| ids.as_str()).collect();
        let locals: Vec<&str> = self.inputs.iter().map(|(_, local)| local.as_str()).collect();
        let (ids, locals) = (ids.join(", "), locals.join(", "));
        let TableExchange { name, dim, pulled, .. } = self;
        write!(f, "  {pulled}, [{locals}] = pull_sparse({name}, [{ids}]) {{dim: {dim}")?;
        if let Some(modulo) = self.modulo {
            write!(f, ", modulo: {modulo}")?;
        }
        if let Some(padding) = self.padding {
            write!(f, ", padding_idx: {padding}")?;
        }
        writeln!(f, "}}")
    }
}

impl Exchange {
    /// Gradients that the program must leave: those to send, then those of tables.
    pub fn fetches(&self) -> impl Iterator<Item = &str> {
        let rows = self.tables.iter().filter_map(|table| table.grad.as_deref());
        self.grads.iter().map(String::as_str).chain(rows)
    }

    /// Writes what a worker receives before the program runs.
    pub(crate) fn write_before(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "before the program")?;
        self.tables.iter().try_for_each(|table| table.write_pull(f))?;
        match self.params.is_empty() {
            true => Ok(()),
            false => writeln!(f, "  [{}] = recv()", self.params.join(", ")),
        }
    }

    /// Writes what a worker sends after the program has run.
    pub(crate) fn write_after(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "after the program")?;
        for table in &self.tables {
            if let Some(grad) = &table.grad {
                writeln!(f, "  push_sparse({}, {grad})", table.name)?;
            }
        }
        match self.grads.is_empty() {
            true => Ok(()),
            false => writeln!(f, "  send([{}])", self.grads.join(", ")),
        }
    }
}
