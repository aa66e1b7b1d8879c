//! Faults of a configuration file, in two texts: the full text, and a text for callers without a
//! token, which names no folder of the machine.

use forebay_admin::SourceFault;
use forebay_config::{Finding, Origin, Severity};
use std::path::Path;

/// Command with the full text of a fault.
const FULL_TEXT: &str = "`forebay check` has the fault";

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

/// Why a file cannot be read, for callers without a token.
pub(super) fn unreadable(path: &Path, reason: &str) -> String {
    let brief = without_folder(path, reason);
    if names_folder(&brief) { FULL_TEXT.to_owned() } else { brief }
}

/// A finding with its place and advice. A text with another file is replaced by the key alone.
fn without_folders(path: &Path, finding: &Finding) -> String {
    let mut what = without_folder(path, &finding.what);
    let place = match &finding.origin {
        // The file of keys that the configuration names has findings of its own.
        Origin::File { name, line, column } => {
            let file = Path::new(name);
            what = without_folder(file, &what);
            format!("{}:{line}:{column}: ", name_of(file))
        }
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

/// The text with the name of the file in place of its path.
fn without_folder(path: &Path, text: &str) -> String {
    let folder_and_file = path.display().to_string();
    if folder_and_file.is_empty() {
        return text.to_owned();
    }
    text.replace(&folder_and_file, &name_of(path))
}

fn name_of(path: &Path) -> String {
    path.file_name().unwrap_or_default().display().to_string()
}

/// The first key of the text, such as `worker.url`.
fn key_in(text: &str) -> Option<&str> {
    let is_key = |text: &&str| {
        let is_of_key = |byte: u8| byte.is_ascii_alphanumeric() || b"_.".contains(&byte);
        !text.is_empty() && text.bytes().all(is_of_key)
    };
    text.split('`').skip(1).step_by(2).find(is_key)
}

/// May the text name a folder? URLs of engines are no folders, unless they have credentials.
pub(super) fn names_folder(text: &str) -> bool {
    let is_url = |word: &str| {
        let word = word.trim_start_matches(|letter: char| !letter.is_ascii_alphanumeric());
        let has_scheme = word.starts_with("http://") || word.starts_with("https://");
        has_scheme && !word.contains('@')
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
    }

    /// The check of a configuration reads the file of keys too.
    #[test]
    fn a_fault_of_another_file_has_the_name_of_that_file() {
        let path = Path::new("/etc/forebay/forebay.toml");
        let at = |name: &str| Origin::File { name: name.to_owned(), line: 7, column: 8 };
        let finding = Finding::error(at("/etc/keys/keys.toml"), "`hash` is no SHA-256", "");
        assert_eq!(of_file(path, &[finding]).brief, "keys.toml:7:8: `hash` is no SHA-256");
        let what = "`api_keys`: cannot read /etc/keys/keys.toml";
        let finding = Finding::error(at("/etc/forebay/forebay.toml"), what, "write it");
        let brief = of_file(path, &[finding.clone(), finding]).brief;
        let wanted = "forebay.toml:7:8: `api_keys` is faulty. help: write it; \
                      `forebay check` has the fault (1 more: `forebay check` has all)";
        assert_eq!(brief, wanted);
        let unread = unreadable(path, "cannot read /etc/forebay/forebay.toml: No such file");
        assert_eq!(unread, "cannot read forebay.toml: No such file");
        let other = unreadable(Path::new(""), "cannot read /etc/keys/keys.toml");
        assert_eq!(other, FULL_TEXT);
    }

    #[test]
    fn credentials_in_a_url_are_left_out() {
        let path = Path::new("/etc/forebay.toml");
        for (what, is_shown) in [
            ("`jwt.jwks` https://user:word@host/keys: no such host", false),
            ("`worker.url` http://gpu:1/x has a path", true),
        ] {
            let brief = of_file(path, &[Finding::error(Origin::Whole, what, "")]).brief;
            assert_eq!(brief.contains("://"), is_shown, "{brief}");
        }
    }
}
