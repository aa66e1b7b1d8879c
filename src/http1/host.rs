//! `Host` values and authorities: `uri-host [ ":" port ]` of RFC 9110 section 7.2 and RFC 3986
//! section 3.2.2.

use std::net::Ipv6Addr;

/// True for a host with an optional port: a name, an IPv4 address or a bracketed IPv6 address. No
/// user information; no comma either (allowed by RFC 3986, but also what a merger of two `Host`
/// lines leaves).
pub(super) fn is_authority(value: &[u8]) -> bool {
    let (host_is_valid, port) = match value {
        [b'[', rest @ ..] => match rest.iter().position(|byte| *byte == b']') {
            Some(end) => {
                (is_ipv6(rest.get(..end).unwrap_or(&[])), rest.get(end + 1..).unwrap_or(&[]))
            }
            None => return false,
        },
        _ => {
            let end = value.iter().position(|byte| *byte == b':').unwrap_or(value.len());
            (is_name(value.get(..end).unwrap_or(&[])), value.get(end..).unwrap_or(&[]))
        }
    };
    host_is_valid && is_port(port)
}

fn is_ipv6(inner: &[u8]) -> bool {
    std::str::from_utf8(inner).is_ok_and(|text| text.parse::<Ipv6Addr>().is_ok())
}

/// Empty, `:` or `:` and a number up to 65535.
fn is_port(port: &[u8]) -> bool {
    match port {
        [] => true,
        [b':', digits @ ..] => {
            digits.len() <= 5
                && digits.iter().all(u8::is_ascii_digit)
                && digits.iter().fold(0_u32, |port, digit| port * 10 + u32::from(digit - b'0'))
                    <= 65_535
        }
        _ => false,
    }
}

/// A non-empty registered name: unreserved, percent-encoded and sub-delimiters but the comma.
fn is_name(mut name: &[u8]) -> bool {
    if name.is_empty() {
        return false;
    }
    loop {
        name = match name {
            [] => return true,
            [byte, rest @ ..] if stands_in_name(*byte) => rest,
            [b'%', a, b, rest @ ..] if a.is_ascii_hexdigit() && b.is_ascii_hexdigit() => rest,
            _ => return false,
        };
    }
}

/// Unreserved and sub-delimiters but the comma.
const fn stands_in_name(byte: u8) -> bool {
    matches!(byte, b'0'..=b'9' | b'A'..=b'Z' | b'a'..=b'z' | b'-' | b'.' | b'_' | b'~'
        | b'!' | b'$' | b'&' | b'\'' | b'(' | b')' | b'*' | b'+' | b';' | b'=')
}

#[cfg(test)]
mod tests {
    use super::is_authority;

    #[test]
    fn hosts_with_and_without_port() {
        for good in [
            "a",
            "a.b-c_d",
            "example.com:8080",
            "127.0.0.1:80",
            "[::1]",
            "[::1]:8080",
            "a:",
            "0.0.0.0=5000",
            "x%41",
        ] {
            assert!(is_authority(good.as_bytes()), "{good}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for bad in [
            "", ":80", "u@h", "a b", "a,b", "a/b", "a?b", "a:8x", "a:80:81", "a:65536", "a:000080",
            "[::1", "[]", "[::1]x", "[g]", "::1", "%4", "ÿ", "a\\b", "<a>",
        ] {
            assert!(!is_authority(bad.as_bytes()), "{bad}");
        }
    }
}
