//! The trace context of requests: `traceparent` of W3C Trace Context, level 1.

/// Bytes of a `traceparent` of version 00.
pub const TRACEPARENT_BYTES: usize = 55;

/// A span of a trace, as in `traceparent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TraceParent {
    /// Id of the trace; never 0.
    pub trace: u128,
    /// Id of the span; never 0.
    pub span: u64,
    /// The sender records spans of the trace.
    pub is_sampled: bool,
}

impl TraceParent {
    /// Parses a `traceparent`; `None` for values that the specification calls invalid. Later
    /// versions may have further fields after the flags.
    #[must_use]
    pub fn parse(value: &[u8]) -> Option<Self> {
        let version = hex(value.get(..2)?)?;
        let is_whole = match value.get(TRACEPARENT_BYTES) {
            None => value.len() == TRACEPARENT_BYTES,
            Some(next) => version > 0 && *next == b'-',
        };
        let has_dashes = [2, 35, 52].iter().all(|&at| value.get(at) == Some(&b'-'));
        let trace = hex(value.get(3..35)?)?;
        let span = u64::try_from(hex(value.get(36..52)?)?).ok()?;
        let flags = hex(value.get(53..TRACEPARENT_BYTES)?)?;
        let is_valid = version != 0xff && is_whole && has_dashes && trace != 0 && span != 0;
        is_valid.then_some(Self { trace, span, is_sampled: flags & 1 == 1 })
    }

    /// The value of a `traceparent` of version 00.
    #[must_use]
    pub fn write(self) -> [u8; TRACEPARENT_BYTES] {
        let mut out = *b"00-00000000000000000000000000000000-0000000000000000-00";
        put(&mut out, 3..35, self.trace);
        put(&mut out, 36..52, u128::from(self.span));
        put(&mut out, 53..TRACEPARENT_BYTES, u128::from(self.is_sampled));
        out
    }
}

/// Only lower-case digits, as the specification requires.
fn hex(digits: &[u8]) -> Option<u128> {
    digits.iter().try_fold(0_u128, |value, digit| {
        let nibble = match digit {
            b'0'..=b'9' => digit - b'0',
            b'a'..=b'f' => digit - b'a' + 10,
            _ => return None,
        };
        Some(value << 4 | u128::from(nibble))
    })
}

fn put(out: &mut [u8], place: std::ops::Range<usize>, mut value: u128) {
    for digit in out.get_mut(place).into_iter().flatten().rev() {
        let nibble = usize::try_from(value & 15).unwrap_or(0);
        *digit = b"0123456789abcdef".get(nibble).copied().unwrap_or(b'0');
        value >>= 4;
    }
}

#[cfg(test)]
mod tests {
    use super::TraceParent;

    const VALID: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_context_is_read_and_written_as_it_came() {
        let read = TraceParent::parse(VALID.as_bytes()).unwrap();
        let trace = 0x4bf9_2f35_77b3_4da6_a3ce_929d_0e0e_4736;
        let span = 0x00f0_67aa_0ba9_02b7;
        assert_eq!(read, TraceParent { trace, span, is_sampled: true });
        assert_eq!(read.write(), VALID.as_bytes());
        let other = VALID.replace("-01", "-02");
        assert!(!TraceParent::parse(other.as_bytes()).unwrap().is_sampled);
        let later = VALID.replacen("00", "cc", 1) + "-what-comes";
        assert_eq!(TraceParent::parse(later.as_bytes()), Some(read));
    }

    #[test]
    fn what_the_specification_calls_invalid_is_none() {
        for wrong in [
            "",
            "00",
            &VALID.to_uppercase(),
            &VALID.replacen("00", "ff", 1),
            &format!("{VALID}-more"),
            &format!("{VALID}0"),
            &VALID.replacen("00", "cc", 1).replace("-01", "-01x"),
            &VALID.replace("4bf92f3577b34da6a3ce929d0e0e4736", &"0".repeat(32)),
            &VALID.replace("00f067aa0ba902b7", &"0".repeat(16)),
            &VALID.replace("4736-", "4736_"),
            &VALID.replace("4736", "473g"),
            &VALID[..54],
        ] {
            assert_eq!(TraceParent::parse(wrong.as_bytes()), None, "{wrong}");
        }
    }
}
