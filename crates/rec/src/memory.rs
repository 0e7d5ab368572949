//! What tables of servers may come to. Their rows are made when ids come, so nothing is refused:
//! what would not fit is said before training.

use regatta_exec::{available_memory, gigabytes};
use regatta_optim::RowRule;
use regatta_passes::split_trainer;
use regatta_ps::Mode;
use regatta_train::Job;

use crate::Error;
use crate::network::Network;

/// A note for each table that, with all its rows, takes more than the memory of a machine like this
/// one on every server, and has no tier on disk. In mode `geo` workers hold whole tables, which is
/// checked where they are made.
///
/// # Errors
/// If the program cannot be divided between workers and servers.
pub(crate) fn large_tables(network: &Network, job: &Job) -> Result<Vec<String>, Error> {
    let (false, Some(available)) = (matches!(job.mode, Mode::Geo { .. }), available_memory())
    else {
        return Ok(Vec::new());
    };
    let servers = job.endpoints.len().max(1) as u64;
    let mut notes = Vec::new();
    for table in split_trainer(&network.train)?.tables {
        let floats = table.dim + table.rule.row_state_len(table.dim);
        let each = (table.rows as u64).saturating_mul(4 * floats as u64) / servers;
        if each <= available.bytes || job.tiers.contains_key(&table.name) {
            continue;
        }
        let (name, rows, each) = (&table.name, table.rows, gigabytes(each));
        let plural = if servers == 1 { "" } else { "s" };
        notes.push(format!(
            "warning: with all its {rows} rows, table '{name}' takes {each} on each of {servers} \
             server{plural}, but {available}; table_parameters.{name}.memory_mb keeps rows on \
             disk, `regatta plan` says how many servers would do"
        ));
    }
    Ok(notes)
}
