//! Word analogies: `a` is to `b` as `c` is to ...?

/// How many questions were answered.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Analogies {
    /// Questions.
    pub questions: usize,
    /// Share of them with the right word among the candidates.
    pub accuracy: f64,
}

/// Candidates among which the right word must be, as in PaddleRec's evaluation.
const CANDIDATES: usize = 4;

/// Answers questions by the direction `b - a + c`: the four words that point most nearly there,
/// `a`, `b` and `c` left out, are the candidates.
///
/// # Errors
/// If there are no questions or a word has no vector.
pub fn analogy_accuracy(
    vectors: &[f32],
    dim: usize,
    questions: &[[u64; 4]],
) -> Result<Analogies, String> {
    if questions.is_empty() {
        return Err("there are no analogy questions".into());
    }
    let words = vectors.len() / dim;
    let unit = unit_rows(vectors, dim);
    let mut right = 0;
    let mut scores = vec![0.0_f32; words];
    for question in questions {
        if let Some(id) = question.iter().find(|id| **id >= words as u64) {
            return Err(format!(
                "word {id} of a question is beyond the {words} words of the table"
            ));
        }
        let [a, b, c, d] = question.map(|id| id as usize);
        let row = |w: usize| &unit[w * dim..(w + 1) * dim];
        let target: Vec<f32> = (0..dim).map(|i| row(b)[i] - row(a)[i] + row(c)[i]).collect();
        for (score, word) in scores.iter_mut().zip(unit.chunks_exact(dim)) {
            *score = word.iter().zip(&target).map(|(x, y)| x * y).sum();
        }
        let inputs = [a, b, c];
        let better = |w: &usize| *w != d && scores[*w] >= scores[d] && !inputs.contains(w);
        let is_right = !inputs.contains(&d) && (0..words).filter(better).count() < CANDIDATES;
        right += usize::from(is_right);
    }
    let accuracy = right as f64 / questions.len() as f64;
    Ok(Analogies { questions: questions.len(), accuracy })
}

/// Rows of length 1; rows of zeros stay.
fn unit_rows(vectors: &[f32], dim: usize) -> Vec<f32> {
    let mut unit = vectors.to_vec();
    for row in unit.chunks_exact_mut(dim) {
        let norm = row.iter().map(|x| x * x).sum::<f32>().sqrt();
        if norm > 0.0 {
            row.iter_mut().for_each(|x| *x /= norm);
        }
    }
    unit
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parallel_pairs_are_found() {
        // Pairs (0, 1), (2, 3) differ by the same vector; the others point elsewhere.
        let mut vectors = vec![
            1.0, 0.0, 0.0, 0.0, //
            1.0, 0.0, 0.0, 1.0, //
            0.0, 1.0, 0.0, 0.0, //
            0.0, 1.0, 0.0, 1.0,
        ];
        for i in 0..8 {
            vectors.extend([-0.5, 0.1 * i as f32, 1.0, -1.0]);
        }
        let found = analogy_accuracy(&vectors, 4, &[[0, 1, 2, 3]]).unwrap();
        assert_eq!(found, Analogies { questions: 1, accuracy: 1.0 });
        let missed = analogy_accuracy(&vectors, 4, &[[0, 1, 2, 4]]).unwrap();
        assert_eq!(missed.accuracy, 0.0);
        // Zero vectors answer nothing.
        assert_eq!(analogy_accuracy(&[0.0; 48], 4, &[[0, 1, 2, 3]]).unwrap().accuracy, 0.0);
        assert!(analogy_accuracy(&vectors, 4, &[[0, 1, 2, 12]]).is_err());
        assert!(analogy_accuracy(&vectors, 4, &[]).is_err());
    }
}
