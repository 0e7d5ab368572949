//! Program -> text.

use std::fmt;

use crate::{Attr, Block, Layout, Op, Origin, Program, Regularizer, Role, VarDef};

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "program {}", self.name)?;
        for (i, block) in self.blocks.iter().enumerate() {
            writeln!(f, "block {i}")?;
            write!(f, "{block}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for var in self.vars.values() {
            writeln!(f, "  {var}")?;
        }
        for op in &self.ops {
            writeln!(f, "  {op}")?;
        }
        Ok(())
    }
}

impl fmt::Display for VarDef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let origin = match self.origin {
            Origin::Data => "data",
            Origin::Param => "param",
            Origin::Persist => "persist",
            Origin::Temp => "var",
        };
        write!(f, "{origin} {}: {}", self.name, self.ty)?;
        let stops_by_default = matches!(self.origin, Origin::Data | Origin::Persist);
        match (self.stop_gradient, stops_by_default) {
            (true, false) => f.write_str(" stop_gradient")?,
            (false, true) => f.write_str(" needs_gradient")?,
            _ => {}
        }
        if !self.param.trainable {
            f.write_str(" frozen")?;
        }
        if !self.param.clip {
            f.write_str(" noclip")?;
        }
        if self.param.lr_scale != 1.0 {
            write!(f, " lr_scale={:?}", self.param.lr_scale)?;
        }
        match self.param.regularizer {
            Some(Regularizer::L1(c)) => write!(f, " l1={c:?}")?,
            Some(Regularizer::L2(c)) => write!(f, " l2={c:?}")?,
            None => {}
        }
        if let Some(buffer) = &self.buffer {
            write!(f, " buffer={buffer}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_slots(f, &self.outputs)?;
        if !self.outputs.is_empty() {
            f.write_str(" = ")?;
        }
        write!(f, "{}(", self.kind)?;
        write_slots(f, &self.inputs)?;
        f.write_str(")")?;
        if !self.attrs.is_empty() {
            f.write_str(" {")?;
            for (i, (name, attr)) in self.attrs.iter().enumerate() {
                let comma = if i > 0 { ", " } else { "" };
                write!(f, "{comma}{name}: {attr}")?;
            }
            f.write_str("}")?;
        }
        match self.role {
            Role::Forward => Ok(()),
            Role::Backward => f.write_str(" @backward"),
            Role::Optimize => f.write_str(" @optimize"),
        }
    }
}

fn write_slots(f: &mut fmt::Formatter<'_>, slots: &[(String, Vec<String>)]) -> fmt::Result {
    for (i, (slot, vars)) in slots.iter().enumerate() {
        let comma = if i > 0 { ", " } else { "" };
        match vars.as_slice() {
            [var] => write!(f, "{comma}{slot}: {var}")?,
            _ => write!(f, "{comma}{slot}: [{}]", vars.join(", "))?,
        }
    }
    Ok(())
}

impl fmt::Display for Attr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Attr::Int(x) => write!(f, "{x}"),
            Attr::Float(x) => write!(f, "{x:?}"),
            Attr::Bool(x) => write!(f, "{x}"),
            Attr::Str(x) => write!(f, "{x:?}"),
            // The type of an empty list cannot be seen from its elements.
            Attr::Ints(x) if x.is_empty() => f.write_str("ints[]"),
            Attr::Floats(x) if x.is_empty() => f.write_str("floats[]"),
            Attr::Strs(x) if x.is_empty() => f.write_str("strs[]"),
            Attr::Ints(x) => write!(f, "{x:?}"),
            Attr::Floats(x) => write!(f, "{x:?}"),
            Attr::Strs(x) => write!(f, "{x:?}"),
        }
    }
}

impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Layout::Dense => "dense",
            Layout::Ragged => "ragged",
            Layout::Rows => "rows",
        })
    }
}
