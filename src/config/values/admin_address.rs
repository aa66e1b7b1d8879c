//! Address of the admin API: a TCP address, or a Unix socket.

use crate::keys::key::Key;
use crate::keys::setting::{Kind, Setting};
use serde_json::{Value, json};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;
use toml_edit::Item;

/// Prefix of a socket path.
const UNIX: &str = "unix:";
/// Longest path that the kernel accepts (`sun_path`, without its terminating zero).
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Address of the admin API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AdminAddress {
    /// An address and a port.
    Tcp(SocketAddr),
    /// Path of a Unix socket; the file mode controls access.
    Unix(PathBuf),
}

impl AdminAddress {
    /// The TCP address; `None` for a Unix socket.
    #[must_use]
    pub const fn port_address(&self) -> Option<SocketAddr> {
        match self {
            Self::Tcp(address) => Some(*address),
            Self::Unix(_) => None,
        }
    }
}

impl<A: Into<SocketAddr>> From<A> for AdminAddress {
    fn from(address: A) -> Self {
        Self::Tcp(address.into())
    }
}

impl fmt::Display for AdminAddress {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp(address) => write!(formatter, "{address}"),
            Self::Unix(path) => write!(formatter, "{UNIX}{}", path.display()),
        }
    }
}

impl FromStr for AdminAddress {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Some(path) = text.strip_prefix(UNIX) else {
            let help = "write for example 127.0.0.1:9090, or unix:/run/forebay/admin.sock";
            let address = text.parse().map(Self::Tcp);
            return address.map_err(|_| format!("{text:?} is not an address with a port; {help}"));
        };
        // A relative path would depend on the working directory.
        if !path.starts_with('/') || path.ends_with('/') || path.contains('\0') {
            return Err(format!("{text:?}: the path of a socket begins with / and names a file"));
        }
        if path.len() > SOCKET_PATH_BYTES_MAX {
            return Err(format!("{text:?}: more than {SOCKET_PATH_BYTES_MAX} bytes of path"));
        }
        Ok(Self::Unix(path.into()))
    }
}

impl Setting for AdminAddress {
    fn read(&mut self, _: &Key, item: &Item) -> Result<(), String> {
        let text = item.as_str();
        let wanted = || format!("has type {}, should be an address in quotes", item.type_name());
        *self = text.ok_or_else(wanted)?.parse()?;
        Ok(())
    }

    fn show(&self, _: &Key) -> Option<Value> {
        Some(json!(self.to_string()))
    }

    fn kind(&self, _: &Key) -> Kind {
        Kind::Address
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_a_port_or_a_socket() {
        for text in ["127.0.0.1:9090", "[::]:9090", "unix:/run/forebay/admin.sock"] {
            assert_eq!(text.parse::<AdminAddress>().unwrap().to_string(), text);
        }
        let long = format!("unix:/{}", "x".repeat(107));
        for wrong in [
            "",
            "localhost:9090",
            "9090",
            "unix:",
            "unix:admin.sock",
            "unix:/run/",
            "/run/a",
            &*long,
        ] {
            assert!(wrong.parse::<AdminAddress>().is_err(), "{wrong}");
        }
    }
}
