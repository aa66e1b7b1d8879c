//! `forebay record`: records KV-event streams, and notes of a router's requests, to a file, until a
//! time limit or a signal.

use crate::cli::logging;
use crate::cli::process::{failed, run_local, signalled};
use crate::cli::router_client::{RouterClient, RouterFiles, cause};
use crate::cli::router_stream::RouterStream;
use clap::Args;
use forebay_config::LogConfig;
use forebay_record::{
    MESSAGE_BYTES_MAX, RecordSource, RecordingTotals, RequestSource, STEADY, SourceLink, record,
};
use forebay_zmq::ZmqEndpoint;
use futures_util::StreamExt;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Notes that wait to be written to the file.
const NOTES_MAX: usize = 1_024;
/// Length prefix of each note in the stream.
const LENGTH_BYTES: usize = 4;

/// Flags of `forebay record`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay record --from tcp://gpu1:5557 --out gpu1.kvrec\n  \
    forebay record --from tcp://gpu1:5557 --from tcp://gpu1:5558 --topic kv@ --seconds 60 --out both.kvrec\n  \
    forebay record --router http://127.0.0.1:9090 --seconds 600 --out day.kvrec\n\n\
    Each --from is one stream, that is one data-parallel rank. Streams that cannot be reached are tried again until the\n\
    end. What an engine published before is not in the recording: start with the engine to have all of it.\n\
    Ends after --seconds, or at SIGINT or SIGTERM. After a crash the file is good up to a second before it.\n\
    --router adds a note of each request, for `forebay explain`: keyed hashes of its prompt's\n\
    parts, arrival, rank and cached tokens. No text.\n\
    The page Recording of the book has more.")]
pub(crate) struct RecordArgs {
    /// Where a rank publishes: tcp://host:port or ipc:///path, `bind:` before it to listen; repeat
    /// for more
    #[arg(long, value_name = "ENDPOINT", required_unless_present = "router")]
    pub(crate) from: Vec<String>,
    /// Prefix of the topics to record [default: all]
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    pub(crate) topic: String,
    /// Admin address of a router whose requests are noted
    #[arg(long, value_name = "URL")]
    router: Option<String>,
    /// File with the token of `admin_read_token_file` or `admin_token_file`
    #[arg(long, value_name = "FILE", requires = "router")]
    token_file: Option<PathBuf>,
    /// Authorities of the router's certificate [default: those of the system]
    #[arg(long, value_name = "FILE", requires = "router")]
    ca_file: Option<PathBuf>,
    /// Time to record [default: until a signal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) seconds: Option<u64>,
    /// File to write; must not exist
    #[arg(long, value_name = "FILE")]
    pub(crate) out: PathBuf,
}

pub(crate) fn run(args: &RecordArgs) -> ExitCode {
    match recorded(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

fn recorded(args: &RecordArgs) -> Result<(), String> {
    let source = |text: &String| {
        let endpoint = ZmqEndpoint::parse(text, "127.0.0.1").map_err(|error| error.to_string())?;
        Ok(RecordSource { endpoint, topic: args.topic.clone() })
    };
    let sources: Vec<RecordSource> = args.from.iter().map(source).collect::<Result<_, String>>()?;
    let _logging = logging::start(&LogConfig::default())?;
    let stop = async {
        match args.seconds {
            Some(seconds) => tokio::select! {
                () = tokio::time::sleep(Duration::from_secs(seconds)) => {}
                () = signalled() => {}
            },
            None => signalled().await,
        }
    };
    let stream = args.router.as_ref().map(|router| {
        let token = args.token_file.as_deref();
        let ca = args.ca_file.as_deref();
        let client = RouterClient::new(router, RouterFiles { token, ca });
        client.map(|client| RouterStream::new(client, "/debug/requests"))
    });
    let stream = stream.transpose()?;
    let recorded = run_local(async {
        let requests = stream.map(|stream| {
            let (writer, notes) = mpsc::channel(NOTES_MAX);
            let endpoint = stream.url().to_owned();
            let link = SourceLink::new(endpoint.clone());
            let is_reached = link.is_reached();
            tokio::task::spawn_local(follow(stream, writer, link));
            RequestSource { endpoint, notes, is_reached }
        });
        record(&sources, requests, &args.out, stop).await
    })?;
    let recorded = recorded.map_err(|error| error.to_string())?;
    ended(args, &recorded, &mut io::stdout().lock())
}

/// Reports a recording. A file that holds nothing would be in the way of the next try.
fn ended(
    args: &RecordArgs,
    recorded: &RecordingTotals,
    out: &mut impl Write,
) -> Result<(), String> {
    let unreached = unreached(args, recorded);
    if !unreached.is_empty() && recorded.messages.iter().all(|count| *count == 0) {
        let file = args.out.display();
        let removed = std::fs::remove_file(&args.out);
        let left = removed.err().map(|error| format!("; cannot remove {file}: {error}"));
        let left = left.unwrap_or_default();
        return Err(format!("no connection to {}: nothing recorded{left}", unreached.join(", ")));
    }
    report(args, recorded, out).map_err(|error| error.to_string())?;
    if unreached.is_empty() {
        return Ok(());
    }
    Err(format!("no connection to {}: the file has nothing of it", unreached.join(", ")))
}

/// Sources without any connection. A recording that lacks a source is no success.
fn unreached<'a>(args: &'a RecordArgs, recorded: &RecordingTotals) -> Vec<&'a str> {
    let sources = args.from.iter().chain(&args.router).zip(&recorded.reached);
    sources.filter(|(_, is_reached)| !**is_reached).map(|(source, _)| source.as_str()).collect()
}

/// Reads the router's stream, and reconnects after each end, until the writer stops.
async fn follow(stream: RouterStream, writer: mpsc::Sender<Vec<u8>>, mut link: SourceLink) {
    while !writer.is_closed() {
        let error = session(&stream, &writer, &mut link).await;
        tokio::time::sleep(link.mark_lost(error)).await;
    }
}

/// A connection from its begin to its end. Returns the reason of the end.
async fn session(
    stream: &RouterStream,
    writer: &mpsc::Sender<Vec<u8>>,
    link: &mut SourceLink,
) -> String {
    let answer = match stream.open().await {
        Ok(answer) => answer,
        Err(error) => return error,
    };
    link.mark_reached();
    let error = notes(answer, writer, link).await.err();
    // Marks the end of a connection in the recording. Without a note since the last end, there is
    // nothing to separate.
    if link.is_up() {
        let _ = writer.send(Vec::new()).await;
    }
    error.unwrap_or_else(|| "the router ended the stream".to_owned())
}

async fn notes(
    answer: reqwest::Response,
    writer: &mpsc::Sender<Vec<u8>>,
    link: &mut SourceLink,
) -> Result<(), String> {
    let mut pieces = answer.bytes_stream();
    let mut bytes = Vec::<u8>::new();
    loop {
        let piece = match timeout(STEADY, pieces.next()).await {
            Ok(Some(piece)) => piece,
            Ok(None) => return Ok(()),
            Err(_) => {
                link.mark_up();
                continue;
            }
        };
        bytes.extend_from_slice(&piece.map_err(|error| cause(&error))?);
        let mut rest: &[u8] = &bytes;
        while let Some(note) = take_note(&mut rest)? {
            link.mark_up();
            if writer.send(note).await.is_err() {
                return Ok(());
            }
        }
        let used = bytes.len() - rest.len();
        bytes.drain(..used);
    }
}

/// Takes a complete note off the front.
fn take_note(bytes: &mut &[u8]) -> Result<Option<Vec<u8>>, String> {
    let Some((length, rest)) = bytes.split_first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
    let length = usize::try_from(u32::from_le_bytes(*length)).unwrap_or(usize::MAX);
    if length == 0 || length > MESSAGE_BYTES_MAX {
        return Err("the stream is no stream of notes".to_owned());
    }
    let Some((note, rest)) = rest.split_at_checked(length) else { return Ok(None) };
    *bytes = rest;
    Ok(Some(note.to_vec()))
}

fn report(args: &RecordArgs, recorded: &RecordingTotals, out: &mut impl Write) -> io::Result<()> {
    for (endpoint, messages) in args.from.iter().chain(&args.router).zip(&recorded.messages) {
        writeln!(out, "{endpoint}: {messages} messages")?;
    }
    let RecordingTotals { frame_bytes, file_bytes, .. } = recorded;
    writeln!(out, "{}: {file_bytes} bytes for {frame_bytes} bytes of events", args.out.display())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;
    use std::net::TcpListener;

    /// Notes of a session with a server of this response, and whether the link was up at its end.
    fn recorded_from(response: &[u8]) -> (Vec<Vec<u8>>, bool) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let response = response.to_vec();
        let server = std::thread::spawn(move || {
            let (mut client, _) = listener.accept().unwrap();
            let _ = client.read(&mut [0; 1_024]).unwrap();
            let _ = client.write_all(&response);
        });
        let client = RouterClient::new(&address, RouterFiles { token: None, ca: None }).unwrap();
        let stream = RouterStream::new(client, "/debug/requests");
        let mut link = SourceLink::new(address);
        let (writer, mut notes) = mpsc::channel(NOTES_MAX);
        let _ended = run_local(session(&stream, &writer, &mut link)).unwrap();
        server.join().unwrap();
        drop(writer);
        let received = std::iter::from_fn(|| notes.try_recv().ok()).collect();
        (received, link.is_up())
    }

    /// A recording of a day with a router that was away for an hour had 3,600 ends of connections,
    /// and the log had only the first loss. A server that ended each stream at once had a line and
    /// an end each second.
    #[test]
    fn each_connection_with_a_note_has_an_end() {
        let head = "HTTP/1.1 200 OK\r\nx-forebay-admin: 1\r\nconnection: close\r\n\r\n";
        let stream = [head.as_bytes(), &3_u32.to_le_bytes(), b"abc"].concat();
        assert_eq!(recorded_from(&stream), (vec![b"abc".to_vec(), Vec::new()], true));
        assert_eq!(recorded_from(head.as_bytes()), (Vec::new(), false), "no note, no end");
        let refused = b"HTTP/1.1 503 Service Unavailable\r\ncontent-length: 0\r\n\r\n";
        assert_eq!(recorded_from(refused), (Vec::new(), false), "no connection, no end");
    }

    /// Arguments with three sources.
    fn args(out: PathBuf) -> RecordArgs {
        RecordArgs {
            from: vec!["tcp://a:1".to_owned(), "tcp://b:1".to_owned()],
            topic: String::new(),
            router: Some("http://r:1".to_owned()),
            token_file: None,
            ca_file: None,
            seconds: None,
            out,
        }
    }

    /// Issue 39: the next try failed, because the file of a recording of nothing was there.
    #[test]
    fn a_failed_recording_leaves_a_file_only_with_something_in_it() {
        let folder = tempfile::tempdir().unwrap();
        let out = folder.path().join("a.kvrec");
        for (messages, reached, is_kept) in [
            ([0, 0, 0], [false; 3], false),
            ([0, 0, 0], [true, true, false], false),
            ([1, 0, 0], [true, false, false], true),
            ([0, 0, 0], [true; 3], true),
        ] {
            std::fs::write(&out, "begun").unwrap();
            let recorded = RecordingTotals {
                messages: messages.to_vec(),
                reached: reached.to_vec(),
                ..RecordingTotals::default()
            };
            let ended = ended(&args(out.clone()), &recorded, &mut Vec::new());
            assert_eq!((ended.is_ok(), out.exists()), (reached == [true; 3], is_kept), "{ended:?}");
        }
    }

    #[test]
    fn sources_without_a_connection_are_named() {
        let args = args(PathBuf::new());
        let recorded = |reached: [bool; 3]| RecordingTotals {
            reached: reached.to_vec(),
            ..RecordingTotals::default()
        };
        assert_eq!(unreached(&args, &recorded([true; 3])), Vec::<&str>::new());
        assert_eq!(unreached(&args, &recorded([true, false, false])), ["tcp://b:1", "http://r:1"]);
    }
}
