//! What all shards hold clients to.

use super::{AddressCounts, AddressPlace, TrustedNets};
use std::net::IpAddr;
use std::sync::Arc;

/// Whom the router believes, and how many connections an address may have.
#[derive(Debug, Default)]
pub struct ClientRules {
    /// Proxies that speak for their clients.
    pub trusted: TrustedNets,
    addresses: Option<Arc<AddressCounts>>,
}

impl ClientRules {
    /// `per_address_max`: connections of one address, 0 for no limit. `seed`: a secret.
    #[must_use]
    pub fn new(trusted: TrustedNets, per_address_max: u32, seed: u64) -> Self {
        let counts = || Arc::new(AddressCounts::new(per_address_max, seed));
        Self { trusted, addresses: (per_address_max > 0).then(counts) }
    }

    /// True where connections of one address are counted.
    #[must_use]
    pub const fn counts_addresses(&self) -> bool {
        self.addresses.is_some()
    }

    /// A place for a connection of this address, where these are counted.
    ///
    /// # Errors
    /// [`TooManyConnections`] when the address has as many as it may.
    pub fn take(&self, address: IpAddr) -> Result<Option<AddressPlace>, TooManyConnections> {
        let Some(addresses) = &self.addresses else { return Ok(None) };
        addresses.take(address).map(Some).ok_or(TooManyConnections)
    }
}

/// An address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;
