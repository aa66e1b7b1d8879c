//! The rule of hosts, for each key that names a host: an address, or a name that DNS can hold.
//!
//! No top-level domain is a number, so a host with a number as its last label is meant as an IPv4
//! address (WHATWG URL has the same rule). Resolvers look up `10.0.0.256` as a name, and read
//! `010.0.0.1` as 8.0.0.1: only four decimal numbers have a single meaning.

use std::net::{Ipv4Addr, Ipv6Addr};
use thiserror::Error;

/// Longest label and longest name of DNS (RFC 1035).
const LABEL_BYTES_MAX: usize = 63;
const NAME_BYTES_MAX: usize = 253;

/// Reason why a text is no host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum HostFault {
    /// The host is empty, or DNS cannot hold the name.
    #[error("the host is missing, or is no name or address that a host can have")]
    Name,
    /// The last label is a number, and the host is no IPv4 address.
    #[error("the host ends in a number, and is no IPv4 address: four numbers from 0 to 255")]
    Ipv4,
}

impl HostFault {
    /// Advice. `form`: how the key is written.
    #[must_use]
    pub(crate) const fn help(self, form: &'static str) -> &'static str {
        match self {
            Self::Name => form,
            Self::Ipv4 => "correct the address, and write its numbers without leading zeros",
        }
    }
}

/// Checks a host of a key or an endpoint; an IPv6 address may have brackets.
///
/// # Errors
/// [`HostFault`].
pub(crate) fn check_bracketed_host(host: &str) -> Result<(), HostFault> {
    match host.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) {
        Some(bare) if bare.contains(':') => check_host(bare),
        Some(_) => Err(HostFault::Name),
        None => check_host(host),
    }
}

/// Checks a host without brackets.
///
/// # Errors
/// [`HostFault`].
pub(crate) fn check_host(host: &str) -> Result<(), HostFault> {
    if host.contains(':') {
        return host.parse::<Ipv6Addr>().map(drop).map_err(|_| HostFault::Name);
    }
    let name = host.strip_suffix('.').unwrap_or(host);
    if is_number(name.rsplit('.').next().unwrap_or_default()) {
        return host.parse::<Ipv4Addr>().map(drop).map_err(|_| HostFault::Ipv4);
    }
    let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_".contains(&byte);
    let is_label =
        |label: &str| (1..=LABEL_BYTES_MAX).contains(&label.len()) && label.bytes().all(is_allowed);
    let is_name = name.len() <= NAME_BYTES_MAX && name.split('.').all(is_label);
    if is_name { Ok(()) } else { Err(HostFault::Name) }
}

/// Is a label a number, in decimal, octal or hexadecimal?
fn is_number(label: &str) -> bool {
    let hexadecimal = label.strip_prefix("0x").or_else(|| label.strip_prefix("0X"));
    match hexadecimal {
        Some(digits) => digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
        None => !label.is_empty() && label.bytes().all(|byte| byte.is_ascii_digit()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::checks::test_findings::findings;
    use proptest::prelude::*;

    /// Issue 39: the router looked a mistyped address up as a name, and read 010.0.0.1 as 8.0.0.1.
    #[test]
    fn a_host_that_ends_in_a_number_is_an_address() {
        for host in [
            "10.0.0.256",
            "10.0.0",
            "10.0.0.1.1",
            "010.0.0.1",
            "0x7f.1",
            "2130706433",
            "0x7f000001",
            "127.0.0.08",
            "127.0.0.1.",
            "gpu.1",
            "1..1",
            "a.0x",
            "0X1F",
        ] {
            assert_eq!(check_host(host), Err(HostFault::Ipv4), "{host}");
        }
        let long = format!("{}.example", "a".repeat(64));
        for host in ["", ".", "a..b", ".a", "a b", "a/b", "[::1]", ":::", "1::2::3", &*long] {
            assert_eq!(check_host(host), Err(HostFault::Name), "{host}");
        }
        for host in [
            "10.0.0.25",
            "0.0.0.0",
            "::1",
            "::ffff:10.0.0.1",
            "gpu-1.example.",
            "gpu_1",
            "1a",
            "10.0.0.1.nip.io",
            "0xg",
            "x1",
            "_http._tcp.engines",
            "a-",
        ] {
            assert_eq!(check_host(host), Ok(()), "{host}");
        }
    }

    /// Each key that names a host has the rule, with its own line.
    #[test]
    fn each_key_with_a_host_has_the_rule() {
        for (line, text) in [
            (2, "[[worker]]\nurl = \"http://10.0.0.256:8000\""),
            (3, "[[worker]]\nurl = \"http://b:1\"\nkv_events = \"tcp://10.0.0.256:5557\""),
            (3, "[[worker]]\nurl = \"http://b:1\"\nreplay = \"tcp://10.0.0.256:5557\""),
            (3, "[[worker]]\nurl = \"http://b:1\"\nbootstrap_host = \"10.0.0.256\""),
            (3, "[[worker]]\nurl = \"http://b:1\"\nkv_host = \"10.0.0.256\""),
            (2, "[discovery]\ndns = \"http://10.0.0.256:8000\""),
            (2, "[nats]\nurl = \"nats://10.0.0.256:4222\""),
            (2, "[replicas]\npeers = \"http://10.0.0.256:9090\""),
            (2, "[traces]\nendpoint = \"http://10.0.0.256:4318\""),
            (2, "[jwt]\njwks = \"https://10.0.0.256/keys\"\nissuer = \"i\"\naudience = \"a\""),
        ] {
            let found = findings(text);
            let of_host = |found: &&String| {
                found.starts_with(&format!("forebay.toml:{line}:"))
                    && found.contains("error: ")
                    && found.contains("the host ends in a number, and is no IPv4 address")
                    && found.ends_with("without leading zeros")
            };
            assert_eq!(found.iter().filter(of_host).count(), 1, "{text}\n{found:?}");
        }
    }

    proptest! {
        /// A host of digits and dots is the address that each reader sees, or a fault.
        #[test]
        fn a_host_without_letters_is_an_address_or_a_fault(host in "[0-9.]{1,20}") {
            if check_host(&host).is_ok() {
                prop_assert_eq!(host.parse::<Ipv4Addr>().unwrap().to_string(), host);
            }
        }

        #[test]
        fn never_panics(host in "\\PC*") {
            let _ = check_host(&host);
        }
    }
}
