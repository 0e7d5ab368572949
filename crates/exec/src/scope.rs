//! Values that outlive a run: parameters, optimizer state, statistics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_tensor::{RowSparse, Tensor};

/// Tensors by name. Executors of several programs (training, evaluation) can share one.
#[derive(Debug)]
pub struct Scope {
    names: HashMap<String, usize>,
    tensors: Vec<Tensor>,
    /// Row-sparse sums that are kept between runs; programs make them when they first run.
    rows: Vec<(String, RowSparse)>,
    /// Changes whenever an index or a shape may have changed, and differs between scopes.
    version: u64,
}

static NEXT_VERSION: AtomicU64 = AtomicU64::new(1);

fn next_version() -> u64 {
    NEXT_VERSION.fetch_add(1, Ordering::Relaxed)
}

impl Default for Scope {
    fn default() -> Self {
        Scope::new()
    }
}

impl Scope {
    /// An empty scope.
    pub fn new() -> Scope {
        let (names, tensors, rows) = (HashMap::new(), Vec::new(), Vec::new());
        Scope { names, tensors, rows, version: next_version() }
    }

    /// The tensor of that name.
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.names.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor of that name, to change.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut Tensor> {
        let at = *self.names.get(name)?;
        self.version = next_version();
        Some(&mut self.tensors[at])
    }

    /// Several tensors to change at once, in the order of the names; nothing if one is missing or
    /// named twice.
    pub fn get_many_mut(&mut self, names: &[String]) -> Option<Vec<&mut Tensor>> {
        let at = names.iter().map(|n| self.names.get(n).copied()).collect::<Option<Vec<_>>>()?;
        self.version = next_version();
        let mut all: Vec<Option<&mut Tensor>> = self.tensors.iter_mut().map(Some).collect();
        at.into_iter().map(|i| all[i].take()).collect()
    }

    /// Sets a tensor, replacing one of the same name.
    pub fn set(&mut self, name: &str, tensor: Tensor) {
        self.version = next_version();
        match self.names.get(name) {
            Some(&at) => self.tensors[at] = tensor,
            None => {
                self.names.insert(name.to_string(), self.tensors.len());
                self.tensors.push(tensor);
            }
        }
    }

    /// Names in the order in which they were first set.
    pub fn names(&self) -> Vec<&str> {
        let mut names: Vec<_> = self.names.iter().collect();
        names.sort_by_key(|(_, at)| **at);
        names.into_iter().map(|(name, _)| name.as_str()).collect()
    }

    /// The row-sparse value of that name, if a program keeps one.
    pub fn rows(&self, name: &str) -> Option<&RowSparse> {
        self.rows.iter().find(|(n, _)| n == name).map(|(_, rows)| rows)
    }

    /// Makes an empty row-sparse value unless there is one of that name.
    pub(crate) fn keep_rows(&mut self, name: &str) {
        if self.rows(name).is_none() {
            self.version = next_version();
            self.rows.push((name.to_string(), RowSparse::default()));
        }
    }

    pub(crate) fn rows_index(&self, name: &str) -> Option<usize> {
        self.rows.iter().position(|(n, _)| n == name)
    }

    pub(crate) fn rows_mut(&mut self) -> &mut [(String, RowSparse)] {
        &mut self.rows
    }

    pub(crate) fn version(&self) -> u64 {
        self.version
    }

    pub(crate) fn index(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    pub(crate) fn tensors_mut(&mut self) -> &mut [Tensor] {
        &mut self.tensors
    }

    pub(crate) fn at(&self, index: usize) -> &Tensor {
        &self.tensors[index]
    }
}
