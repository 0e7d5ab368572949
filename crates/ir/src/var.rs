//! Variables: a name, a type, and what the program keeps about it.

use std::fmt;

use regatta_tensor::DType;

/// How the values of a variable are laid out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Layout {
    /// A rectangular array.
    Dense,
    /// A variable number of values per example; the shape is `[-1]`.
    Ragged,
    /// Only some rows of a matrix are present: the gradient of a table.
    Rows,
}

/// Element type, layout and shape. Dimension -1 is the batch (or a multiple of it), known at run
/// time; -2 is known at run time too, but has nothing to do with the batch.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct VarType {
    /// Element type.
    pub dtype: DType,
    /// Layout of the values.
    pub layout: Layout,
    /// Dimensions.
    pub shape: Vec<i64>,
}

impl VarType {
    /// A dense type.
    pub fn dense(dtype: DType, shape: impl Into<Vec<i64>>) -> VarType {
        VarType { dtype, layout: Layout::Dense, shape: shape.into() }
    }

    /// Dense floats.
    pub fn f32(shape: impl Into<Vec<i64>>) -> VarType {
        VarType::dense(DType::F32, shape)
    }

    /// The rows layout of the same matrix.
    pub fn rows(&self) -> VarType {
        VarType { layout: Layout::Rows, ..self.clone() }
    }

    /// Whether the first dimension is the batch.
    pub fn is_batched(&self) -> bool {
        self.layout == Layout::Ragged || self.shape.first() == Some(&-1)
    }

    /// Number of elements, if all dimensions are known and it can be counted.
    pub fn numel(&self) -> Option<usize> {
        self.shape.iter().try_fold(1usize, |n, &d| n.checked_mul(usize::try_from(d).ok()?))
    }
}

impl fmt::Display for VarType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layout {
            Layout::Dense => {}
            Layout::Ragged => f.write_str("ragged ")?,
            Layout::Rows => f.write_str("rows ")?,
        }
        write!(f, "{}{:?}", self.dtype, self.shape)
    }
}

/// Why a variable exists, which decides who gives it a value and how long it lives.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Origin {
    /// Fed by the caller at every run.
    Data,
    /// Learned; kept between runs.
    Param,
    /// Kept between runs but not learned by gradient: optimizer state, statistics, learning rate.
    Persist,
    /// Made by an op, gone after the run.
    Temp,
}

/// Regularization of a parameter, added to its gradient.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Regularizer {
    /// `coeff * sign(w)`.
    L1(f64),
    /// `coeff * w`.
    L2(f64),
}

/// What a parameter carries beyond its type.
#[derive(Debug, Clone, PartialEq)]
pub struct ParamInfo {
    /// Whether `minimize` updates it.
    pub trainable: bool,
    /// Factor on the learning rate.
    pub lr_scale: f64,
    /// Its own regularization; wins over the optimizer's.
    pub regularizer: Option<Regularizer>,
    /// Whether gradient clipping touches it.
    pub clip: bool,
}

impl Default for ParamInfo {
    fn default() -> Self {
        ParamInfo { trainable: true, lr_scale: 1.0, regularizer: None, clip: true }
    }
}

/// A variable of a block.
#[derive(Debug, Clone, PartialEq)]
pub struct VarDef {
    /// Unique within the program.
    pub name: String,
    /// Type.
    pub ty: VarType,
    /// Who gives it a value.
    pub origin: Origin,
    /// No gradient flows into or through it.
    pub stop_gradient: bool,
    /// For parameters; ignored elsewhere.
    pub param: ParamInfo,
    /// Name of the buffer it shares with other temporaries, set by the memory reuse pass.
    pub buffer: Option<String>,
}

impl VarDef {
    /// A variable with nothing special about it.
    pub fn new(name: impl Into<String>, ty: VarType, origin: Origin) -> VarDef {
        VarDef {
            name: name.into(),
            ty,
            origin,
            stop_gradient: matches!(origin, Origin::Data | Origin::Persist),
            param: ParamInfo::default(),
            buffer: None,
        }
    }

    /// Whether it keeps its value between runs.
    pub fn is_persistable(&self) -> bool {
        matches!(self.origin, Origin::Param | Origin::Persist)
    }
}

/// Checks that a variable can be declared: its name can stand in the text form, and its dimensions
/// are sizes, -1 (the batch) or -2 (unknown).
pub(crate) fn check_var(var: &VarDef) -> Result<(), crate::Error> {
    check_name(&var.name)?;
    match var.ty.shape.iter().find(|&&d| d < -2) {
        Some(d) => Err(crate::Error::Shape {
            var: var.name.clone(),
            reason: format!(
                "{} has the dimension {d}; only -1 and -2 stand for unknown sizes",
                var.ty
            ),
        }),
        None => Ok(()),
    }
}

/// Checks that a name can stand in the text form.
fn check_name(name: &str) -> Result<(), crate::Error> {
    let bad = |reason: String| Err(crate::Error::Name { name: name.to_string(), reason });
    if name.is_empty() {
        return bad("it is empty".into());
    }
    match name.chars().find(|c| !(c.is_alphanumeric() || "_.@/-#+".contains(*c))) {
        Some(c) => bad(format!("'{}' is not allowed in a name", c.escape_default())),
        None => Ok(()),
    }
}

/// The name of the gradient of a variable.
pub fn grad_name(var: &str) -> String {
    format!("{var}@GRAD")
}
