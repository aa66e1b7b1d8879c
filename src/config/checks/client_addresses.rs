//! Checks client addresses on a network for missing authentication and for clear text.

use super::check::Check;
use crate::sections::schema::Config;
use crate::sections::tls::ClientAuth;
use std::net::SocketAddr;

impl Check<'_> {
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
