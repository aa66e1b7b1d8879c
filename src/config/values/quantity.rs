//! Durations (`250ms`, `10s`, `5m`, `1h`) and sizes (`512B`, `64KiB`, `32MiB`, `2GiB`) in text
//! form. Pure functions; exact, no fractions: `1500ms` instead of `1.5s`.

use std::time::Duration;

const DURATION_UNITS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000)];
const SIZE_UNITS: &[(&str, u64)] =
    &[("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20), ("GiB", 1 << 30), ("TiB", 1 << 40)];

/// Parses a duration; the error lists accepted forms.
pub fn parse_duration(text: &str) -> Result<Duration, String> {
    scaled(text, DURATION_UNITS)
        .map(Duration::from_millis)
        .ok_or_else(|| format!("{text:?} is not a duration; write for example 250ms, 10s or 5m"))
}

/// Parses a size in bytes; the error lists accepted forms.
pub fn parse_size(text: &str) -> Result<usize, String> {
    scaled(text, SIZE_UNITS)
        .and_then(|bytes| usize::try_from(bytes).ok())
        .ok_or_else(|| format!("{text:?} is not a size; write for example 64KiB or 32MiB"))
}

/// The shortest exact notation of a duration, to the millisecond.
#[must_use]
pub fn format_duration(duration: Duration) -> String {
    format_scaled(u64::try_from(duration.as_millis()).unwrap_or(u64::MAX), DURATION_UNITS)
}

/// The shortest exact notation of a size.
#[must_use]
pub fn format_size(bytes: usize) -> String {
    format_scaled(u64::try_from(bytes).unwrap_or(u64::MAX), SIZE_UNITS)
}

fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let digits = text.find(|character: char| !character.is_ascii_digit())?;
    let (number, unit) = text.split_at_checked(digits)?;
    let scale = units.iter().find(|(name, _)| *name == unit.trim_start())?.1;
    number.parse::<u64>().ok()?.checked_mul(scale)
}

fn format_scaled(value: u64, units: &[(&str, u64)]) -> String {
    let fits = |scale: u64| value >= scale && value.is_multiple_of(scale);
    let best = units.iter().rev().find(|(_, scale)| fits(*scale)).or(units.first());
    best.map_or_else(String::new, |(name, scale)| format!("{}{name}", value / scale))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_every_documented_form() {
        assert_eq!(parse_duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(parse_duration("10s"), Ok(Duration::from_secs(10)));
        assert_eq!(parse_duration("5m"), Ok(Duration::from_secs(300)));
        assert_eq!(parse_duration("1 h"), Ok(Duration::from_secs(3_600)));
        assert_eq!(parse_size("64KiB"), Ok(65_536));
        assert_eq!(parse_size("32MiB"), Ok(32 << 20));
        assert_eq!(parse_size("7B"), Ok(7));
    }

    #[test]
    fn refuses_what_it_would_have_to_guess() {
        for text in ["", "10", "s", "-1s", "1.5s", "10 minutes", "10S", "99999999999999999999s"] {
            assert!(parse_duration(text).is_err(), "{text:?}");
        }
        for text in ["", "64", "64K", "64KB", "64kib", "1.5MiB", "20000000000GiB"] {
            assert!(parse_size(text).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_printed_is_read_back(
            millis in 0_u64..u64::MAX / 2,
            bytes in 0_usize..usize::MAX / 2,
        ) {
            let duration = Duration::from_millis(millis);
            prop_assert_eq!(parse_duration(&format_duration(duration)), Ok(duration));
            prop_assert_eq!(parse_size(&format_size(bytes)), Ok(bytes));
        }

        #[test]
        fn never_panics(text in "\\PC*") {
            let _ = parse_duration(&text);
            let _ = parse_size(&text);
        }
    }
}
