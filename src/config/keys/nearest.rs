//! "Did you mean": finds the known word nearest to a mistyped word.

/// The candidate within a third of the word's length (at least 2 edits); the nearest wins, then the
/// earliest.
pub(crate) fn nearest<'a>(
    word: &str,
    candidates: impl IntoIterator<Item = &'a str>,
) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(2);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= edits_max && *edits < candidate.chars().count())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Insertions, deletions, substitutions and adjacent swaps that turn `left` into `right`.
fn edit_distance(left: &str, right: &str) -> usize {
    let right: Vec<char> = right.chars().collect();
    let mut two_above: Vec<usize> = Vec::new();
    let mut above: Vec<usize> = (0..=right.len()).collect();
    let mut previous = None;
    for (row, from) in left.chars().enumerate() {
        let mut current = vec![row + 1];
        for (column, to) in right.iter().enumerate() {
            let cell = |cells: &[usize], at: usize| cells.get(at).copied().unwrap_or(usize::MAX);
            let mut best = cell(&above, column) + usize::from(from != *to);
            best = best.min(cell(&above, column + 1) + 1).min(cell(&current, column) + 1);
            let before = column.checked_sub(1).and_then(|at| right.get(at));
            if before == Some(&from) && previous == Some(*to) {
                best = best.min(cell(&two_above, column - 1) + 1);
            }
            current.push(best);
        }
        two_above = std::mem::replace(&mut above, current);
        previous = Some(from);
    }
    above.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_edits() {
        for (left, right, edits) in [
            ("", "", 0),
            ("", "abc", 3),
            ("policy", "polcy", 1),
            ("ab", "ba", 1),
            ("kitten", "sitting", 3),
        ] {
            assert_eq!(edit_distance(left, right), edits, "{left} {right}");
            assert_eq!(edit_distance(right, left), edits, "{right} {left}");
        }
    }

    #[test]
    fn suggests_only_what_is_near() {
        let keys = ["listen", "admin", "policy", "rank_concurrency_max"];
        assert_eq!(nearest("lisen", keys), Some("listen"));
        assert_eq!(nearest("rank_concurency_max", keys), Some("rank_concurrency_max"));
        assert_eq!(nearest("zebra", keys), None);
    }
}
