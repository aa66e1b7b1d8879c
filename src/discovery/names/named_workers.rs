//! Workers of a host name: a worker for each address of the name, or for each of its SRV records.

use super::resolver::{LOOKUP_TIME_MAX, look_up};
use super::srv::srv_records;
use super::srv_message::{SrvAnswer, SrvTarget};
use crate::MissingFeature;
use forebay_base::NameFault;
use forebay_config::{WorkerConfig, WorkerTlsConfig, WorkerUrl};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

/// Workers of a name, and how long the list is valid.
#[derive(Debug)]
pub struct NamedWorkers {
    pub workers: Vec<WorkerConfig>,
    /// Zero for addresses: the system's resolver has no time to live.
    pub ttl: Duration,
}

/// Looks a name up. A host with a leading `_` has SRV records, which `server` or the servers of the
/// system answer; any other host is resolved by the system.
///
/// # Errors
/// No resolver answers, or the name has no address.
pub async fn workers_of_name(
    name: &WorkerUrl,
    server: Option<SocketAddr>,
) -> Result<NamedWorkers, MissingFeature> {
    let WorkerUrl { host, port, .. } = name;
    if host.starts_with('_') {
        let SrvAnswer { targets, ttl } = srv_records(host, server, LOOKUP_TIME_MAX).await?;
        return Ok(NamedWorkers { workers: workers_of_service(targets, name.is_tls), ttl });
    }
    let unknown = |fault: String| {
        let NameFault { what, help } = NameFault::new(host, "discovery.dns", fault);
        MissingFeature { what, help }
    };
    let addresses = look_up(host, *port).await.map_err(unknown)?;
    Ok(NamedWorkers { workers: workers_at(&addresses, name), ttl: Duration::ZERO })
}

/// A worker for each address, in sorted order: resolvers rotate their answers. A certificate has to
/// be for the name.
fn workers_at(addresses: &[SocketAddr], name: &WorkerUrl) -> Vec<WorkerConfig> {
    let scheme = scheme(name.is_tls);
    let mut urls: Vec<String> = addresses.iter().map(|at| format!("{scheme}://{at}")).collect();
    urls.sort_unstable();
    urls.dedup();
    let is_name = name.is_tls && name.host.parse::<IpAddr>().is_err();
    let tls = WorkerTlsConfig {
        tls_name: is_name.then(|| name.host.clone()),
        ..WorkerTlsConfig::default()
    };
    let worker = |url| WorkerConfig { url, tls: tls.clone(), ..WorkerConfig::default() };
    urls.into_iter().map(worker).collect()
}

/// A worker for each record. A certificate has to be for the target.
fn workers_of_service(targets: Vec<SrvTarget>, is_tls: bool) -> Vec<WorkerConfig> {
    let scheme = scheme(is_tls);
    let url = |at: SrvTarget| format!("{scheme}://{}:{}", at.host, at.port);
    let worker = |at| WorkerConfig { url: url(at), ..WorkerConfig::default() };
    targets.into_iter().map(worker).collect()
}

const fn scheme(is_tls: bool) -> &'static str {
    if is_tls { "https" } else { "http" }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_address_is_a_worker() {
        let at = |text: &str| text.parse().unwrap();
        let found = [at("10.0.0.2:80"), at("[::1]:80"), at("10.0.0.1:80"), at("10.0.0.2:80")];
        let of =
            |url: &str, found: &[SocketAddr]| workers_at(found, &WorkerUrl::parse(url).unwrap());
        let workers = of("http://gpu:80", &found);
        let urls: Vec<&str> = workers.iter().map(|worker| &*worker.url).collect();
        assert_eq!(urls, ["http://10.0.0.1:80", "http://10.0.0.2:80", "http://[::1]:80"]);
        assert!(urls.iter().all(|url| WorkerUrl::parse(url).is_ok()));
        assert!(workers.iter().all(|worker| worker.tls.tls_name.is_none()));
    }

    #[test]
    fn with_tls_a_certificate_is_for_the_name_or_the_target() {
        let at = [SocketAddr::from(([10, 0, 0, 1], 80))];
        let name = |url: &str| {
            let [worker] =
                <[_; 1]>::try_from(workers_at(&at, &WorkerUrl::parse(url).unwrap())).unwrap();
            assert_eq!(worker.url, "https://10.0.0.1:80");
            worker.tls.tls_name
        };
        assert_eq!(name("https://gpu:80").as_deref(), Some("gpu"));
        assert_eq!(name("https://10.0.0.1:80"), None);
        let target = SrvTarget { host: "gpu1".to_owned(), port: 9 };
        let found = workers_of_service(vec![target], true);
        assert_eq!((&*found[0].url, &found[0].tls.tls_name), ("https://gpu1:9", &None));
    }
}
