//! Values that outlive a run: parameters, optimizer state, statistics.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};

use regatta_tensor::Tensor;

/// Tensors by name. Executors of several programs (training, evaluation) can share one.
#[derive(Debug)]
pub struct Scope {
    names: HashMap<String, usize>,
    tensors: Vec<Tensor>,
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
        Scope { names: HashMap::new(), tensors: Vec::new(), version: next_version() }
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
