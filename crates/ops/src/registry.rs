//! All ops by name.

use std::collections::HashMap;
use std::sync::OnceLock;

use regatta_ir::{Error, Op, OpSet, Schema, VarType};

use crate::{Infer, Kernel, OpDef, Spec, half, op};

/// The op set of this crate.
pub static OPS: Registry = Registry { by_kind: OnceLock::new() };

/// Ops by name.
pub struct Registry {
    by_kind: OnceLock<HashMap<&'static str, &'static OpDef>>,
}

impl Registry {
    fn map(&self) -> &HashMap<&'static str, &'static OpDef> {
        self.by_kind.get_or_init(|| {
            let mut map = HashMap::new();
            for def in op::all() {
                let old = map.insert(def.schema.kind, def);
                assert!(old.is_none(), "op {} is registered twice", def.schema.kind);
            }
            map
        })
    }

    /// The definition of an op kind.
    ///
    /// # Errors
    /// If there is none, with the nearest known one.
    pub fn def(&self, kind: &str) -> Result<&'static OpDef, Error> {
        self.known(kind)?;
        Ok(self.map()[kind])
    }

    /// Makes the kernel of an op for given types; it is then run many times.
    ///
    /// # Errors
    /// If an attribute makes no sense, or the op is one that no kernel performs.
    pub fn kernel(&self, spec: &Spec<'_>) -> Result<Kernel, Error> {
        let def = self.def(&spec.op.kind)?;
        match half::precision(spec.op, spec.ins)? {
            Some(half) => half::kernel(def, spec, half),
            None => (def.kernel)(spec),
        }
    }

    /// Every definition, in order of kind.
    pub fn all(&self) -> Vec<&'static OpDef> {
        let mut all: Vec<_> = self.map().values().copied().collect();
        all.sort_by_key(|def| def.schema.kind);
        all
    }
}

impl OpSet for Registry {
    fn schema(&self, kind: &str) -> Option<&Schema> {
        self.map().get(kind).map(|def| &def.schema)
    }

    fn infer(&self, op: &Op, inputs: &[VarType]) -> Result<Vec<VarType>, Error> {
        let def = self.def(&op.kind)?;
        match half::precision(op, inputs)? {
            Some(half) => half::infer(def, op, inputs, half),
            None => (def.infer)(&Infer { op, ins: inputs }),
        }
    }

    fn kinds(&self) -> Vec<&str> {
        self.map().keys().copied().collect()
    }
}
