//! `strftime_now` of chat templates. The date is UTC: engines print the local time of their
//! machines, which is usually UTC in clusters.

use std::fmt::Write;
use std::time::{SystemTime, UNIX_EPOCH};

/// Seconds since 1970-01-01 00:00 UTC.
pub(super) fn unix_seconds_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |elapsed| elapsed.as_secs())
}

/// The present time in UTC, in a format of [`strftime`].
#[must_use]
pub fn utc_now(format: &str) -> String {
    strftime(format, unix_seconds_now())
}

/// Python's `time.strftime`, in UTC, for the directives that prompts use; copies other directives.
#[must_use]
pub fn strftime(format: &str, unix_seconds: u64) -> String {
    let moment = Moment::new(unix_seconds);
    let mut out = String::with_capacity(format.len() * 2);
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            out.push(character);
            continue;
        }
        let mut directive = characters.next();
        let padded = directive != Some('-');
        if !padded {
            directive = characters.next();
        }
        if !moment.write(directive, padded, &mut out) {
            out.push('%');
            out.extend(directive);
        }
    }
    out
}

struct Moment {
    year: u64,
    /// Month of the year, from 0.
    month: usize,
    /// Day of the month, from 1.
    day: u64,
    /// Day of the year, from 0.
    day_of_year: u64,
    /// Day of the week, Sunday is 0.
    weekday: usize,
    second_of_day: u64,
}

impl Moment {
    fn new(unix_seconds: u64) -> Self {
        let days = unix_seconds / 86_400;
        let mut year = 1970;
        let mut day_of_year = days;
        while day_of_year >= days_in_year(year) {
            day_of_year -= days_in_year(year);
            year += 1;
        }
        let mut month = 0;
        let mut day = day_of_year;
        for (index, length) in MONTH_DAYS.iter().enumerate() {
            let length = length + u64::from(index == 1 && days_in_year(year) == 366);
            month = index;
            if day < length {
                break;
            }
            day -= length;
        }
        let weekday = usize::try_from((days + 4) % 7).unwrap_or_default();
        Self {
            year,
            month,
            day: day + 1,
            day_of_year,
            weekday,
            second_of_day: unix_seconds % 86_400,
        }
    }

    /// Writes a directive; false if it is unknown.
    fn write(&self, directive: Option<char>, padded: bool, out: &mut String) -> bool {
        let hour = self.second_of_day / 3600;
        let minute = self.second_of_day / 60 % 60;
        let hour_of_12 = if hour.is_multiple_of(12) { 12 } else { hour % 12 };
        let month_number = u64::try_from(self.month).unwrap_or_default() + 1;
        let number = match directive {
            Some('d') => (self.day, 2),
            Some('m') => (month_number, 2),
            Some('H') => (hour, 2),
            Some('I') => (hour_of_12, 2),
            Some('M') => (minute, 2),
            Some('S') => (self.second_of_day % 60, 2),
            Some('y') => (self.year % 100, 2),
            Some('j') => (self.day_of_year + 1, 3),
            Some('Y') => (self.year, 4),
            Some(name) => return self.write_name(name, out),
            None => return false,
        };
        let width = if padded { number.1 } else { 0 };
        write!(out, "{:0width$}", number.0).is_ok()
    }

    fn write_name(&self, directive: char, out: &mut String) -> bool {
        let month = MONTHS.get(self.month).copied().unwrap_or_default();
        let weekday = WEEKDAYS.get(self.weekday).copied().unwrap_or_default();
        match directive {
            'B' => out.push_str(month),
            'b' | 'h' => out.push_str(month.get(..3).unwrap_or(month)),
            'A' => out.push_str(weekday),
            'a' => out.push_str(weekday.get(..3).unwrap_or(weekday)),
            'p' => out.push_str(if self.second_of_day < 43_200 { "AM" } else { "PM" }),
            'Z' => out.push_str("UTC"),
            'e' => return write!(out, "{:2}", self.day).is_ok(),
            '%' => out.push('%'),
            _ => return false,
        }
        true
    }
}

fn days_in_year(year: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    if leap { 366 } else { 365 }
}

const MONTH_DAYS: [u64; 12] = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31];
const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const WEEKDAYS: [&str; 7] =
    ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];

#[cfg(test)]
mod tests {
    use super::strftime;

    #[test]
    fn known_moments() {
        assert_eq!(strftime("%d %b %Y", 0), "01 Jan 1970");
        assert_eq!(strftime("%Y-%m-%d %H:%M:%S", 951_782_399), "2000-02-28 23:59:59");
        assert_eq!(
            strftime("%A %-d %B %y, day %j", 951_782_400),
            "Tuesday 29 February 00, day 060"
        );
        assert_eq!(strftime("%I:%M %p %e%%", 1_735_689_600), "12:00 AM  1%");
        assert_eq!(strftime("%Y-%m-%d", 1_767_225_599), "2025-12-31");
    }

    #[test]
    fn what_is_unknown_stays() {
        assert_eq!(strftime("%Q %", 0), "%Q %");
    }
}
