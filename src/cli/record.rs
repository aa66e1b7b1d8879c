//! `forebay record`: KV-event streams to a file until a time or a signal.

use super::logging;
use super::process::{failed, run_local, signalled};
use clap::Args;
use forebay_config::LogConfig;
use forebay_record::{RecordSource, Recorded, record};
use forebay_zmq::ZmqEndpoint;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// Flags of `forebay record`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay record --from tcp://gpu1:5557 --out gpu1.kvrec\n  \
    forebay record --from tcp://gpu1:5557 --from tcp://gpu1:5558 --topic kv@ --seconds 60 --out both.kvrec\n\n\
    Each --from is one stream, that is one data-parallel rank. Streams that cannot be reached are tried again until the\n\
    end. What an engine published before is not in the recording: start with the engine to have all of it.\n\
    Ends after --seconds, or at SIGINT or SIGTERM. After a crash the file is good up to a second before it.\n\
    The format stands in src/record/format.rs.")]
pub(super) struct RecordArgs {
    /// Where a rank publishes: tcp://host:port or ipc:///path, `bind:` before it to listen; repeat
    /// for more
    #[arg(long, value_name = "ENDPOINT", required = true)]
    pub(super) from: Vec<String>,
    /// Prefix of the topics to record [default: all]
    #[arg(long, value_name = "TOPIC", default_value = "", hide_default_value = true)]
    pub(super) topic: String,
    /// Time to record [default: until a signal]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) seconds: Option<u64>,
    /// File to write; must not exist
    #[arg(long, value_name = "FILE")]
    pub(super) out: PathBuf,
}

pub(super) fn run(args: &RecordArgs) -> ExitCode {
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
    let recorded = run_local(record(&sources, &args.out, stop))?;
    let recorded = recorded.map_err(|error| error.to_string())?;
    report(args, &recorded, &mut io::stdout().lock()).map_err(|error| error.to_string())
}

fn report(args: &RecordArgs, recorded: &Recorded, out: &mut impl Write) -> io::Result<()> {
    for (endpoint, messages) in args.from.iter().zip(&recorded.messages) {
        writeln!(out, "{endpoint}: {messages} messages")?;
    }
    let Recorded { frame_bytes, file_bytes, .. } = recorded;
    writeln!(out, "{}: {file_bytes} bytes for {frame_bytes} bytes of events", args.out.display())
}
