//! Hosts of servers beside workers, which no health check looks up.

use super::schema::Config;
use crate::values::url::{JwksUrl, WorkerUrl, split_port};

/// Port of NATS servers where a URL has none.
pub(crate) const NATS_PORT: u16 = 4_222;

/// `host:port` of a URL of NATS; `None` without a known scheme.
pub(crate) fn nats_authority(url: &str) -> Option<&str> {
    let rest = url.strip_prefix("nats://").or_else(|| url.strip_prefix("tls://"))?;
    let authority = rest.split(['/', '?', '#']).next()?;
    authority.rsplit('@').next()
}

impl Config {
    /// Each host of such a server, with the key that names the host.
    #[must_use]
    pub fn server_hosts(&self) -> Vec<(&'static str, String)> {
        let mut hosts = Vec::new();
        for url in self.nats.url.iter().flat_map(|urls| urls.split(',')).map(str::trim) {
            let server = nats_authority(url).map(|authority| split_port(authority, NATS_PORT));
            if let Some(Ok((host, _))) = server {
                hosts.push(("nats.url", host.to_owned()));
            }
        }
        let mut add = |key, url: Option<WorkerUrl>| {
            hosts.extend(url.map(|url| (key, url.host)));
        };
        for peer in &self.replicas.peers {
            add("replicas.peers", WorkerUrl::parse(peer).ok());
        }
        add("traces.endpoint", self.traces.server().and_then(Result::ok));
        let jwks = self.jwt.jwks.as_deref().and_then(JwksUrl::parse).and_then(Result::ok);
        add("jwt.jwks", jwks.map(|jwks| jwks.server));
        hosts
    }
}

#[cfg(test)]
mod tests {
    use crate::{ConfigText, Flags, load};

    #[test]
    fn each_server_has_its_key() {
        let text = "[[worker]]\nurl = \"http://w:1\"\n[nats]\n\
            url = \"nats://u:p@a:4222, tls://[::1]\"\n[traces]\nendpoint = \"https://c/otlp\"\n\
            [replicas]\npeers = [\"http://r:1\"]\n[jwt]\njwks = \"https://k/keys\"\n";
        let config = load(Some(ConfigText { name: "f", text }), &Flags::default()).config;
        let hosts: Vec<_> = config.server_hosts();
        let hosts: Vec<_> = hosts.iter().map(|(key, host)| (*key, &**host)).collect();
        let wanted = [
            ("nats.url", "a"),
            ("nats.url", "::1"),
            ("replicas.peers", "r"),
            ("traces.endpoint", "c"),
            ("jwt.jwks", "k"),
        ];
        assert_eq!(hosts, wanted);
    }
}
