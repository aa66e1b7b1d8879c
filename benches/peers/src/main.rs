//! Load and workers for `tools/peers`: one thread that is four workers behind a router and the
//! clients in front of it. Reads one command a line from its input, writes one line of JSON for
//! each, and serves the workers in between. Ends with its input.
//!
//! Cheap on purpose: requests are made before the run, the worker never copies a body, and an
//! answer is compared in place.
#![allow(
    clippy::indexing_slicing,
    reason = "a bench that is wrong stops; all indexes are its own numbers"
)]

mod command;
mod load;
mod prompts;
mod report;
mod window;

use command::{Command, Inbox};
use forebay_bench_rig::Rig;
use load::run;
use prompts::Pools;
use serde_json::{Value, json};
use std::io::{self, Write};
use std::num::NonZeroU64;
use std::process::ExitCode;

fn main() -> ExitCode {
    match serve() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _no_reader = writeln!(io::stderr(), "peers: {error}");
            ExitCode::FAILURE
        }
    }
}

fn serve() -> io::Result<()> {
    // Timers fire when they are due, not 50 us later.
    rustix::thread::set_current_timer_slack(NonZeroU64::new(1))?;
    let mut rig = Rig::new()?;
    let mut pools = Pools::default();
    let mut inbox = Inbox::open(&rig.poller)?;
    while let Some(line) = inbox.next_line(&mut rig)? {
        let answer = obey(&mut rig, &mut pools, &line);
        let answer = answer.unwrap_or_else(|error| json!({ "error": error.to_string() }));
        writeln!(io::stdout(), "{answer}")?;
    }
    Ok(())
}

fn obey(rig: &mut Rig, pools: &mut Pools, line: &[u8]) -> io::Result<Value> {
    match serde_json::from_slice(line)? {
        Command::Listen { ports } => {
            rig.stub.listen(&rig.poller, &ports)?;
            Ok(json!({ "listening": ports }))
        }
        Command::Run(plan) => run(rig, pools, &plan),
    }
}
