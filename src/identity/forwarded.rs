//! `X-Forwarded-For` and `Forwarded`: finds the client behind proxies, and prepares both fields for
//! workers.

use super::TrustedNets;
use forebay_base::limits::FORWARDED_HOPS_MAX;
use std::io::Write;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

/// Handling of both fields in requests to workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ForwardMode {
    /// Keeps the client's fields, and appends the connected address.
    Append,
    /// Sends only the client's address, and drops the client's fields.
    Replace,
}

/// Values of both fields for a worker. Reused from request to request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ForwardedFields {
    /// `X-Forwarded-For`; empty if not sent.
    pub x_forwarded_for: Vec<u8>,
    /// `Forwarded` of RFC 7239; empty if not sent.
    pub forwarded: Vec<u8>,
    /// The client's `X-Real-IP` is dropped too.
    pub is_only: bool,
}

impl ForwardedFields {
    /// Clears the values of the previous request.
    pub fn clear(&mut self) {
        self.x_forwarded_for.clear();
        self.forwarded.clear();
        self.is_only = false;
    }

    /// Appends a value of the client's `X-Forwarded-For`.
    pub fn keep_x_forwarded_for(&mut self, value: &[u8]) {
        join(value, &mut self.x_forwarded_for);
    }

    /// Appends a value of the client's `Forwarded`. A value with an open quote is dropped: a reader
    /// would take the router's member for a part of it.
    pub fn keep_forwarded(&mut self, value: &[u8]) {
        if is_closed(value) {
            join(value, &mut self.forwarded);
        }
    }

    /// Appends this address to both fields.
    pub fn say(&mut self, address: IpAddr) {
        let address = address.to_canonical();
        join(b"", &mut self.x_forwarded_for);
        join(b"", &mut self.forwarded);
        // Writing to a vector cannot fail.
        let _ = write!(self.x_forwarded_for, "{address}");
        let _ = match address {
            IpAddr::V4(address) => write!(self.forwarded, "for={address}"),
            IpAddr::V6(address) => write!(self.forwarded, "for=\"[{address}]\""),
        };
    }
}

/// True if every quote is closed. A backslash escapes the next byte.
fn is_closed(value: &[u8]) -> bool {
    let mut is_quoted = false;
    let mut is_escaped = false;
    for byte in value {
        match byte {
            _ if is_escaped => is_escaped = false,
            b'\\' if is_quoted => is_escaped = true,
            b'"' => is_quoted = !is_quoted,
            _ => {}
        }
    }
    !is_quoted
}

/// Appends a member to a list of members.
fn join(member: &[u8], list: &mut Vec<u8>) {
    if !list.is_empty() && !list.ends_with(b", ") {
        list.extend_from_slice(b", ");
    }
    list.extend_from_slice(member);
}

/// The client behind `from`, by the values of `X-Forwarded-For` in order: the last untrusted
/// address. A proxy with an unreadable value counts as the client itself.
pub fn client_of<'v>(
    from: IpAddr,
    values: impl DoubleEndedIterator<Item = &'v [u8]>,
    trusted: &TrustedNets,
) -> IpAddr {
    let mut client = from.to_canonical();
    let hops = values.rev().flat_map(|value| value.rsplit(|byte| *byte == b','));
    for hop in hops.take(FORWARDED_HOPS_MAX) {
        if !trusted.holds(client) {
            break;
        }
        let Some(address) = address_of(hop) else { break };
        client = address;
    }
    client
}

/// Parses `192.0.2.1`, `192.0.2.1:80`, `2001:db8::1` or `[2001:db8::1]:80`.
fn address_of(hop: &[u8]) -> Option<IpAddr> {
    let hop = std::str::from_utf8(hop.trim_ascii()).ok()?;
    let bracketed = || hop.strip_prefix('[')?.strip_suffix(']')?.parse::<Ipv6Addr>().ok();
    let address = hop
        .parse::<IpAddr>()
        .ok()
        .or_else(|| hop.parse::<SocketAddr>().ok().map(|address| address.ip()))
        .or_else(|| bracketed().map(IpAddr::V6))?;
    Some(address.to_canonical())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_client_takes_what_follows_into_its_quotes() {
        for (sent, is_kept) in [
            ("for=192.0.2.1", true),
            (r#"for="[2001:db8::1]""#, true),
            (r#"for="a\"b""#, true),
            (r#"for="a"#, false),
            (r#"for="a\""#, false),
            (r#"for="a";by=""#, false),
        ] {
            let mut fields = ForwardedFields::default();
            fields.keep_forwarded(sent.as_bytes());
            fields.say([10, 0, 0, 1].into());
            let told =
                if is_kept { format!("{sent}, for=10.0.0.1") } else { "for=10.0.0.1".into() };
            assert_eq!(String::from_utf8(fields.forwarded).unwrap(), told);
        }
    }

    fn client(from: &str, values: &[&str]) -> String {
        let trusted = TrustedNets::parse(["10.0.0.0/8", "fd00::/8"]).unwrap();
        let values = values.iter().map(|value| value.as_bytes());
        client_of(from.parse().unwrap(), values, &trusted).to_string()
    }

    #[test]
    fn the_client_is_the_last_address_that_nobody_trusts() {
        for (from, values, is) in [
            // Whoever is not trusted is the client, whatever it says.
            ("192.0.2.9", &["203.0.113.5"][..], "192.0.2.9"),
            ("10.0.0.1", &["203.0.113.5"], "203.0.113.5"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.5"], "203.0.113.5"),
            ("10.0.0.1", &["1.1.1.1, 203.0.113.5, 10.9.9.9"], "203.0.113.5"),
            ("10.0.0.1", &["1.1.1.1", "203.0.113.5,10.9.9.9", "10.1.1.1"], "203.0.113.5"),
            // All of them are trusted: the farthest.
            ("10.0.0.1", &["10.0.0.3, 10.0.0.2"], "10.0.0.3"),
            ("10.0.0.1", &[], "10.0.0.1"),
            ("10.0.0.1", &["unknown"], "10.0.0.1"),
            ("10.0.0.1", &["203.0.113.5, _hidden, 10.0.0.2"], "10.0.0.2"),
            ("10.0.0.1", &[""], "10.0.0.1"),
            ("fd00::1", &["[2001:db8::1]:80"], "2001:db8::1"),
            ("fd00::1", &["[2001:db8::1]"], "2001:db8::1"),
            ("10.0.0.1", &["203.0.113.5:4711"], "203.0.113.5"),
            ("::ffff:10.0.0.1", &["::ffff:203.0.113.5"], "203.0.113.5"),
        ] {
            assert_eq!(client(from, values), is, "{from} {values:?}");
        }
        let endless = "10.0.0.2,".repeat(1_000) + "10.0.0.2";
        assert_eq!(client("10.0.0.1", &["203.0.113.5", &endless]), "10.0.0.2", "hops have a limit");
    }

    #[test]
    fn workers_are_told_in_both_forms() {
        let mut fields = ForwardedFields::default();
        fields.say("192.0.2.1".parse().unwrap());
        assert_eq!(fields.x_forwarded_for, b"192.0.2.1");
        assert_eq!(fields.forwarded, b"for=192.0.2.1");
        fields.clear();
        fields.keep_x_forwarded_for(b"1.1.1.1");
        fields.keep_x_forwarded_for(b"2.2.2.2, 3.3.3.3");
        fields.keep_forwarded(b"for=1.1.1.1;proto=http");
        fields.say("2001:db8::1".parse().unwrap());
        assert_eq!(fields.x_forwarded_for, b"1.1.1.1, 2.2.2.2, 3.3.3.3, 2001:db8::1");
        assert_eq!(fields.forwarded, b"for=1.1.1.1;proto=http, for=\"[2001:db8::1]\"");
    }
}
