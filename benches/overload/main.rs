//! Back pressure over sockets: routers and simulated engines as processes, clients in this one.
//! What is measured and how to read it: `benches/overload/README.md`.

mod burst;
mod client;
mod cores;
mod load;
mod modes;
mod modes_table;
mod numbers;
mod options;
mod places;
mod processes;
mod workload;

use clap::Parser;
use options::{Options, What};
use std::io::{self, Write};
use std::process::ExitCode;
use tokio::task::LocalSet;

/// The program's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match run(&Options::parse()) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            let _nobody_listens = writeln!(io::stderr(), "overload: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run(options: &Options) -> io::Result<bool> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    LocalSet::new().block_on(&runtime, async {
        match &options.what {
            What::Burst(burst) => burst::run(options, burst).await,
            What::Modes(modes) => modes::run(options, modes).await,
        }
    })
}
