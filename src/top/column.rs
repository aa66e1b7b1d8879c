//! The columns of the fleet: text and sort order of each.

use crate::figures::{count, percent, rate, span};
use crate::row::RankRow;
use forebay_base::shown_seconds;
use std::cmp::Ordering;

/// A column. `width`: room for the name and the sort mark. `drop_first`: a narrow terminal drops
/// columns with a higher number first.
#[derive(Debug)]
pub(crate) struct Column {
    pub(crate) name: &'static str,
    pub(crate) width: usize,
    pub(crate) is_right: bool,
    pub(crate) drop_first: u8,
    pub(crate) text: fn(&RankRow) -> String,
    /// Default order: names ascending, figures descending.
    pub(crate) order: fn(&RankRow, &RankRow) -> Ordering,
}

/// Narrowest and widest name of a worker.
pub(crate) const NAME_WIDTHS: (usize, usize) = (10, 40);

macro_rules! figure {
    ($name:literal, $width:literal, $drop_first:literal, $field:ident, $text:expr) => {
        Column {
            name: $name,
            width: $width,
            is_right: true,
            drop_first: $drop_first,
            text: |row| $text(row.load.$field),
            order: |a, b| largest_first(a.load.$field, b.load.$field),
        }
    };
}

/// Index of the last column that a rank out of use has.
pub(crate) const STATE_COLUMN: usize = 3;

/// All columns; the first takes the remaining width.
pub(crate) static COLUMNS: [Column; 14] = [
    Column {
        name: "worker",
        width: NAME_WIDTHS.0,
        is_right: false,
        drop_first: 0,
        text: |row| row.names.worker.clone(),
        order: by_name,
    },
    Column {
        name: "rank",
        width: 5,
        is_right: true,
        drop_first: 0,
        text: |row| match row.names.has_rank {
            true => row.names.dp_rank.to_string(),
            false => "-".to_owned(),
        },
        order: |a, b| a.names.dp_rank.cmp(&b.names.dp_rank),
    },
    Column {
        name: "role",
        width: 7,
        is_right: false,
        drop_first: 8,
        text: |row| row.names.role.clone(),
        order: |a, b| a.names.role.cmp(&b.names.role),
    },
    Column {
        name: "state",
        width: 13,
        is_right: false,
        drop_first: 0,
        text: |row| row.state.words().to_owned(),
        order: |a, b| b.state.cmp(&a.state),
    },
    figure!("flight", 7, 1, in_flight, count),
    figure!("limit", 6, 4, limit, count),
    figure!("wait", 5, 2, waiting, count),
    figure!("prefill", 8, 9, prefill_tokens, count),
    figure!("kv", 4, 5, kv_usage, percent),
    figure!("cache", 6, 3, cache_fill, percent),
    figure!("req/s", 6, 7, ended_per_s, rate),
    figure!("ttft avg", 9, 10, ttft_mean_s, shown_seconds),
    Column {
        name: "events",
        width: 10,
        is_right: false,
        drop_first: 11,
        text: |row| row.feed.clone().unwrap_or_else(|| "none".to_owned()),
        order: |a, b| a.feed.cmp(&b.feed),
    },
    Column {
        name: "window",
        width: 9,
        is_right: false,
        drop_first: 6,
        text: |row| row.window_ms.map_or_else(String::new, |ms| span(ms.max(1_000))),
        order: |a, b| b.window_ms.cmp(&a.window_ms),
    },
];

/// Unknown values sort last.
fn largest_first(a: Option<f64>, b: Option<f64>) -> Ordering {
    let a = a.unwrap_or(f64::NEG_INFINITY);
    let b = b.unwrap_or(f64::NEG_INFINITY);
    b.total_cmp(&a)
}

/// By worker and rank, with `gpu2` before `gpu10`.
pub(crate) fn by_name(a: &RankRow, b: &RankRow) -> Ordering {
    natural(&a.names.worker, &b.names.worker).then(a.names.dp_rank.cmp(&b.names.dp_rank))
}

fn natural(a: &str, b: &str) -> Ordering {
    let mut a = a.as_bytes();
    let mut b = b.as_bytes();
    loop {
        let digits_a = digits(a);
        let digits_b = digits(b);
        let step = if digits_a > 0 && digits_b > 0 {
            let (number_a, rest_a) = a.split_at(digits_a);
            let (number_b, rest_b) = b.split_at(digits_b);
            a = rest_a;
            b = rest_b;
            let trim = |number: &[u8]| number.iter().take_while(|digit| **digit == b'0').count();
            let number_a = number_a.get(trim(number_a)..).unwrap_or_default();
            let number_b = number_b.get(trim(number_b)..).unwrap_or_default();
            number_a.len().cmp(&number_b.len()).then(number_a.cmp(number_b))
        } else {
            match (a.split_first(), b.split_first()) {
                (Some((first_a, rest_a)), Some((first_b, rest_b))) => {
                    a = rest_a;
                    b = rest_b;
                    first_a.cmp(first_b)
                }
                (first_a, first_b) => return first_a.is_some().cmp(&first_b.is_some()),
            }
        };
        if step.is_ne() {
            return step;
        }
    }
}

fn digits(text: &[u8]) -> usize {
    text.iter().take_while(|byte| byte.is_ascii_digit()).count()
}

/// Columns that fit into a line of this width, with the width of the first.
pub(crate) fn fitting(width: usize) -> (Vec<usize>, usize) {
    let mut shown: Vec<usize> = (0..COLUMNS.len()).collect();
    let needed = |shown: &[usize]| -> usize {
        shown.iter().filter_map(|column| COLUMNS.get(*column)).map(|column| column.width + 1).sum()
    };
    while needed(&shown) > width {
        let goes = shown
            .iter()
            .enumerate()
            .max_by_key(|(_, column)| COLUMNS.get(**column).map_or(0, |column| column.drop_first));
        let Some((place, column)) = goes else { break };
        if COLUMNS.get(*column).is_none_or(|column| column.drop_first == 0) {
            break;
        }
        shown.remove(place);
    }
    let free = width.saturating_sub(needed(&shown));
    (shown, (NAME_WIDTHS.0 + free).min(NAME_WIDTHS.1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_as_people_count() {
        let mut names = ["gpu10:8000", "gpu2:8000", "gpu02:9", "a", "gpu", "gpu2:800"];
        names.sort_by(|a, b| natural(a, b));
        assert_eq!(names, ["a", "gpu", "gpu02:9", "gpu2:800", "gpu2:8000", "gpu10:8000"]);
    }

    #[test]
    fn the_state_is_the_last_column_of_a_rank_out_of_use() {
        assert_eq!(COLUMNS[STATE_COLUMN].name, "state");
    }

    #[test]
    fn there_is_room_for_the_sign_of_the_order() {
        assert!(COLUMNS.iter().all(|column| column.name.len() < column.width));
    }

    #[test]
    fn what_matters_stays_on_a_narrow_terminal() {
        let names = |width| -> Vec<&str> {
            fitting(width).0.into_iter().map(|column| COLUMNS[column].name).collect()
        };
        assert_eq!(names(119).len(), COLUMNS.len(), "120 with the mark of the row");
        assert_eq!(names(40), ["worker", "rank", "state", "flight"]);
        assert_eq!(names(5), ["worker", "rank", "state"], "cut at the edge");
        assert_eq!(fitting(200).1, NAME_WIDTHS.1);
    }
}
