//! Identifies a worker's engine by its URL, in any spelling. Sans-IO: resolved addresses are
//! arguments.
//!
//! | two workers with the same port and scheme | are |
//! |---|---|
//! | same host, in any spelling | the same engine |
//! | same address, at least one as an IP address or `localhost` | the same engine |
//! | same address, by two names | perhaps the same engine: a gateway may route by name |
//! | over TLS with different certificate names | two engines: the server selects by name |

use super::url::WorkerUrl;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// A host in canonical form.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum EngineHost {
    /// An IP address, in any spelling of IPv6.
    Address(IpAddr),
    /// `localhost` and names below it (RFC 6761): this host, by any loopback address.
    Localhost,
    /// A DNS name, in lower case, without a trailing dot.
    Name(String),
}

/// Address of an engine.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct EngineAddress {
    /// The host that the URL names.
    pub host: EngineHost,
    /// The port of the URL.
    pub port: u16,
    /// TLS, with the certificate's name if it differs from the host.
    tls: Option<Option<String>>,
}

/// Likelihood that two workers share an engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EngineLikeness {
    /// Two engines, as far as addresses show.
    Two,
    /// Two names for the same address and port.
    Perhaps,
    /// The same engine, in two spellings.
    One,
}

impl EngineHost {
    /// From the host of a URL, without brackets.
    #[must_use]
    pub fn of(host: &str) -> Self {
        let name = host.strip_suffix('.').unwrap_or(host).to_ascii_lowercase();
        match name.parse() {
            Ok(address) => Self::Address(canonical(address)),
            Err(_) if name == "localhost" || name.ends_with(".localhost") => Self::Localhost,
            Err(_) => Self::Name(name),
        }
    }

    /// The IP address, if the host is written as an address.
    #[must_use]
    pub const fn address(&self) -> Option<IpAddr> {
        match self {
            Self::Address(address) => Some(*address),
            Self::Localhost | Self::Name(_) => None,
        }
    }

    /// True if both are the same host without a look-up.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Address(address), Self::Localhost)
            | (Self::Localhost, Self::Address(address)) => {
                *address == Ipv4Addr::LOCALHOST || *address == Ipv6Addr::LOCALHOST
            }
            _ => self == other,
        }
    }

    const fn is_name(&self) -> bool {
        matches!(self, Self::Name(_))
    }
}

impl EngineAddress {
    /// `tls_name`: the certificate's name, if it differs from the host.
    #[must_use]
    pub fn of(url: &WorkerUrl, tls_name: Option<&str>) -> Self {
        let tls_name = || tls_name.map(str::to_ascii_lowercase);
        Self { host: EngineHost::of(&url.host), port: url.port, tls: url.is_tls.then(tls_name) }
    }

    /// Compares two workers. `addresses`: last resolved addresses of their hosts.
    #[must_use]
    pub fn likeness(&self, other: &Self, addresses: [Option<SocketAddr>; 2]) -> EngineLikeness {
        if self.port != other.port || self.tls.is_some() != other.tls.is_some() {
            return EngineLikeness::Two;
        }
        if self.certified() != other.certified() {
            return EngineLikeness::Two;
        }
        if self.host.is_same(&other.host) {
            return EngineLikeness::One;
        }
        let [one, two] = addresses;
        let one = one.map(|at| canonical(at.ip())).or(self.host.address());
        let two = two.map(|at| canonical(at.ip())).or(other.host.address());
        match one.zip(two) {
            Some((one, two)) if one == two => {}
            _ => return EngineLikeness::Two,
        }
        let are_names = self.host.is_name() && other.host.is_name();
        if are_names { EngineLikeness::Perhaps } else { EngineLikeness::One }
    }

    /// The name that the certificate must have, if it is a DNS name.
    fn certified(&self) -> Option<&str> {
        let host = match &self.host {
            EngineHost::Name(name) => Some(&**name),
            EngineHost::Address(_) | EngineHost::Localhost => None,
        };
        self.tls.as_ref()?.as_deref().or(host)
    }
}

/// Unwraps IPv4-mapped addresses. The unspecified address connects to this host.
fn canonical(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V4(Ipv4Addr::UNSPECIFIED) => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(Ipv6Addr::UNSPECIFIED) => Ipv6Addr::LOCALHOST.into(),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn place(url: &str) -> EngineAddress {
        EngineAddress::of(&WorkerUrl::parse(url).unwrap(), None)
    }

    fn likeness(one: &str, two: &str, at: [Option<&str>; 2]) -> EngineLikeness {
        let at = at.map(|at| at.map(|at| at.parse().unwrap()));
        let [back, forth] = [at, [at[1], at[0]]];
        let there = place(one).likeness(&place(two), back);
        assert_eq!(there, place(two).likeness(&place(one), forth), "{one} {two}: either way");
        there
    }

    #[test]
    fn spellings_of_one_host_are_one_engine() {
        for (one, two) in [
            ("http://127.0.0.1:8000", "http://localhost:8000"),
            ("http://[::1]:8000", "http://localhost:8000"),
            ("http://[::1]:8000", "http://[0:0:0:0:0:0:0:1]:8000"),
            ("http://127.0.0.1:8000", "http://[::ffff:127.0.0.1]:8000"),
            ("http://127.0.0.1:8000", "http://[::ffff:7f00:1]:8000"),
            ("http://127.0.0.1:8000", "http://0.0.0.0:8000"),
            ("http://LocalHost:8000", "http://localhost.:8000"),
            ("http://127.0.0.1:8000", "http://a.localhost:8000"),
            ("http://GPU-1.example:80", "http://gpu-1.example."),
            ("https://gpu-1", "https://gpu-1:443"),
        ] {
            assert_eq!(likeness(one, two, [None, None]), EngineLikeness::One, "{one} {two}");
        }
    }

    #[test]
    fn unlike_places_are_two_engines() {
        for (one, two) in [
            ("http://127.0.0.1:8000", "http://127.0.0.1:8001"),
            ("http://127.0.0.1:8000", "http://127.0.0.2:8000"),
            ("http://127.0.0.2:8000", "http://localhost:8000"),
            ("http://127.0.0.1:8000", "https://127.0.0.1:8000"),
            ("http://a", "http://b"),
        ] {
            assert_eq!(likeness(one, two, [None, None]), EngineLikeness::Two, "{one} {two}");
        }
    }

    #[test]
    fn addresses_count_once_they_are_known_and_names_may_be_virtual_hosts() {
        let x = Some("10.0.0.1:80");
        let y = Some("10.0.0.2:80");
        let of = |one, two, at| likeness(one, two, at);
        assert_eq!(of("http://a", "http://10.0.0.1", [x, None]), EngineLikeness::One);
        assert_eq!(of("http://a", "http://10.0.0.1", [y, None]), EngineLikeness::Two);
        assert_eq!(of("http://a", "http://10.0.0.1", [None, x]), EngineLikeness::Two);
        assert_eq!(of("http://a", "http://b", [x, x]), EngineLikeness::Perhaps);
        assert_eq!(of("http://a", "http://b", [x, y]), EngineLikeness::Two);
        let mapped = Some("[::ffff:10.0.0.1]:80");
        assert_eq!(of("http://a", "http://b", [x, mapped]), EngineLikeness::Perhaps);
        assert_eq!(of("https://a", "https://b", [x, x]), EngineLikeness::Two, "SNI");
        assert_eq!(of("https://a", "https://10.0.0.1", [x, None]), EngineLikeness::Two, "SNI");
        let url = WorkerUrl::parse("https://10.0.0.1:80").unwrap();
        let [named, other] = ["gpu", "GPU"].map(|name| EngineAddress::of(&url, Some(name)));
        assert_eq!(named.likeness(&other, [None, None]), EngineLikeness::One);
        let plain = EngineAddress::of(&url, None);
        assert_eq!(plain.likeness(&named, [None, None]), EngineLikeness::Two);
    }

    proptest! {
        #[test]
        fn forms_of_an_address_are_that_address(bits: u32) {
            let address = Ipv4Addr::from(bits);
            let mapped = address.to_ipv6_mapped();
            let [.., high, low] = mapped.segments();
            let forms = [
                address.to_string(),
                mapped.to_string(),
                format!("::ffff:{high:x}:{low:x}"),
                format!("0:0:0:0:0:FFFF:{high:04X}:{low:04X}"),
            ];
            for form in forms {
                let host = EngineHost::of(&form);
                prop_assert_eq!(host, EngineHost::Address(canonical(address.into())), "{}", form);
            }
        }

        #[test]
        fn never_panics(text in "[0-9a-fx.:]{0,40}") {
            let _ = EngineHost::of(&text);
        }
    }
}
