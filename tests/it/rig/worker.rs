//! A scripted worker: for every request it reads completely, a closure decides what bytes go back.

use super::PATIENCE;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

/// One request as the worker got it.
#[derive(Clone, Debug)]
pub(crate) struct Seen {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

/// A listening worker; its threads end with the process.
pub(crate) struct Worker {
    pub(crate) address: SocketAddr,
    pub(crate) seen: Receiver<Seen>,
}

type Script = dyn Fn(&Seen, &mut TcpStream) -> bool + Send + Sync;

impl Worker {
    /// `script` answers a request on its stream; false closes the connection.
    pub(crate) fn start(
        script: impl Fn(&Seen, &mut TcpStream) -> bool + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, seen) = channel();
        let script: Arc<Script> = Arc::new(script);
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let script = Arc::clone(&script);
                let sender = sender.clone();
                std::thread::spawn(move || serve(stream, &*script, &sender));
            }
        });
        Self { address, seen }
    }

    /// Answers everything with 200 and this JSON.
    pub(crate) fn json(body: &'static str) -> Self {
        Self::start(move |_, stream| {
            let reply = format!(
                "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
                body.len()
            );
            stream.write_all(reply.as_bytes()).is_ok()
        })
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// The next request.
    pub(crate) fn next(&self) -> Seen {
        self.seen.recv_timeout(PATIENCE).expect("a request reaches the worker")
    }
}

fn serve(mut stream: TcpStream, script: &Script, seen: &Sender<Seen>) {
    stream.set_nodelay(true).unwrap();
    let mut input = Vec::new();
    loop {
        let Some(end) = memchr::memmem::find(&input, b"\r\n\r\n") else {
            if !more(&mut stream, &mut input) {
                return;
            }
            continue;
        };
        let head = String::from_utf8(input.drain(..end + 4).collect()).unwrap();
        let length = head
            .lines()
            .find_map(|line| {
                line.to_ascii_lowercase().strip_prefix("content-length:")?.trim().parse().ok()
            })
            .unwrap_or(0_usize);
        while input.len() < length {
            if !more(&mut stream, &mut input) {
                return;
            }
        }
        let request = Seen { head, body: input.drain(..length).collect() };
        // The test may have ended and dropped its end.
        let _ = seen.send(request.clone());
        if !script(&request, &mut stream) {
            return;
        }
    }
}

fn more(stream: &mut TcpStream, input: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 65_536];
    match stream.read(&mut buffer) {
        Ok(count) => {
            input.extend_from_slice(&buffer[..count]);
            count > 0
        }
        Err(error) if error.kind() == ErrorKind::Interrupted => more(stream, input),
        Err(_) => false,
    }
}
