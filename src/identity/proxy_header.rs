//! The header of the PROXY protocol, versions 1 and 2: the client's address, which a proxy sends
//! before the client's first byte. Strict: a wrong start is refused at its first wrong byte, a line
//! of version 1 at its end, and anything but a whole header of the specification is a fault.

use forebay_base::limits::PROXY_HEADER_BYTES_MAX;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Prefix of a version 1 line.
const V1_START: &[u8] = b"PROXY ";
/// Longest line of version 1, with its end.
const V1_BYTES_MAX: usize = 107;
/// Signature of a version 2 header.
const V2_START: &[u8] = b"\r\n\r\n\0\r\nQUIT\n";
/// Bytes of version 2 before the addresses.
const V2_FIXED_BYTES: usize = 16;

/// A complete header with its length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Length of the header. The client's own bytes follow.
    pub bytes: usize,
    /// Address of the client. `None`: the proxy's own connection, such as a health check, or a
    /// client without an address.
    pub source: Option<SocketAddr>,
}

/// Reason to refuse a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProxyFault {
    /// The first bytes are not a PROXY header.
    #[error("the connection does not begin with a PROXY header")]
    Missing,
    /// The header begins correctly and is invalid.
    #[error("the PROXY header is malformed")]
    Malformed,
    /// The header is longer than the limit.
    #[error("the PROXY header is too long")]
    TooLong,
}

/// Parses the header at the front of `input`; `None` if more bytes are needed.
///
/// # Errors
/// [`ProxyFault`]; further bytes cannot change it.
pub fn parse_proxy_header(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyFault> {
    if begins(input, V1_START) {
        return line(input);
    }
    if begins(input, V2_START) {
        return binary(input);
    }
    Err(ProxyFault::Missing)
}

/// True if either slice is a prefix of the other.
fn begins(input: &[u8], start: &[u8]) -> bool {
    input.iter().zip(start).all(|(byte, known)| byte == known)
}

/// Version 1: `PROXY TCP4 192.0.2.1 198.51.100.1 56324 443`.
fn line(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyFault> {
    let window = input.get(..V1_BYTES_MAX).unwrap_or(input);
    let end = window.iter().position(|byte| *byte == b'\n');
    let text = window.get(..end.unwrap_or(window.len())).unwrap_or_default();
    let (text, has_return) = match text.split_last() {
        Some((b'\r', before)) => (before, true),
        _ => (text, false),
    };
    if !text.iter().all(|byte| (b' '..=b'~').contains(byte)) {
        return Err(ProxyFault::Malformed);
    }
    match end {
        Some(end) if has_return => {
            let words = text.get(V1_START.len()..).unwrap_or_default();
            let source = source_of_line(words).ok_or(ProxyFault::Malformed)?;
            Ok(Some(ProxyHeader { bytes: end + 1, source }))
        }
        Some(_) => Err(ProxyFault::Malformed),
        None if input.len() >= V1_BYTES_MAX => Err(ProxyFault::TooLong),
        None => Ok(None),
    }
}

/// The outer `None`: malformed.
fn source_of_line(words: &[u8]) -> Option<Option<SocketAddr>> {
    let text = std::str::from_utf8(words).ok()?;
    // Anything after UNKNOWN must be ignored.
    if text == "UNKNOWN" || text.starts_with("UNKNOWN ") {
        return Some(None);
    }
    let mut words = text.split(' ');
    let family = words.next()?;
    let source = words.next()?;
    let target = words.next()?;
    let source_port = port(words.next()?)?;
    port(words.next()?)?;
    let ends = match family {
        "TCP4" => (source.parse().map(IpAddr::V4).ok(), target.parse().map(IpAddr::V4).ok()),
        "TCP6" => (source.parse().map(IpAddr::V6).ok(), target.parse().map(IpAddr::V6).ok()),
        _ => return None,
    };
    let ((Some(source), Some(_)), None) = (ends, words.next()) else { return None };
    Some(Some(SocketAddr::new(source, source_port)))
}

/// A port without leading zeros.
fn port(digits: &str) -> Option<u16> {
    let is_plain = digits == "0" || digits.starts_with(|first: char| ('1'..='9').contains(&first));
    digits.parse().ok().filter(|_| is_plain)
}

/// Version 2: signature, command, family, length, then the addresses and extensions, which are
/// ignored.
fn binary(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyFault> {
    let is_local = match input.get(12) {
        None => return Ok(None),
        Some(0x20) => true,
        Some(0x21) => false,
        Some(_) => return Err(ProxyFault::Malformed),
    };
    let Some(&family) = input.get(13) else { return Ok(None) };
    let Some(&[high, low]) = input.get(14..V2_FIXED_BYTES) else { return Ok(None) };
    let length = usize::from(u16::from_be_bytes([high, low]));
    let bytes = V2_FIXED_BYTES + length;
    // For LOCAL, family and addresses must be ignored.
    let addresses_bytes = match family {
        _ if is_local => 0,
        0x00 => 0,
        0x11 | 0x12 => 12,
        0x21 | 0x22 => 36,
        0x31 | 0x32 => 216,
        _ => return Err(ProxyFault::Malformed),
    };
    if length < addresses_bytes {
        return Err(ProxyFault::Malformed);
    }
    if bytes > PROXY_HEADER_BYTES_MAX {
        return Err(ProxyFault::TooLong);
    }
    if input.len() < bytes {
        return Ok(None);
    }
    let addresses = input.get(V2_FIXED_BYTES..bytes).unwrap_or_default();
    let source = match addresses_bytes {
        12 => source_v4(addresses),
        36 => source_v6(addresses),
        _ => None,
    };
    Ok(Some(ProxyHeader { bytes, source }))
}

/// Order: source, target, port of the source, port of the target.
fn source_v4(addresses: &[u8]) -> Option<SocketAddr> {
    let source: [u8; 4] = addresses.get(..4)?.try_into().ok()?;
    let port: [u8; 2] = addresses.get(8..10)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv4Addr::from(source).into(), u16::from_be_bytes(port)))
}

/// Like `source_v4`, with longer addresses.
fn source_v6(addresses: &[u8]) -> Option<SocketAddr> {
    let source: [u8; 16] = addresses.get(..16)?.try_into().ok()?;
    let port: [u8; 2] = addresses.get(32..34)?.try_into().ok()?;
    Some(SocketAddr::new(Ipv6Addr::from(source).into(), u16::from_be_bytes(port)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(input: &[u8]) -> Result<Option<ProxyHeader>, ProxyFault> {
        // The answer must not depend on bytes that have not arrived.
        let whole = parse_proxy_header(input);
        for end in 0..input.len() {
            let part = parse_proxy_header(&input[..end]);
            assert!(part == Ok(None) || part == whole, "{part:?} of {:?}", &input[..end]);
        }
        whole
    }

    fn source(input: &[u8]) -> String {
        let header = parse(input).unwrap().unwrap();
        assert_eq!(header.bytes, input.len());
        assert_eq!(parse(&[input, b"GET / HTTP/1.1\r\n"].concat()), Ok(Some(header)));
        header.source.map_or_else(|| "none".to_owned(), |source| source.to_string())
    }

    #[test]
    fn lines_of_version_1() {
        for (line, is) in [
            (&b"PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\r\n"[..], Some("192.0.2.1:56324")),
            (b"PROXY TCP6 2001:db8::1 ::1 1 65535\r\n", Some("[2001:db8::1]:1")),
            (b"PROXY TCP4 0.0.0.0 0.0.0.0 0 0\r\n", Some("0.0.0.0:0")),
            (b"PROXY UNKNOWN\r\n", None),
            (b"PROXY UNKNOWN ffff::1 whatever 70000 x\r\n", None),
        ] {
            assert_eq!(source(line), is.unwrap_or("none"), "{}", String::from_utf8_lossy(line));
        }
        let longest = format!("PROXY UNKNOWN {}\r\n", "x".repeat(V1_BYTES_MAX - 16));
        assert_eq!(longest.len(), V1_BYTES_MAX);
        assert_eq!(source(longest.as_bytes()), "none");
    }

    #[test]
    fn what_is_no_line_of_version_1() {
        for wrong in [
            "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 56324\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 56324 443 1\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 056324 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 +5 443\r\n",
            "PROXY TCP4 192.0.2.1 198.51.100.1 65536 443\r\n",
            "PROXY TCP4 192.0.2.01 198.51.100.1 1 443\r\n",
            "PROXY TCP4 ::1 ::1 1 443\r\n",
            "PROXY TCP6 192.0.2.1 192.0.2.1 1 443\r\n",
            "PROXY  TCP4 192.0.2.1 198.51.100.1 1 443\r\n",
            "PROXY UDP4 192.0.2.1 198.51.100.1 1 443\r\n",
            "PROXY UNKNOWNS\r\n",
            "PROXY \r\n",
            "PROXY UNKNOWN\r\r\n",
            "PROXY UNKNOWN \t\r\n",
        ] {
            assert_eq!(parse(wrong.as_bytes()), Err(ProxyFault::Malformed), "{wrong:?}");
        }
        for other in
            ["GET / HTTP/1.1\r\n", "PROXX", "proxy UNKNOWN\r\n", "\r\n\r\nGET", "\x16\x03\x01"]
        {
            assert_eq!(parse(other.as_bytes()), Err(ProxyFault::Missing), "{other:?}");
        }
        let endless = format!("PROXY UNKNOWN {}", "x".repeat(200));
        assert_eq!(parse(endless.as_bytes()), Err(ProxyFault::TooLong));
    }

    fn v2(command: u8, family: u8, addresses: &[u8]) -> Vec<u8> {
        let length = u16::try_from(addresses.len()).unwrap().to_be_bytes();
        [V2_START, &[command, family], &length, addresses].concat()
    }

    #[test]
    fn headers_of_version_2() {
        let v4 = [192, 0, 2, 1, 198, 51, 100, 1, 0xdc, 4, 1, 0xbb];
        let mut v6 = [0; 36];
        v6[..4].copy_from_slice(&[0x20, 1, 0xd, 0xb8]);
        v6[33] = 9;
        let with_tlv = [&v4[..], &[3, 0, 4, 1, 2, 3, 4]].concat();
        for (header, is) in [
            (v2(0x21, 0x11, &v4), Some("192.0.2.1:56324")),
            (v2(0x21, 0x11, &with_tlv), Some("192.0.2.1:56324")),
            (v2(0x21, 0x21, &v6), Some("[2001:db8::]:9")),
            (v2(0x21, 0x31, &[b'/'; 216]), None),
            (v2(0x21, 0x00, &[]), None),
            (v2(0x21, 0x00, &[1, 2, 3]), None),
            (v2(0x20, 0x00, &[]), None),
            (v2(0x20, 0x11, &v4), None),
            (v2(0x20, 0xff, &[7; 5]), None),
        ] {
            assert_eq!(source(&header), is.unwrap_or("none"), "{header:?}");
        }
    }

    #[test]
    fn what_is_no_header_of_version_2() {
        for wrong in [
            v2(0x11, 0x11, &[0; 12]),
            v2(0x22, 0x11, &[0; 12]),
            v2(0x21, 0x11, &[0; 11]),
            v2(0x21, 0x21, &[0; 35]),
            v2(0x21, 0x31, &[0; 215]),
            v2(0x21, 0x13, &[0; 12]),
            v2(0x21, 0x41, &[0; 12]),
        ] {
            assert_eq!(parse(&wrong), Err(ProxyFault::Malformed), "{wrong:?}");
        }
        let long = v2(0x21, 0x11, &[0; PROXY_HEADER_BYTES_MAX]);
        assert_eq!(parse(&long), Err(ProxyFault::TooLong));
    }
}
