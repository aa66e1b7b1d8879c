//! The `x-ratelimit-*` fields in OpenAI's format: limit per minute, remaining units, and time until
//! the limit is full again.

use forebay_fleet::tenant::RateStatus;
use forebay_http1::{Digits, decimal, header};
use forebay_identity::AnswerField;
use std::time::Duration;

/// Names of the fields: limit, remaining and reset, for requests, then for tokens.
const NAMES: [&str; RATE_FIELDS] = [
    header::LIMIT_REQUESTS,
    header::REMAINING_REQUESTS,
    header::RESET_REQUESTS,
    header::LIMIT_TOKENS,
    header::REMAINING_TOKENS,
    header::RESET_TOKENS,
];
/// Number of rate limit fields in an answer.
pub(crate) const RATE_FIELDS: usize = 6;

/// Encoded fields of an answer. The memory is reused from request to request.
#[derive(Debug, Default)]
pub(crate) struct RateFields {
    text: Vec<u8>,
    /// End of each value in `text`; empty values are not sent.
    ends: [usize; RATE_FIELDS],
}

impl RateFields {
    /// Removes all values, so that no field is sent.
    pub(crate) fn clear(&mut self) {
        self.text.clear();
        self.ends = [0; RATE_FIELDS];
    }

    /// Sets the values of both limits, if present.
    pub(crate) fn set(&mut self, requests: Option<RateStatus>, tokens: Option<RateStatus>) {
        self.clear();
        let mut ends = self.ends.iter_mut();
        for standing in [requests, tokens] {
            for part in 0..3 {
                if let Some(standing) = standing {
                    push(part, standing, &mut self.text);
                }
                if let Some(end) = ends.next() {
                    *end = self.text.len();
                }
            }
        }
    }

    /// Fields that have a value.
    pub(crate) fn fields(&self) -> impl Iterator<Item = AnswerField<'_>> {
        // Most answers have none.
        let names = if self.text.is_empty() { &[][..] } else { &NAMES };
        let mut start = 0;
        names.iter().zip(self.ends).filter_map(move |(name, end)| {
            let value = self.text.get(start..end).unwrap_or_default();
            start = end;
            (!value.is_empty()).then_some((*name, value))
        })
    }
}

fn push(part: usize, standing: RateStatus, out: &mut Vec<u8>) {
    let mut digits: Digits = [0; 20];
    match part {
        0 => out.extend_from_slice(decimal(standing.limit, &mut digits)),
        1 => out.extend_from_slice(decimal(standing.remaining, &mut digits)),
        _ => push_time(standing.reset_ns, out),
    }
}

/// `120ms`, `1s`, `8.64s`, `6m0s`: rounded up to milliseconds, and to seconds from a minute on.
fn push_time(nanos: u64, out: &mut Vec<u8>) {
    let mut digits: Digits = [0; 20];
    let millis = Duration::from_nanos(nanos).as_nanos().div_ceil(1_000_000);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    if (1..1_000).contains(&millis) {
        out.extend_from_slice(decimal(millis, &mut digits));
        out.extend_from_slice(b"ms");
        return;
    }
    let mut seconds = millis / 1_000;
    let mut rest = millis % 1_000;
    if seconds >= 60 {
        seconds += u64::from(rest > 0);
        rest = 0;
        out.extend_from_slice(decimal(seconds / 60, &mut digits));
        out.push(b'm');
        seconds %= 60;
    }
    out.extend_from_slice(decimal(seconds, &mut digits));
    if rest > 0 {
        out.push(b'.');
        let mut place = 100;
        while rest > 0 {
            out.push(b'0' + u8::try_from(rest / place).unwrap_or(0));
            rest %= place;
            place /= 10;
        }
    }
    out.push(b's');
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_written_as_openai_writes_them() {
        for (nanos, wanted) in [
            (0, "0s"),
            (1, "1ms"),
            (119_000_001, "120ms"),
            (999_000_001, "1s"),
            (1_000_000_000, "1s"),
            (8_640_000_000, "8.64s"),
            (20_001_000_000, "20.001s"),
            (59_999_999_999, "1m0s"),
            (60_000_000_001, "1m1s"),
            (360_000_000_000, "6m0s"),
        ] {
            let mut out = Vec::new();
            push_time(nanos, &mut out);
            assert_eq!(String::from_utf8(out).unwrap(), wanted, "{nanos}");
        }
    }

    #[test]
    fn only_present_limits_are_sent() {
        let mut fields = RateFields::default();
        let sent = |fields: &RateFields| -> Vec<(&'static str, String)> {
            let sent = fields.fields();
            sent.map(|(name, value)| (name, String::from_utf8_lossy(value).into_owned())).collect()
        };
        assert_eq!(sent(&fields), []);
        let requests = RateStatus { limit: 60, remaining: 0, reset_ns: 1_000_000_000 };
        let tokens = RateStatus { limit: 1_000, remaining: 12, reset_ns: 360_000_000_000 };
        fields.set(Some(requests), Some(tokens));
        let all = sent(&fields);
        assert_eq!(all.len(), 6);
        assert_eq!(all[1], ("x-ratelimit-remaining-requests", "0".to_owned()));
        assert_eq!(all[5], ("x-ratelimit-reset-tokens", "6m0s".to_owned()));
        fields.set(None, Some(tokens));
        let some = sent(&fields);
        assert_eq!(some.len(), 3);
        assert_eq!(some[0], ("x-ratelimit-limit-tokens", "1000".to_owned()));
        fields.clear();
        assert_eq!(sent(&fields), []);
    }
}
