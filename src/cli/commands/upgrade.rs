//! `forebay upgrade`: makes the running router start its program again and hand over to it.

use crate::cli::findings::error_at;
use crate::cli::process::{failed, plain};
use clap::Args;
use forebay_config::{ConfigSource, Flags};
use forebay_handover::{HandoverAddress, TakeError, upgrade};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `upgrade`, which select the router.
#[derive(Debug, Args)]
#[command(after_help = "Example: install the new binary in the old one's place, then\n  \
    forebay upgrade -c /etc/forebay.toml\n\n\
    The running router starts its program again, with the same arguments. The new process\n\
    takes over the listening sockets and the index. Once it serves, the old one finishes the\n\
    requests that it has, within timeouts.drain. If the new process does not come up, the old\n\
    one goes on, the errors of the new process are printed, and the exit code is 1.")]
pub(crate) struct UpgradeArgs {
    /// Configuration file of the router
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: Option<PathBuf>,
    /// Where the router listens, if that is not in the file
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<SocketAddr>,
}

pub(crate) fn run(args: &UpgradeArgs) -> ExitCode {
    match report(args, &mut io::stdout().lock()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => failed(reason),
    }
}

fn report(args: &UpgradeArgs, out: &mut impl Write) -> Result<(), String> {
    let listen = listen(args)?;
    let answer =
        HandoverAddress::of(listen).map_err(TakeError::from).and_then(|place| upgrade(&place));
    if let Err(TakeError::Failed { report, .. }) = &answer {
        for error in report.lines() {
            // A failed print is ignored: the log has the errors too.
            let _ = writeln!(out, "{}", plain(error));
        }
    }
    let process = answer.map_err(|error| format!("not upgraded: {error}"))?.ok_or_else(|| {
        format!(
            "not upgraded: no router of this user that can hand over listens on {listen}; name its \
             address with --listen, or run this as root or as the router's user"
        )
    })?;
    // A failed print is ignored: the upgrade is done.
    let _ = writeln!(out, "process {process} serves on {listen}");
    Ok(())
}

/// Listen address of the router.
fn listen(args: &UpgradeArgs) -> Result<SocketAddr, String> {
    let source = ConfigSource { file: args.config.clone(), flags: Flags::default() };
    if let Some(listen) = args.listen {
        return Ok(listen);
    }
    let loaded = source.load()?;
    match error_at(&loaded, "`listen`") {
        Some(error) => Err(format!("{error}; mend the file, or name the router with --listen")),
        None => Ok(loaded.config.listen),
    }
}
