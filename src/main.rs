//! `forebay`: parse, run, exit code.

#[global_allocator]
static ALLOCATOR: forebay_heap::Heap = forebay_heap::Heap;

fn main() -> std::process::ExitCode {
    forebay_heap::keep_small();
    forebay::cli::run()
}
