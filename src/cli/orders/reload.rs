//! `forebay reload`: the router reads its configuration again.

use super::answer_text::{json, line, list, word, words};
use crate::cli::process::{finish, run_local, warned};
use crate::cli::router_client::RouterArgs;
use clap::Args;
use serde_json::Value;
use std::fs::canonicalize;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// Flags of `forebay reload`.
#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  \
    forebay reload -c /etc/forebay/forebay.toml\n\n\
    The router reads its own file and flags again; -c only says where the router listens.\n\
    The first line names the file. A warning follows if -c is another file.\n\
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
            if let Some(named) = args.router.config() {
                let warning = other_file(&answer, named);
                warning.into_iter().for_each(warned);
            }
            if args.json { json(&answer, out) } else { applied(&answer, out) }
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

/// Warns that the router has read another file than `named`. A file that is not of this machine, as
/// that of a container, may be the same under another name.
fn other_file(answer: &Value, named: &Path) -> Option<String> {
    let shown = named.display();
    let read = match answer.get("file")? {
        Value::String(read) => read,
        _ => {
            return Some(format!(
                "warning: {shown} was not read: the router was started with flags alone. help: \
                 start the router with -c {shown}"
            ));
        }
    };
    let is_other = canonicalize(read).ok()? != canonicalize(named).ok()?;
    is_other.then(|| {
        format!(
            "warning: {shown} was not read: the router reads {read}. help: change that file, or \
             start the router with -c {shown}"
        )
    })
}

fn applied(answer: &Value, out: &mut impl Write) -> Result<(), String> {
    match answer.get("file") {
        Some(Value::String(file)) => line(&format!("read {file}"), out)?,
        Some(_) => line("started with flags alone: there is no file to read", out)?,
        // A router of an earlier version.
        None => {}
    }
    findings(answer, out)?;
    let applied = words(answer, "applied");
    let restart = words(answer, "needs_restart");
    if applied.is_empty() && restart.is_empty() {
        return line("no key has changed; files that keys name were read again", out);
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

    /// A router of another file, or of none, answered as if it had read the file of `-c`.
    #[test]
    fn another_file_than_that_of_the_router_is_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        let [own, other] = ["own.toml", "other.toml"].map(path);
        std::fs::write(&own, "").unwrap();
        std::fs::write(&other, "").unwrap();
        let warning = |file: Value, named: &Path| other_file(&json!({ "file": file }), named);
        assert_eq!(warning(json!(own), &own), None);
        assert_eq!(warning(json!(own), &folder.path().join("./own.toml")), None);
        let found = warning(json!(own), &other).unwrap();
        assert!(found.contains("other.toml was not read: the router reads "), "{found}");
        assert!(warning(Value::Null, &own).unwrap().contains("with flags alone"));
        assert_eq!(warning(json!("/of/a/container.toml"), &own), None, "it may be the same");
        assert_eq!(other_file(&json!({}), &own), None, "an older router");
    }

    #[test]
    fn an_answer_is_said_in_lines() {
        let said = |answer: Value| {
            let mut out = Vec::new();
            applied(&answer, &mut out).unwrap();
            String::from_utf8(out).unwrap()
        };
        assert_eq!(
            said(json!({"applied": [], "needs_restart": []})),
            "no key has changed; files that keys name were read again\n"
        );
        assert_eq!(
            said(json!({"applied": [], "needs_restart": [], "file": "/etc/n.toml"})),
            "read /etc/n.toml\nno key has changed; files that keys name were read again\n"
        );
        assert_eq!(
            said(json!({"applied": ["api_keys"], "needs_restart": [], "file": null})),
            "started with flags alone: there is no file to read\napplied: api_keys\n"
        );
        let finding = json!({"where": "f:1:2", "severity": "warning", "what": "w", "help": "h"});
        let all = json!({"applied": ["policy", "kv"], "needs_restart": ["cores"],
                         "findings": [finding]});
        let wanted = "f:1:2: warning: w. help: h\napplied: policy, kv\n\
                      needs a restart: cores. help: forebay upgrade\n";
        assert_eq!(said(all), wanted);
    }
}
