//! What an op kind looks like: its slots and attributes. Kinds themselves are defined elsewhere.

use crate::error::nearest;
use crate::{Attr, Error, Op, VarType};

/// How many variables a slot holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Arity {
    /// Exactly one.
    One,
    /// One or none.
    Optional,
    /// One or more.
    Many,
    /// Any number; an empty name stands for "not wanted".
    Any,
}

/// A slot of an op kind.
#[derive(Debug, Clone, Copy)]
pub struct SlotDef {
    /// Name, as in `X`.
    pub name: &'static str,
    /// How many variables.
    pub arity: Arity,
}

/// A slot with exactly one variable.
pub const fn one(name: &'static str) -> SlotDef {
    SlotDef { name, arity: Arity::One }
}

/// A slot with one variable or none.
pub const fn optional(name: &'static str) -> SlotDef {
    SlotDef { name, arity: Arity::Optional }
}

/// A slot with one or more variables.
pub const fn many(name: &'static str) -> SlotDef {
    SlotDef { name, arity: Arity::Many }
}

/// A slot with any number of variables.
pub const fn any(name: &'static str) -> SlotDef {
    SlotDef { name, arity: Arity::Any }
}

/// The type of an attribute and its default; `Required` ones have none.
#[derive(Debug, Clone, Copy)]
pub enum AttrKind {
    /// Integer.
    Int(i64),
    /// Float.
    Float(f64),
    /// Truth value.
    Bool(bool),
    /// Text.
    Str(&'static str),
    /// Integers, by default none.
    Ints,
    /// Floats, by default none.
    Floats,
    /// Texts, by default none.
    Strs,
    /// Integer that must be given.
    RequiredInt,
    /// Float that must be given.
    RequiredFloat,
    /// Integers that must be given.
    RequiredInts,
    /// Text that must be given.
    RequiredStr,
}

impl AttrKind {
    fn default(&self) -> Option<Attr> {
        Some(match self {
            AttrKind::Int(x) => Attr::Int(*x),
            AttrKind::Float(x) => Attr::Float(*x),
            AttrKind::Bool(x) => Attr::Bool(*x),
            AttrKind::Str(x) => Attr::Str(x.to_string()),
            AttrKind::Ints => Attr::Ints(vec![]),
            AttrKind::Floats => Attr::Floats(vec![]),
            AttrKind::Strs => Attr::Strs(vec![]),
            _ => return None,
        })
    }

    fn accepts(&self, attr: &Attr) -> Result<(), &'static str> {
        let (ok, expected) = match self {
            AttrKind::Int(_) | AttrKind::RequiredInt => {
                (matches!(attr, Attr::Int(_)), "an integer")
            }
            AttrKind::Float(_) | AttrKind::RequiredFloat => {
                (matches!(attr, Attr::Float(_) | Attr::Int(_)), "a float")
            }
            AttrKind::Bool(_) => (matches!(attr, Attr::Bool(_)), "true or false"),
            AttrKind::Str(_) | AttrKind::RequiredStr => (matches!(attr, Attr::Str(_)), "a text"),
            AttrKind::Ints | AttrKind::RequiredInts => {
                (matches!(attr, Attr::Ints(_)), "a list of integers")
            }
            AttrKind::Floats => {
                (matches!(attr, Attr::Floats(_) | Attr::Ints(_)), "a list of floats")
            }
            AttrKind::Strs => (matches!(attr, Attr::Strs(_)), "a list of texts"),
        };
        if ok { Ok(()) } else { Err(expected) }
    }
}

/// An attribute of an op kind.
pub type AttrDef = (&'static str, AttrKind);

/// Slots and attributes of an op kind.
///
/// An output slot named like an input slot with `Out` behind it (`Param` and `ParamOut`) holds the
/// same variables: the op updates them in place. No other variable may be input and output at once.
#[derive(Debug, Clone, Copy)]
pub struct Schema {
    /// Name of the kind.
    pub kind: &'static str,
    /// Input slots, in order.
    pub inputs: &'static [SlotDef],
    /// Output slots, in order.
    pub outputs: &'static [SlotDef],
    /// Attributes.
    pub attrs: &'static [AttrDef],
}

impl Schema {
    /// Checks slots and attributes, brings slots into the order of the schema and fills in the
    /// defaults, so that the printed program says everything that will run.
    ///
    /// # Errors
    /// If a slot or attribute is unknown, missing or of the wrong kind.
    pub fn complete(&self, op: &mut Op) -> Result<(), Error> {
        op.inputs = self.order_slots(&op.inputs, self.inputs)?;
        op.outputs = self.order_slots(&op.outputs, self.outputs)?;
        for name in op.attrs.keys() {
            if !self.attrs.iter().any(|(known, _)| known == name) {
                let hint = nearest(name, self.attrs.iter().map(|(known, _)| *known));
                return Err(self.attr_error(
                    name,
                    format!(
                        "is not known{}",
                        hint.map(|h| format!("; did you mean '{h}'?")).unwrap_or_default()
                    ),
                ));
            }
        }
        for (name, kind) in self.attrs {
            match op.attrs.get(*name) {
                Some(attr) => kind.accepts(attr).map_err(|expected| {
                    self.attr_error(name, format!("should be {expected}, but is {}", attr.kind()))
                })?,
                None => {
                    let default = kind
                        .default()
                        .ok_or_else(|| self.attr_error(name, "is missing".to_string()))?;
                    op.attrs.insert(name.to_string(), default);
                }
            }
        }
        Ok(())
    }

    /// The input slot that an output slot updates in place, if it is such a slot.
    pub fn updated_input(&self, output: &str) -> Option<&'static str> {
        let input = output.strip_suffix("Out").filter(|name| !name.is_empty())?;
        self.inputs.iter().map(|def| def.name).find(|name| *name == input)
    }

    fn order_slots(
        &self,
        given: &[(String, Vec<String>)],
        defs: &[SlotDef],
    ) -> Result<Vec<(String, Vec<String>)>, Error> {
        let problem = |slot: &str, reason: String| Error::Slot {
            op: self.kind.to_string(),
            slot: slot.to_string(),
            reason,
        };
        for (slot, _) in given {
            if !defs.iter().any(|d| d.name == slot) {
                let known: Vec<_> = defs.iter().map(|d| d.name).collect();
                return Err(problem(slot, format!("is not known (known: {})", known.join(", "))));
            }
        }
        let mut ordered = Vec::with_capacity(defs.len());
        for def in defs {
            let vars: Vec<String> =
                given.iter().filter(|(s, _)| s == def.name).flat_map(|(_, v)| v.clone()).collect();
            let ok = match def.arity {
                Arity::One => vars.len() == 1,
                Arity::Optional => vars.len() <= 1,
                Arity::Many => !vars.is_empty(),
                Arity::Any => true,
            };
            if !ok {
                return Err(problem(
                    def.name,
                    format!("holds {} variables, but takes {:?}", vars.len(), def.arity)
                        .to_lowercase(),
                ));
            }
            if !vars.is_empty() {
                ordered.push((def.name.to_string(), vars));
            }
        }
        Ok(ordered)
    }

    fn attr_error(&self, attr: &str, reason: String) -> Error {
        Error::Attr { op: self.kind.to_string(), attr: attr.to_string(), reason }
    }
}

/// The ops that programs may use. Implemented by the crate that defines them.
pub trait OpSet: Sync {
    /// Slots and attributes of a kind.
    fn schema(&self, kind: &str) -> Option<&Schema>;

    /// Types of the outputs, slot by slot, given the types of the inputs, slot by slot.
    ///
    /// # Errors
    /// If the inputs do not fit the op.
    fn infer(&self, op: &Op, inputs: &[VarType]) -> Result<Vec<VarType>, Error>;

    /// All kinds, for suggestions and listings.
    fn kinds(&self) -> Vec<&str>;

    /// The schema of an op's kind, or the error that names the nearest one.
    ///
    /// # Errors
    /// If there is no such kind.
    fn known(&self, kind: &str) -> Result<&Schema, Error> {
        self.schema(kind).ok_or_else(|| {
            // In order, so that of two equally near kinds the same one is always suggested.
            let mut kinds = self.kinds();
            kinds.sort_unstable();
            let nearest = nearest(kind, kinds).map(str::to_string);
            Error::UnknownOp { kind: kind.to_string(), nearest }
        })
    }
}
