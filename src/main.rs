//! `forebay`: parse, run, exit code.

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> std::process::ExitCode {
    forebay_heap::keep_small();
    forebay::cli::run()
}
