//! A variable number of values per example, as a click log's multi-valued slots have.

use crate::{Data, Error};

/// Values of all examples end to end; `offsets[i]..offsets[i + 1]` are those of example `i`.
#[derive(Debug, Clone, PartialEq)]
pub struct Ragged {
    values: Data,
    offsets: Vec<u32>,
}

impl Ragged {
    /// A ragged value.
    ///
    /// # Errors
    /// If `offsets` does not rise from 0 to the number of values.
    pub fn new(values: Data, offsets: Vec<u32>) -> Result<Ragged, Error> {
        let n = values.len();
        let bad = |reason: String| Err(Error::Offsets { values: n, reason });
        if offsets.first() != Some(&0) {
            return bad("the first offset is not 0".into());
        }
        if offsets.last().map(|&o| o as usize) != Some(n) {
            return bad(format!("the last offset is {:?}", offsets.last()));
        }
        if let Some(i) = offsets.windows(2).position(|w| w[0] > w[1]) {
            return bad(format!("offset {} is larger than the next one", i));
        }
        Ok(Ragged { values, offsets })
    }

    /// Number of examples.
    pub fn rows(&self) -> usize {
        self.offsets.len() - 1
    }

    /// All values, end to end.
    pub fn values(&self) -> &Data {
        &self.values
    }

    /// One more than the number of rows; see the type.
    pub fn offsets(&self) -> &[u32] {
        &self.offsets
    }

    /// The unsigned integers of all rows.
    ///
    /// # Panics
    /// If the element type is another one.
    pub fn u64(&self) -> &[u64] {
        match &self.values {
            Data::U64(v) => v,
            other => panic!("expected u64, this ragged value holds {}", other.dtype()),
        }
    }

    /// The unsigned integers of all rows, to change in place.
    ///
    /// # Panics
    /// As [`Ragged::u64`].
    pub fn u64_mut(&mut self) -> &mut [u64] {
        match &mut self.values {
            Data::U64(v) => v,
            other => panic!("expected u64, this ragged value holds {}", other.dtype()),
        }
    }

    /// Gives the buffers back, for reuse by the next batch.
    pub fn into_parts(self) -> (Data, Vec<u32>) {
        (self.values, self.offsets)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_are_checked() {
        let ok = Ragged::new(Data::U64(vec![7, 8, 9]), vec![0, 2, 2, 3]).unwrap();
        assert_eq!(ok.rows(), 3);
        for bad in [vec![], vec![1, 3], vec![0, 2], vec![0, 2, 1, 3]] {
            assert!(Ragged::new(Data::U64(vec![7, 8, 9]), bad).is_err());
        }
    }
}
