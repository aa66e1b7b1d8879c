//! Look-ups by the resolver of the system, with the text of their faults.

use forebay_base::NameFault;
use reqwest::dns::{Addrs, Name, Resolve, Resolving};
use std::io;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::net::lookup_host;
use tokio::time::timeout;

/// Longest wait for a resolver.
pub(crate) const LOOKUP_TIME_MAX: Duration = Duration::from_secs(5);

/// Addresses of a host; never empty. The caller bounds the wait.
///
/// # Errors
/// The fault alone, without resolver and name.
pub(crate) async fn addresses_of(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found: Vec<_> =
        lookup_host((host, port)).await.map_err(|error| error.to_string())?.collect();
    if found.is_empty() { Err("the name has no address".to_owned()) } else { Ok(found) }
}

/// Addresses of a host, in bounded time; never empty.
///
/// # Errors
/// The fault alone, without resolver and name.
pub(crate) async fn look_up(host: &str, port: u16) -> Result<Vec<SocketAddr>, String> {
    let found = timeout(LOOKUP_TIME_MAX, addresses_of(host, port)).await;
    found.unwrap_or_else(|_| Err(format!("no answer within {LOOKUP_TIME_MAX:?}")))
}

/// Fault of a host that `key` names; `None` for a host with an address.
pub async fn name_fault(host: &str, key: &str) -> Option<NameFault> {
    let fault = look_up(host, 0).await.err()?;
    Some(NameFault::new(host, key, fault))
}

/// Resolver of HTTP clients. Its fault is the innermost error of a request.
#[derive(Debug)]
pub struct NamedResolver;

impl Resolve for NamedResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let host = name.as_str();
            let unknown = |fault| io::Error::other(NameFault::text(host, fault));
            let found = look_up(host, 0).await.map_err(unknown)?;
            Ok(Box::new(found.into_iter()) as Addrs)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::cause_of;
    use forebay_kv_events::test_support::block_on_local;
    use std::sync::Arc;

    /// Issue 39: "error sending request" and "DNS error" named neither host nor resolver. Names
    /// below `invalid` never resolve (RFC 6761).
    #[test]
    fn a_name_that_does_not_resolve_names_the_resolver_the_host_and_the_key() {
        block_on_local(async {
            let fault = name_fault("no-such.invalid", "nats.url").await.unwrap();
            let start = "resolver of the system, asked for no-such.invalid: ";
            assert!(fault.what.starts_with(start), "{fault}");
            assert!(fault.help.contains("correct `nats.url`"), "{fault}");
            assert_eq!(name_fault("127.0.0.1", "nats.url").await, None);
            let client = reqwest::Client::builder().dns_resolver(Arc::new(NamedResolver));
            let sent = client.build().unwrap().get("http://no-such.invalid:1/").send().await;
            assert!(cause_of(&sent.unwrap_err()).starts_with(start));
        });
    }
}
