//! "Did you mean": finds the known words nearest to an unknown word.
//!
//! Names of keys are compared word by word: operators remember the words of a key and not their
//! order, its table or all of its words. Letters are compared only within a word.

use std::cmp::Ordering;
use std::collections::BTreeSet;

/// More candidates that are equally near are no hint.
const HINTS_MAX: usize = 3;

/// Words of other programs, and the same words here.
const SYNONYMS: [(&str, &str); 2] = [("size", "byte"), ("ssl", "tls")];

/// Names of other programs, without marks, and the names here. The two share no word.
const NAMES: [(&str, &str); 40] = [
    ("consistenthash", "session"),
    ("consistenthashing", "session"),
    ("ringhash", "session"),
    ("maglev", "session"),
    ("iphash", "session"),
    ("sticky", "session"),
    ("simpleshuffle", "random"),
    ("leastbusy", "least_loaded"),
    ("p2c", "power_of_two"),
    ("rr", "round_robin"),
    ("litellm", "openai"),
    ("ollama", "openai"),
    ("prefixhash", "kv"),
    ("prefixcache", "kv"),
    ("cacheaware", "kv"),
    ("kvaware", "kv"),
    ("prefixaware", "kv"),
    ("leastconn", "least_loaded"),
    ("leastrequest", "least_loaded"),
    ("leasttime", "least_loaded"),
    ("ewma", "least_loaded"),
    ("peakewma", "least_loaded"),
    ("manual", "session"),
    ("cookie", "session"),
    ("stickyleastloaded", "session"),
    ("randomtwo", "power_of_two"),
    ("wrr", "round_robin"),
    ("swrr", "round_robin"),
    ("staticrr", "round_robin"),
    ("leastconnection", "least_loaded"),
    ("leastoutstandingrequest", "least_loaded"),
    ("leastpending", "least_loaded"),
    ("leasttimeheader", "least_loaded"),
    ("lowestlatency", "least_loaded"),
    ("latencybasedrouting", "least_loaded"),
    ("usagebasedrouting", "least_loaded"),
    ("rdpcookie", "session"),
    ("randomtwoleastconn", "power_of_two"),
    ("pow2", "power_of_two"),
    ("prefixcacheaware", "kv"),
];

/// The nearest candidates as text: `a`, `a or b`, `a, b or c`. Empty: none is near.
#[must_use]
pub fn nearest(word: &str, candidates: &[&str], shown: impl Fn(&str) -> String) -> String {
    let mut near = by_words(word, candidates);
    if near.is_empty() {
        near.extend(by_edits(word, candidates.iter().copied()));
    }
    alternatives(&near, shown)
}

/// The candidates as text: `a, b or c`. Empty for none, and for too many.
pub(crate) fn alternatives(near: &[&str], shown: impl Fn(&str) -> String) -> String {
    match near {
        [before @ .., last] if near.len() <= HINTS_MAX => {
            let before = before.iter().map(|word| shown(word)).collect::<Vec<_>>().join(", ");
            let or = if before.is_empty() { "" } else { " or " };
            format!("{before}{or}{}", shown(last))
        }
        _ => String::new(),
    }
}

/// The candidates that share most words with `path`: at least half of the words of both, and any of
/// its name. Several are equally near. The same letters without marks between them come first.
pub(crate) fn by_words<'a>(path: &str, candidates: &[&'a str]) -> Vec<&'a str> {
    let joined = |path: &str| path.replace(['.', '_', '-', ' '], "").to_ascii_lowercase();
    let whole = joined(path);
    let same: Vec<&str> =
        candidates.iter().copied().filter(|candidate| joined(candidate) == whole).collect();
    if !same.is_empty() && !whole.is_empty() {
        return same;
    }
    let plain = whole.strip_suffix('s').unwrap_or(&whole);
    let own = NAMES.iter().find(|(other, _)| *other == plain).map(|(_, own)| *own);
    if let Some(same) = candidates.iter().copied().find(|candidate| Some(*candidate) == own) {
        return vec![same];
    }
    let written = words_of(path);
    let name = words_of(path.rsplit('.').next().unwrap_or(path));
    let mut best = Vec::new();
    let mut best_rank = (0, 1, 0);
    for candidate in candidates {
        let known = words_of(candidate);
        let shared = written.iter().filter(|&word| has(&known, word)).count();
        let all = (written.len() + known.len()).saturating_sub(shared).max(1);
        // Part of the words of a table is no hint: its keys have further words.
        let is_table = || candidates.iter().any(|other| is_in(other, candidate));
        let is_far = shared * 2 < all || shared < all && is_table();
        if is_far || !name.iter().any(|word| has(&known, word)) {
            continue;
        }
        let exact = written.iter().filter(|&word| known.contains(word)).count();
        let (best_shared, best_all, best_exact) = best_rank;
        // Fractions are compared crosswise.
        match (shared * best_all, exact).cmp(&(best_shared * all, best_exact)) {
            Ordering::Less => {}
            Ordering::Equal => best.push(*candidate),
            Ordering::Greater => {
                best = vec![*candidate];
                best_rank = (shared, all, exact);
            }
        }
    }
    best
}

/// The candidate within a third of the word's length (at least an edit); the nearest wins, then the
/// earliest.
pub fn by_edits<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let edits_max = (word.chars().count() / 3).max(1);
    candidates
        .into_iter()
        .map(|candidate| (edit_distance(word, candidate), candidate))
        .filter(|(edits, candidate)| *edits <= edits_max && *edits < candidate.chars().count())
        .min_by_key(|(edits, _)| *edits)
        .map(|(_, candidate)| candidate)
}

/// Words of a path in lower case, in the singular, each once. `maxconn` has two words.
fn words_of(path: &str) -> BTreeSet<String> {
    let lower = path.to_ascii_lowercase();
    let words = split_words(&lower);
    let own = |word: String| {
        let own = SYNONYMS.iter().find(|(other, _)| *other == word);
        own.map_or(word, |(_, own)| (*own).to_owned())
    };
    words.into_iter().map(own).collect()
}

/// Words of a path without units of time. `failureThreshold` has two words.
pub(crate) fn plain_words(path: &str) -> BTreeSet<String> {
    let mut marked = String::new();
    let mut is_behind_small = false;
    for letter in path.chars() {
        if letter.is_uppercase() && is_behind_small {
            marked.push('_');
        }
        is_behind_small = letter.is_lowercase();
        marked.extend(letter.to_lowercase());
    }
    let words = split_words(&marked);
    let is_unit = |word: &str| ["s", "ms", "sec", "second"].contains(&word);
    let plain: BTreeSet<String> = words.iter().filter(|word| !is_unit(word)).cloned().collect();
    if plain.is_empty() { words.into_iter().collect() } else { plain }
}

/// Words of a path in small letters, in the singular.
fn split_words(lower: &str) -> Vec<String> {
    let parts = lower.split(|c: char| !c.is_alphanumeric()).filter(|part| !part.is_empty());
    let split = |part| match ["max", "min"].iter().find_map(|bound| str::strip_prefix(part, *bound))
    {
        Some(rest) if rest.len() > 2 => vec![part.get(..3).unwrap_or(part), rest],
        _ => vec![part],
    };
    let single = |word: &str| {
        let is_plural = word.len() > 3 && !word.ends_with("ss");
        match (word.strip_suffix("ies"), word.strip_suffix('s')) {
            (Some(stem), _) => format!("{stem}y"),
            (None, Some(stem)) if is_plural => stem.to_owned(),
            _ => word.to_owned(),
        }
    };
    parts.flat_map(split).map(single).collect()
}

/// True if `path` is a key of that table.
pub(crate) fn is_in(path: &str, table: &str) -> bool {
    path.strip_prefix(table).is_some_and(|rest| rest.starts_with('.'))
}

fn has(words: &BTreeSet<String>, word: &str) -> bool {
    words.iter().any(|known| is_alike(known, word))
}

/// The same word, with a slip in each three letters at most, or cut short.
fn is_alike(known: &str, word: &str) -> bool {
    let least = known.chars().count().min(word.chars().count());
    let is_cut = least > 2 && (known.starts_with(word) || word.starts_with(known));
    known == word || is_cut || edit_distance(known, word) <= least / 3
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
        let near = |word: &str| nearest(word, &keys, str::to_owned);
        assert_eq!(near("lisen"), "listen");
        assert_eq!(near("rank_concurency_max"), "rank_concurrency_max");
        assert_eq!(near("rankconcurrencymax"), "rank_concurrency_max");
        assert_eq!(near("zebra"), "");
        assert_eq!(near(""), "");
        assert_eq!(near("._-"), "");
    }

    #[test]
    fn policies_of_other_programs_have_a_policy_here() {
        let policies = ["kv", "least_loaded", "power_of_two", "round_robin", "random", "session"];
        for (other, own) in [
            ("cache_aware", "kv"),
            ("prefix-hash", "kv"),
            ("least_time", "least_loaded"),
            ("least_connections", "least_loaded"),
            ("least_outstanding_requests", "least_loaded"),
            ("random two least_conn", "power_of_two"),
            ("peak_ewma", "least_loaded"),
            ("sticky_least_loaded", "session"),
            ("manual", "session"),
            ("cookie", "session"),
            ("consistent_hashing", "session"),
            ("random two", "power_of_two"),
            ("P2C", "power_of_two"),
            ("RoundRobin", "round_robin"),
            ("wrr", "round_robin"),
        ] {
            assert_eq!(nearest(other, &policies, str::to_owned), own, "{other}");
        }
    }

    #[test]
    fn several_that_are_as_near_are_all_named() {
        let keys = ["a.name", "b.name", "c.name", "d.name"];
        for (count, expected) in
            [(1, "a.name"), (2, "a.name or b.name"), (3, "a.name, b.name or c.name"), (4, "")]
        {
            assert_eq!(nearest("name", &keys[..count], str::to_owned), expected);
        }
    }
}
