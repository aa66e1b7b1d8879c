//! Checks the keys of replicas. Reads the files.

use super::check::Check;
use super::contradictions::{looping_key, own_addresses};
use super::upstream::in_words;
use crate::sections::replicas::NatsConfig;
use crate::sections::schema::Config;
use crate::sections::server_names::{NATS_PORT, nats_authority};
use crate::values::admin_address::AdminAddress;
use crate::values::url::{WorkerUrl, shown_url, split_port};
use forebay_base::FileFault;
use forebay_base::limits::REPLICA_PEERS_MAX;
use forebay_tls::{CertificateFiles, ConnectFault};
use std::collections::HashSet;
use std::net::IpAddr;

impl Check<'_> {
    pub(crate) fn replicas(&mut self, config: &Config) {
        self.nats(&config.nats);
        let replicas = &config.replicas;
        if replicas.name.as_deref().is_some_and(|name| !is_word(name)) {
            let what = "`replicas.name` stands in logs and messages";
            self.error("replicas.name", what, "use letters, digits, - and _");
        }
        if replicas.cert.is_some() != replicas.key.is_some() {
            let what = "`replicas.cert` and `replicas.key` belong together";
            let key = self.either("replicas.cert", "replicas.key");
            self.error(key, what, "give both or none");
        }
        if let (Some(cert), Some(key)) = (&replicas.cert, &replicas.key) {
            let files = CertificateFiles { cert: cert.clone(), key: key.clone() };
            self.client_certificate("replicas.cert", &files, "peers");
        }
        self.token("replicas.token_file", replicas.token_file.as_deref());
        if replicas.peers.is_empty() {
            return;
        }
        if config.nats.url.is_some() {
            let what = "`replicas.peers` beside `nats.url`";
            self.error("replicas.peers", what, "remove one: each carries all messages");
        }
        if replicas.peers.len() > REPLICA_PEERS_MAX {
            let count = replicas.peers.len();
            let what = format!("`replicas.peers` has {count} URLs, more than {REPLICA_PEERS_MAX}");
            self.error("replicas.peers", what, "use NATS for more routers");
        }
        let own = own_addresses(config);
        let mut seen = HashSet::new();
        let mut peers = Vec::new();
        for text in &replicas.peers {
            match WorkerUrl::parse(text) {
                Err(fault) => {
                    let what = format!("`replicas.peers` {:?}: {fault}", shown_url(text));
                    self.error("replicas.peers", what, fault.help("write it as http://host:9090"));
                }
                Ok(url) if !seen.insert(url.authority.clone()) => {
                    let what = format!("`replicas.peers` names {} twice", url.authority);
                    self.error("replicas.peers", what, "remove one of the two");
                }
                Ok(url) => {
                    if let Some(key) = looping_key(&own, text).filter(|key| *key != "admin") {
                        let what = format!("`replicas.peers` {text} is `{key}` of this router");
                        let help = "write the `admin` addresses of the other routers: the ports \
                            of clients have no messages";
                        self.warning("replicas.peers", what, help);
                    }
                    peers.push(url);
                }
            }
        }
        let is_own = |peer: &WorkerUrl| looping_key(&own, &peer.text()) == Some("admin");
        if !peers.is_empty() && peers.iter().all(is_own) {
            let what = "`replicas.peers` lists this router alone, by its own `admin`";
            self.warning("replicas.peers", what, "add the `admin` addresses of the other routers");
        }
        self.peers(config, &peers);
    }

    fn peers(&mut self, config: &Config, peers: &[WorkerUrl]) {
        let first_tls = peers.iter().find(|peer| peer.is_tls);
        if let Some(Err(fault)) = first_tls.map(|peer| config.replicas.connector(peer)) {
            let key = match &fault {
                ConnectFault::Ca(_) => "replicas.ca",
                ConnectFault::Certificate(_) => "replicas.cert",
                ConnectFault::Name(_) | ConnectFault::Other(_) => "replicas.peers",
            };
            let FileFault { what, help } = in_words(fault);
            self.error(key, format!("TLS to peers: {what}"), help);
        }
        let is_remote = |peer: &WorkerUrl| {
            let address = peer.host.parse::<IpAddr>();
            peer.host != "localhost" && !address.is_ok_and(|address| address.is_loopback())
        };
        match &config.admin {
            AdminAddress::Unix(_) => {
                let what = "`replicas.peers` and an `admin` socket, which peers do not reach";
                self.error("replicas.peers", what, "give `admin` an address and a port");
            }
            AdminAddress::Tcp(admin) if admin.ip().is_loopback() && peers.iter().any(is_remote) => {
                let what = format!("peers do not reach `admin` {admin}");
                let help = "bind `admin` to an address of the network, with tokens and TLS";
                self.warning("replicas.peers", what, help);
            }
            AdminAddress::Tcp(_) => {}
        }
    }

    fn nats(&mut self, nats: &NatsConfig) {
        if !nats.prefix.split('.').all(is_word) {
            let what = format!("`nats.prefix` {:?} is no subject", nats.prefix);
            self.error("nats.prefix", what, "use letters, digits, - and _, with dots between");
        }
        const FORM: &str = "write it as nats://host:4222";
        for url in nats.url.iter().flat_map(|urls| urls.split(',')).map(str::trim) {
            let Some(server) = nats_authority(url) else {
                let shown = shown_url(url);
                let what = match shown.split_once("://") {
                    Some((scheme, _)) => {
                        format!(
                            "`nats.url` {shown:?} has the scheme {scheme}://, which is none of NATS"
                        )
                    }
                    None => format!("`nats.url` {shown:?} has no scheme"),
                };
                self.error("nats.url", what, "write it as nats://host:4222, or tls://host:4222");
                continue;
            };
            if let Err(fault) = split_port(server, NATS_PORT) {
                let what = format!("`nats.url` {:?}: {fault}", shown_url(url));
                self.error("nats.url", what, fault.help(FORM));
            }
        }
    }
}

fn is_word(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_".contains(&b))
}

#[cfg(test)]
mod tests {
    use crate::Config;
    use crate::ConfigText;
    use crate::Flags;
    use crate::WorkerUrl;
    use crate::checks::test_findings::findings;
    use crate::load;
    use std::path::Path;

    fn peers(urls: &str, keys: &str) -> Vec<String> {
        findings(&format!("{keys}\n[replicas]\npeers = [{urls}]\n"))
    }

    #[test]
    fn peers_are_urls_of_admin_apis() {
        assert!(peers(r#""http://127.0.0.1:9090", "http://127.0.0.1:9091""#, "").is_empty());
        let many: Vec<String> =
            (0..17).map(|port| format!("\"http://127.0.0.1:{}\"", 9_000 + port)).collect();
        for (urls, keys, says) in [
            (r#""10.0.0.3:9090""#, "", "does not start with http://"),
            (r#""http://127.0.0.1:1", "http://127.0.0.1:1""#, "", "twice"),
            (&*many.join(", "), "", "has 17 URLs, more than 16"),
            (r#""http://127.0.0.1:1""#, "nats = \"nats://a:1\"", "beside `nats.url`"),
            (r#""http://127.0.0.1:1""#, "admin = \"unix:/tmp/a.sock\"", "do not reach"),
        ] {
            let found = peers(urls, keys);
            assert!(found.len() == 1 && found[0].contains(says), "{urls}: {found:?}");
        }
        let text =
            "[replicas]\npeers = [\"http://10.0.0.3:1\"]\n[[worker]]\nurl = \"http://a:1\"\n";
        let loaded = load(Some(ConfigText { name: "f", text }), &Flags::default());
        let found: Vec<String> = loaded.findings.iter().map(ToString::to_string).collect();
        let says = "f:2:9: warning: peers do not reach `admin` 127.0.0.1";
        assert!(found.len() == 1 && found[0].starts_with(says), "{found:?}");
    }

    /// Issue 39: a peer at the port of clients was silent.
    #[test]
    fn a_peer_at_a_port_of_clients_of_this_router_is_a_warning() {
        let keys = "listen = \"127.0.0.1:8000\"\n[[listener]]\naddress = \"127.0.0.1:8001\"\n";
        for (url, key) in [
            ("http://127.0.0.1:8000", Some("listen")),
            ("http://localhost:8000", Some("listen")),
            ("http://127.0.0.1:8001", Some("listener")),
            ("http://127.0.0.1:8002", None),
        ] {
            let found = peers(&format!("\"http://127.0.0.1:9091\", {url:?}"), keys);
            assert_eq!(found.len(), usize::from(key.is_some()), "{url}: {found:?}");
            for (found, key) in found.iter().zip(key) {
                let says = format!("warning: `replicas.peers` {url} is `{key}` of this router. ");
                assert!(found.contains(&says) && found.contains("`admin` addresses"), "{found}");
            }
        }
        let alone = peers(r#""http://localhost:9090""#, "");
        assert!(alone.len() == 1 && alone[0].contains("lists this router alone"), "{alone:?}");
    }

    #[test]
    fn nats_has_a_scheme_and_a_subject() {
        for (key, says) in [
            ("url = \"127.0.0.1:4222\"", "error: `nats.url` \"127.0.0.1:4222\" has no scheme"),
            (
                "url = \"nats://a:4222, nats://u:p@10.0.0.256:4222\"",
                "error: `nats.url` \"nats://…@10.0.0.256:4222\": the host ends in a number",
            ),
            (
                "url = \"http://u:p@a:4222\"",
                "error: `nats.url` \"http://…@a:4222\" has the scheme http://, which is none of \
                 NATS. help: write it as nats://host:4222, or tls://host:4222",
            ),
            ("url = \"nats://a:x\"", "error: `nats.url` \"nats://a:x\": the port is not"),
            ("prefix = \"a b\"", "error: `nats.prefix` \"a b\" is no subject"),
        ] {
            let found = findings(&format!("[nats]\n{key}"));
            assert!(found.len() == 1 && found[0].contains(says), "{key}: {found:?}");
        }
    }

    #[test]
    fn files_of_peers_are_read() {
        for (key, says) in [
            ("token_file = \"/nonexistent\"", "`replicas.token_file` /non"),
            ("cert = \"/nonexistent\"", "belong together"),
            ("name = \"a b\"", "`replicas.name`"),
        ] {
            let found = findings(&format!("[replicas]\n{key}"));
            assert!(found.len() == 1 && found[0].contains(says), "{key}: {found:?}");
        }
        let found = peers(
            r#""https://127.0.0.1:1"]
ca = "/nonexistent"
token_file = "src/config/lib.rs"
name = "a"
#["#,
            "",
        );
        assert!(found.iter().any(|finding| finding.contains("TLS to peers")), "{found:?}");
    }

    #[test]
    fn the_token_of_peers_is_that_of_readers_unless_it_is_given() {
        let [own, read, change] = ["own", "read", "change"].map(|name| Some(name.into()));
        let mut config = Config { admin_token_file: change, ..Config::default() };
        assert_eq!(config.peer_token_file(), Some(Path::new("change")));
        config.admin_read_token_file = read;
        assert_eq!(config.peer_token_file(), Some(Path::new("read")));
        config.replicas.token_file = own;
        assert_eq!(config.peer_token_file(), Some(Path::new("own")));
        let plain = WorkerUrl::parse("http://a:1").unwrap();
        assert!(config.replicas.connector(&plain).unwrap().is_none());
    }
}
