//! Limit of connections per address, shared by all shards.

use super::{AddressCounts, AddressPlace};
use std::net::IpAddr;
use std::sync::Arc;

/// Connection limit per address.
#[derive(Debug, Default)]
pub struct AddressRules(Option<Arc<AddressCounts>>);

impl AddressRules {
    /// `per_address_max`: connections per address, 0 for no limit. `seed`: a secret.
    #[must_use]
    pub fn new(per_address_max: u32, seed: u64) -> Self {
        let counts = || Arc::new(AddressCounts::new(per_address_max, seed));
        Self((per_address_max > 0).then(counts))
    }

    /// Takes a place for a connection of this address; `None` without a limit. An IPv6 address
    /// counts with its /64.
    ///
    /// # Errors
    /// [`TooManyConnections`] if the address has reached its limit.
    pub fn take(&self, address: IpAddr) -> Result<Option<AddressPlace>, TooManyConnections> {
        let Some(addresses) = &self.0 else { return Ok(None) };
        addresses.take(address).map(Some).ok_or(TooManyConnections)
    }
}

/// The address has reached its limit of connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;
