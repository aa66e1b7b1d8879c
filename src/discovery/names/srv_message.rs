//! The DNS query for SRV records and its response (RFC 1035, RFC 2782), sans-IO. Must never trust a
//! response: any deviation is a fault, and compression pointers only lead backwards.

use forebay_config::WorkerUrl;
use std::time::Duration;
use thiserror::Error;

const HEAD_BYTES: usize = 12;
const NAME_BYTES_MAX: usize = 253;
const LABEL_BYTES_MAX: usize = 63;
/// Type SRV, class IN.
const SRV_IN: [u8; 4] = [0, 33, 0, 1];
/// Compression: a length byte with both bits set begins a pointer.
const POINTER: u8 = 0xc0;
const NO_SUCH_NAME: u8 = 3;

/// Address of a service instance.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct SrvTarget {
    /// In lower case, without the trailing dot.
    pub host: String,
    /// TCP port; it is never 0.
    pub port: u16,
}

/// All targets of a service, sorted. Priorities and weights are ignored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SrvAnswer {
    /// The targets, which are never empty.
    pub targets: Vec<SrvTarget>,
    /// Smallest TTL of the records.
    pub ttl: Duration,
}

/// Reason for a failed query.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SrvFault {
    /// The name cannot be encoded.
    #[error("{0:?} is no name of a service: write _SERVICE._tcp.NAME")]
    Name(String),
    /// The response does not match the query.
    #[error("the answer is for another question")]
    Foreign,
    /// The whole response is available only over TCP.
    #[error("the answer is cut short")]
    Truncated,
    /// The response violates RFC 1035.
    #[error("the answer is broken")]
    Broken,
    /// NXDOMAIN: the name does not exist.
    #[error("the name does not exist (NXDOMAIN)")]
    NoSuchName,
    /// Any other response code.
    #[error("the answer is {}", code_text(*.0))]
    Refused(u8),
    /// The name has no SRV record, or only the root target, which means that the service is
    /// unavailable.
    #[error("the name has no SRV record of a service")]
    NoService,
    /// No server was reached, or none responded.
    #[error("{0}")]
    Unreached(String),
}

/// A response code as `dig` shows it.
fn code_text(code: u8) -> String {
    match code {
        1 => "FORMERR".to_owned(),
        2 => "SERVFAIL".to_owned(),
        4 => "NOTIMP".to_owned(),
        5 => "REFUSED".to_owned(),
        code => format!("code {code}"),
    }
}

/// The query as sent over UDP.
///
/// # Errors
/// [`SrvFault::Name`].
pub fn question(id: u16, name: &str) -> Result<Vec<u8>, SrvFault> {
    let fault = || SrvFault::Name(name.to_owned());
    let trimmed = name.trim_end_matches('.');
    if trimmed.len() > NAME_BYTES_MAX {
        return Err(fault());
    }
    let [high, low] = id.to_be_bytes();
    // Recursion desired; a single question.
    let mut message = vec![high, low, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in trimmed.split('.') {
        let bytes = u8::try_from(label.len()).map_err(|_| fault())?;
        if label.is_empty() || label.len() > LABEL_BYTES_MAX {
            return Err(fault());
        }
        message.push(bytes);
        message.extend(label.as_bytes());
    }
    message.push(0);
    message.extend(SRV_IN);
    Ok(message)
}

/// Parses the response to this query.
///
/// # Errors
/// [`SrvFault`].
pub fn answer(question: &[u8], message: &[u8]) -> Result<SrvAnswer, SrvFault> {
    let head = message.get(..HEAD_BYTES).ok_or(SrvFault::Broken)?;
    let [id_high, id_low, flags, more_flags, _, questions, count_high, count_low, ..] = *head
    else {
        return Err(SrvFault::Broken);
    };
    // Bits: a response to a standard query; truncated.
    if question.get(..2) != Some(&[id_high, id_low]) || flags & 0xf8 != 0x80 {
        return Err(SrvFault::Foreign);
    }
    if flags & 0x02 != 0 {
        return Err(SrvFault::Truncated);
    }
    match more_flags & 0x0f {
        0 => {}
        NO_SUCH_NAME => return Err(SrvFault::NoSuchName),
        code => return Err(SrvFault::Refused(code)),
    }
    let asked = question.get(HEAD_BYTES..).unwrap_or_default();
    let end = HEAD_BYTES + asked.len();
    let repeated = message.get(HEAD_BYTES..end).unwrap_or_default();
    if questions != 1 || !repeated.eq_ignore_ascii_case(asked) {
        return Err(SrvFault::Foreign);
    }
    let count = u16::from_be_bytes([count_high, count_low]);
    records(message, end, count).ok_or(SrvFault::Broken).and_then(|(mut targets, ttl)| {
        targets.sort_unstable();
        targets.dedup();
        let ttl = Duration::from_secs(u64::from(ttl));
        if targets.is_empty() { Err(SrvFault::NoService) } else { Ok(SrvAnswer { targets, ttl }) }
    })
}

/// All SRV records of the response, and the smallest TTL. Other records, such as the alias that led
/// there, are skipped.
fn records(message: &[u8], mut at: usize, count: u16) -> Option<(Vec<SrvTarget>, u32)> {
    let mut targets = Vec::new();
    let mut ttl_least = u32::MAX;
    for _ in 0..count {
        at = after_name(message, at)?;
        let kind = message.get(at..at + 4)?;
        let ttl = u32::from_be_bytes(message.get(at + 4..at + 8)?.try_into().ok()?);
        let bytes = u16_at(message, at + 8)?;
        let data = at + 10;
        let end = data + usize::from(bytes);
        message.get(data..end)?;
        if kind == SRV_IN {
            let port = u16_at(message, data + 4)?;
            let (host, after) = name(message, data + 6)?;
            if after != end {
                return None;
            }
            // RFC 2181: the highest bit means 0.
            ttl_least = ttl_least.min(if ttl >> 31 == 0 { ttl } else { 0 });
            // A single root target means that the service is unavailable.
            if port > 0 && !host.is_empty() {
                // The host has the rule of a URL's: `10.0.0.256` is neither a name nor an address.
                WorkerUrl::parse(&format!("http://{host}:{port}")).ok()?;
                targets.push(SrvTarget { host, port });
            }
        }
        at = end;
    }
    Some((targets, ttl_least))
}

fn u16_at(message: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(message.get(at..at + 2)?.try_into().ok()?))
}

/// The offset after a name.
fn after_name(message: &[u8], mut at: usize) -> Option<usize> {
    loop {
        match *message.get(at)? {
            0 => return Some(at + 1),
            length if length & POINTER == POINTER => return Some(at + 2),
            length if usize::from(length) <= LABEL_BYTES_MAX => at += 1 + usize::from(length),
            _ => return None,
        }
    }
}

/// Reads a name, and the offset after it. Each pointer must lead backwards, so the walk ends.
fn name(message: &[u8], start: usize) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut at = start;
    let mut least = start;
    let end = after_name(message, start)?;
    loop {
        let length = *message.get(at)?;
        if length == 0 {
            text.pop();
            return (text.len() <= NAME_BYTES_MAX).then_some((text, end));
        }
        if length & POINTER == POINTER {
            at = usize::from(u16_at(message, at)? & 0x3fff);
            if at >= least {
                return None;
            }
            least = at;
            continue;
        }
        let label = message.get(at + 1..at + 1 + usize::from(length))?;
        let is_plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-_".contains(byte);
        if usize::from(length) > LABEL_BYTES_MAX || !label.iter().all(is_plain) {
            return None;
        }
        text.extend(label.iter().map(|byte| char::from(byte.to_ascii_lowercase())));
        text.push('.');
        if text.len() > NAME_BYTES_MAX + 1 {
            return None;
        }
        at += 1 + usize::from(length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ID: u16 = 0x1234;

    fn asked() -> Vec<u8> {
        question(ID, "_http._tcp.Engines.example").unwrap()
    }

    /// An answer with these records, whose owner is a pointer to the question.
    fn answered(records: &[(u32, u16, &[u8])]) -> Vec<u8> {
        let mut message = asked();
        message[2] = 0x81;
        message[3] = 0x80;
        message[7] = u8::try_from(records.len()).unwrap();
        for (ttl, port, target) in records {
            message.extend([0xc0, 12]);
            message.extend(SRV_IN);
            message.extend(ttl.to_be_bytes());
            message.extend(u16::try_from(6 + target.len()).unwrap().to_be_bytes());
            message.extend([0, 1, 0, 2]);
            message.extend(port.to_be_bytes());
            message.extend(*target);
        }
        message
    }

    fn of(host: &str, port: u16) -> SrvTarget {
        SrvTarget { host: host.to_owned(), port }
    }

    #[test]
    fn targets_come_sorted_with_the_least_ttl_and_compressed_names() {
        // The second name ends in the question: `engines.example` stands at 12 + 6 + 5.
        let message = answered(&[
            (60, 8001, b"\x01B\x07example\x00"),
            (5, 8000, b"\x01a\xc0\x17"),
            (60, 8001, b"\x01b\x07Example\x00"),
            (60, 0, b"\x01c\x00"),
            (60, 1, b"\x00"),
        ]);
        let said = answer(&asked(), &message).unwrap();
        assert_eq!(said.targets, [of("a.engines.example", 8000), of("b.example", 8001)]);
        assert_eq!(said.ttl, Duration::from_secs(5));
        let large = answered(&[(1 << 31, 1, b"\x01a\x00")]);
        assert_eq!(answer(&asked(), &large).unwrap().ttl, Duration::ZERO);
    }

    #[test]
    fn what_is_no_answer_is_a_fault() {
        let good = answered(&[(1, 1, b"\x01a\x00")]);
        let with = |at: usize, byte: u8| {
            let mut message = good.clone();
            message[at] = byte;
            answer(&asked(), &message).unwrap_err()
        };
        assert_eq!(with(0, 0), SrvFault::Foreign);
        assert_eq!(with(2, 0x01), SrvFault::Foreign, "a question");
        assert_eq!(with(2, 0x83), SrvFault::Truncated);
        assert_eq!(with(3, 0x83), SrvFault::NoSuchName);
        assert_eq!(with(3, 0x82), SrvFault::Refused(2));
        assert_eq!(with(15, b'x'), SrvFault::Foreign, "another name");
        assert_eq!(with(7, 2), SrvFault::Broken, "a record is missing");
        assert_eq!(answer(&asked(), &answered(&[])), Err(SrvFault::NoService));
        assert_eq!(answer(&asked(), &answered(&[(1, 1, b"\x00")])), Err(SrvFault::NoService));
        for target in [
            &b"\x01a\xc0\x2d"[..],
            b"\xc0\x2b",
            b"\x01/\x00",
            b"\x01a",
            b"\x40a\x00",
            b"\x01a\x0210\x00",
        ] {
            let broken = answered(&[(1, 1, target)]);
            assert_eq!(answer(&asked(), &broken), Err(SrvFault::Broken), "{target:x?}");
        }
        for name in ["", "_a..b", &"x".repeat(64), &"a.".repeat(200)] {
            assert_eq!(question(1, name), Err(SrvFault::Name(name.to_owned())));
        }
    }

    proptest! {
        #[test]
        fn no_bytes_are_too_odd(rest in proptest::collection::vec(any::<u8>(), 0..200),
            cut in 0..300_usize, flip in any::<(usize, u8)>()) {
            let mut message = answered(&[(9, 7, b"\x01a\xc0\x17"), (8, 6, &rest)]);
            let place = flip.0 % message.len();
            message[place] = flip.1;
            message.truncate(cut);
            if let Ok(said) = answer(&asked(), &message) {
                prop_assert!(!said.targets.is_empty());
                for target in said.targets {
                    let url = format!("http://{}:{}", target.host, target.port);
                    prop_assert!(WorkerUrl::parse(&url).is_ok(), "{url}");
                }
            }
        }
    }
}
