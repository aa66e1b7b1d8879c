//! A raw HTTP/1.1 client: sends bytes, reads one answer at a time.

use super::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};

/// One connection.
pub(crate) struct Client {
    pub(crate) stream: TcpStream,
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
        Self { stream, input: Vec::new() }
    }

    pub(crate) fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).expect("send");
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

    fn more(&mut self) -> bool {
        let mut buffer = [0; 65_536];
        match self.stream.read(&mut buffer) {
            Err(error) if error.kind() == ErrorKind::Interrupted => self.more(),
            Ok(0) => false,
            Ok(count) => {
                self.input.extend_from_slice(&buffer[..count]);
                true
            }
            Err(error) if error.kind() == ErrorKind::ConnectionReset => false,
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
