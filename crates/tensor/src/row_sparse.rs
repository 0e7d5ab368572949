//! Gradients of tables: only the rows that a batch touched.

use crate::RowIndex;

/// Rows of a `height x width` float matrix: `rows[i]` has the values
/// `values[i * width..(i + 1) * width]`. Rows not named are zero. A row is named at most once.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct RowSparse {
    /// Row ids, each once.
    pub rows: Vec<u64>,
    /// `rows.len() * width` floats.
    pub values: Vec<f32>,
    /// Floats per row.
    pub width: usize,
    /// Rows of the whole matrix; 0 where it has no bound.
    pub height: usize,
}

impl RowSparse {
    /// Forgets all rows, keeps the buffers.
    pub fn clear(&mut self) {
        self.rows.clear();
        self.values.clear();
    }

    /// Row id and values, in stored order.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &[f32])> {
        self.rows.iter().copied().zip(self.values.chunks_exact(self.width.max(1)))
    }

    /// Adds another gradient of the same matrix; `index` numbers the rows that are already here
    /// and must have room for the new ones.
    pub fn add_rows(&mut self, other: &RowSparse, index: &mut RowIndex) {
        (self.width, self.height) = (other.width, other.height);
        for (row, values) in other.iter() {
            let (at, new) = index.insert(row);
            if new {
                self.rows.push(row);
                self.values.extend_from_slice(values);
            } else {
                let sums = &mut self.values[at * other.width..(at + 1) * other.width];
                sums.iter_mut().zip(values).for_each(|(s, v)| *s += v);
            }
        }
    }

    /// Writes the rows into a dense `height x width` matrix of zeros.
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.height * self.width];
        for (row, values) in self.iter() {
            let at = row as usize * self.width;
            dense[at..at + self.width].copy_from_slice(values);
        }
        dense
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dense_form_has_zeros_elsewhere() {
        let g = RowSparse { rows: vec![2, 0], values: vec![1., 2., 3., 4.], width: 2, height: 3 };
        assert_eq!(g.to_dense(), [3., 4., 0., 0., 1., 2.]);
    }
}
