//! ZMTP as the tests write and read it, on blocking sockets; independent of the router's own code.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;

/// One command or one whole message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Unit {
    Command(Vec<u8>),
    Message(Vec<Vec<u8>>),
}

/// A greeting of ZMTP 3 with that minor version.
pub(crate) fn greeting(minor: u8) -> Vec<u8> {
    let mut bytes = vec![0xff, 0, 0, 0, 0, 0, 0, 0, 1, 0x7f, 3, minor];
    bytes.extend_from_slice(b"NULL");
    bytes.resize(64, 0);
    bytes
}

fn frame(flags: u8, body: &[u8]) -> Vec<u8> {
    let mut out = match u8::try_from(body.len()) {
        Ok(length) => vec![flags, length],
        Err(_) => [&[flags | 2][..], &(body.len() as u64).to_be_bytes()].concat(),
    };
    out.extend_from_slice(body);
    out
}

/// A unit as bytes.
pub(crate) fn encode(unit: &Unit) -> Vec<u8> {
    match unit {
        Unit::Command(body) => frame(4, body),
        Unit::Message(parts) => {
            let last = parts.len() - 1;
            let frames = parts.iter().enumerate();
            frames.flat_map(|(at, part)| frame(u8::from(at < last), part)).collect()
        }
    }
}

/// Reads one unit.
pub(crate) fn read_unit(stream: &mut impl Read) -> Result<Unit> {
    let mut parts = Vec::new();
    loop {
        let mut flags = [0; 1];
        stream.read_exact(&mut flags)?;
        let length = if flags[0] & 2 == 0 {
            let mut length = [0; 1];
            stream.read_exact(&mut length)?;
            usize::from(length[0])
        } else {
            let mut length = [0; 8];
            stream.read_exact(&mut length)?;
            usize::try_from(u64::from_be_bytes(length)).unwrap()
        };
        let mut body = vec![0; length];
        stream.read_exact(&mut body)?;
        if flags[0] & 4 != 0 {
            return Ok(Unit::Command(body));
        }
        parts.push(body);
        if flags[0] & 1 == 0 {
            return Ok(Unit::Message(parts));
        }
    }
}

/// The handshake of a socket of that type, from whichever side.
pub(crate) fn handshake(stream: &mut TcpStream, kind: &str, minor: u8) -> Result<()> {
    stream.write_all(&greeting(minor))?;
    stream.read_exact(&mut [0; 64])?;
    let mut ready = b"\x05READY\x0bSocket-Type\0\0\0".to_vec();
    ready.push(u8::try_from(kind.len()).unwrap());
    ready.extend_from_slice(kind.as_bytes());
    stream.write_all(&encode(&Unit::Command(ready)))?;
    match read_unit(stream)? {
        Unit::Command(body) if body.starts_with(b"\x05READY") => Ok(()),
        other => Err(Error::new(ErrorKind::InvalidData, format!("{other:?}"))),
    }
}
