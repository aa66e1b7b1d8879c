//! `forebay check`: reports the findings of a configuration without starting the router.

use super::machine::available_cores;
use crate::cli::findings;
use crate::cli::process::failed;
use clap::Args;
use forebay_config::{Config, ConfigSource, Flags, to_toml};
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Flags of `forebay check`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay check -c forebay.toml\n  \
    forebay check -c forebay.toml --print\n\n\
    Every finding is one line `file:line:column: error|warning: what. help: what to do`.\n\
    The file of `discovery.file` is checked too.\n\
    Cores that this machine lacks are warnings: `serve` does not start on it. So are variables\n\
    of the environment with the name of a key: no key is read from there.\n\
    Exit code 0 without errors (warnings are allowed), 1 with errors.")]
pub(crate) struct CheckArgs {
    /// The file to check
    #[arg(short = 'c', long = "config", value_name = "FILE")]
    config: PathBuf,
    /// Also print the effective configuration, defaults included, secrets masked
    #[arg(long)]
    print: bool,
}

pub(crate) fn run(args: &CheckArgs) -> ExitCode {
    match report(args, &mut io::stdout().lock()) {
        Ok(code) => code,
        Err(reason) => failed(reason),
    }
}

/// Writes the report; the exit code is that of the command.
pub(crate) fn report(args: &CheckArgs, out: &mut impl Write) -> Result<ExitCode, String> {
    let source = ConfigSource { file: Some(args.config.clone()), flags: Flags::default() };
    let mut loaded = source.load()?;
    loaded.check_cores(&available_cores());
    loaded.findings.extend(findings::of_environment());
    let of_file = loaded.read_workers().len();
    let write = |out: &mut dyn Write| -> io::Result<()> {
        let mut out = out;
        findings::write(&loaded.findings, &mut out)?;
        let name = args.config.display();
        if loaded.findings.is_empty() {
            writeln!(out, "{name}: ok, {}", workers(&loaded.config, of_file))?;
        } else {
            writeln!(out, "{name}: {}", findings::summary(&loaded.findings))?;
        }
        if args.print {
            write!(out, "\n{}", to_toml(&loaded.config))?;
        }
        out.flush()
    };
    write(out).map_err(|error| format!("cannot write the report: {error}"))?;
    let fatal = findings::are_fatal(&loaded.findings);
    Ok(if fatal { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// `2 workers, 8 workers of /etc/workers.toml, workers of http://engines:8000`: by source.
fn workers(config: &Config, of_file: usize) -> String {
    let discovery = &config.discovery;
    let listed = Some(config.workers.len()).filter(|&count| count > 0 || !discovery.is_on());
    let listed = listed.map(counted);
    let file = discovery.file.as_ref();
    let file = file.map(|path| format!("{} of {}", counted(of_file), path.display()));
    let names = discovery.dns.iter().map(|url| format!("workers of {url}"));
    listed.into_iter().chain(file).chain(names).collect::<Vec<_>>().join(", ")
}

fn counted(count: usize) -> String {
    format!("{count} worker{}", if count == 1 { "" } else { "s" })
}
