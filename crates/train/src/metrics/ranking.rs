//! Lists of items of which some are right: how high these are ranked.

/// Hit rate, recall and gain over many lists.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Ranking {
    /// Lists with a right item.
    pub groups: usize,
    /// Share of lists with a right item among the first `k`.
    pub hit_rate: f64,
    /// Mean share of the right items of a list that are among the first `k`.
    pub recall: f64,
    /// Mean over the lists of the gain `sum 1 / log2(2 + rank)` of right items among the first `k`,
    /// over the gain that there would be with all right items first.
    pub ndcg: f64,
}

/// Ranks lists that begin with their one positive example, followed by its negatives.
///
/// # Errors
/// If the examples do not begin with a positive one.
pub fn rank_groups(scores: &[(f32, bool)], k: usize) -> Result<Ranking, String> {
    if !scores.first().is_some_and(|(_, positive)| *positive) {
        return Err("ranking needs groups of one positive example followed by its negatives".into());
    }
    let ranks = scores.chunk_by(|_, next| !next.1).map(ranks_of);
    Ok(rank_lists(ranks, k))
}

/// The ranks, from 0, of the positive examples of a list. Of examples with the same score the
/// positive ones count as the last, so that a constant score earns nothing.
pub fn ranks_of(list: &[(f32, bool)]) -> Vec<usize> {
    let mut negative: Vec<f32> = list.iter().filter(|x| !x.1).map(|x| x.0).collect();
    let mut positive: Vec<f32> = list.iter().filter(|x| x.1).map(|x| x.0).collect();
    negative.sort_by(|a, b| b.total_cmp(a));
    positive.sort_by(|a, b| b.total_cmp(a));
    let before = |score: &f32| negative.partition_point(|other| other >= score);
    positive.iter().enumerate().map(|(i, score)| i + before(score)).collect()
}

/// Measures lists by the ranks of their right items; lists without any do not count.
pub fn rank_lists(lists: impl Iterator<Item = Vec<usize>>, k: usize) -> Ranking {
    let gain = |rank: usize| 1.0 / ((2 + rank) as f64).log2();
    let (mut groups, mut hits, mut found, mut gains) = (0, 0.0, 0.0, 0.0);
    for ranks in lists.filter(|ranks| !ranks.is_empty()) {
        let first: Vec<usize> = ranks.iter().copied().filter(|rank| *rank < k).collect();
        let best: f64 = (0..ranks.len().min(k)).map(gain).sum();
        groups += 1;
        hits += f64::from(u8::from(!first.is_empty()));
        found += first.len() as f64 / ranks.len() as f64;
        gains += first.into_iter().map(gain).sum::<f64>() / best;
    }
    let n = groups.max(1) as f64;
    Ranking { groups, hit_rate: hits / n, recall: found / n, ndcg: gains / n }
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
        assert_eq!((all.groups, all.hit_rate, all.recall), (3, 1.0, 1.0));
        let expected = (1.0 + 1.0 / 3f64.log2() + 0.5) / 3.0;
        assert!((all.ndcg - expected).abs() < 1e-12);
        let two = rank_groups(&scores, 2).unwrap();
        assert!((two.hit_rate - 2.0 / 3.0).abs() < 1e-12);
        assert!(rank_groups(&scores[1..], 2).is_err());
        assert!(rank_groups(&[], 2).is_err());
    }

    #[test]
    fn lists_with_several_right_items() {
        // Right items at ranks 0 and 3; at rank 1; none.
        let lists = [
            vec![(0.9, true), (0.8, false), (0.7, false), (0.6, true)],
            vec![(0.1, false), (0.2, false), (0.15, true)],
            vec![(0.1, false)],
        ];
        let ranks: Vec<Vec<usize>> = lists.iter().map(|list| ranks_of(list)).collect();
        assert_eq!(ranks, [vec![0, 3], vec![1], vec![]]);
        let two = rank_lists(ranks.into_iter(), 2);
        assert_eq!((two.groups, two.hit_rate, two.recall), (2, 1.0, 0.75));
        let (second, ideal) = (1.0 / 3f64.log2(), 1.0 + 1.0 / 3f64.log2());
        assert!((two.ndcg - (1.0 / ideal + second) / 2.0).abs() < 1e-12);
    }
}
