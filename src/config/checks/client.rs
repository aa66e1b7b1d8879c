//! Checks the keys of clients, and the addresses where clients connect.

use super::check::Check;
use crate::sections::client::{ClientConfig, CorsConfig};
use crate::sections::schema::Config;
use crate::sections::tls::ClientAuth;
use forebay_base::limits::ORIGINS_MAX;
use forebay_identity::{TrustedNets, origin_fault};
use std::net::SocketAddr;

impl Check<'_> {
    pub(crate) fn client(&mut self, client: &ClientConfig) {
        let entries = || client.trusted.iter().map(String::as_str);
        let of_each: Vec<_> =
            entries().filter_map(|entry| TrustedNets::parse([entry]).err()).collect();
        match TrustedNets::parse(entries()) {
            // Each faulty entry, or the length of the whole list.
            Err(what) => {
                let what = if of_each.is_empty() { what } else { of_each.join("; ") };
                let help = "list addresses or networks, for example [\"10.0.0.0/8\", \"::1\"]";
                self.error("client.trusted", format!("`client.trusted`: {what}"), help);
            }
            Ok(nets) if nets.is_everybody() => {
                let what = "`client.trusted` holds every address: each client can claim another's";
                self.warning("client.trusted", what, "list the addresses of your proxies");
            }
            Ok(_) => {}
        }
        if client.proxy_protocol && client.trusted.is_empty() {
            let what = "`client.proxy_protocol` is on, and `client.trusted` is empty";
            let help = "list the proxies that send PROXY headers; others are not believed";
            self.error("client.proxy_protocol", what, help);
        }
    }

    pub(crate) fn cors(&mut self, cors: &CorsConfig) {
        if cors.origins.len() > ORIGINS_MAX {
            let what = format!("{} origins, more than {ORIGINS_MAX}", cors.origins.len());
            self.error("cors.origins", what, "list the sites that need an answer, or \"*\"");
        }
        for fault in cors.origins.iter().filter_map(|origin| origin_fault(origin)) {
            self.error("cors.origins", format!("`cors.origins`: {fault}"), "");
        }
        if cors.credentials && cors.origins.iter().any(|origin| origin == "*") {
            let what = "`cors.credentials` with the origin `*`";
            let help = "browsers refuse both together, and any site could use a user's cookies; \
                list the origins";
            self.error("cors.credentials", what, help);
        }
        self.field_names("cors.methods", &cors.methods);
        // RFC 9110, section 9.1: methods are case-sensitive, and none that is registered has a
        // small letter.
        let has_small = |method: &&String| method.bytes().any(|byte| byte.is_ascii_lowercase());
        if let Some(method) = cors.methods.iter().find(has_small) {
            let what = format!("`cors.methods` {method:?} is in small letters");
            let help =
                format!("browsers compare letter by letter: write {:?}", method.to_uppercase());
            self.warning("cors.methods", what, help);
        }
        self.field_names("cors.headers", &cors.headers);
        self.client_fields("cors.headers", &cors.headers);
    }

    /// Client addresses on a network, without authentication or in clear text.
    pub(crate) fn client_addresses(&mut self, config: &Config) {
        self.client_address(config, "listen", config.listen, config.speaks_tls());
        for (position, listener) in config.listeners.iter().enumerate() {
            let path = format!("listener.{position}.address");
            let is_tls = config.listener_speaks_tls(listener);
            if !listener.is_unset() {
                self.client_address(config, &path, listener.address, is_tls);
            }
        }
    }

    fn client_address(&mut self, config: &Config, path: &str, address: SocketAddr, is_tls: bool) {
        if address.ip().is_loopback() {
            return;
        }
        let shown = if path == "listen" { "listen" } else { "listener" };
        let asks_for_keys = config.api_keys.is_some() || config.jwt.jwks.is_some();
        let asks_for_certificates = is_tls && config.tls.client_auth == ClientAuth::Required;
        if !asks_for_keys && !asks_for_certificates {
            let what = format!(
                "`{shown}` {address} can be reached from outside and asks clients for no key"
            );
            self.warning(path, what, "set `api_keys`, or bind it to 127.0.0.1");
        } else if !is_tls {
            let what = format!("`{shown}` {address} takes keys of clients in clear text");
            let help = "set `tls.cert`, or let only a proxy with TLS reach it";
            self.warning(path, what, help);
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::checks::test_findings::findings;

    #[test]
    fn who_is_trusted_is_a_network() {
        assert!(findings("[client]\ntrusted = [\"10.0.0.0/8\", \"::1\"]").is_empty());
        let wrong = findings("[client]\ntrusted = [\"10.0.0.1/8\"]");
        assert!(wrong.len() == 1 && wrong[0].contains("write 10.0.0.0/8"), "{wrong:?}");
        let both = findings("[client]\ntrusted = [\"10.0.0.1/8\", \"::1\", \"proxy.example\"]");
        assert!(both.len() == 1 && both[0].contains("10.0.0.1/8"), "{both:?}");
        assert!(both[0].contains("\"proxy.example\" is no address"), "{both:?}");
        let name = findings("[client]\ntrusted = \"proxy.example\"");
        assert!(name.len() == 1 && name[0].contains("no network"), "{name:?}");
    }

    #[test]
    fn origins_are_those_of_browsers() {
        assert!(
            findings("[cors]\norigins = [\"https://a.example\"]\ncredentials = true").is_empty()
        );
        assert!(findings("[cors]\norigins = \"*\"").is_empty());
        for (text, says) in [
            ("origins = \"https://a.example/\"", "is no origin"),
            ("origins = [\"*\"]\ncredentials = true", "with the origin `*`"),
            ("methods = [\"GET, POST\"]", "is no name"),
            ("origins = \"*\"\nmethods = [\"GET\", \"post\"]", "write \"POST\""),
            ("headers = [\"\"]", "is no name"),
        ] {
            let found = findings(&format!("[cors]\n{text}"));
            assert!(found.len() == 1 && found[0].contains(says), "{found:?}");
        }
    }

    #[test]
    fn somebody_has_to_send_proxy_headers() {
        let alone = findings("[client]\nproxy_protocol = true");
        assert!(alone.len() == 1 && alone[0].contains("`client.trusted` is empty"), "{alone:?}");
    }
}
