//! Fields of a certificate in DER that `rustls-webpki` does not return: beginning and end of its
//! validity, and the length of its key. Total on any bytes. Each element is read once.

use std::time::Duration;

const SEQUENCE: u8 = 0x30;
const BIT_STRING: u8 = 0x03;
const VERSION: u8 = 0xa0;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateFields {
    /// Since 1970; `None` if the date cannot be read.
    pub(crate) begins_at: Option<Duration>,
    /// Since 1970; `None` if the date cannot be read.
    pub(crate) expires_at: Option<Duration>,
    /// Length of the public key, as its kind encodes it; 0 if it cannot be read.
    pub(crate) key_bytes: usize,
}

impl CertificateFields {
    pub(crate) fn read(certificate: &[u8]) -> Self {
        Self::find(certificate).unwrap_or_default()
    }

    /// RFC 5280, section 4.1: version (not in v1), serial number, signature, issuer, validity,
    /// subject, public key.
    fn find(certificate: &[u8]) -> Option<Self> {
        let mut fields = Der(Der(Der(certificate).body(SEQUENCE)?).body(SEQUENCE)?);
        let (tag, _) = fields.next()?;
        let before_validity = if tag == VERSION { 3 } else { 2 };
        for _ in 0..before_validity {
            fields.next()?;
        }
        let mut validity = Der(fields.body(SEQUENCE)?);
        let (tag, text) = validity.next()?;
        let begins_at = since_1970(tag, text);
        let expires_at = validity.next().and_then(|(tag, text)| since_1970(tag, text));
        fields.next()?;
        let mut public_key = Der(fields.body(SEQUENCE)?);
        public_key.next()?;
        // The first byte counts bits that are not used.
        let key_bytes = public_key.body(BIT_STRING)?.len().saturating_sub(1);
        Some(Self { begins_at, expires_at, key_bytes })
    }
}

/// A sequence of elements.
struct Der<'a>(&'a [u8]);

impl<'a> Der<'a> {
    /// Tag and content of the next element.
    fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, rest) = rest.split_first()?;
        let (length, rest) = match first {
            0..=0x7f => (usize::from(first), rest),
            0x81..=0x84 => {
                let (bytes, rest) = rest.split_at_checked(usize::from(first - 0x80))?;
                let length = bytes.iter().fold(0_u32, |all, &byte| all << 8 | u32::from(byte));
                (usize::try_from(length).ok()?, rest)
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(length)?;
        self.0 = rest;
        Some((tag, content))
    }

    fn body(&mut self, expected: u8) -> Option<&'a [u8]> {
        self.next().filter(|(tag, _)| *tag == expected).map(|(_, content)| content)
    }
}

/// `YYMMDDhhmmssZ`, of 1950 to 2049, or `YYYYMMDDhhmmssZ`.
fn since_1970(tag: u8, text: &[u8]) -> Option<Duration> {
    let digits = text.strip_suffix(b"Z")?;
    let (year, rest) = match tag {
        UTC_TIME => {
            let (year, rest) = digits.split_first_chunk::<2>()?;
            let year = decimal(year)?;
            (if year < 50 { 2000 + year } else { 1900 + year }, rest)
        }
        GENERALIZED_TIME => {
            let (year, rest) = digits.split_first_chunk::<4>()?;
            (decimal(year)?, rest)
        }
        _ => return None,
    };
    let mut pairs = rest.chunks(2).map(|pair| decimal(pair).filter(|_| pair.len() == 2));
    let mut next = |range: std::ops::RangeInclusive<u64>| {
        pairs.next().flatten().filter(|value| range.contains(value))
    };
    let month = next(1..=12)?;
    let day = next(1..=days_of_month(year, month))?;
    let seconds = next(0..=23)? * 3_600 + next(0..=59)? * 60 + next(0..=59)?;
    if pairs.next().is_some() {
        return None;
    }
    let leap_years = |year: u64| year / 4 - year / 100 + year / 400;
    let years = year.checked_sub(1970)?;
    let days_before = years * 365 + leap_years(year - 1) - leap_years(1969);
    let days = days_before + (1..month).map(|month| days_of_month(year, month)).sum::<u64>();
    Some(Duration::from_secs((days + day - 1) * 86_400 + seconds))
}

fn days_of_month(year: u64, month: u64) -> u64 {
    match month {
        2 if year.is_multiple_of(if year.is_multiple_of(100) { 400 } else { 4 }) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

fn decimal(digits: &[u8]) -> Option<u64> {
    let digit = |byte: &u8| byte.is_ascii_digit().then(|| u64::from(byte - b'0'));
    digits.iter().map(digit).try_fold(0, |value, digit| Some(value * 10 + digit?))
}

#[cfg(test)]
mod tests {
    use super::{CertificateFields, GENERALIZED_TIME, UTC_TIME, since_1970};
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use rcgen::{CertificateParams, KeyPair, date_time_ymd};
    use std::time::Duration;
    use x509_cert::der::Decode;

    /// As the crate reads it.
    fn expected(der: &[u8]) -> Option<CertificateFields> {
        let read = x509_cert::Certificate::from_der(der).ok()?.tbs_certificate;
        Some(CertificateFields {
            begins_at: Some(read.validity.not_before.to_unix_duration()),
            expires_at: Some(read.validity.not_after.to_unix_duration()),
            key_bytes: read.subject_public_key_info.subject_public_key.raw_bytes().len(),
        })
    }

    fn certificate(year: i32, month: u8, day: u8) -> Vec<u8> {
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.not_after = date_time_ymd(year, month, day);
        params.self_signed(&KeyPair::generate().unwrap()).unwrap().der().to_vec()
    }

    #[test]
    fn dates_of_both_forms_are_seconds() {
        let seconds = |tag, text: &str| since_1970(tag, text.as_bytes()).map(|at| at.as_secs());
        assert_eq!(seconds(UTC_TIME, "700101000000Z"), Some(0));
        assert_eq!(seconds(UTC_TIME, "240229235959Z"), Some(1_709_251_199));
        assert_eq!(seconds(GENERALIZED_TIME, "21000301000000Z"), Some(4_107_542_400));
        assert_eq!(seconds(GENERALIZED_TIME, "99991231235959Z"), Some(253_402_300_799));
        for text in ["", "Z", "691231235959Z", "230229000000Z", "241301000000Z", "2401010000Z"] {
            assert_eq!(seconds(UTC_TIME, text), None, "{text}");
        }
        assert_eq!(seconds(UTC_TIME, "2401010000000Z"), None);
        assert_eq!(seconds(GENERALIZED_TIME, "240101000000Z"), None);
        assert_eq!(CertificateFields::read(b"\x30\x84\xff\xff\xff\xff"), Default::default());
    }

    proptest! {
        #[test]
        fn fields_are_those_of_the_crate(
            year in 1971..=9999_i32,
            month in 1..=12_u8,
            day in 1..=28_u8,
            places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
            cut in any::<prop::sample::Index>(),
        ) {
            let mut der = certificate(year, month, day);
            prop_assert_eq!(Some(CertificateFields::read(&der)), expected(&der));
            for (place, byte) in places {
                let length = der.len();
                der[place.index(length)] = byte;
            }
            let read = CertificateFields::read(&der);
            if let Some(expected) = expected(&der) {
                prop_assert_eq!(read, expected);
            }
            assert!(read.expires_at.is_none_or(|at| at < Duration::from_secs(1 << 38)));
            CertificateFields::read(&der[..cut.index(der.len())]);
        }
    }
}
