//! Floats in JSON by their bits: JSON has no NaN, and its decimals do not always come back as the
//! same number.

use serde::{Deserialize, Deserializer, Serialize, Serializer};

pub(super) mod f64s {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    pub(crate) fn serialize<S: Serializer>(values: &[f64], s: S) -> Result<S::Ok, S::Error> {
        values.iter().map(|v| v.to_bits()).collect::<Vec<u64>>().serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Vec<f64>, D::Error> {
        Ok(Vec::<u64>::deserialize(d)?.into_iter().map(f64::from_bits).collect())
    }
}

pub(super) mod f32_parts {
    use super::{Deserialize, Deserializer, Serialize, Serializer};

    type Parts = Vec<(String, Vec<f32>)>;

    pub(crate) fn serialize<S: Serializer>(parts: &Parts, s: S) -> Result<S::Ok, S::Error> {
        let bits = |v: &Vec<f32>| v.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        parts.iter().map(|(name, v)| (name, bits(v))).collect::<Vec<_>>().serialize(s)
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<Parts, D::Error> {
        let parts = Vec::<(String, Vec<u32>)>::deserialize(d)?;
        let floats = |v: Vec<u32>| v.into_iter().map(f32::from_bits).collect();
        Ok(parts.into_iter().map(|(name, v)| (name, floats(v))).collect())
    }
}
