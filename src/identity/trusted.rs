//! Addresses of trusted proxies.

use forebay_base::limits::TRUSTED_NETS_MAX;
use ipnet::{IpNet, Ipv4Net};
use std::net::IpAddr;

/// Proxies that are trusted to name their clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TrustedNets(Vec<IpNet>);

impl TrustedNets {
    /// From addresses and networks such as `10.0.0.0/8`.
    ///
    /// # Errors
    /// The faulty entry and its fault, as text.
    pub fn parse<'t>(entries: impl IntoIterator<Item = &'t str>) -> Result<Self, String> {
        let nets: Vec<IpNet> = entries.into_iter().map(net).collect::<Result<_, _>>()?;
        if nets.len() > TRUSTED_NETS_MAX {
            return Err(format!("{} entries, more than {TRUSTED_NETS_MAX}", nets.len()));
        }
        Ok(Self(nets))
    }

    /// True if this address is a trusted proxy. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn holds(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.0.iter().any(|net| net.contains(&address))
    }

    /// True if all addresses of a family are trusted.
    #[must_use]
    pub fn is_everybody(&self) -> bool {
        self.0.iter().any(|net| net.prefix_len() == 0)
    }

    /// True if no proxy is trusted.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

fn net(entry: &str) -> Result<IpNet, String> {
    if let Ok(address) = entry.parse::<IpAddr>() {
        return Ok(IpNet::from(address.to_canonical()));
    }
    let net: IpNet = entry
        .parse()
        .map_err(|_| format!("{entry:?} is no address and no network like 10.0.0.0/8"))?;
    // A network with host bits set is most likely a mistake.
    if net.trunc() != net {
        return Err(format!(
            "{entry:?} names a host in a network; write {} or the host",
            net.trunc()
        ));
    }
    Ok(plain(net))
}

/// Converts a network of IPv4-mapped addresses to IPv4.
fn plain(net: IpNet) -> IpNet {
    const MAPPED_BITS: u8 = 96;
    let IpNet::V6(mapped) = net else { return net };
    let address = mapped.network().to_ipv4_mapped();
    let bits = mapped.prefix_len();
    let plain = address.zip(bits.checked_sub(MAPPED_BITS));
    plain.and_then(|(address, bits)| Ipv4Net::new(address, bits).ok()).map_or(net, IpNet::V4)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nets(entries: &[&str]) -> TrustedNets {
        TrustedNets::parse(entries.iter().copied()).unwrap()
    }

    #[test]
    fn networks_and_addresses_hold_what_is_in_them() {
        let trusted =
            nets(&["10.0.0.0/8", "192.0.2.7", "2001:db8::/32", "::1", "::ffff:198.51.100.1"]);
        let mapped = nets(&["::ffff:10.0.0.0/104"]);
        for (address, is_in) in [("10.1.2.3", true), ("::ffff:10.9.9.9", true), ("11.0.0.1", false)]
        {
            assert_eq!(mapped.holds(address.parse().unwrap()), is_in, "{address}");
        }
        let holds = |address: &str| trusted.holds(address.parse().unwrap());
        for inside in
            ["10.255.0.1", "192.0.2.7", "2001:db8::9", "::1", "::ffff:10.0.0.1", "198.51.100.1"]
        {
            assert!(holds(inside), "{inside}");
        }
        for outside in ["11.0.0.1", "192.0.2.8", "2001:db9::1", "::2", "::ffff:11.0.0.1"] {
            assert!(!holds(outside), "{outside}");
        }
        assert!(TrustedNets::default().is_empty() && !trusted.is_empty());
    }

    #[test]
    fn what_is_no_network_is_told() {
        for wrong in ["", "10.0.0.0/33", "ten", "10.0.0", "10.0.0.1/8", "10.0.0.1:80", "::1/129"] {
            assert!(TrustedNets::parse([wrong]).is_err(), "{wrong}");
        }
        let told = TrustedNets::parse(["10.0.0.1/8"]).unwrap_err();
        assert!(told.contains("10.0.0.0/8"), "{told}");
        let many: Vec<String> = (0..257).map(|n| format!("10.0.{}.{}", n / 250, n % 250)).collect();
        assert!(TrustedNets::parse(many.iter().map(String::as_str)).is_err());
    }
}
