//! What shape inference sees: the op and the types of its inputs.

use regatta_ir::{Error, Layout, Op, VarType};
use regatta_tensor::DType;

/// An op whose output types are to be inferred. Negative dimensions are not known yet.
pub struct Infer<'a> {
    /// The op, complete with defaults.
    pub op: &'a Op,
    /// Input types, slot by slot.
    pub ins: &'a [VarType],
}

impl<'a> Infer<'a> {
    /// Type of the variable in a slot that must be there.
    pub fn ty(&self, slot: &str) -> &'a VarType {
        self.opt(slot).expect("the schema was checked")
    }

    /// Type of the variable in a slot, if there is one.
    pub fn opt(&self, slot: &str) -> Option<&'a VarType> {
        self.many(slot).first()
    }

    /// Types of all variables in a slot.
    pub fn many(&self, slot: &str) -> &'a [VarType] {
        let mut at = 0;
        for (name, vars) in &self.op.inputs {
            if name == slot {
                return &self.ins[at..at + vars.len()];
            }
            at += vars.len();
        }
        &[]
    }

    /// Type of a slot that must hold a dense array of any element type.
    ///
    /// # Errors
    /// If it holds anything else.
    pub fn dense(&self, slot: &str) -> Result<&'a VarType, Error> {
        let ty = self.ty(slot);
        if ty.layout != Layout::Dense {
            return Err(self.wrong(slot, "a dense array"));
        }
        Ok(ty)
    }

    /// Type of a slot that must hold dense floats.
    ///
    /// # Errors
    /// If it holds anything else.
    pub fn floats(&self, slot: &str) -> Result<&'a VarType, Error> {
        let ty = self.ty(slot);
        if ty.dtype != DType::F32 || ty.layout != Layout::Dense {
            return Err(self.wrong(slot, "dense f32"));
        }
        Ok(ty)
    }

    /// Type of a slot that must hold dense numbers that can be added: floats or signed integers.
    ///
    /// # Errors
    /// If it holds anything else.
    pub fn numbers(&self, slot: &str) -> Result<&'a VarType, Error> {
        let ty = self.ty(slot);
        if !matches!(ty.dtype, DType::F32 | DType::I64) || ty.layout != Layout::Dense {
            return Err(self.wrong(slot, "dense f32 or i64"));
        }
        Ok(ty)
    }

    /// Type of a slot that must hold dense floats with a number of dimensions.
    ///
    /// # Errors
    /// If it does not.
    pub fn floats_of_rank(&self, slot: &str, rank: usize) -> Result<&'a VarType, Error> {
        let ty = self.floats(slot)?;
        if ty.shape.len() != rank {
            return Err(self.wrong(slot, &format!("f32 with {rank} dimensions")));
        }
        Ok(ty)
    }

    /// Checks that a slot holds exactly a type, a negative dimension standing for any size.
    ///
    /// # Errors
    /// If it does not.
    pub fn expect(&self, slot: &str, want: &VarType) -> Result<(), Error> {
        let ty = self.ty(slot);
        let same = ty.dtype == want.dtype
            && ty.layout == want.layout
            && ty.shape.len() == want.shape.len()
            && ty.shape.iter().zip(&want.shape).all(|(&a, &b)| dims_agree(a, b));
        if same { Ok(()) } else { Err(self.wrong(slot, &want.to_string())) }
    }

    /// The error that a slot's variable is not what the op takes.
    pub fn wrong(&self, slot: &str, expected: &str) -> Error {
        self.wrong_nth(slot, 0, expected)
    }

    /// The error that the `n`-th variable of a slot is not what the op takes.
    pub fn wrong_nth(&self, slot: &str, n: usize, expected: &str) -> Error {
        let actual = self.many(slot).get(n);
        Error::Type {
            op: self.op.kind.clone(),
            slot: slot.to_string(),
            var: self.op.ins(slot).get(n).map_or("?", String::as_str).to_string(),
            expected: expected.to_string(),
            actual: actual.map(ToString::to_string).unwrap_or_else(|| "absent".into()),
        }
    }

    /// The error that an attribute makes no sense here.
    pub fn bad_attr(&self, attr: &str, reason: impl Into<String>) -> Error {
        Error::Attr { op: self.op.kind.clone(), attr: attr.to_string(), reason: reason.into() }
    }

    /// A dimension attribute of a slot's variable, counted from the end if negative.
    ///
    /// # Errors
    /// If there is no such dimension.
    pub fn axis(&self, attr: &str, rank: usize) -> Result<usize, Error> {
        let axis = self.op.int(attr)?;
        resolve_axis(axis, rank).ok_or_else(|| {
            self.bad_attr(attr, format!("is {axis}, but there are {rank} dimensions"))
        })
    }
}

/// Counts a negative dimension from the end.
pub(crate) fn resolve_axis(axis: i64, rank: usize) -> Option<usize> {
    let at = if axis < 0 { axis + rank as i64 } else { axis };
    (0..rank as i64).contains(&at).then_some(at as usize)
}

/// Equal, or one of them not known yet.
pub(crate) fn dims_agree(a: i64, b: i64) -> bool {
    a == b || a < 0 || b < 0
}
