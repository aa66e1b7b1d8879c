//! Who a client is, sans-IO: which addresses speak for others ([`TrustedNets`]), what they say
//! (PROXY headers, `X-Forwarded-For`), what workers are told of it ([`ForwardedFields`]), how many
//! connections one address has ([`AddressCounts`]), and which pages may read answers ([`Cors`]).
//!
//! Limits: `PROXY_HEADER_BYTES_MAX`, `FORWARDED_HOPS_MAX`, `TRUSTED_NETS_MAX`, `ORIGINS_MAX`.
//! Whoever is not trusted speaks for nobody but itself.

mod cors;
mod forwarded;
mod per_address;
mod proxy_header;
mod rules;
mod trusted;

pub use cors::{AnswerField, Cors, CorsFields, CorsPolicy, Preflight, origin_fault};
pub use forwarded::{ForwardMode, ForwardedFields, client_of};
pub use per_address::{AddressCounts, AddressPlace};
pub use proxy_header::{ProxyFault, ProxyHeader, parse_proxy_header};
pub use rules::{AddressRules, TooManyConnections};
pub use trusted::TrustedNets;
