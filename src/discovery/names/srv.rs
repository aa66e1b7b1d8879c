//! Queries name servers for SRV records, over UDP and, if the response is truncated, over TCP. The
//! system's resolver has no call for SRV. Bounded in time; a response has 64 KiB at most.

use super::srv_message::{SrvAnswer, SrvFault, answer, question};
use crate::MissingFeature;
use forebay_base::open_file;
use std::io::{self, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio::time::timeout;

const RESOLVER_FILE: &str = "/etc/resolv.conf";
const RESOLVER_FILE_BYTES_MAX: u64 = 1 << 16;
/// The limit of common resolvers.
const SERVERS_MAX: usize = 3;
const DNS_PORT: u16 = 53;
const NO_SERVER_HELP: &str = "set `discovery.name_server`";
/// Longest UDP response to a query without EDNS (RFC 1035).
const UDP_BYTES_MAX: usize = 512;

/// The SRV records of a fully qualified name. Without `server`, the system's servers are queried in
/// order until a server responds.
///
/// # Errors
/// The last server's fault.
pub async fn srv_records(
    name: &str,
    server: Option<SocketAddr>,
    within: Duration,
) -> Result<SrvAnswer, MissingFeature> {
    let none = |what| MissingFeature { what, help: NO_SERVER_HELP.to_owned() };
    let servers = match server {
        Some(server) => vec![server],
        None => servers_of_system().map_err(none)?,
    };
    let each = within / u32::try_from(servers.len()).unwrap_or(1).max(1);
    let mut last = none(format!("{RESOLVER_FILE} names no server"));
    for server in servers {
        let asked = timeout(each, ask(name, server)).await;
        let late = |_| Err(SrvFault::Unreached(format!("no answer within {each:?}")));
        match asked.unwrap_or_else(late) {
            Ok(said) => return Ok(said),
            Err(fault) => last = explain(&fault, name, server),
        }
    }
    Err(last)
}

/// The fault with the name server and the name. A server that answers may lack the record; any
/// other fault is of the server.
fn explain(fault: &SrvFault, name: &str, server: SocketAddr) -> MissingFeature {
    let help = match fault {
        SrvFault::NoSuchName | SrvFault::NoService => {
            format!("correct `discovery.dns`, or the SRV records of {name}")
        }
        SrvFault::Name(_) => "correct `discovery.dns`".to_owned(),
        _ => format!("mend the name server {server}, or set another in `discovery.name_server`"),
    };
    MissingFeature { what: format!("name server {server}, asked for {name}: {fault}"), help }
}

async fn ask(name: &str, server: SocketAddr) -> Result<SrvAnswer, SrvFault> {
    // A random id, known only to the server: it prevents spoofed responses.
    let random = getrandom::u32().map_err(|error| SrvFault::Unreached(error.to_string()))?;
    let [id_high, id_low, ..] = random.to_be_bytes();
    let asked = question(u16::from_be_bytes([id_high, id_low]), name)?;
    let unreached = |error: io::Error| SrvFault::Unreached(error.to_string());
    match over_udp(&asked, server).await.map_err(unreached)? {
        Err(SrvFault::Truncated) => {
            let message = over_tcp(&asked, server).await.map_err(unreached)?;
            answer(&asked, &message)
        }
        result => result,
    }
}

/// Waits for a response to this query.
async fn over_udp(asked: &[u8], server: SocketAddr) -> io::Result<Result<SrvAnswer, SrvFault>> {
    let any: IpAddr = match server {
        SocketAddr::V4(_) => Ipv4Addr::UNSPECIFIED.into(),
        SocketAddr::V6(_) => Ipv6Addr::UNSPECIFIED.into(),
    };
    let socket = UdpSocket::bind((any, 0)).await?;
    // The kernel then drops datagrams from other addresses.
    socket.connect(server).await?;
    socket.send(asked).await?;
    let mut buffer = [0; UDP_BYTES_MAX];
    loop {
        let bytes = socket.recv(&mut buffer).await?;
        match answer(asked, buffer.get(..bytes).unwrap_or_default()) {
            Err(SrvFault::Foreign) => {}
            result => return Ok(result),
        }
    }
}

async fn over_tcp(asked: &[u8], server: SocketAddr) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server).await?;
    let length = u16::try_from(asked.len()).map_err(io::Error::other)?;
    stream.write_all(&[&length.to_be_bytes(), asked].concat()).await?;
    let bytes = stream.read_u16().await?;
    let mut message = vec![0; usize::from(bytes)];
    stream.read_exact(&mut message).await?;
    Ok(message)
}

fn servers_of_system() -> Result<Vec<SocketAddr>, String> {
    let mut text = String::new();
    let read = open_file(Path::new(RESOLVER_FILE))
        .and_then(|file| file.take(RESOLVER_FILE_BYTES_MAX).read_to_string(&mut text));
    read.map_err(|error| format!("{RESOLVER_FILE}: {error}"))?;
    Ok(servers_in(&text))
}

fn servers_in(text: &str) -> Vec<SocketAddr> {
    let server = |line: &str| {
        let mut words = line.split_whitespace();
        let address: IpAddr =
            words.next().filter(|word| *word == "nameserver").and(words.next())?.parse().ok()?;
        Some(SocketAddr::from((address, DNS_PORT)))
    };
    text.lines().filter_map(server).take(SERVERS_MAX).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_servers_of_the_system_are_read_in_their_order() {
        let text = "# nameserver 9.9.9.9\nsearch a.example\nnameserver 10.0.0.10\nnameserver\n\
            nameserver\t::1 # local\nnameserver x\nnameserver 10.0.0.11\nnameserver 10.0.0.12\n";
        let found: Vec<String> = servers_in(text).iter().map(ToString::to_string).collect();
        assert_eq!(found, ["10.0.0.10:53", "[::1]:53", "10.0.0.11:53"]);
    }

    /// An operator has to know which server to look at, and which key to correct.
    #[test]
    fn a_fault_names_the_server_the_name_and_the_key() {
        let server = SocketAddr::from(([10, 0, 0, 10], 53));
        let records = "correct `discovery.dns`, or the SRV records of _llm._tcp.a";
        let other = "mend the name server 10.0.0.10:53, or set another in `discovery.name_server`";
        for (fault, says, help) in [
            (SrvFault::NoSuchName, "the name does not exist (NXDOMAIN)", records),
            (SrvFault::NoService, "the name has no SRV record of a service", records),
            (SrvFault::Refused(2), "the answer is SERVFAIL", other),
            (SrvFault::Refused(5), "the answer is REFUSED", other),
            (SrvFault::Refused(11), "the answer is code 11", other),
            (SrvFault::Broken, "the answer is broken", other),
            (SrvFault::Unreached("no answer within 5s".to_owned()), "no answer within 5s", other),
        ] {
            let found = explain(&fault, "_llm._tcp.a", server);
            let what = format!("name server 10.0.0.10:53, asked for _llm._tcp.a: {says}");
            assert_eq!((&*found.what, &*found.help), (&*what, help));
        }
    }

    #[test]
    fn a_server_that_is_silent_is_named() {
        forebay_kv_events::test_support::block_on_local(async {
            let silent = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
            let server = silent.local_addr().unwrap();
            let found = srv_records("_llm._tcp.a", Some(server), Duration::from_millis(5)).await;
            let fault = found.unwrap_err();
            let what = format!("name server {server}, asked for _llm._tcp.a: no answer within 5ms");
            assert_eq!(fault.what, what);
            assert!(fault.help.contains("`discovery.name_server`"), "{fault:?}");
        });
    }
}
