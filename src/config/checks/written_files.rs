//! Checks files that the router replaces as a whole.

use super::check::{Check, folder_fault};
use crate::keys::finding::Origin;
use crate::keys::setting::Kind;
use crate::keys::table::KeyTable;
use crate::sections::schema::Config;
use forebay_base::{FileFault, open_file};
use rustix::fs::{Access, access};
use serde_json::Value;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Writing the index of a large fleet takes a good part of this.
const SNAPSHOT_EVERY_MIN: Duration = Duration::from_secs(1);

impl Check<'_> {
    pub(super) fn snapshot(&mut self, config: &Config) {
        let index = &config.index;
        let every = index.snapshot_every;
        if !every.is_zero() && every < SNAPSHOT_EVERY_MIN {
            let what = "`index.snapshot_every` is less than a second";
            self.error("index.snapshot_every", what, "give 0 to write only when the router ends");
        }
        if let Some(path) = &index.snapshot {
            self.written_file("index.snapshot", path, config);
        }
    }

    pub(super) fn workers_state(&mut self, config: &Config) {
        if let Some(path) = &config.workers_state {
            self.written_file("workers_state", path, config);
        }
    }

    /// Checks a file that the router replaces as a whole.
    fn written_file(&mut self, key: &str, path: &Path, config: &Config) {
        let shown = path.display();
        if path.as_os_str().is_empty() {
            return self.error(key, format!("`{key}` is empty"), "name a file, or remove the key");
        }
        if let Some(other) = self.other_use(key, path, config) {
            let what = format!("`{key}` {shown} is {other} too");
            self.error(key, what, "the router would write over it: name a file of its own");
        }
        let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
        let folder = parent.unwrap_or(Path::new("."));
        if path.file_name().is_none() || path.is_dir() {
            self.error(key, format!("`{key}` {shown} is a directory"), "name a file in it");
        } else if let Some(FileFault { what, help }) = folder_fault(folder) {
            self.error(key, format!("`{key}` {shown}: {what}"), help);
        } else if access(folder, Access::WRITE_OK | Access::EXEC_OK).is_err() {
            let what = format!("`{key}` {shown}: no file can be made in {}", folder.display());
            self.warning(key, what, "the user who runs the router has to be able to");
        } else if let Err(error) = open_file(path)
            && error.kind() != ErrorKind::NotFound
        {
            let FileFault { what, help } = FileFault::of_read(path, &error, "");
            self.warning(key, format!("`{key}` {what}"), help);
        }
    }

    /// Another key with the same file, or the file of the configuration.
    fn other_use(&self, key: &str, path: &Path, config: &Config) -> Option<String> {
        let real = real_path(path);
        let is_it = |other: &str| Path::new(other) == path || real_path(Path::new(other)) == real;
        if matches!(self.origins.of(key), Origin::File { name, .. } if is_it(&name)) {
            return Some("the file of the configuration".to_owned());
        }
        let mut other = None;
        config.each(|known, setting| {
            let text = setting.show(known);
            let is_same = text
                .as_ref()
                .and_then(Value::as_str)
                .is_some_and(|text| setting.kind(known) == Kind::Text && is_it(text));
            // Of two files that are written, the second has the finding.
            let is_first = key == "workers_state" && known.path == "index.snapshot";
            if is_same && known.path != key && !is_first {
                other.get_or_insert_with(|| format!("`{}`", known.path));
            }
        });
        other
    }
}

/// The path without links and detours. Of a file that is not there yet, the path of its folder.
fn real_path(path: &Path) -> PathBuf {
    let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let in_folder = || {
        let folder = parent.unwrap_or(Path::new(".")).canonicalize().ok()?;
        Some(folder.join(path.file_name()?))
    };
    path.canonicalize().ok().or_else(in_folder).unwrap_or_else(|| path.to_owned())
}

#[cfg(test)]
mod tests {
    use crate::keys::finding::Severity;
    use crate::{ConfigText, Flags, load};
    use std::os::unix::fs::symlink;

    /// Issue 39: with another spelling of its path, the configuration or the token of the admin API
    /// was replaced by the orders of operators.
    #[test]
    fn no_spelling_of_a_path_lets_the_router_write_over_another_file() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        std::fs::create_dir(at("sub")).unwrap();
        std::fs::write(at("token"), "0123456789abcdef0123456789abcdef").unwrap();
        symlink(at("token"), at("token-link")).unwrap();
        symlink(at("f.toml"), at("link")).unwrap();
        symlink(folder.path(), at("folder-link")).unwrap();
        let spellings = |name: &str| {
            [
                name.to_owned(),
                format!("./{name}"),
                format!("sub/../{name}"),
                format!("folder-link/{name}"),
            ]
        };
        let links = ["link", "token-link"].map(str::to_owned);
        let all = spellings("f.toml").into_iter().chain(spellings("token")).chain(links);
        for name in all {
            let shown = at("").join(&name);
            let shown = shown.display();
            for key in ["workers_state", "index.snapshot"] {
                let token = at("token");
                let text = format!(
                    "{key} = \"{shown}\"\nadmin_token_file = \"{}\"\n[[worker]]\n\
                     url = \"http://127.0.0.1:8001\"\n",
                    token.display()
                );
                std::fs::write(at("f.toml"), &text).unwrap();
                let file = at("f.toml");
                let name = file.to_str().unwrap();
                let found = load(Some(ConfigText { name, text: &text }), &Flags::default());
                let errors = found.findings.iter().filter(|it| it.severity == Severity::Error);
                let errors: Vec<String> = errors.map(|error| error.to_string()).collect();
                assert!(
                    errors.iter().any(|error| error.contains("would write over it")),
                    "{key} {name}: {errors:?}"
                );
            }
        }
    }
}
