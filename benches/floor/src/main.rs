//! The floor of `tools/peers`: a proxy on `monoio` that reads the head of a request and copies
//! bytes. It parses no body, chooses by turns, and knows no timeout and no failure.
//!
//! usage: floor PORT WORKER_PORT...

use monoio::buf::IoBufMut;
use monoio::io::{AsyncReadRent, AsyncWriteRent, AsyncWriteRentExt, Splitable};
use monoio::net::{TcpListener, TcpStream};
use monoio::{IoUringDriver, RuntimeBuilder};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};

/// Room of a read: a body of 64 KB comes in two pieces.
const READ_BYTES: usize = 64 * 1024;
const FIELDS_MAX: usize = 32;

fn main() -> io::Result<()> {
    let mut ports = Vec::new();
    for word in std::env::args().skip(1) {
        ports.push(word.parse().map_err(|_| io::Error::other(format!("no port: {word}")))?);
    }
    let (Some(port), Some(workers)) = (ports.first().copied(), ports.get(1..)) else {
        return Err(io::Error::other("usage: floor PORT WORKER_PORT..."));
    };
    if workers.is_empty() {
        return Err(io::Error::other("usage: floor PORT WORKER_PORT..."));
    }
    let mut runtime = RuntimeBuilder::<IoUringDriver>::new().build()?;
    runtime.block_on(serve(local(port), workers.iter().copied().map(local)))
}

fn local(port: u16) -> SocketAddr {
    (Ipv4Addr::LOCALHOST, port).into()
}

/// Gives each client connection a connection to the next worker.
async fn serve(
    address: SocketAddr,
    workers: impl Iterator<Item = SocketAddr> + Clone,
) -> io::Result<()> {
    let listener = TcpListener::bind(address)?;
    for worker in workers.cycle() {
        let (client, _) = listener.accept().await?;
        client.set_nodelay(true)?;
        monoio::spawn(async move {
            // A peer that has left ends the pair.
            let _ = pair(client, worker).await;
        });
    }
    Ok(())
}

async fn pair(client: TcpStream, worker: SocketAddr) -> io::Result<()> {
    let upstream = TcpStream::connect(worker).await?;
    upstream.set_nodelay(true)?;
    let (mut from_client, to_client) = client.into_split();
    let (from_worker, mut to_worker) = upstream.into_split();
    monoio::spawn(async move {
        let _ = copy(from_worker, to_client).await;
    });
    requests(&mut from_client, &mut to_worker).await?;
    to_worker.shutdown().await
}

/// Copies an answer as its bytes come.
async fn copy(mut from: impl AsyncReadRent, mut to: impl AsyncWriteRent) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    loop {
        let (read, filled) = from.read(buffer).await;
        if read? == 0 {
            return to.shutdown().await;
        }
        let (written, emptied) = to.write_all(filled).await;
        written?;
        buffer = emptied;
    }
}

/// Copies requests: finds the end of each head, and from its length the end of the body.
async fn requests(from: &mut impl AsyncReadRent, to: &mut impl AsyncWriteRent) -> io::Result<()> {
    let mut buffer = Vec::with_capacity(READ_BYTES);
    let mut rest_bytes = 0;
    loop {
        let begin = buffer.len();
        let (read, slice) = from.read(buffer.slice_mut(begin..)).await;
        buffer = slice.into_inner();
        if read? == 0 {
            return Ok(());
        }
        if rest_bytes == 0 {
            match message_bytes(&buffer)? {
                Some(bytes) => rest_bytes = bytes,
                None if buffer.len() < READ_BYTES => continue,
                None => return Err(io::Error::other("the head is too long")),
            }
        }
        let Some(left) = rest_bytes.checked_sub(buffer.len()) else {
            return Err(io::Error::other("a client sent two requests at once"));
        };
        rest_bytes = left;
        let (written, emptied) = to.write_all(buffer).await;
        written?;
        buffer = emptied;
        buffer.clear();
    }
}

/// Length of the head and the body, once the head is complete.
fn message_bytes(bytes: &[u8]) -> io::Result<Option<usize>> {
    let mut fields = [httparse::EMPTY_HEADER; FIELDS_MAX];
    let mut head = httparse::Request::new(&mut fields);
    let Ok(httparse::Status::Complete(head_bytes)) = head.parse(bytes) else { return Ok(None) };
    let field = head.headers.iter().find(|field| field.name.eq_ignore_ascii_case("content-length"));
    let length = match field {
        Some(field) => std::str::from_utf8(field.value).ok().and_then(|text| text.parse().ok()),
        None => Some(0),
    };
    length
        .and_then(|length: usize| head_bytes.checked_add(length))
        .map(Some)
        .ok_or_else(|| io::Error::other("a content-length is no number"))
}
