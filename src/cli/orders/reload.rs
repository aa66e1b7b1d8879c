//! `forebay reload`: the router reads its configuration again.

use super::answer_text::{json, line, list, word, words};
use crate::cli::process::{finish, run_local};
use crate::cli::router_client::RouterArgs;
use clap::Args;
use serde_json::Value;
use std::io::{self, Write};
use std::process::ExitCode;

/// Flags of `forebay reload`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay reload -c /etc/forebay/forebay.toml\n\n\
    The router reads its own file and flags again; -c only says where the router listens.\n\
    Prints what was applied, and what needs a restart: `forebay upgrade` does that.\n\
    Exit code 1 with the findings if the file has errors: nothing has changed then.")]
pub(crate) struct ReloadArgs {
    /// Print the answer of the admin API
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    router: RouterArgs,
}

pub(crate) fn run(args: &ReloadArgs) -> ExitCode {
    finish(run_local(report(args, &mut io::stdout().lock())).and_then(|done| done))
}

async fn report(args: &ReloadArgs, out: &mut impl Write) -> Result<(), String> {
    let client = args.router.client()?;
    match client.post(&["admin", "reload"], None, "applied").await {
        Ok(answer) => {
            if args.json {
                json(&answer, out)
            } else {
                applied(&answer, out)
            }
        }
        Err(fault) => {
            if args.json && !fault.answer.is_null() {
                json(&fault.answer, out)?;
            } else {
                findings(&fault.answer, out)?;
            }
            Err(format!("not reloaded: {}", fault.reason))
        }
    }
}

fn applied(answer: &Value, out: &mut impl Write) -> Result<(), String> {
    findings(answer, out)?;
    let applied = words(answer, "applied");
    let restart = words(answer, "needs_restart");
    if applied.is_empty() && restart.is_empty() {
        return line("no key has changed; files with certificates were read again", out);
    }
    if !applied.is_empty() {
        line(&format!("applied: {applied}"), out)?;
    }
    if restart.is_empty() {
        return Ok(());
    }
    line(&format!("needs a restart: {restart}. help: forebay upgrade"), out)
}

fn findings(answer: &Value, out: &mut impl Write) -> Result<(), String> {
    for finding in list(answer, "findings") {
        let part = |name: &str| word(finding, name);
        let mut text = format!("{}: {}: {}", part("where"), part("severity"), part("what"));
        if !part("help").is_empty() {
            text.push_str(". help: ");
            text.push_str(part("help"));
        }
        line(&text, out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_is_said_in_lines() {
        let said = |answer: Value| {
            let mut out = Vec::new();
            applied(&answer, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            said(json!({"applied": [], "needs_restart": []})),
            "no key has changed; files with certificates were read again\n"
        );
        let finding = json!({"where": "f:1:2", "severity": "warning", "what": "w", "help": "h"});
        let all = json!({"applied": ["policy", "kv"], "needs_restart": ["cores"],
                         "findings": [finding]});
        let wanted = "f:1:2: warning: w. help: h\napplied: policy, kv\n\
                      needs a restart: cores. help: forebay upgrade\n";
        assert_eq!(said(all), wanted);
    }
}
