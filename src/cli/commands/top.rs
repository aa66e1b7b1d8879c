//! `forebay top`: feeds a router's live stream and keys to `forebay_top`, and frames to the
//! terminal.

use crate::cli::process::{finish, run_local, warned};
use crate::cli::router_client::{RouterArgs, SILENCE_MAX, cause};
use crate::cli::router_stream::{RouterStream, silence_error};
use clap::Args;
use forebay_top::{App, LineReader, PressResult, Snapshot, TerminalGuard, TopKey, keys, text};
use futures_util::StreamExt;
use std::io::{self, Write};
use std::process::ExitCode;
use std::time::Duration;
use tokio::sync::mpsc::{Receiver, Sender, channel};
use tokio::time::timeout;

/// Pause before a lost connection is opened again.
const RETRY_AFTER: Duration = Duration::from_secs(1);
/// Most keys and snapshots that wait to be drawn.
const WAKEUPS_MAX: usize = 64;
/// Width of the output of `--once`.
const TEXT_COLUMNS: u16 = 132;

/// Flags of `forebay top`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay top\n  \
    forebay top --router https://gateway:9090 --ca-file ca.pem --token-file admin-read-token\n  \
    forebay top --once\n\n\
    Keys: s and S choose the column to sort by, r reverses, / filters, f freezes,\n\
    enter shows all of one rank, q quits. NO_COLOR turns colors off.\n\
    The token may also stand in FOREBAY_ADMIN_TOKEN.")]
pub(crate) struct TopArgs {
    #[command(flatten)]
    router: RouterArgs,
    /// Print one frame with all ranks as text, and end
    #[arg(long)]
    once: bool,
}

/// Events of the command.
enum Wakeup {
    Key(TopKey),
    Resized,
    Snapshot(Box<Snapshot>),
    Lost(String),
}

pub(crate) fn run(args: &TopArgs) -> ExitCode {
    let shown = checked(args).and_then(|stream| {
        let run = async { if args.once { once(&stream).await } else { watch(stream).await } };
        run_local(run)?
    });
    finish(shown)
}

/// The stream that the flags select, or the fault of the flags.
pub(crate) fn checked(args: &TopArgs) -> Result<RouterStream, String> {
    Ok(RouterStream::new(args.router.client()?, "/live"))
}

/// Passes each snapshot to `take`, until it returns false.
async fn snapshots(
    stream: &RouterStream,
    mut take: impl AsyncFnMut(Snapshot) -> bool,
) -> Result<(), String> {
    let answer = stream.open().await?;
    let mut reader = LineReader::default();
    let mut bytes = answer.bytes_stream();
    while let Some(piece) = timeout(SILENCE_MAX, bytes.next()).await.map_err(silence_error)? {
        let piece = piece.map_err(|error| cause(&error))?;
        let mut lines = Vec::new();
        let whole = reader.push(&piece, |line| lines.push(Snapshot::read(line)));
        whole.map_err(|error| error.to_string())?;
        for snapshot in lines {
            if !take(snapshot?).await {
                return Ok(());
            }
        }
    }
    Err("the stream ended".to_owned())
}

/// Waits for two snapshots, since rates need both.
async fn once(stream: &RouterStream) -> Result<(), String> {
    let mut app = App::new(stream.router(), false);
    let followed = snapshots(stream, async |snapshot| {
        app.update(&snapshot);
        !app.has_rates()
    });
    followed.await.map_err(|error| format!("{}: {error}", stream.url()))?;
    if let Some(warning) = stream.warning() {
        warned(warning);
    }
    let written = io::stdout().lock().write_all(text(&app, TEXT_COLUMNS).as_bytes());
    written.map_err(|error| format!("cannot write the frame: {error}"))
}

async fn watch(stream: RouterStream) -> Result<(), String> {
    let has_colors = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (sender, wakeups) = channel(WAKEUPS_MAX);
    let mut terminal = TerminalGuard::new(io::stdout())
        .map_err(|error| format!("no terminal ({error}); `--once` needs none"))?;
    let from_keys = sender.clone();
    // Reads block. The process ends without joining the thread.
    let reading = std::thread::Builder::new().name("keys".to_owned()).spawn(move || {
        keys(|key| from_keys.blocking_send(key.map_or(Wakeup::Resized, Wakeup::Key)).is_ok());
    });
    reading.map_err(|error| format!("no thread for keys: {error}"))?;
    let app = App::new(stream.router(), has_colors);
    tokio::select! {
        ended = show(&mut terminal, app, wakeups) => ended,
        () = follow(stream, sender) => Ok(()),
        () = crate::cli::process::signalled() => Ok(()),
    }
}

/// Reads the stream, and reconnects after each end, until the screen closes.
async fn follow(stream: RouterStream, sender: Sender<Wakeup>) {
    while !sender.is_closed() {
        let handed = snapshots(&stream, async |snapshot| {
            sender.send(Wakeup::Snapshot(Box::new(snapshot))).await.is_ok()
        });
        if let Err(why) = handed.await {
            let _ = sender.send(Wakeup::Lost(why)).await;
        }
        tokio::time::sleep(RETRY_AFTER).await;
    }
}

async fn show(
    terminal: &mut TerminalGuard<io::Stdout>,
    mut app: App,
    mut wakeups: Receiver<Wakeup>,
) -> Result<(), String> {
    loop {
        terminal.draw(&app).map_err(|error| format!("the terminal has gone: {error}"))?;
        match wakeups.recv().await {
            None => return Ok(()),
            Some(Wakeup::Key(key)) if app.press(key) == PressResult::Quit => return Ok(()),
            Some(Wakeup::Key(_) | Wakeup::Resized) => {}
            Some(Wakeup::Snapshot(snapshot)) => app.update(&snapshot),
            Some(Wakeup::Lost(why)) => app.stream_lost(&why),
        }
    }
}
