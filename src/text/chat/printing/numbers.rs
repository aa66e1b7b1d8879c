//! Numbers of JSON as a frontend reads them. The frontends differ in integers above 64 bits, in the
//! last digits of long floats, and in `-0`.

use memchr::memchr2;
use minijinja::value::Value;
use serde_json::Value as Json;
use std::borrow::Cow;

/// Reader of the numbers of a JSON text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NumberDialect {
    /// Python's: integers of any size, `-0` is 0.
    Python,
    /// `serde_json` as `vllm-rs` and oss-harmony build it: a float is off by some units in the last
    /// place where its digits or its exponent are long.
    QuickFloats,
    /// `serde_json` with exact floats, as SGLang's Rust server builds it.
    ExactFloats,
}

/// Opens a string that stands for an integer. A noncharacter, so no text of a client has it.
const MARK: char = '\u{fdd2}';
/// Digits of an integer that `i128` holds in any case.
const DIGITS_MAX: usize = 38;
/// Digits of an integer that 64 bits hold in any case.
const PLAIN_DIGITS_MAX: usize = 18;
/// Largest power of ten of a float.
const EXPONENT_MAX: i32 = 308;

/// Parses JSON with the numbers of a reader; `None` for invalid JSON. Python's integers above 64
/// bits are marked strings.
///
/// # Errors
/// [`LongInteger`] for an integer with more digits than `i128` holds.
pub(crate) fn parse(text: &str, reader: NumberDialect) -> Result<Option<Json>, LongInteger> {
    let respelled = respelled(text, reader)?;
    Ok(serde_json::from_str(&respelled).ok())
}

/// An integer is longer than this version prints.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LongInteger;

/// The integer that a string stands for.
pub(crate) fn read(text: &str) -> Option<Value> {
    marked_integer(text)?.parse::<i128>().ok().map(Value::from)
}

/// Digits of the integer that a string stands for.
pub(crate) fn marked_integer(text: &str) -> Option<&str> {
    let is_digit = |byte: u8| byte.is_ascii_digit() || byte == b'-';
    text.strip_prefix(MARK).filter(|digits| digits.bytes().all(is_digit))
}

/// Spells the numbers outside of strings so that an exact reader finds the values of `reader`.
pub(crate) fn respelled(text: &str, reader: NumberDialect) -> Result<Cow<'_, str>, LongInteger> {
    let mut out = String::new();
    let mut copied = 0;
    let mut at = 0;
    while let Some(first) = text.as_bytes().get(at) {
        let rest = text.as_bytes().get(at..).unwrap_or_default();
        let length = match first {
            b'"' => string_length(rest),
            b'-' | b'0'..=b'9' => {
                let of_number = |byte: &u8| byte.is_ascii_digit() || b"+-.eE".contains(byte);
                rest.iter().take_while(|byte| of_number(byte)).count()
            }
            _ => 1,
        };
        if *first != b'"'
            && let Some(spelling) = spelling(text.get(at..at + length).unwrap_or_default(), reader)?
        {
            out.push_str(text.get(copied..at).unwrap_or_default());
            out.push_str(&spelling);
            copied = at + length;
        }
        at += length;
    }
    if copied == 0 {
        return Ok(Cow::Borrowed(text));
    }
    out.push_str(text.get(copied..).unwrap_or_default());
    Ok(Cow::Owned(out))
}

/// Another spelling of a token; `None` where an exact reader reads the token right, or where the
/// token is no number.
fn spelling(token: &str, reader: NumberDialect) -> Result<Option<String>, LongInteger> {
    let digits = token.strip_prefix('-').unwrap_or(token);
    let is_integer = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_digit());
    match reader {
        NumberDialect::Python if token == "-0" => return Ok(Some("0".to_owned())),
        NumberDialect::Python if is_integer && digits.len() > DIGITS_MAX => {
            return Err(LongInteger);
        }
        NumberDialect::Python => {
            let is_long = is_integer && digits.len() > PLAIN_DIGITS_MAX;
            return Ok(is_long.then(|| format!("\"{MARK}{token}\"")));
        }
        _ if token == "-0" => return Ok(Some("-0.0".to_owned())),
        _ => {}
    }
    let fits = token.parse::<u64>().is_ok() || token.parse::<i64>().is_ok();
    let is_plain =
        !is_integer && digits.len() <= PLAIN_FLOAT_BYTES_MAX && !token.contains(['e', 'E']);
    if fits || is_plain || !digits.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(None);
    }
    let exact = token.parse::<f64>().ok().filter(|float| float.is_finite());
    let read = match reader {
        NumberDialect::QuickFloats => quick_float(token),
        _ => exact,
    };
    let differs = is_integer || read.map(f64::to_bits) != exact.map(f64::to_bits);
    Ok(read.filter(|_| differs).map(|float| format!("{float:e}")))
}

/// Digits and point of a float with an exact quotient: 15 digits are below 2^53.
const PLAIN_FLOAT_BYTES_MAX: usize = 16;

/// The float that `serde_json` reads without its feature `float_roundtrip`: the first digits as a
/// 64-bit integer, times or over a power of ten, each rounded. `None` beyond the largest float.
pub(crate) fn quick_float(token: &str) -> Option<f64> {
    let digits = token.strip_prefix('-').unwrap_or(token);
    let (mantissa, power) = digits.split_once(['e', 'E']).unwrap_or((digits, "0"));
    let power: i32 = power.parse().ok()?;
    let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
    let mut significand = 0_u64;
    let mut exponent = power;
    let mut is_full = false;
    let places = whole.bytes().map(|digit| (digit, 0)).chain(fraction.bytes().map(|d| (d, 1)));
    for (digit, place) in places {
        let digit = u64::from(digit.checked_sub(b'0').filter(|digit| *digit < 10)?);
        let longer = significand.checked_mul(10).and_then(|shifted| shifted.checked_add(digit));
        match longer.filter(|_| !is_full) {
            Some(longer) => {
                significand = longer;
                exponent = exponent.saturating_sub(place);
            }
            // Further digits of the whole part count as zeros, and of the fraction not at all.
            None => {
                is_full = true;
                exponent = exponent.saturating_add(1 - place);
            }
        }
    }
    #[expect(clippy::cast_precision_loss, reason = "the rounding is the point")]
    let mut float = significand as f64;
    while float != 0.0 && exponent < -EXPONENT_MAX {
        float /= power_of_ten(EXPONENT_MAX)?;
        exponent = exponent.saturating_add(EXPONENT_MAX);
    }
    if float != 0.0 {
        let scale = power_of_ten(exponent.saturating_abs())?;
        float = if exponent < 0 { float / scale } else { float * scale };
    }
    float.is_finite().then_some(if token.starts_with('-') { -float } else { float })
}

fn power_of_ten(exponent: i32) -> Option<f64> {
    format!("1e{exponent}").parse().ok().filter(|power: &f64| power.is_finite())
}

/// Length of the JSON string at the front, quotes included.
fn string_length(text: &[u8]) -> usize {
    let mut at = 1;
    while let Some(next) = memchr2(b'"', b'\\', text.get(at..).unwrap_or_default()) {
        let is_end = text.get(at + next) == Some(&b'"');
        at += next + 1;
        if is_end {
            return at;
        }
        at += 1;
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::{LongInteger, NumberDialect, parse, quick_float, read, respelled};
    use proptest::prelude::*;

    #[test]
    fn long_integers_keep_their_digits() {
        let parsed = parse(
            r#"{"a": [123456789012345678901234567890, -99999999999999999999],
            "b": "12345678901234567890123", "c": 12345678901234567890.5, "d": 7}"#,
            NumberDialect::Python,
        );
        let parsed = parsed.unwrap().unwrap();
        let text = |pointer: &str| parsed.pointer(pointer).unwrap().as_str().unwrap();
        assert_eq!(read(text("/a/0")).unwrap().to_string(), "123456789012345678901234567890");
        assert_eq!(read(text("/a/1")).unwrap().to_string(), "-99999999999999999999");
        assert_eq!(read(text("/b")), None, "a string of the client");
        assert!(parsed["c"].is_f64() && parsed["d"] == 7);
        assert_eq!(parse(&"9".repeat(39), NumberDialect::Python), Err(LongInteger));
        assert_eq!(parse("{\"a\": ", NumberDialect::Python), Ok(None));
    }

    /// What Python 3.11, `vllm-rs` 0.33 and SGLang's Rust server 0.5.23 print of a number.
    #[test]
    fn numbers_are_those_of_the_frontends() {
        for (token, python, quick, exact) in [
            ("1.9031893215711636e-13", "1.9031893215711636e-13", "1.9031893215711639e-13", ""),
            ("3.4028234663852886e38", "3.4028234663852886e38", "3.402823466385289e38", ""),
            ("123456789012345.678", "123456789012345.67", "123456789012345.69", ""),
            ("12345678901234567.0", "1.2345678901234568e16", "1.2345678901234566e16", ""),
            ("0.30000000000000004", "0.30000000000000004", "0.30000000000000004", ""),
            ("2.2250738585072014e-308", "2.2250738585072014e-308", "2.2250738585072014e-308", ""),
            ("0.1000000000000000055511151231257827", "0.1", "0.1", ""),
            ("-0", "0", "-0.0", "-0.0"),
            ("-0.0", "-0.0", "-0.0", "-0.0"),
            ("1.50", "1.5", "1.5", "1.5"),
            ("1e3", "1000.0", "1000.0", "1000.0"),
        ] {
            let exact = if exact.is_empty() { python } else { exact };
            for (reader, wanted) in [
                (NumberDialect::Python, python),
                (NumberDialect::QuickFloats, quick),
                (NumberDialect::ExactFloats, exact),
            ] {
                let text = format!("{{\"-0\": [{token}, \"{token}\"]}}");
                let parsed = parse(&text, reader).unwrap().unwrap();
                let value = &parsed["-0"][0];
                assert_eq!(parsed["-0"][1], token, "{reader:?}");
                let wanted: serde_json::Value = serde_json::from_str(wanted).unwrap();
                assert_eq!(value.is_f64(), wanted.is_f64(), "{token} {reader:?}");
                let bits = |value: &serde_json::Value| value.as_f64().unwrap().to_bits();
                assert_eq!(bits(value), bits(&wanted), "{token} {reader:?}");
            }
        }
    }

    proptest! {
        /// Exact readers find the nearest float, and the quick one at most some units beside.
        #[test]
        fn floats_are_near(float in any::<f64>().prop_filter("finite", |f| f.is_finite())) {
            let token = format!("{float:?}");
            for reader in [NumberDialect::Python, NumberDialect::ExactFloats] {
                let parsed = parse(&token, reader).unwrap().unwrap();
                prop_assert_eq!(parsed.as_f64().unwrap().to_bits(), float.to_bits());
            }
            if let Some(quick) = quick_float(&token) {
                prop_assert!((quick - float).abs() <= float.abs() * 1e-15 + f64::from_bits(4));
                let parsed = parse(&token, NumberDialect::QuickFloats).unwrap().unwrap();
                prop_assert_eq!(parsed.as_f64().unwrap().to_bits(), quick.to_bits());
            }
        }

        /// Any text keeps its strings, and texts without numbers are left alone.
        #[test]
        fn texts_are_left_alone(text in "\\PC*") {
            for reader in
                [NumberDialect::Python, NumberDialect::QuickFloats, NumberDialect::ExactFloats]
            {
                let quoted = serde_json::to_string(&text).unwrap();
                prop_assert_eq!(respelled(&quoted, reader).unwrap(), quoted.as_str());
                let _ = respelled(&text, reader);
            }
        }
    }
}
