//! Faults of sources of workers, in two texts: the full text, and a text for callers without a
//! token, which names no folder of the machine.

use super::super::fleet::PlaceError;
use forebay_admin::SourceFault;
use forebay_config::{Finding, Origin, Severity};
use std::path::Path;

/// What to do about a name that brings no workers.
const NAME_HELP: &str = "look the name up by hand; correct `discovery.dns` or the record";
/// Commands with the full text of a fault.
const FULL_TEXT: &str = "`forebay check` and `forebay workers` have the fault";

/// The first error of a file, and the number of further errors. `forebay check` has all.
pub(super) fn of_file(path: &Path, findings: &[Finding]) -> SourceFault {
    let mut errors = findings.iter().filter(|finding| finding.severity == Severity::Error);
    let first = errors.next();
    let more = match errors.count() {
        0 => String::new(),
        more => format!(" ({more} more: `forebay check` has all)"),
    };
    let full = first.map(Finding::in_words).unwrap_or_default();
    let brief = first.map(|finding| without_folders(path, finding)).unwrap_or_default();
    SourceFault { full: full + &more, brief: brief + &more }
}

/// A name that cannot be resolved, or has no address.
pub(super) fn of_name(fault: &str) -> SourceFault {
    let brief = if names_folder(fault) { "it cannot be resolved" } else { fault };
    let text = |fault: &str| format!("{fault}. help: {NAME_HELP}");
    SourceFault { full: text(fault), brief: text(brief) }
}

/// A file that no thread could read.
pub(super) fn of_thread() -> SourceFault {
    SourceFault::of("it could not be read")
}

/// Workers of a list that got no place, by their URLs; `None`: all have a place.
pub(super) fn of_refused(refused: &[(String, PlaceError)]) -> Option<SourceFault> {
    let (url, reason) = refused.first()?;
    let count = refused.len();
    let reason = reason.to_string();
    let brief = if names_folder(&reason) { FULL_TEXT } else { &reason };
    let full = format!("{count} of its workers not added: {url}: {reason}");
    Some(SourceFault { full, brief: format!("{count} of its workers not added: {brief}") })
}

/// A finding with its place and advice. A text with another file is replaced by the key alone.
fn without_folders(path: &Path, finding: &Finding) -> String {
    let folder_and_file = path.display().to_string();
    let file = path.file_name().unwrap_or_default().display().to_string();
    let what = finding.what.replace(&folder_and_file, &file);
    let place = match &finding.origin {
        Origin::File { line, column, .. } => format!("{file}:{line}:{column}: "),
        Origin::Flag(_) | Origin::Whole => String::new(),
    };
    let help = finding.help.as_str();
    let has_safe_help = !help.is_empty() && !names_folder(help);
    if names_folder(&what) {
        let subject = key_in(&what).map_or_else(|| "a value".to_owned(), |key| format!("`{key}`"));
        let help = if has_safe_help { format!("{help}; ") } else { String::new() };
        return format!("{place}{subject} is faulty. help: {help}{FULL_TEXT}");
    }
    let help = if has_safe_help { format!(". help: {help}") } else { String::new() };
    format!("{place}{what}{help}")
}

/// The first key of the text, such as `worker.url`.
fn key_in(text: &str) -> Option<&str> {
    let is_key = |text: &&str| {
        let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
        !text.is_empty() && text.bytes().all(is_of_key)
    };
    text.split('`').skip(1).step_by(2).find(is_key)
}

/// May the text name a folder? URLs of engines are no folders.
fn names_folder(text: &str) -> bool {
    let is_url = |word: &str| {
        let word = word.trim_start_matches(|letter: char| !letter.is_ascii_alphanumeric());
        word.starts_with("http://") || word.starts_with("https://")
    };
    text.split_whitespace().any(|word| word.contains('/') && !is_url(word))
}

#[cfg(test)]
mod tests {
    use super::*;
    use forebay_config::{Config, read_worker_file};

    /// M2: `/readyz` needs no token, so no folder is in its text, whatever the fault.
    #[test]
    fn no_folder_of_the_machine_is_in_the_brief_text() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("w.toml");
        let worker = "[[worker]]\nurl = \"http://a:1\"\n";
        let tls = "[[worker]]\nurl = \"https://a:1\"\n";
        let secret = "/etc/secret folder/key";
        for (text, place) in [
            (format!("{worker}api_key_file = \"{secret}\"\n"), "w.toml:3:16: `api_key_file` "),
            (format!("{worker}model_dir = \"{secret}\"\n"), "w.toml:3:13: `model_dir` "),
            (format!("{tls}tls_ca = \"{secret}\"\n"), "w.toml:"),
            (format!("{tls}tls_cert = \"{secret}\"\ntls_key = \"{secret}\"\n"), "w.toml:"),
            (format!("{worker}name = \"{secret}\"\n"), "w.toml:3:8: `name` "),
            (format!("{worker}role = \"{secret}\"\n"), "w.toml:3:8: "),
            (format!("{worker}\"{secret}\" = 1\n"), "w.toml:3:1: "),
            (format!("[[worker]]\nurl = \"{secret}\"\n"), "w.toml:2:7: `url` "),
            (format!("[[worker]]\nurl = {secret}\n"), "w.toml:2:"),
            (format!("log.file = \"{secret}\"\n"), "w.toml:1:"),
            ("# none\n".to_owned(), "w.toml lists no worker. help: "),
        ] {
            std::fs::write(&path, &text).unwrap();
            let found = read_worker_file(&path, &Config::default()).usable().unwrap_err();
            let SourceFault { full, brief } = of_file(&path, &found);
            assert!(brief.starts_with(place), "{text}: {brief}");
            assert!(full.contains(&folder.path().display().to_string()), "{full}");
            assert!(!brief.contains("secret") && !brief.contains("/etc"), "{text}: {brief}");
            assert!(!brief.contains(&folder.path().display().to_string()), "{text}: {brief}");
        }
        std::fs::remove_file(&path).unwrap();
        let found = read_worker_file(&path, &Config::default()).usable().unwrap_err();
        let missing = of_file(&path, &found).brief;
        assert!(missing.starts_with("w.toml cannot be read: No such file"), "{missing}");
        let refused = of_refused(&[("http://a:1".to_owned(), PlaceError::Name)]).unwrap();
        assert!(refused.brief.contains("of that name is there"), "{refused:?}");
        let name = of_name("cannot read /etc/resolv.conf");
        assert!(name.full.contains("/etc") && !name.brief.contains("/etc"), "{name:?}");
    }
}
