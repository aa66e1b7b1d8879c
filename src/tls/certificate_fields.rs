//! Fields of a certificate in DER that `rustls-webpki` does not return: validity, names, length of
//! an RSA key, whether it is an authority and whether it has a URL of the issuer's certificate.
//! Total on any bytes.

use std::time::Duration;

const BOOLEAN: u8 = 0x01;
const INTEGER: u8 = 0x02;
const BIT_STRING: u8 = 0x03;
const OCTET_STRING: u8 = 0x04;
const OBJECT_ID: u8 = 0x06;
const UTC_TIME: u8 = 0x17;
const GENERALIZED_TIME: u8 = 0x18;
const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const VERSION: u8 = 0xa0;
const EXTENSIONS: u8 = 0xa3;

/// The object identifier 2.5.4.3.
const COMMON_NAME: &[u8] = &[0x55, 4, 3];
/// The object identifier 2.5.29.19.
const BASIC_CONSTRAINTS: &[u8] = &[0x55, 0x1d, 19];
/// The object identifier 1.3.6.1.5.5.7.1.1.
const AUTHORITY_ACCESS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 1, 1];
/// The object identifier 1.3.6.1.5.5.7.48.2.
const ISSUERS: &[u8] = &[0x2b, 6, 1, 5, 5, 7, 48, 2];
/// The object identifier 1.2.840.113549.1.1.1.
const RSA: &[u8] = &[0x2a, 0x86, 0x48, 0x86, 0xf7, 0x0d, 1, 1, 1];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct CertificateFields<'a> {
    /// Since 1970; `None` if the date cannot be read.
    pub(crate) begins_at: Option<Duration>,
    /// Since 1970; `None` if the date cannot be read.
    pub(crate) expires_at: Option<Duration>,
    /// Length of the RSA modulus; `None` for other keys.
    pub(crate) rsa_bits: Option<usize>,
    /// Name of the issuer in DER.
    pub(crate) issuer: &'a [u8],
    /// Name of the certificate in DER.
    pub(crate) subject: &'a [u8],
    /// The extension `basicConstraints` allows the certificate to issue certificates.
    pub(crate) is_authority: bool,
    /// The extension `authorityInfoAccess` has a URL of the issuer's certificate.
    pub(crate) names_issuer_url: bool,
}

impl<'a> CertificateFields<'a> {
    pub(crate) fn read(certificate: &'a [u8]) -> Self {
        Self::find(certificate).unwrap_or_default()
    }

    /// RFC 5280, section 4.1: version (not in v1), serial number, signature, issuer, validity,
    /// subject, public key, and in v3 extensions.
    fn find(certificate: &'a [u8]) -> Option<Self> {
        let mut fields = Der(Der(Der(certificate).body(SEQUENCE)?).body(SEQUENCE)?);
        let (tag, _) = fields.next()?;
        let before_issuer = if tag == VERSION { 2 } else { 1 };
        for _ in 0..before_issuer {
            fields.next()?;
        }
        let issuer = fields.body(SEQUENCE)?;
        let mut validity = Der(fields.body(SEQUENCE)?);
        let (tag, text) = validity.next()?;
        let begins_at = since_1970(tag, text);
        let expires_at = validity.next().and_then(|(tag, text)| since_1970(tag, text));
        let subject = fields.body(SEQUENCE)?;
        let rsa_bits = rsa_bits(fields.body(SEQUENCE)?);
        let extensions = extensions(fields).unwrap_or_default();
        let is_authority = is_authority(extensions).unwrap_or(false);
        let names_issuer_url = names_issuer_url(extensions).unwrap_or(false);
        Some(Self {
            begins_at,
            expires_at,
            rsa_bits,
            issuer,
            subject,
            is_authority,
            names_issuer_url,
        })
    }
}

/// The common name in the name of a subject or an issuer, if it has any.
pub(crate) fn common_name(name: &[u8]) -> Option<String> {
    let mut sets = Der(name);
    std::iter::from_fn(|| sets.body(SET)).find_map(|set| {
        let mut attribute = Der(Der(set).body(SEQUENCE)?);
        let is_name = attribute.body(OBJECT_ID)? == COMMON_NAME;
        let (_, text) = attribute.next()?;
        is_name.then(|| String::from_utf8_lossy(text).into_owned())
    })
}

/// Length of the modulus of a public key of RSA (RFC 8017, appendix A.1.1).
fn rsa_bits(public_key: &[u8]) -> Option<usize> {
    let mut fields = Der(public_key);
    let algorithm = Der(fields.body(SEQUENCE)?).body(OBJECT_ID)?;
    // The first byte counts bits that are not used.
    let (_, key) = fields.body(BIT_STRING)?.split_first()?;
    let modulus = Der(Der(key).body(SEQUENCE)?).body(INTEGER)?;
    let start = modulus.iter().position(|byte| *byte != 0)?;
    let (first, rest) = modulus.get(start..)?.split_first()?;
    let bits = rest.len() * 8 + (u8::BITS - first.leading_zeros()) as usize;
    (algorithm == RSA).then_some(bits)
}

/// All extensions. `fields` are behind the public key.
fn extensions(mut fields: Der<'_>) -> Option<&[u8]> {
    let all = std::iter::from_fn(|| fields.next()).find(|(tag, _)| *tag == EXTENSIONS)?.1;
    Der(all).body(SEQUENCE)
}

/// Elements of the sequence in an extension.
fn extension<'a>(extensions: &'a [u8], id: &[u8]) -> Option<Der<'a>> {
    let mut all = Der(extensions);
    std::iter::from_fn(|| all.body(SEQUENCE)).find_map(|extension| {
        let mut parts = Der(extension);
        if parts.body(OBJECT_ID)? != id {
            return None;
        }
        let value = std::iter::from_fn(|| parts.next()).find(|(tag, _)| *tag == OCTET_STRING)?.1;
        Some(Der(Der(value).body(SEQUENCE)?))
    })
}

/// RFC 5280, section 4.2.1.9.
fn is_authority(extensions: &[u8]) -> Option<bool> {
    let is = extension(extensions, BASIC_CONSTRAINTS)?.body(BOOLEAN);
    Some(is.is_some_and(|is| is != [0]))
}

/// RFC 5280, section 4.2.2.1: descriptions, each with a method and a place.
fn names_issuer_url(extensions: &[u8]) -> Option<bool> {
    let mut all = extension(extensions, AUTHORITY_ACCESS)?;
    let mut descriptions = std::iter::from_fn(|| all.body(SEQUENCE));
    Some(descriptions.any(|one| Der(one).body(OBJECT_ID) == Some(ISSUERS)))
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

/// A time since 1970 as `2030-01-31 12:00 UTC`.
#[must_use]
pub fn date_text(since_1970: Duration) -> String {
    let minutes = since_1970.as_secs() / 60;
    let mut days = minutes / 1_440;
    let mut year = 1970;
    // A date of a certificate is below the year 10,000.
    while year < 10_000 && days >= days_of_year(year) {
        days -= days_of_year(year);
        year += 1;
    }
    let mut month = 1;
    while month < 12 && days >= days_of_month(year, month) {
        days -= days_of_month(year, month);
        month += 1;
    }
    let hour = minutes / 60 % 24;
    let minute = minutes % 60;
    format!("{year}-{month:02}-{:02} {hour:02}:{minute:02} UTC", days + 1)
}

fn days_of_year(year: u64) -> u64 {
    (1..=12).map(|month| days_of_month(year, month)).sum()
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
    use super::{
        CertificateFields, GENERALIZED_TIME, UTC_TIME, common_name, date_text, since_1970,
    };
    use proptest::prelude::{any, prop, prop_assert_eq, proptest};
    use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, date_time_ymd};
    use std::time::Duration;
    use x509_cert::der::Decode;

    /// As the crate reads it.
    fn expected(der: &[u8]) -> Option<[Option<Duration>; 2]> {
        let read = x509_cert::Certificate::from_der(der).ok()?.tbs_certificate.validity;
        let dates = [read.not_before, read.not_after];
        Some(dates.map(|date| Some(date.to_unix_duration())))
    }

    fn dates(der: &[u8]) -> [Option<Duration>; 2] {
        let read = CertificateFields::read(der);
        [read.begins_at, read.expires_at]
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

    #[test]
    fn a_time_is_shown_as_a_date() {
        for (tag, text, shown) in [
            (UTC_TIME, "700101000000Z", "1970-01-01 00:00 UTC"),
            (UTC_TIME, "240229235959Z", "2024-02-29 23:59 UTC"),
            (UTC_TIME, "301231120000Z", "2030-12-31 12:00 UTC"),
            (GENERALIZED_TIME, "21000301000000Z", "2100-03-01 00:00 UTC"),
            (GENERALIZED_TIME, "99991231235959Z", "9999-12-31 23:59 UTC"),
        ] {
            assert_eq!(date_text(since_1970(tag, text.as_bytes()).unwrap()), shown);
        }
    }

    #[test]
    fn names_and_authorities_are_read() {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec!["a.example".to_owned()]).unwrap();
        params.distinguished_name.push(DnType::CommonName, "Rack 1");
        for (is_ca, is_authority) in [
            (IsCa::NoCa, false),
            (IsCa::ExplicitNoCa, false),
            (IsCa::Ca(BasicConstraints::Unconstrained), true),
            (IsCa::Ca(BasicConstraints::Constrained(0)), true),
        ] {
            params.is_ca = is_ca;
            let der = params.self_signed(&key).unwrap().der().to_vec();
            let read = CertificateFields::read(&der);
            assert_eq!((read.is_authority, read.issuer), (is_authority, read.subject));
            let name = common_name(read.subject);
            assert_eq!((name.as_deref(), read.rsa_bits), (Some("Rack 1"), None));
        }
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
            prop_assert_eq!(Some(dates(&der)), expected(&der));
            for (place, byte) in places {
                let length = der.len();
                der[place.index(length)] = byte;
            }
            let read = CertificateFields::read(&der);
            if let Some(expected) = expected(&der) {
                prop_assert_eq!(dates(&der), expected);
            }
            assert!(read.expires_at.is_none_or(|at| at < Duration::from_secs(1 << 38)));
            CertificateFields::read(&der[..cut.index(der.len())]);
            let _ = common_name(CertificateFields::read(&der).subject);
        }
    }
}
