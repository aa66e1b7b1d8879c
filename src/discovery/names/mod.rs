//! Names of workers: addresses, and SRV records.

pub(crate) mod followed_name;
pub(crate) mod lookup;
pub(crate) mod named_workers;
pub(crate) mod resolver;
pub(crate) mod srv;
pub(crate) mod srv_message;
