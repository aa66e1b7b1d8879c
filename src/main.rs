//! `forebay`: parse, run, exit code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

#[cfg(not(feature = "loom"))]
fn main() -> std::process::ExitCode {
    forebay::cli::run()
}

/// The models need the library alone, but `cargo test` builds the program beside them.
#[cfg(feature = "loom")]
fn main() {}
