//! Runs one stage of the request's path so many times, for `tools/stages`, which counts its
//! instructions in callgrind. Inputs are made from fixed seeds: two runs execute the same.
//!
//! usage: stages                 prints the stages
//!        stages STAGE COUNT     runs one
//!        stages --processor     prints what the libraries choose their code by
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::indexing_slicing,
    clippy::print_stderr,
    clippy::print_stdout,
    reason = "a bench that cannot set up stops"
)]

mod inputs;
mod stages;
mod world;

use stages::Operation;
use std::process::ExitCode;

/// Runs before the counted ones.
const WARM_COUNT: u32 = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => print_names(),
        ["--processor"] => println!("{}", processor()),
        [name, count] => count_stage(name, count.parse().expect("COUNT is a number")),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

fn print_names() {
    for (name, _) in stages::STAGES {
        println!("{name}");
    }
}

fn count_stage(name: &str, count: u32) {
    let stage = stages::STAGES.iter().find(|(stage, _)| *stage == name);
    let (_, make) = stage.expect("STAGE is one of those that `stages` prints");
    let mut operation = make();
    // What grows on first use has grown.
    for _ in 0..WARM_COUNT {
        operation.prepare();
        operation.run();
    }
    for _ in 0..count {
        operation.prepare();
        measured(&mut *operation);
    }
}

/// Callgrind counts while this function runs, by its name.
#[inline(never)]
fn measured(operation: &mut dyn Operation) {
    operation.run();
}

/// Libraries have code for several processors. Which one runs decides what is counted.
fn processor() -> String {
    let mut words = vec![std::env::consts::ARCH];
    #[cfg(target_arch = "x86_64")]
    {
        let features = [
            ("sse4.2", is_x86_feature_detected!("sse4.2")),
            ("pclmulqdq", is_x86_feature_detected!("pclmulqdq")),
            ("avx2", is_x86_feature_detected!("avx2")),
            ("bmi2", is_x86_feature_detected!("bmi2")),
            ("avx512bw", is_x86_feature_detected!("avx512bw")),
        ];
        words.extend(features.iter().filter(|(_, is_there)| *is_there).map(|(name, _)| *name));
    }
    words.join(" ")
}
