//! ZMQ endpoints: from the announcements of engines, from the configuration, and of each rank.

use std::net::IpAddr;
use std::path::PathBuf;
use thiserror::Error;

/// Address of a ZMQ socket, and the side that connects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ZmqEndpoint {
    pub side: Side,
    pub place: ZmqAddress,
}

/// Whether the router connects or listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The engine listens; this side connects.
    Connect,
    /// The engine connects; this side listens.
    Bind,
}

/// A transport and an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum ZmqAddress {
    /// An address of the form `tcp://host:port`.
    Tcp {
        /// Host name or IP address.
        host: String,
        port: u16,
    },
    /// A Unix socket, `ipc:///path`.
    Ipc(PathBuf),
}

/// Why an endpoint cannot be used.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum EndpointError {
    /// Neither `tcp://host:port` nor `ipc:///path`.
    #[error("{0:?} is not tcp://host:port or ipc:///path")]
    Form(String),
    /// The port of a rank would be past 65535.
    #[error("{0:?} has no room for the ports of further ranks")]
    Port(String),
}

impl ZmqEndpoint {
    /// Parses an endpoint. `*`, `0.0.0.0` and `[::]` mean the worker's host; with a leading `bind:`
    /// the engine connects to the router.
    pub fn parse(text: &str, worker_host: &str) -> Result<Self, EndpointError> {
        let form = || EndpointError::Form(text.to_owned());
        let (side, address) = match text.strip_prefix("bind:") {
            Some(address) => (Side::Bind, address),
            None => (Side::Connect, text),
        };
        if let Some(path) = address.strip_prefix("ipc://") {
            let path = (!path.is_empty()).then(|| PathBuf::from(path)).ok_or_else(form)?;
            return Ok(Self { side, place: ZmqAddress::Ipc(path) });
        }
        let rest = address.strip_prefix("tcp://").ok_or_else(form)?;
        let (host, port) = rest.rsplit_once(':').ok_or_else(form)?;
        let port = port.parse::<u16>().ok().filter(|&port| port > 0).ok_or_else(form)?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let host = match (side, is_any(host)) {
            (_, false) if host.is_empty() => return Err(form()),
            (Side::Connect, true) => worker_host,
            (Side::Bind, true) => "0.0.0.0",
            (_, false) => host,
        };
        Ok(Self { side, place: ZmqAddress::Tcp { host: host.to_owned(), port } })
    }

    /// Parses the endpoint that an engine announces. The engine listens if the host is a wildcard
    /// or the engine's own address; else the engine connects to that address. vLLM and SGLang
    /// decide by the same rule.
    pub fn announced(
        text: &str,
        worker_host: &str,
        worker_ip: IpAddr,
    ) -> Result<Self, EndpointError> {
        let mut endpoint = Self::parse(text, worker_host)?;
        if let ZmqAddress::Tcp { host, .. } = &endpoint.place {
            let is_worker = host == worker_host || host.parse() == Ok(worker_ip);
            if !is_worker {
                endpoint.side = Side::Bind;
            }
        }
        Ok(endpoint)
    }

    /// The endpoint of a rank under the engines' rule for a common base: TCP port plus rank.
    pub fn of_rank(&self, dp_rank: u32) -> Result<Self, EndpointError> {
        let mut endpoint = self.clone();
        match &mut endpoint.place {
            ZmqAddress::Tcp { port, .. } => {
                let offset = u16::try_from(dp_rank).ok();
                *port = offset
                    .and_then(|offset| port.checked_add(offset))
                    .ok_or_else(|| EndpointError::Port(self.to_string()))?;
                Ok(endpoint)
            }
            ZmqAddress::Ipc(_) if dp_rank == 0 => Ok(endpoint),
            ZmqAddress::Ipc(_) => Err(EndpointError::Port(self.to_string())),
        }
    }

    /// The endpoint of a rank for the side that listens there. Port 0 requests any port.
    pub fn listening(&self, dp_rank: u32) -> Result<Self, EndpointError> {
        let is_any_port = matches!(self.place, ZmqAddress::Tcp { port: 0, .. });
        let endpoint = if is_any_port { self.clone() } else { self.of_rank(dp_rank)? };
        Ok(Self { side: Side::Bind, ..endpoint })
    }

    /// The same address with another port, for the side that connects.
    #[must_use]
    pub fn with_port(mut self, new_port: u16) -> Self {
        if let ZmqAddress::Tcp { port, .. } = &mut self.place {
            *port = new_port;
        }
        Self { side: Side::Connect, ..self }
    }
}

impl std::fmt::Display for ZmqEndpoint {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.side == Side::Bind {
            formatter.write_str("bind:")?;
        }
        match &self.place {
            ZmqAddress::Tcp { host, port } if host.contains(':') => {
                write!(formatter, "tcp://[{host}]:{port}")
            }
            ZmqAddress::Tcp { host, port } => write!(formatter, "tcp://{host}:{port}"),
            ZmqAddress::Ipc(path) => write!(formatter, "ipc://{}", path.display()),
        }
    }
}

fn is_any(host: &str) -> bool {
    host == "*" || host.parse::<IpAddr>().is_ok_and(|address| address.is_unspecified())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> String {
        ZmqEndpoint::parse(text, "gpu1").map_or_else(|error| error.to_string(), |e| e.to_string())
    }

    #[test]
    fn wildcards_stand_for_the_worker() {
        assert_eq!(parse("tcp://*:5557"), "tcp://gpu1:5557");
        assert_eq!(parse("tcp://0.0.0.0:5557"), "tcp://gpu1:5557");
        assert_eq!(parse("tcp://[::]:5557"), "tcp://gpu1:5557");
        assert_eq!(parse("tcp://[fe80::1]:5557"), "tcp://[fe80::1]:5557");
        assert_eq!(parse("bind:tcp://*:5557"), "bind:tcp://0.0.0.0:5557");
        assert_eq!(parse("ipc:///tmp/kv"), "ipc:///tmp/kv");
        for bad in ["", "tcp://a", "tcp://a:0", "tcp://:1", "udp://a:1", "ipc://"] {
            assert!(parse(bad).contains("is not"), "{bad}");
        }
    }

    #[test]
    fn engines_that_connect_are_listened_for() {
        let announced = |text| {
            ZmqEndpoint::announced(text, "gpu1", IpAddr::from([10, 0, 0, 1])).unwrap().to_string()
        };
        assert_eq!(announced("tcp://*:5557"), "tcp://gpu1:5557");
        assert_eq!(announced("tcp://10.0.0.1:5557"), "tcp://10.0.0.1:5557");
        assert_eq!(announced("tcp://10.0.0.9:5557"), "bind:tcp://10.0.0.9:5557");
    }

    #[test]
    fn ranks_have_ports_of_their_own() {
        let base = ZmqEndpoint::parse("tcp://a:65534", "b").unwrap();
        assert_eq!(base.of_rank(1).unwrap().to_string(), "tcp://a:65535");
        assert!(base.of_rank(2).is_err());
        let ipc = ZmqEndpoint::parse("ipc:///a", "b").unwrap();
        assert!(ipc.of_rank(0).is_ok());
        assert!(ipc.of_rank(1).is_err());
    }
}
