//! Element types.

use std::fmt;
use std::str::FromStr;

/// Element type of a value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DType {
    /// 32-bit float: weights, activations, gradients.
    F32,
    /// 16-bit IEEE float: 5 bits of exponent, 10 of mantissa.
    F16,
    /// 16-bit float with the exponent of [`DType::F32`] and 7 bits of mantissa.
    BF16,
    /// 64-bit signed integer: labels and counters.
    I64,
    /// 64-bit unsigned integer: feature ids.
    U64,
}

impl DType {
    /// Bytes of one element.
    pub fn size(self) -> usize {
        match self {
            DType::F16 | DType::BF16 => 2,
            DType::F32 => 4,
            DType::I64 | DType::U64 => 8,
        }
    }
}

impl DType {
    /// Whether it holds fractions, so that gradients can flow through it.
    pub fn is_float(self) -> bool {
        matches!(self, DType::F32 | DType::F16 | DType::BF16)
    }

    /// Whether it is a float of 16 bits.
    pub fn is_half(self) -> bool {
        matches!(self, DType::F16 | DType::BF16)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            DType::F32 => "f32",
            DType::F16 => "f16",
            DType::BF16 => "bf16",
            DType::I64 => "i64",
            DType::U64 => "u64",
        })
    }
}

impl FromStr for DType {
    type Err = String;
    fn from_str(s: &str) -> Result<Self, String> {
        match s {
            "f32" => Ok(DType::F32),
            "f16" => Ok(DType::F16),
            "bf16" => Ok(DType::BF16),
            "i64" => Ok(DType::I64),
            "u64" => Ok(DType::U64),
            _ => Err(format!("unknown dtype '{s}' (f32, f16, bf16, i64 or u64)")),
        }
    }
}
