//! What all shards hold clients to.

use super::{AddressCounts, AddressPlace};
use std::net::IpAddr;
use std::sync::Arc;

/// How many connections an address may have.
#[derive(Debug, Default)]
pub struct AddressRules(Option<Arc<AddressCounts>>);

impl AddressRules {
    /// `per_address_max`: connections of one address, 0 for no limit. `seed`: a secret.
    #[must_use]
    pub fn new(per_address_max: u32, seed: u64) -> Self {
        let counts = || Arc::new(AddressCounts::new(per_address_max, seed));
        Self((per_address_max > 0).then(counts))
    }

    /// A place for a connection of this address, where these are counted.
    ///
    /// # Errors
    /// [`TooManyConnections`] when the address has as many as it may.
    pub fn take(&self, address: IpAddr) -> Result<Option<AddressPlace>, TooManyConnections> {
        let Some(addresses) = &self.0 else { return Ok(None) };
        addresses.take(address).map(Some).ok_or(TooManyConnections)
    }
}

/// An address has as many connections as it may.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooManyConnections;
