//! A raw HTTP/1.1 client: sends bytes, reads one answer at a time.

use super::PATIENCE;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, ClientConnection, Stream};
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
    /// Between the stream and the bytes of HTTP.
    pub(crate) tls: Option<Box<ClientConnection>>,
    /// The end came without a word over TLS.
    pub(crate) was_cut: bool,
    input: Vec<u8>,
}

/// One answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
    /// False if the connection ended before the body did.
    pub(crate) complete: bool,
}

impl Client {
    pub(crate) fn connect(address: SocketAddr) -> Self {
        let stream = TcpStream::connect(address).expect("connect");
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self { stream, tls: None, was_cut: false, input: Vec::new() }
    }

    /// Connects and shakes hands.
    pub(crate) fn connect_tls(address: SocketAddr, tls: &Arc<ClientConfig>, name: &str) -> Self {
        Self::try_tls(address, tls, name).expect("handshake")
    }

    pub(crate) fn try_tls(
        address: SocketAddr,
        tls: &Arc<ClientConfig>,
        name: &str,
    ) -> io::Result<Self> {
        let mut client = Self::connect(address);
        client.secure(tls, name).map(|()| client)
    }

    /// Shakes hands.
    pub(crate) fn secure(&mut self, tls: &Arc<ClientConfig>, name: &str) -> io::Result<()> {
        let name = ServerName::try_from(name.to_owned()).unwrap();
        let mut connection = Box::new(ClientConnection::new(Arc::clone(tls), name).unwrap());
        while connection.is_handshaking() {
            connection.complete_io(&mut self.stream)?;
        }
        self.tls = Some(connection);
        Ok(())
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.try_send(bytes).expect("send");
    }

    pub(crate) fn try_send(&mut self, bytes: &[u8]) -> io::Result<()> {
        match &mut self.tls {
            None => self.stream.write_all(bytes),
            Some(tls) => {
                let mut stream = Stream::new(&mut **tls, &mut self.stream);
                stream.write_all(bytes).and_then(|()| stream.flush())
            }
        }
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match &mut self.tls {
            None => self.stream.read(buffer),
            Some(tls) => Stream::new(&mut **tls, &mut self.stream).read(buffer),
        }
    }

    /// Reads the next final answer (interim ones are returned too).
    pub(crate) fn reply(&mut self) -> Reply {
        self.reply_to(false)
    }

    /// The same; the answer to a HEAD has no body.
    pub(crate) fn reply_to(&mut self, head_request: bool) -> Reply {
        let head = loop {
            if let Some(end) = memchr::memmem::find(&self.input, b"\r\n\r\n") {
                break self.input.drain(..end + 4).collect::<Vec<u8>>();
            }
            assert!(
                self.more(),
                "closed before the head ended: {:?}",
                String::from_utf8_lossy(&self.input)
            );
        };
        let head = String::from_utf8(head).expect("ASCII head");
        let status = head[9..12].parse().expect("status");
        let mut reply = Reply { status, head, ..Reply::default() };
        if head_request || status < 200 || status == 204 || status == 304 {
            reply.complete = true;
        } else if let Some(length) = reply.field("content-length") {
            self.exactly(length.parse().unwrap(), &mut reply);
        } else if reply.field("transfer-encoding").is_some() {
            self.chunks(&mut reply);
        } else {
            while self.more() {}
            reply.body = std::mem::take(&mut self.input);
            reply.complete = true;
        }
        reply
    }

    /// The next bytes; fewer at the end of the connection.
    pub(crate) fn bytes(&mut self, count: usize) -> Vec<u8> {
        let mut reply = Reply::default();
        self.exactly(count, &mut reply);
        reply.body
    }

    /// What has come and was not read off.
    pub(crate) fn taken(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.input)
    }

    /// True if the other side has closed and sent nothing more.
    pub(crate) fn at_end(&mut self) -> bool {
        self.input.is_empty() && !self.more()
    }

    /// Waits until something has come, and leaves it there.
    pub(crate) fn peek(&self, awaited: &str) {
        while let Err(error) = self.stream.peek(&mut [0]) {
            assert_eq!(error.kind(), ErrorKind::Interrupted, "{awaited}: {error}");
        }
    }

    /// Reads on until this has come, and keeps all.
    pub(crate) fn until_seen(&mut self, awaited: &[u8]) {
        while memchr::memmem::find(&self.input, awaited).is_none() {
            assert!(self.more(), "closed before {:?}", String::from_utf8_lossy(awaited));
        }
    }

    /// Reads on until this has come, which is thrown away with all before.
    pub(crate) fn until_body(&mut self, awaited: &[u8]) {
        loop {
            if let Some(at) = memchr::memmem::find(&self.input, awaited) {
                self.input.drain(..at + awaited.len());
                return;
            }
            assert!(self.more(), "closed before {:?}", String::from_utf8_lossy(awaited));
        }
    }

    /// Reads to the end: does a chunked body end there as it should?
    pub(crate) fn ends_with_chunk(&mut self) -> bool {
        while self.more() {}
        self.input.ends_with(b"0\r\n\r\n")
    }

    /// Reads once.
    pub(crate) fn try_more(&mut self) -> io::Result<usize> {
        let mut buffer = [0; 65_536];
        let count = self.read(&mut buffer)?;
        self.input.extend_from_slice(&buffer[..count]);
        Ok(count)
    }

    fn more(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        match self.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.more(),
            Ok(0) => false,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => {
                self.was_cut = true;
                false
            }
            Err(error) => panic!("no answer in time: {error}"),
        }
    }

    fn exactly(&mut self, length: usize, reply: &mut Reply) {
        while self.input.len() < length {
            if !self.more() {
                reply.body = std::mem::take(&mut self.input);
                return;
            }
        }
        reply.body = self.input.drain(..length).collect();
        reply.complete = true;
    }

    fn chunks(&mut self, reply: &mut Reply) {
        loop {
            let line = loop {
                if let Some(end) = memchr::memmem::find(&self.input, b"\r\n") {
                    break self.input.drain(..end + 2).collect::<Vec<u8>>();
                }
                if !self.more() {
                    return;
                }
            };
            let size = std::str::from_utf8(&line[..line.len() - 2]).unwrap();
            let size = usize::from_str_radix(size, 16).expect("chunk size");
            while self.input.len() < size + 2 {
                if !self.more() {
                    reply.body.append(&mut self.input);
                    return;
                }
            }
            reply.body.extend(self.input.drain(..size));
            assert_eq!(self.input.drain(..2).collect::<Vec<u8>>(), b"\r\n");
            if size == 0 {
                reply.complete = true;
                return;
            }
        }
    }
}

impl Reply {
    pub(crate) fn field(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| {
            let (key, value) = line.split_once(':')?;
            key.eq_ignore_ascii_case(name).then(|| value.trim())
        })
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.body).into_owned()
    }
}
