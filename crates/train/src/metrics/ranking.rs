//! Lists of one chosen item and others: how high the chosen one is ranked.

/// Hit rate and gain over many lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    /// Lists.
    pub groups: usize,
    /// Share of lists with the chosen item among the first `k`.
    pub hit_rate: f64,
    /// Mean of `1 / log2(2 + rank)` over the lists, 0 beyond the first `k`.
    pub ndcg: f64,
}

/// Ranks lists that begin with their one positive example, followed by its negatives. Of items with
/// the same score the positive one counts as the last, so that a constant score earns nothing.
///
/// # Errors
/// If the examples do not begin with a positive one.
pub fn rank_groups(scores: &[(f32, bool)], k: usize) -> Result<Ranking, String> {
    if !scores.first().is_some_and(|(_, positive)| *positive) {
        return Err("ranking needs groups of one positive example followed by its negatives".into());
    }
    let (mut groups, mut hits, mut gain) = (0, 0.0, 0.0);
    for group in scores.chunk_by(|_, next| !next.1) {
        let rank = group[1..].iter().filter(|(score, _)| *score >= group[0].0).count();
        groups += 1;
        if rank < k {
            hits += 1.0;
            gain += 1.0 / ((2 + rank) as f64).log2();
        }
    }
    let n = groups as f64;
    Ok(Ranking { groups, hit_rate: hits / n, ndcg: gain / n })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_the_positive_example() {
        let scores = [
            (0.9, true),
            (0.1, false),
            (0.2, false), // first
            (0.5, true),
            (0.6, false),
            (0.1, false), // second
            (0.5, true),
            (0.5, false),
            (0.7, false), // third: the same score counts as better
        ];
        let all = rank_groups(&scores, 3).unwrap();
        assert_eq!((all.groups, all.hit_rate), (3, 1.0));
        let expected = (1.0 + 1.0 / 3f64.log2() + 0.5) / 3.0;
        assert!((all.ndcg - expected).abs() < 1e-12);
        let two = rank_groups(&scores, 2).unwrap();
        assert!((two.hit_rate - 2.0 / 3.0).abs() < 1e-12);
        assert!(rank_groups(&scores[1..], 2).is_err());
        assert!(rank_groups(&[], 2).is_err());
    }
}
