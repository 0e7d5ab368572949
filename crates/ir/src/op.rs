//! Ops: a kind, named slots of variables, attributes and a role.

use std::collections::BTreeMap;

use crate::Error;

/// A constant that parametrises an op.
#[derive(Debug, Clone, PartialEq)]
pub enum Attr {
    /// Integer.
    Int(i64),
    /// Float.
    Float(f64),
    /// Truth value.
    Bool(bool),
    /// Text.
    Str(String),
    /// Integers.
    Ints(Vec<i64>),
    /// Floats.
    Floats(Vec<f64>),
    /// Texts.
    Strs(Vec<String>),
}

impl Attr {
    /// What kind of constant this is, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Attr::Int(_) => "an integer",
            Attr::Float(_) => "a float",
            Attr::Bool(_) => "true or false",
            Attr::Str(_) => "a text",
            Attr::Ints(_) => "a list of integers",
            Attr::Floats(_) => "a list of floats",
            Attr::Strs(_) => "a list of texts",
        }
    }
}

macro_rules! attr_from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Attr {
            fn from(x: $from) -> Attr { Attr::$variant(x.into()) }
        }
    )*};
}
attr_from!(i64 => Int, i32 => Int, u32 => Int, f64 => Float, f32 => Float, bool => Bool,
    &str => Str, String => Str,
    Vec<i64> => Ints, Vec<f64> => Floats, Vec<String> => Strs);

/// Which part of a training step an op belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Role {
    /// Prediction and loss.
    #[default]
    Forward,
    /// Gradients.
    Backward,
    /// Clipping, regularization, schedules and updates: once per step on the whole gradient.
    Optimize,
}

/// One operation of a program.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Op {
    /// Name of the operation in the op set.
    pub kind: String,
    /// Slot name and the variables in it.
    pub inputs: Vec<(String, Vec<String>)>,
    /// Slot name and the variables in it.
    pub outputs: Vec<(String, Vec<String>)>,
    /// Constants.
    pub attrs: BTreeMap<String, Attr>,
    /// Part of the step.
    pub role: Role,
}

impl Op {
    /// An op without slots.
    pub fn new(kind: &str) -> Op {
        Op { kind: kind.to_string(), ..Op::default() }
    }

    /// Adds one variable as an input slot.
    #[must_use]
    pub fn input(self, slot: &str, var: &str) -> Op {
        self.inputs(slot, [var])
    }

    /// Adds an input slot.
    #[must_use]
    pub fn inputs<'a>(mut self, slot: &str, vars: impl IntoIterator<Item = &'a str>) -> Op {
        self.inputs.push((slot.to_string(), vars.into_iter().map(str::to_string).collect()));
        self
    }

    /// Adds one variable as an output slot.
    #[must_use]
    pub fn output(self, slot: &str, var: &str) -> Op {
        self.outputs(slot, [var])
    }

    /// Adds an output slot.
    #[must_use]
    pub fn outputs<'a>(mut self, slot: &str, vars: impl IntoIterator<Item = &'a str>) -> Op {
        self.outputs.push((slot.to_string(), vars.into_iter().map(str::to_string).collect()));
        self
    }

    /// Sets an attribute.
    #[must_use]
    pub fn attr(mut self, name: &str, value: impl Into<Attr>) -> Op {
        self.attrs.insert(name.to_string(), value.into());
        self
    }

    /// Sets the role.
    #[must_use]
    pub fn role(mut self, role: Role) -> Op {
        self.role = role;
        self
    }

    /// Variables of an input slot; empty if the slot is absent.
    pub fn ins(&self, slot: &str) -> &[String] {
        slot_vars(&self.inputs, slot)
    }

    /// Variables of an output slot; empty if the slot is absent.
    pub fn outs(&self, slot: &str) -> &[String] {
        slot_vars(&self.outputs, slot)
    }

    /// The single variable of an input slot, if the slot is there.
    pub fn input_var(&self, slot: &str) -> Option<&str> {
        self.ins(slot).first().map(String::as_str)
    }

    /// The single variable of an output slot, if the slot is there.
    pub fn output_var(&self, slot: &str) -> Option<&str> {
        self.outs(slot).first().map(String::as_str)
    }

    /// Every input variable, slot by slot.
    pub fn input_vars(&self) -> impl Iterator<Item = &str> {
        self.inputs.iter().flat_map(|(_, vars)| vars.iter().map(String::as_str))
    }

    /// Every output variable, slot by slot.
    pub fn output_vars(&self) -> impl Iterator<Item = &str> {
        self.outputs.iter().flat_map(|(_, vars)| vars.iter().map(String::as_str))
    }

    /// Replaces a variable wherever it is an input.
    pub fn rename_input(&mut self, from: &str, to: &str) {
        rename(&mut self.inputs, from, to);
    }

    /// Replaces a variable wherever it is an output.
    pub fn rename_output(&mut self, from: &str, to: &str) {
        rename(&mut self.outputs, from, to);
    }

    fn typed<T>(
        &self,
        name: &str,
        expected: &str,
        get: impl Fn(&Attr) -> Option<T>,
    ) -> Result<T, Error> {
        let problem =
            |reason: String| Error::Attr { op: self.kind.clone(), attr: name.to_string(), reason };
        let attr = self.attrs.get(name).ok_or_else(|| problem("is missing".into()))?;
        get(attr).ok_or_else(|| problem(format!("should be {expected}, but is {}", attr.kind())))
    }

    /// An integer attribute.
    ///
    /// # Errors
    /// If it is missing or of another kind; so for all the getters below.
    pub fn int(&self, name: &str) -> Result<i64, Error> {
        self.typed(name, "an integer", |a| match a {
            Attr::Int(x) => Some(*x),
            _ => None,
        })
    }

    /// A float attribute; an integer counts as one.
    ///
    /// # Errors
    /// As [`Op::int`].
    pub fn float(&self, name: &str) -> Result<f64, Error> {
        self.typed(name, "a float", |a| match a {
            Attr::Float(x) => Some(*x),
            Attr::Int(x) => Some(*x as f64),
            _ => None,
        })
    }

    /// A truth value.
    ///
    /// # Errors
    /// As [`Op::int`].
    pub fn bool(&self, name: &str) -> Result<bool, Error> {
        self.typed(name, "true or false", |a| match a {
            Attr::Bool(x) => Some(*x),
            _ => None,
        })
    }

    /// A text.
    ///
    /// # Errors
    /// As [`Op::int`].
    pub fn str(&self, name: &str) -> Result<&str, Error> {
        match self.attrs.get(name) {
            Some(Attr::Str(s)) => Ok(s),
            _ => self.typed(name, "a text", |_| None),
        }
    }

    /// A list of integers.
    ///
    /// # Errors
    /// As [`Op::int`].
    pub fn ints(&self, name: &str) -> Result<Vec<i64>, Error> {
        self.typed(name, "a list of integers", |a| match a {
            Attr::Ints(x) => Some(x.clone()),
            _ => None,
        })
    }

    /// A list of floats; a list of integers counts as one.
    ///
    /// # Errors
    /// As [`Op::int`].
    pub fn floats(&self, name: &str) -> Result<Vec<f64>, Error> {
        self.typed(name, "a list of floats", |a| match a {
            Attr::Floats(x) => Some(x.clone()),
            Attr::Ints(x) => Some(x.iter().map(|&i| i as f64).collect()),
            _ => None,
        })
    }
}

fn slot_vars<'a>(slots: &'a [(String, Vec<String>)], name: &str) -> &'a [String] {
    slots.iter().find(|(slot, _)| slot == name).map(|(_, vars)| vars.as_slice()).unwrap_or(&[])
}

fn rename(slots: &mut [(String, Vec<String>)], from: &str, to: &str) {
    for var in slots.iter_mut().flat_map(|(_, vars)| vars) {
        if var == from {
            *var = to.to_string();
        }
    }
}
