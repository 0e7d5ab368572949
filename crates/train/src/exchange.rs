//! What a trainer program exchanges with servers, read off its ops.

use regatta_ir::{Error, Program};

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

impl Exchange {
    /// Reads the exchanges of a trainer program; `tables` gives their numbers by order.
    ///
    /// # Errors
    /// If an op is incomplete.
    pub fn of(trainer: &Program, tables: &[String]) -> Result<Exchange, Error> {
        let ops = &trainer.block().ops;
        let mut exchange = Exchange::default();
        for name in tables {
            let is_of = |op: &&regatta_ir::Op, kind: &str| {
                op.kind == kind && op.str("table").is_ok_and(|t| t == name)
            };
            let pull = ops.iter().find(|op| is_of(op, "pull_sparse")).ok_or_else(|| {
                let reason = format!("the program does not look up the table '{name}'");
                Error::Pass { pass: "exchange".into(), reason }
            })?;
            let push = ops.iter().find(|op| is_of(op, "push_sparse"));
            exchange.tables.push(TableExchange {
                name: name.clone(),
                dim: pull.int("dim")? as usize,
                inputs: pull.ins("Ids").iter().cloned().zip(pull.outs("Local").to_vec()).collect(),
                padding: u64::try_from(pull.int("padding_idx")?).ok(),
                modulo: u64::try_from(pull.int("modulo")?).ok().filter(|&m| m > 0),
                pulled: pull.outs("Out")[0].clone(),
                grad: push.map(|op| op.ins("Grad")[0].clone()),
            });
        }
        for op in ops {
            match op.kind.as_str() {
                "send" => exchange.grads = op.ins("X").to_vec(),
                "recv" => exchange.params = op.ins("Param").to_vec(),
                _ => {}
            }
        }
        Ok(exchange)
    }
}
