//! Any bytes as the beginning of a connection, and as the values of `X-Forwarded-For`, one a line.
//! Must hold: what is said of a beginning stays true when more bytes come, and a header is never
//! longer than what has come; a second parser, `ppp`, reads the same from each header that is
//! taken; whoever is not trusted is the client itself; a client that is believed has been named;
//! what workers are told ends with the address that is said, and holds no line end.

use forebay_base::limits::PROXY_HEADER_BYTES_MAX;
use forebay_identity::{ForwardedFields, ProxyHeader, TrustedNets, client_of, parse_proxy_header};
use ppp::{HeaderResult, v1, v2};
use std::net::{IpAddr, SocketAddr};

/// Panics when a rule above is broken.
pub(crate) fn check(data: &[u8]) {
    header(data);
    forwarded(data);
}

fn header(data: &[u8]) {
    let whole = parse_proxy_header(data);
    for end in 0..data.len().min(PROXY_HEADER_BYTES_MAX + 1) {
        let part = parse_proxy_header(&data[..end]);
        assert!(part == Ok(None) || part == whole, "{part:?} of {end} bytes, then {whole:?}");
    }
    match whole {
        Ok(Some(header)) => {
            assert!(header.bytes <= data.len() && header.bytes <= PROXY_HEADER_BYTES_MAX);
            second_opinion(&data[..header.bytes], header);
        }
        Ok(None) => assert!(data.len() < PROXY_HEADER_BYTES_MAX, "{} bytes", data.len()),
        Err(_) => {}
    }
}

/// Behind LOCAL and UNKNOWN, the other parser reads what is to be ignored.
fn second_opinion(data: &[u8], header: ProxyHeader) {
    let is_local = data.starts_with(b"\r") && data.get(12) == Some(&0x20);
    if is_local || data.starts_with(b"PROXY UNKNOWN") {
        assert_eq!(header.source, None);
        return;
    }
    let source = match HeaderResult::parse(data) {
        HeaderResult::V1(read) => {
            let read = read.expect("a header of version 1");
            assert_eq!(read.header.len(), header.bytes);
            match read.addresses {
                v1::Addresses::Tcp4(ip) => Some((ip.source_address, ip.source_port).into()),
                v1::Addresses::Tcp6(ip) => Some((ip.source_address, ip.source_port).into()),
                v1::Addresses::Unknown => None,
            }
        }
        HeaderResult::V2(read) => {
            let read = read.expect("a header of version 2");
            assert_eq!(read.header.len(), header.bytes);
            match read.addresses {
                v2::Addresses::IPv4(ip) => Some((ip.source_address, ip.source_port).into()),
                v2::Addresses::IPv6(ip) => Some((ip.source_address, ip.source_port).into()),
                v2::Addresses::Unix(_) | v2::Addresses::Unspecified => None,
            }
        }
    };
    assert_eq!(header.source, source.map(|source: SocketAddr| source));
}

fn forwarded(data: &[u8]) {
    let trusted = TrustedNets::parse(["10.0.0.0/8", "fd00::/8"]).expect("networks");
    let values = || data.split(|byte| *byte == b'\n');
    let stranger = IpAddr::from([192, 0, 2, 1]);
    assert_eq!(client_of(stranger, values(), &trusted), stranger);
    let proxy = IpAddr::from([10, 0, 0, 1]);
    let client = client_of(proxy, values(), &trusted);
    let text = String::from_utf8_lossy(data);
    let is_named = |hop: &str| {
        let hop = hop.trim();
        let bare = hop.strip_prefix('[').and_then(|hop| hop.strip_suffix(']')).unwrap_or(hop);
        let with_port = hop.parse::<SocketAddr>().map(|named| named.ip());
        let named = bare.parse::<IpAddr>().or(with_port);
        named.is_ok_and(|named| named.to_canonical() == client)
    };
    assert!(client == proxy || text.split(['\n', ',']).any(is_named), "{client} of {text:?}");
    let mut fields = ForwardedFields::default();
    values().for_each(|value| fields.keep_x_forwarded_for(value));
    fields.say(client);
    assert!(fields.x_forwarded_for.ends_with(client.to_string().as_bytes()));
    assert!(!fields.x_forwarded_for.contains(&b'\n'));
}
