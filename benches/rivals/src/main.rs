//! Compares prefix indexes on the same histories: Forebay's, which is looked up by the bytes of the
//! prompt; one of token blocks; and Dynamo's. See the package's README.

#![allow(
    clippy::indexing_slicing,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::result_large_err,
    reason = "a measurement reads the clock and stops where it goes wrong; a rival may lock"
)]

mod apply;
mod byte_keyed;
mod churn;
mod counting;
mod dynamo;
mod flat;
mod history;
mod lookup;
mod memory;
mod report;
mod token_keyed;
mod words;

use std::process::ExitCode;
use words::Words;

#[global_allocator]
static ALLOCATOR: counting::Counting = counting::Counting;

const USAGE: &str = "usage: rivals [--quick] [--rounds N] [memory] [apply] [lookup]";

fn main() -> ExitCode {
    let mut parts = Vec::new();
    let mut quick = false;
    let mut rounds = 5;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--quick" => (quick, rounds) = (true, 1),
            "--rounds" => match arguments.next().and_then(|count| count.parse().ok()) {
                Some(count @ 1..) => rounds = count,
                _ => return usage(),
            },
            "memory" | "apply" | "lookup" => parts.push(argument),
            _ => return usage(),
        }
    }
    let wants = |part: &str| parts.is_empty() || parts.iter().any(|wanted| wanted == part);
    let words = Words::new();
    if wants("memory") {
        memory::measure(&words, quick);
    }
    if wants("apply") {
        apply::measure(&words, rounds, quick);
    }
    if wants("lookup") {
        lookup::measure(&words, rounds, quick);
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::FAILURE
}
