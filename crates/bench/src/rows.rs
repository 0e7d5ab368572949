//! Pulls and pushes of a table in this process, beside random reads of as much memory.

use std::time::Instant;

use anyhow::{Result, bail};
use regatta_optim::{Adagrad, Adam, Rule};
use regatta_table::{
    Accessor, Initializer, PlainConfig, PullMode, Scratch, SparseConfig, SparseTable, TableId,
};
use regatta_tensor::Rng;
use serde::Serialize;

use crate::limits::{LINE, RandomReads};

/// What is measured.
#[derive(Debug, Clone)]
pub struct Options {
    /// Rows of the table.
    pub rows: u64,
    /// Floats per row.
    pub dim: usize,
    /// `adam` or `adagrad`.
    pub rule: String,
    /// Keys per request.
    pub keys: usize,
    /// Seconds for each of pull and push.
    pub seconds: f64,
}

/// Nanoseconds per key, and what memory alone takes.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    /// Rows of the table.
    pub rows: u64,
    /// Floats per row.
    pub dim: usize,
    /// Keys per request.
    pub keys: usize,
    /// To create a row.
    pub create_ns: f64,
    /// To pull a row; each row equally likely.
    pub pull_ns: f64,
    /// To update a row.
    pub push_ns: f64,
    /// Bytes of the table per row.
    pub bytes_per_row: f64,
    /// To read a line of the index and the lines that are pulled, at random offsets of as much
    /// memory.
    pub pull_limit_ns: f64,
    /// The same with the lines of the optimizer's state, read and written back.
    pub push_limit_ns: f64,
}

/// Fills a table and measures it.
///
/// # Errors
/// If the rule is unknown or memory does not suffice.
pub fn measure(o: &Options) -> Result<Report> {
    let (rule, states) = match o.rule.as_str() {
        "adam" => (Rule::Adam(Adam::default()), 2),
        "adagrad" => (Rule::Adagrad(Adagrad::default()), 1),
        other => bail!("unknown rule '{other}' (adam, adagrad)"),
    };
    let initializer = Initializer::Uniform { low: -0.1, high: 0.1 };
    let plain = PlainConfig { initializer, ..PlainConfig::new(o.dim, rule) };
    let table = SparseTable::new(SparseConfig::new(TableId(0), 1, Accessor::Plain(plain)))?;
    let create_ns = fill(&table, o)?;
    let requests = requests(o);
    let (mut scratch, mut out) = (Scratch::default(), vec![0.0; o.keys * o.dim]);
    let gradients = vec![0.001; o.keys * o.dim];
    let pull_ns = best(&requests, o.seconds, |keys| {
        let out = &mut out[..keys.len() * o.dim];
        table.pull(keys, out, PullMode::Train, &mut scratch)?;
        Ok(())
    })?;
    let push_ns = best(&requests, o.seconds, |keys| {
        table.push(keys, &gradients[..keys.len() * o.dim], 1e-4, &mut scratch)?;
        Ok(())
    })?;
    let bytes_per_row = table.stats()?.bytes as f64 / o.rows as f64;
    drop(table);
    let memory = RandomReads::new((bytes_per_row * o.rows as f64) as usize);
    let (index, lines) = (memory.ns(1), |floats: usize| (4 * floats + 8).div_ceil(LINE));
    let push_lines = lines(o.dim * (1 + states));
    Ok(Report {
        rows: o.rows,
        dim: o.dim,
        keys: o.keys,
        create_ns,
        pull_ns,
        push_ns,
        bytes_per_row,
        pull_limit_ns: index + memory.ns(lines(o.dim)),
        // What is written goes back the way it came.
        push_limit_ns: index + 2.0 * memory.ns(push_lines),
    })
}

fn fill(table: &SparseTable, o: &Options) -> Result<f64> {
    const AT_A_TIME: u64 = 1 << 16;
    let (mut scratch, mut out) = (Scratch::default(), vec![0.0; AT_A_TIME as usize * o.dim]);
    let start = Instant::now();
    for first in (0..o.rows).step_by(AT_A_TIME as usize) {
        let keys: Vec<u64> = (first..o.rows.min(first + AT_A_TIME)).map(key).collect();
        let out = &mut out[..keys.len() * o.dim];
        table.pull(&keys, out, PullMode::Train, &mut scratch)?;
    }
    Ok(start.elapsed().as_nanos() as f64 / o.rows as f64)
}

/// Ids as they come from hashes, not from counting.
fn key(i: u64) -> u64 {
    regatta_tensor::rng::mix(i)
}

/// Distinct keys in random order.
fn requests(o: &Options) -> Vec<Vec<u64>> {
    const REQUESTS: u64 = 16;
    let request = |r: u64| {
        let rng = Rng::new(11, r);
        let mut seen = std::collections::HashSet::with_capacity(o.keys);
        let drawn = (0..4 * o.keys as u64).map(|i| key(rng.u64(i) % o.rows));
        drawn.filter(|k| seen.insert(*k)).take(o.keys).collect()
    };
    (0..REQUESTS).map(request).collect()
}

/// Nanoseconds per key, of the best time of every request.
fn best(
    requests: &[Vec<u64>],
    seconds: f64,
    mut run: impl FnMut(&[u64]) -> Result<()>,
) -> Result<f64> {
    let mut times = vec![f64::INFINITY; requests.len()];
    let start = Instant::now();
    loop {
        for (keys, best) in requests.iter().zip(&mut times) {
            let begin = Instant::now();
            run(keys)?;
            *best = best.min(begin.elapsed().as_nanos() as f64);
        }
        if start.elapsed().as_secs_f64() > seconds {
            break;
        }
    }
    let keys: usize = requests.iter().map(Vec::len).sum();
    Ok(times.iter().sum::<f64>() / keys as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_table_is_measured() {
        let o = Options { rows: 5000, dim: 9, rule: "adam".into(), keys: 500, seconds: 0.0 };
        let r = measure(&o).unwrap();
        assert!(r.pull_ns > 0.0 && r.push_ns > 0.0 && r.push_limit_ns >= r.pull_limit_ns);
        assert!(r.bytes_per_row >= 27.0 * 4.0, "{r:?}");
        assert!(measure(&Options { rule: "sdg".into(), ..o }).is_err());
    }
}
