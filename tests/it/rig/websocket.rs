//! WebSocket handshakes, and workers that answer them. What follows is bytes: no frame is read.

use super::Worker;
use std::io::{Read, Write};
use std::net::TcpStream;

/// The key and the answer of the example in RFC 6455.
pub(crate) const KEY: &str = "dGhlIHNhbXBsZSBub25jZQ==";
pub(crate) const ACCEPT: &str = "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=";

/// A handshake with further fields.
pub(crate) fn upgrade(path: &str, fields: &str) -> Vec<u8> {
    format!(
        "GET {path} HTTP/1.1\r\nhost: router\r\nupgrade: websocket\r\nconnection: keep-alive, \
         Upgrade\r\nsec-websocket-key: {KEY}\r\nsec-websocket-version: 13\r\n{fields}\r\n"
    )
    .into_bytes()
}

/// The head that accepts.
pub(crate) fn accepting() -> String {
    format!(
        "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\
         Sec-WebSocket-Accept: {ACCEPT}\r\nSec-WebSocket-Protocol: realtime\r\n\r\n"
    )
}

/// Accepts.
pub(crate) fn switch(stream: &mut TcpStream) {
    stream.write_all(accepting().as_bytes()).unwrap();
}

/// A worker that accepts each handshake, then does this with the connection.
pub(crate) fn speaking(then: impl Fn(&mut TcpStream) + Send + Sync + 'static) -> Worker {
    Worker::start(move |_, stream| {
        switch(stream);
        then(stream);
        false
    })
}

/// Sends back what it is sent, until the end.
pub(crate) fn echo() -> Worker {
    speaking(|stream| {
        let mut buffer = vec![0; 65_536];
        while let Ok(count @ 1..) = stream.read(&mut buffer) {
            if stream.write_all(&buffer[..count]).is_err() {
                return;
            }
        }
    })
}
