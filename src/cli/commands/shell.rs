//! `forebay completions` and `forebay man`: shell completions and man pages.

use clap::{Args, Command};
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::PathBuf;

/// Arguments of `forebay completions`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay completions bash > /etc/bash_completion.d/forebay\n  \
    forebay completions zsh > ~/.zfunc/_forebay\n  \
    forebay completions fish > ~/.config/fish/completions/forebay.fish")]
pub(crate) struct CompletionsArgs {
    /// The shell that will read the script
    shell: Shell,
}

/// Arguments of `forebay man`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  forebay man /usr/local/share/man/man1")]
pub(crate) struct ManArgs {
    /// Folder for the pages, one per command
    folder: PathBuf,
}

/// Writes the completion script of a command line to standard output.
pub(crate) fn completions(args: &CompletionsArgs, mut of: Command) -> Result<(), String> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut of, "forebay", &mut script);
    let written = io::stdout().lock().write_all(&script);
    written.map_err(|error| format!("cannot write the script: {error}"))
}

/// Writes a man page for each command.
pub(crate) fn man(args: &ManArgs, of: Command) -> Result<(), String> {
    clap_mangen::generate_to(of, &args.folder)
        .map_err(|error| format!("cannot write to {}: {error}", args.folder.display()))
}
